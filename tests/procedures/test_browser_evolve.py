"""Evolve in a headless Chromium: pressed, followed live, read afterwards; with and without script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, expect

from governance import jobs
from governance.models import Job
from procedures.models import Procedure
from tests.console.conftest import Cast
from tests.console.test_browser import (  # noqa: F401 - fixtures
    AXE,
    CHROMIUM,
    Visit,
    browser,
    cast_now,
    violations,
    visit,
)
from tests.procedures.scene import with_a_past

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here: install Debian's `chromium` for these tests"
    ),
]


@pytest.fixture
def procedure(cast_now: Cast) -> Iterator[Procedure]:  # noqa: F811
    """One with a pending revision and one that was turned down."""
    yield with_a_past(cast_now)


def change(procedure: Procedure) -> str:
    """The address of its page."""
    return reverse("admin:procedures_procedure_change", args=[procedure.pk])


def test_evolve_is_pressed_followed_and_its_result_read(visit: Visit, procedure: Procedure) -> None:  # noqa: F811
    visit.log_in("writer")
    page = visit.page
    page.goto(change(procedure))
    page.get_by_role("button", name="Evolve now").click()
    expect(page.locator("[data-live-state]")).to_have_text("queued")
    expect(page.locator("[data-live-again]")).to_be_hidden()
    assert jobs.run(Job.objects.latest("pk").pk) == "done"
    expect(page.locator("[data-live-state]")).to_have_text("done")
    expect(page.locator("[data-live-lines]")).to_contain_text("Runs folded: 4.")
    page.get_by_role("link", name="Show the page as it is now").click()
    expect(page.get_by_text("Every run is folded")).to_be_visible()
    expect(page.locator("[data-live-lines]")).to_contain_text("Gate: undecided, 3 of 4")


def test_a_gate_is_picked_and_two_revisions_compared_by_keyboard(visit: Visit, procedure: Procedure) -> None:  # noqa: F811
    visit.log_in("viewer")
    page = visit.page
    page.goto(change(procedure))
    page.get_by_role("link", name="Revisions", exact=True).click()
    page.get_by_label("From revision", exact=True).select_option("1")
    page.get_by_label("To revision", exact=True).select_option("2")
    page.get_by_role("button", name="Compare").press("Enter")
    expect(page.get_by_role("heading", name="From revision 1 to 2")).to_be_visible()
    expect(page.locator(".node.removed .figures")).to_have_text("− removed")
    page.get_by_label("Revision", exact=True).select_option("2")
    page.get_by_role("button", name="Show its gate").press("Enter")
    expect(page.get_by_role("heading", name="Gate on revision 2")).to_be_visible()
    expect(page.locator(".gate .verdict")).to_be_visible()
    expect(page.get_by_role("heading", name="From revision 1 to 2")).to_be_visible()


def test_without_script_a_link_shows_how_it_gets_on(
    browser: Browser, live_server: Any, procedure: Procedure,  # noqa: F811
) -> None:  # fmt: skip
    visiting = Visit(browser, live_server.url, java_script_enabled=False)
    visiting.log_in("writer")
    page = visiting.page
    page.goto(change(procedure))
    page.get_by_role("button", name="Evolve now").click()
    assert jobs.run(Job.objects.latest("pk").pk) == "done"
    page.get_by_role("link", name="See whether it is done").click()
    expect(page.get_by_text("Runs folded: 4.")).to_be_visible()
    visiting.context.close()
    assert visiting.faults == []


@pytest.mark.skipif(AXE is None, reason="no axe-core here: install `axe-playwright-python` for this test")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_pages_fit_and_axe_finds_nothing_against_wcag(
    browser: Browser, live_server: Any, procedure: Procedure, scheme: str, width: int,  # noqa: F811
) -> None:  # fmt: skip
    # axe-core measures with inline styles of its own, which the pages' policy rightly refuses.
    visiting = Visit(
        browser,
        live_server.url,
        color_scheme=scheme,
        viewport={"width": width, "height": 844},
        bypass_csp=True,
    )
    visiting.log_in("owner")
    for name, query in (
        ("change", ""),
        ("change", "?gate=2"),
        ("revisions", "?before=1&after=2"),
        ("settings", ""),
    ):
        visiting.page.goto(reverse(f"admin:procedures_procedure_{name}", args=[procedure.pk]) + query)
        visiting.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert violations(visiting.page) == [], name
        wide = visiting.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} px wide"
    visiting.context.close()
