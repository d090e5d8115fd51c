"""Locks and holds on facts, by `fact:<factId>`."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from governance.models import AuditEvent
from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember, timeline
from tests.memories.helpers import sql

pytestmark = pytest.mark.django_db


def lock(cast: Cast, fact_id: str, mode: str, **fields: object) -> dict[str, object]:
    """Lock the fact."""
    reply = cast.run(
        "memory.lock", {"memory_key": f"fact:{fact_id}", "mode": mode, "reason": "legal", **fields}
    )
    assert reply.status == 200, reply.body
    return reply.body


def test_a_read_only_fact_refuses_every_change_and_a_no_op_is_none(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01", validTo="2025-01-01")
    told = lock(cast, made["factId"], "read_only")
    assert told["memory_id"] == made["lineageId"] and told["changed"] is True
    fact_id = made["factId"]
    for op, body in (
        ("fact.correct", {"value": "Bolt", "kind": "wrong"}),
        ("fact.correct", {"value": "Bolt", "validFrom": "2021-01-01"}),
        ("fact.correct", {"value": "Acme", "kind": "wrong", "subject": "Grace"}),
        ("fact.retract", {"kind": "wrong", "reason": "r"}),
    ):  # fmt: skip
        reply = cast.run(op, {"factId": fact_id, **body})
        assert (reply.status, reply.code, reply.detail["mode"]) == (423, "LOCKED", "read_only")
        assert reply.detail["reason"] == "legal" and reply.detail["memory_id"] == made["lineageId"]
    reply = remember(cast, "Later", validFrom="2026-01-01")
    assert reply.status == 423 and reply.detail["blocked"] == {"op": "fact.remember", "effect": "value"}
    assert correct(cast, fact_id, "Acme", kind="wrong")["unchanged"] is True
    assert remember(cast, validFrom="2020-01-01", validTo="2025-01-01")["unchanged"] is True
    assert timeline(cast) == [("Acme", "2020-01-01", "2025-01-01")]


def test_no_delete_refuses_a_retraction_and_lets_corrections_pass(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    lock(cast, made["factId"], "no_delete")
    for body in ({"kind": "wrong"}, {"kind": "ended", "validTo": "2024-01-01"}):
        reply = cast.run("fact.retract", {"factId": made["factId"], "reason": "r", **body})
        assert reply.status == 423 and reply.detail["blocked"]["effect"] == "existence"
    done = correct(cast, made["factId"], "Bolt", validFrom="2021-01-01")
    assert done["value"] == "Bolt"
    sql("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_hold_acts_as_no_delete_and_is_listed_with_the_fact(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    key = f"fact:{made['factId']}"
    held = cast.run("hold.add", {"memory_key": key, "matter": "case 12", "reason": "court"})
    assert (held["holds"], held["memory_id"]) == (1, made["lineageId"])
    assert cast.run("fact.retract", {"factId": made["factId"], "kind": "wrong", "reason": "r"}).status == 423
    done = correct(cast, made["factId"], "Bolt", kind="wrong")
    (row,) = cast.run("lock.list", {})["locks"]
    assert row["memory_key"] == f"fact:{done['factId']}" and row["holds"][0]["matter"] == "case 12"
    release = {"memory_key": key, "matter": "case 12", "reason": "closed"}
    assert cast.run("hold.release", release).status == 403
    assert cast.console("hold.release", release)["holds"] == 0
    assert cast.run("fact.retract", {"factId": done["factId"], "kind": "wrong", "reason": "r"}).status == 200


def test_locks_of_memories_and_facts_are_one_list_in_pages(cast: Cast) -> None:
    for i in range(2):
        lock(cast, remember(cast, subject=f"s{i}")["factId"], "no_delete")
        cast.run("memory.set", {"memory_key": f"k{i}", "value": i})
        cast.run("memory.lock", {"memory_key": f"k{i}", "reason": "r"})
    seen: list[str] = []
    cursor: str | None = None
    while True:
        reply = cast.run("lock.list", {"limit": 1, **({"cursor": cursor} if cursor else {})})
        seen += [row["memory_key"].split(":")[0] for row in reply["locks"]]
        cursor = reply["next_cursor"]
        if cursor is None:
            break
    assert seen == ["k1", "fact", "k0", "fact"]


def test_a_lock_only_tightens_and_an_admin_loosens_it_in_the_console(cast: Cast) -> None:
    made = remember(cast)
    lock(cast, made["factId"], "read_only")
    key = {"memory_key": f"fact:{made['factId']}", "reason": "r"}
    assert lock(cast, made["factId"], "read_only")["changed"] is False
    assert cast.run("memory.lock", {**key, "mode": "no_delete"}).status == 403
    assert cast.run("memory.unlock", key).status == 403
    assert cast.console("memory.unlock", key)["mode_before"] == "read_only"
    assert correct(cast, made["factId"], "Bolt", kind="wrong").status == 200
    assert AuditEvent.objects.filter(op="memory.unlock").latest("seq").target == key["memory_key"]


def test_a_fact_that_one_cannot_see_cannot_be_locked(cast: Cast) -> None:
    hidden = remember(cast, visibility="private", user_id="alice")["factId"]
    for key in (f"fact:{hidden}", f"fact:{2**62}", "fact:x", "fact:", "fact:-1"):
        reply = cast.run("memory.lock", {"memory_key": key, "reason": "r"})
        assert (reply.status, reply.code) == (404, "NOT_FOUND"), key


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts_version SET known = tstzrange(lower(known), clock_timestamp()) WHERE id = {id}",
        "UPDATE facts_lineage SET lock_mode = 'none' WHERE id = {line}",
        "UPDATE facts_lineage SET lock_until = clock_timestamp() WHERE id = {line}",
        "UPDATE facts_lineage SET version = version + 1 WHERE id = {line}",
    ],
)
def test_what_comes_past_the_gateway_meets_the_lock_in_the_database(cast: Cast, statement: str) -> None:
    made = remember(cast)
    lock(cast, made["factId"], "read_only")
    with pytest.raises(DatabaseError, match="locked"), transaction.atomic():
        sql(statement.format(id=made["factId"], line=made["lineageId"]))


def test_a_version_ended_past_the_gateway_meets_a_hold_at_the_commit(cast: Cast) -> None:
    made = remember(cast)
    lock(cast, made["factId"], "no_delete")
    with pytest.raises(DatabaseError, match="would end it"), transaction.atomic():
        sql(
            "UPDATE facts_version SET known = tstzrange(lower(known), clock_timestamp()) WHERE id = %s",
            [made["factId"]],
        )
        sql("SET CONSTRAINTS ALL IMMEDIATE")
    assert len(recall(cast)) == 1


def test_a_read_only_fact_is_not_shared(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01", visibility="private", user_id="ann")
    locked = cast.run(
        "memory.lock",
        {"memory_key": f"fact:{made['factId']}", "reason": "legal", "user_id": "ann"},
    )
    assert locked.status == 200, locked.body
    reply = cast.run("fact.share", {"factId": made["factId"], "user_id": "ann"})
    assert (reply.status, reply.code) == (423, "LOCKED")
    assert reply.detail["blocked"] == {"op": "fact.share", "effect": "value"}


@pytest.mark.parametrize(
    "body",
    [{"kind": "wrong", "subject": "Bo"}, {"kind": "changed", "attribute": "job", "validFrom": "2022-01-01"}],
)
def test_a_held_fact_is_not_moved_to_other_words(cast: Cast, body: dict[str, str]) -> None:
    made = remember(cast, validFrom="2020-01-01")
    cast.run("hold.add", {"memory_key": f"fact:{made['factId']}", "matter": "case 12", "reason": "court"})
    reply = correct(cast, made["factId"], "Acme", **body)
    assert (reply.status, reply.detail["blocked"]["effect"]) == (423, "existence")
    assert timeline(cast) == [("Acme", "2020-01-01", None)]


def test_the_database_accepts_no_successor_under_other_words_for_a_held_fact(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from facts.services import Writer

    made = remember(cast, validFrom="2020-01-01")
    cast.run("hold.add", {"memory_key": f"fact:{made['factId']}", "matter": "case 12", "reason": "court"})
    monkeypatch.setattr(Writer, "require", lambda *given: None)
    with pytest.raises(DatabaseError, match="would end it"), transaction.atomic():
        assert correct(cast, made["factId"], "Acme", kind="wrong", subject="Bo").status == 200
        sql("SET CONSTRAINTS ALL IMMEDIATE")


def test_the_words_of_a_lock_in_force_stay(cast: Cast) -> None:
    made = remember(cast)
    lock(cast, made["factId"], "no_delete")
    for change in ("lock_reason = 'other'", "locked_by = 'other'"):
        with pytest.raises(DatabaseError, match="when and why stays"), transaction.atomic():
            sql(f"UPDATE facts_lineage SET {change} WHERE id = %s", [made["lineageId"]])
    lock(cast, made["factId"], "read_only")
