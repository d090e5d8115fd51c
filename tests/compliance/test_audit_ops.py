"""audit.list and audit.verify: what reviewers and admins read of the audit, as ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governance.services import member_set_role
from loomsite.ops import Role
from tests.compliance.person import put
from tests.conftest import Cast
from tests.governance.conftest import anchor  # noqa: F401 - a fixture
from tests.governance.test_audit import tampering


def listed(cast: Cast, **payload: Any) -> list[dict[str, Any]]:
    """audit.list by the namespace's admin."""
    events: list[dict[str, Any]] = cast.console("audit.list", payload)["events"]
    return events


def test_rows_come_newest_first_and_each_once_over_pages(cast: Cast) -> None:
    for number in range(7):
        put(cast, "memory.set", memory_key=f"k{number}", value=number)
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = cast.console("audit.list", {"limit": 3, **cursor})
        seen += [event["target"] for event in page["events"]]
        if not page["next_cursor"]:
            break
        cursor = {"cursor": page["next_cursor"]}
        put(cast, "memory.set", memory_key="meanwhile", value=len(seen))
    assert seen == [f"k{number}" for number in reversed(range(7))]


def test_filters_narrow_and_combine(cast: Cast) -> None:
    put(cast, "memory.set", memory_key="a", value=1, user_id="bob")
    reply = cast.run("memory.set", {"memory_key": "b", "value": 2}, by="owner", request_id="req-b")
    assert reply.status == 200
    put(cast, "memory.delete", memory_key="a", user_id="bob")
    cast.run("memory.delete", {"memory_key": "b"}, by="viewer")
    (first, *_) = reversed(listed(cast))
    assert [event["target"] for event in listed(cast, op="memory.delete")] == ["b", "a"]
    assert [event["target"] for event in listed(cast, op="memory.delete", outcome="applied")] == ["a"]
    assert [event["outcome"] for event in listed(cast, principal="viewer")] == ["refused"]
    assert [event["target"] for event in listed(cast, request_id="req-b")] == ["b"]
    assert [event["op"] for event in listed(cast, target="a", user_id="bob")] == [
        "memory.delete",
        "memory.set",
    ]
    assert listed(cast, user_id="-", op="memory.set")[0]["target"] == "b"
    assert first["target"] == "a" and len(listed(cast, since=first["at"])) == 4
    assert listed(cast, until=first["at"]) == [] and listed(cast, target="a%") == []


def test_other_namespaces_and_organisations_are_not_in_it(cast: Cast) -> None:
    cast.namespace("side", owner=Role.ADMIN)
    put(cast, "memory.set", memory_key="ours", value=1)
    assert cast.run("memory.set", {"memory_key": "theirs", "value": 1}, by="stranger").status == 200
    assert cast.console("memory.set", {"memory_key": "beside", "value": 1, "namespace": "side"}).status == 200
    assert [event["target"] for event in listed(cast)] == ["ours"]


@pytest.mark.parametrize("cursor", ["x", "MA", "LTE", "OTk5OTk5OTk5OTk5OTk5OTk5OTk", "\u2028"])
def test_a_cursor_of_ones_own_making_is_refused(cast: Cast, cursor: str) -> None:
    assert cast.console("audit.list", {"cursor": cursor}).status == 400


def test_reviewers_read_and_admins_verify_and_no_token_does_either(cast: Cast) -> None:
    member_set_role(namespace=cast.team, member=cast.people["mate"], role=Role.REVIEWER)
    assert cast.console("audit.list", {}, by="mate").status == 200
    assert cast.console("audit.verify", {}, by="mate").status == 403
    assert cast.console("audit.verify", {}, by="owner").status == 200
    for op in ("audit.list", "audit.verify"):
        refused = cast.run(op, {}, by="owner")
        assert refused.status == 403 and "console" in refused.detail["message"]


@pytest.mark.django_db(transaction=True)
def test_verify_tells_what_is_wrong(cast: Cast, anchor: Path) -> None:  # noqa: F811
    for number in range(3):
        put(cast, "memory.set", memory_key=f"k{number}", value=number)
    verdict = cast.console("audit.verify", {})
    assert (verdict["whole"], verdict["rows"], verdict["anchored"]) == (True, 3, 3)
    with tampering() as cursor:
        cursor.execute("UPDATE governance_auditevent SET principal = 'nobody' WHERE seq = 2")
    verdict = cast.console("audit.verify", {})
    assert (verdict["whole"], verdict["fault_seq"], verdict["fault"]) == (False, 2, "row 2 was changed")
    with tampering() as cursor:
        cursor.execute("UPDATE governance_auditevent SET principal = 'mate' WHERE seq = 2")
    anchor.unlink()
    verdict = cast.console("audit.verify", {})
    assert verdict["whole"] is True and "would not be seen" in verdict["note"]
