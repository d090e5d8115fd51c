"""Plans from the request to the apply: what waits, who decides, and what voids it."""

from __future__ import annotations

from typing import Any

from governance import plans
from tests.conftest import Cast, Reply
from tests.memories.helpers import sql


def put(cast: Cast, key: str = "k", value: Any = "v", by: str = "mate", **more: Any) -> str:
    """A memory; its id."""
    return str(cast.run("memory.set", {"memory_key": key, "value": value, **more}, by=by)["memory_id"])


def govern(cast: Cast, ids: list[str], action: str = "delete", by: str = "mate", **more: Any) -> Reply:
    """The real run, with the versions of a dry run."""
    shown = cast.run("memory.govern", {"ids": ids, "action": action, "dry_run": True, **more}, by=by)
    body = {
        "ids": ids, "action": action, "reason": "old", "confirm_destructive": True,
        "expected_versions": shown["expected_versions"], **more,
    }  # fmt: skip
    return cast.run("memory.govern", body, by=by)


def approve(cast: Cast, reply: Reply, by: str = "owner", **more: Any) -> plans.Decision:
    given = {"plan_id": int(reply.body["plan_id"]), "digest": reply.body["digest"], **more}
    return plans.plan_approve(reviewer=cast.people[by], **given)


def status(key: str) -> str:
    ((found,),) = sql("SELECT status FROM memories_memory WHERE memory_key = %s", [key])
    return str(found)


def test_a_call_that_waits_changes_nothing_and_is_applied_once_by_its_approval(cast: Cast) -> None:
    id_ = put(cast)
    reply = govern(cast, [id_])
    assert (reply.status, reply.body["state"]) == (202, "pending_review")
    assert status("k") == "active"
    decision = approve(cast, reply, comment="fine")
    assert (decision.state, decision.changed) == ("applied", True)
    assert status("k") == "deleted"
    assert approve(cast, reply).changed is False
    told = cast.run("plan.get", {"plan_id": reply.body["plan_id"]})
    assert told["state"] == "applied"
    assert told["decision"]["by"] == "owner"
