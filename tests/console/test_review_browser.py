"""An agent at the official MCP client asks, a person in a real browser decides, or is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse
from mcp import Client
from playwright.sync_api import Browser, Page, expect

from governance import audit, services
from governance.models import AuditEvent, Plan
from governance.policies import policy_set
from loomsite.ops import Role
from memories.models import Memory, MemoryVersion
from tests.console.conftest import PASSWORD, Cast
from tests.console.plans import agent_token, ask, planned
from tests.console.test_browser import (  # noqa: F401 - fixtures
    Visit,
    browser,
    cast_now,
    pytestmark,
    visit,
)
from tests.doors.serving import served, talk


class Agent:
    """An agent with a writer's token at the MCP door, spoken to by the official client."""

    def __init__(self, url: str, token: str) -> None:
        self.url = f"{url}/mcp?toolset=all"
        self.token = token

    def call(self, tool: str, **arguments: Any) -> Any:
        """One tool call; the tools are listed first, so that the client validates what comes back."""

        async def conversation(client: Client) -> dict[str, Any]:
            await client.list_tools()
            answer = await client.call_tool(tool, arguments)
            found: dict[str, Any] = answer.structured_content or {}
            return found

        return self.talks(conversation)

    def talks(self, conversation: Callable[[Client], Awaitable[Any]]) -> Any:
        """A conversation, in a thread of its own: the browser's event loop runs in this one."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(talk, self.url, conversation, headers=headers).result()

    def asks_to_delete(self, *keys: str) -> Plan:
        """Dry run, then the real run with the versions that it answered."""
        ids = [
            str(self.call("loom_memory_set", memory_key=key, value=f"about {key}")["memory_id"])
            for key in keys
        ]
        given = {"ids": ids, "action": "delete"}
        shown = self.call("govern_memory", dry_run=True, **given)
        assert (shown["state"], shown["needs_review"]) == ("previewed", True)
        asked = self.call(
            "govern_memory", reason="the freeze is over", confirm_destructive=True,
            expected_versions=shown["expected_versions"], **given,
        )  # fmt: skip
        assert asked["state"] == "pending_review", asked
        return Plan.objects.get(pk=asked["plan_id"])

    def is_told(self, plan: Plan) -> dict[str, Any]:
        """What plan.get says."""
        return self.call("loom_plan_get", plan_id=str(plan.pk))


@pytest.fixture
def agent(cast_now: Cast) -> Iterator[Agent]:  # noqa: F811
    """The agent codex, at a running server."""
    token = agent_token(cast_now)
    with served() as url:
        yield Agent(url, token)


def open_plan(page: Page, plan: Plan) -> None:
    page.goto(reverse("admin:governance_plan_change", args=[plan.pk]))


def approve(page: Page) -> None:
    """What a reviewer does on the plan's page."""
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Approve").click()


def states(*keys: str) -> list[str]:
    return [Memory.objects.get(memory_key=key).status for key in keys]


def outcomes(plan: Plan) -> list[tuple[str, str]]:
    found = AuditEvent.objects.filter(target=f"plan:{plan.pk}").order_by("seq")
    return list(found.values_list("op", "outcome"))


def test_from_the_dry_run_to_the_applied_plan_and_a_checked_chain(
    agent: Agent, visit: Visit, cast_now: Cast  # noqa: F811
) -> None:  # fmt: skip
    plan = agent.asks_to_delete("deploy/freeze", "deploy/old-runner")
    assert states("deploy/freeze", "deploy/old-runner") == ["active", "active"]
    told = agent.is_told(plan)
    assert told["state"] == "pending" and told.get("decision") is None
    assert told["review_url"].endswith(reverse("admin:governance_plan_change", args=[plan.pk]))

    visit.log_in("org_admin")
    page = visit.page
    page.get_by_role("link", name="1 plan to decide").click()
    page.get_by_role("link", name="codex asks to delete 2 memories in acme/deploy").click()
    expect(page.get_by_text("Nothing has moved since it was asked")).to_be_visible()
    expect(page.get_by_text('"about deploy/freeze"')).to_be_visible()
    page.get_by_label("Comment").fill("agreed with the team")
    approve(page)
    expect(page.get_by_role("status")).to_contain_text("Applied: 2 of 2 rows changed")
    expect(page.get_by_role("link", name="Audit row").first).to_be_visible()

    assert states("deploy/freeze", "deploy/old-runner") == ["deleted", "deleted"]
    assert MemoryVersion.objects.filter(status="deleted").count() == 2
    told = agent.is_told(plan)
    assert told["state"] == "applied"
    assert (told["decision"]["by"], told["decision"]["comment"]) == ("org_admin", "agreed with the team")

    page.get_by_role("link", name="Audit", exact=True).click()
    page.get_by_role("button", name="Verify the chain of acme").click()
    expect(page.get_by_role("status")).to_contain_text("is whole")
    assert audit.verify(cast_now.org.pk, "acme").fault is None


def test_a_rejection_tells_the_agent_why(agent: Agent, visit: Visit) -> None:  # noqa: F811
    plan = agent.asks_to_delete("deploy/freeze")
    visit.log_in("reviewer")
    open_plan(visit.page, plan)
    visit.page.get_by_role("button", name="Reject").click()
    expect(visit.page.get_by_text("A rejection needs a reason")).to_be_visible()
    visit.page.get_by_label("Comment").fill("it is still in force")
    visit.page.get_by_role("button", name="Reject").click()
    expect(visit.page.get_by_role("status")).to_contain_text("Rejected")
    told = agent.is_told(plan)
    assert (told["state"], told["decision"]["comment"]) == ("rejected", "it is still in force")
    assert states("deploy/freeze") == ["active"]


def test_what_moves_while_the_page_is_open_voids_it_and_is_asked_anew(
    agent: Agent, visit: Visit  # noqa: F811
) -> None:  # fmt: skip
    plan = agent.asks_to_delete("deploy/freeze", "deploy/other")
    visit.log_in("reviewer")
    page = visit.page
    open_plan(page, plan)
    agent.call("loom_memory_set", memory_key="deploy/freeze", value="prolonged")
    approve(page)
    expect(page.get_by_role("status")).to_contain_text("Nothing was changed: 1 moved")
    expect(page.get_by_text("version was 1, is now 2")).to_be_visible()
    assert states("deploy/freeze", "deploy/other") == ["active", "active"]
    told = agent.is_told(plan)
    assert (told["state"], told["moved_count"]) == ("stale", 1)

    page.get_by_role("button", name="Ask again from the present state").click()
    expect(page.get_by_text("Nothing has moved since it was asked")).to_be_visible()
    approve(page)
    expect(page.get_by_role("status")).to_contain_text("Applied: 2 of 2")
    assert states("deploy/freeze", "deploy/other") == ["deleted", "deleted"]


def test_a_lock_placed_meanwhile_voids_it(
    agent: Agent, visit: Visit, cast_now: Cast  # noqa: F811
) -> None:  # fmt: skip
    plan = agent.asks_to_delete("deploy/freeze")
    visit.log_in("reviewer")
    open_plan(visit.page, plan)
    cast_now.lock(Memory.objects.get(memory_key="deploy/freeze"))
    approve(visit.page)
    expect(visit.page.get_by_role("status")).to_contain_text("Nothing was changed")
    expect(visit.page.get_by_text("lock was not locked, is now read only")).to_be_visible()
    assert (agent.is_told(plan)["state"], states("deploy/freeze")) == ("stale", ["active"])


def test_what_ran_out_while_the_page_was_open_is_not_applied(
    agent: Agent, visit: Visit  # noqa: F811
) -> None:  # fmt: skip
    plan = agent.asks_to_delete("deploy/freeze")
    visit.log_in("reviewer")
    open_plan(visit.page, plan)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_plan SET expires_at = clock_timestamp() WHERE id = %s", [plan.pk])
    approve(visit.page)
    expect(visit.page.get_by_role("status")).to_contain_text("Its time had run out")
    assert (agent.is_told(plan)["state"], states("deploy/freeze")) == ("expired", ["active"])


def test_two_clicks_in_two_tabs_apply_it_once(agent: Agent, visit: Visit) -> None:  # noqa: F811
    plan = agent.asks_to_delete("deploy/freeze")
    visit.log_in("reviewer")
    tabs = [visit.page, visit.context.new_page()]
    for tab in tabs:
        open_plan(tab, plan)
        tab.get_by_label("Your password").fill(PASSWORD)
    for tab in tabs:
        # Sends the form and does not wait for the answer, so that both are under way.
        tab.evaluate("setTimeout(() => document.querySelector('[value=approve]').click(), 50)")
    for tab in tabs:
        expect(tab.get_by_text("codex asked to delete 1 memory")).to_be_visible()
    assert outcomes(plan).count(("plan.apply", "applied")) == 1
    assert outcomes(plan).count(("plan.approve", "approved")) == 1
    assert MemoryVersion.objects.filter(status="deleted").count() == 1


def test_an_approval_is_void_once_its_giver_has_lost_the_role(
    agent: Agent, visit: Visit, cast_now: Cast  # noqa: F811
) -> None:  # fmt: skip
    owner = cast_now.people["owner"]
    policy_set(namespace=cast_now.deploy, by=owner, levels={}, approvals=2, reason="two of us")
    plan = agent.asks_to_delete("deploy/freeze")
    visit.log_in("reviewer")
    open_plan(visit.page, plan)
    approve(visit.page)
    expect(visit.page.get_by_role("status")).to_contain_text("1 of 2 approvals")
    services.member_set_role(namespace=cast_now.deploy, member=cast_now.people["reviewer"], role=Role.VIEWER)
    visit.page.get_by_role("button", name="Log out").click()
    visit.log_in("admin")
    open_plan(visit.page, plan)
    approve(visit.page)
    expect(visit.page.get_by_role("status")).to_contain_text("1 of 2 approvals")
    expect(visit.page.get_by_text("This approval is void: the role was lost")).to_be_visible()
    assert (agent.is_told(plan)["state"], states("deploy/freeze")) == ("pending", ["active"])


def test_nobody_decides_his_own_request_nor_one_of_another_namespace(
    visit: Visit, cast_now: Cast  # noqa: F811
) -> None:  # fmt: skip
    own = planned(cast_now, "tmp/1", who="reviewer")
    elsewhere = planned(cast_now, "tmp/2", namespace="secret")
    visit.log_in("reviewer")
    open_plan(visit.page, own)
    expect(visit.page.get_by_text("you asked for it yourself")).to_be_visible()
    expect(visit.page.get_by_role("button", name="Approve")).to_have_count(0)
    answer = visit.page.goto(reverse("admin:governance_plan_change", args=[elsewhere.pk]))
    assert answer is not None and answer.status == 404
    assert set(Plan.objects.values_list("state", flat=True)) == {"pending"}


def test_no_tool_of_the_agent_approves(agent: Agent) -> None:
    plan = agent.asks_to_delete("deploy/freeze")

    async def names(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    found = agent.talks(names)
    assert "loom_plan_get" in found and not [name for name in found if "approve" in name]
    for op in ("plan.approve", "plan.apply", "plan.decide"):
        given = {"plan_id": str(plan.pk), "digest": plan.digest}
        assert agent.call("loom_op", op=op, input=given)["detail"]["code"] in ("NOT_FOUND", "UNKNOWN_OP")
        assert ask(agent.token, op, **given).status == 404
    assert agent.is_told(plan)["state"] == "pending"


def test_the_keys_lead_through_a_plan_and_send_nothing(visit: Visit, cast_now: Cast) -> None:  # noqa: F811
    plan = planned(cast_now, "tmp/1", "tmp/2", "tmp/3")
    visit.log_in("reviewer")
    page = visit.page
    open_plan(page, plan)
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(page.locator("[data-row]").nth(row)).to_be_focused()
    page.keyboard.press("o")
    expect(page.locator("[data-row]").nth(1).locator("details").first).not_to_have_attribute("open", "")
    page.keyboard.press("?")
    expect(page.get_by_text("goes to this form and sends nothing")).to_be_visible()
    page.keyboard.press("a")
    expect(page.get_by_label("Your password")).to_be_focused()
    page.keyboard.type("a?jr")
    expect(page.get_by_label("Your password")).to_have_value("a?jr")
    page.get_by_role("button", name="Turn the keys off").click()
    page.keyboard.press("r")
    expect(page.get_by_label("Comment")).not_to_be_focused()
    page.get_by_role("button", name="Turn the keys on").click()
    page.keyboard.press("r")
    expect(page.get_by_label("Comment")).to_be_focused()
    assert page.url.endswith(reverse("admin:governance_plan_change", args=[plan.pk]))
    assert Plan.objects.get().state == "pending"


def test_ticked_plans_are_approved_without_script(
    browser: Browser, live_server: Any, cast_now: Cast  # noqa: F811
) -> None:  # fmt: skip
    plans = [planned(cast_now, f"tmp/{number}") for number in range(3)]
    visiting = Visit(browser, live_server.url, java_script_enabled=False)
    visiting.log_in("reviewer")
    page = visiting.page
    page.get_by_role("link", name="Review").click()
    cast_now.remember("tmp/1", "in use again")
    for plan in plans:
        page.get_by_label(f"Tick plan {plan.pk}").check()
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Approve the ticked").click()
    expect(page.get_by_role("status")).to_contain_text("2 approved, 1 skipped: plan")
    expect(page.get_by_role("status")).to_contain_text("it changed while you read")
    assert states("tmp/0", "tmp/1", "tmp/2") == ["deleted", "active", "deleted"]
    visiting.context.close()
    assert visiting.faults == []
