"""The procedure page in a headless Chromium: find, zoom, fit, and no complaint of the browser."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from tests.console.conftest import Cast
from tests.console.test_browser import (  # noqa: F401 - fixtures
    CHROMIUM,
    Visit,
    browser,
    cast_now,
    visit,
)
from tests.procedures.test_real_runs import airline, followed

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here: install Debian's `chromium` for these tests"
    ),
]


def made(cast: Cast, graph: dict[str, Any], name: str) -> str:
    """The address of a new procedure's page."""
    steps = ["Follow the graph", "Report the run"]
    answer = cast.call("procedure.add", name=name, situation="A passenger asks", steps=steps, graph=graph)
    assert answer.ok, answer.body
    return reverse("admin:procedures_procedure_change", args=[answer.body["memory_id"]])


def test_a_node_is_found_and_the_graph_zoomed_and_fitted(visit: Visit, cast_now: Cast) -> None:  # noqa: F811
    runs = airline()
    url = made(cast_now, followed([path for _, _, path in runs], 3), "Airline tools")
    for _, ok, path in runs:
        note = "" if ok else "did not end as asked"
        body = {"memory_key": "procedure_airline_tools", "path": path, "ok": ok, "note": note}
        assert cast_now.call("procedure.record_run", **body).ok
    visit.log_in("viewer")
    page = visit.page
    page.goto(url)
    graph = page.locator("svg.graph")
    expect(graph).to_be_visible()
    whole = graph.get_attribute("viewBox")
    page.get_by_label("Find a node").fill("calculate")
    expect(page.locator(".node.found")).to_have_attribute("data-name", "calculate")
    assert graph.get_attribute("viewBox") != whole
    page.get_by_role("button", name="Fit").click()
    assert graph.get_attribute("viewBox") == whole
    page.get_by_role("button", name="Zoom in").click()
    zoomed = float((graph.get_attribute("viewBox") or "").split()[2])
    assert zoomed < float((whole or "").split()[2])
    page.get_by_role("button", name="Fit").click()
    page.locator(".node").first.focus()
    expect(page.locator(".node title").first).to_contain_text("traversals")


def test_a_graph_of_500_nodes_opens_and_a_node_in_it_is_found(visit: Visit, cast_now: Cast) -> None:  # noqa: F811
    nodes = [{"id": f"n{i}", "kind": "step", "text": f"Do step {i}"} for i in range(500)]
    edges = [{"src": f"n{(i - 1) // 3}", "dst": f"n{i}", "kind": "dep"} for i in range(1, 500)]
    url = made(cast_now, {"nodes": nodes, "edges": edges}, "Big")
    visit.log_in("viewer")
    visit.page.goto(url)
    expect(visit.page.locator(".node")).to_have_count(500)
    visit.page.get_by_label("Find a node").fill("step 417")
    expect(visit.page.locator(".node.found")).to_have_attribute("data-name", "n417")
    expect(visit.page.locator(".node.found")).to_be_in_viewport()
