"""memory.delete and memory.restore: out of every read, and back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from memories.models import Memory
from tests.conftest import Cast
from tests.memories.helpers import AUDIT, PLANS, corpus, govern, history, nothing_changes, pass_expiry, sql


def put(cast: Cast, key: str = "k", value: Any = "a plum in the fridge", **more: Any) -> None:
    cast.run("memory.set", {"memory_key": key, "value": value, **more})


def seen_anywhere(cast: Cast, key: str = "k") -> bool:
    """Whether any read by default shows the memory."""
    seen = [cast.run("memory.get", {"memory_key": key})["found"]]
    seen.append(cast.run("memory.update", {"memory_key": key, "value": 0, "dry_run": True})["updated"])
    for order in ("key", "updated"):
        listed = cast.run("memory.list", {"order": order, "include_values": True})["memories"]
        seen.append(key in [memory["memory_key"] for memory in listed])
    for mode in ("hybrid", "semantic", "keyword"):
        for scope in ("this", "all_mine"):
            hits = cast.run("memory.search", {"query": "plum fridge", "mode": mode, "namespace_scope": scope})
            seen.append(key in [hit["memory_key"] for hit in hits["results"]])
    answer = any(seen)
    assert all(seen) == answer, seen
    return answer


def test_a_tombstone_is_seen_through_no_door_and_is_back_on_restore(cast: Cast) -> None:
    put(cast)
    assert seen_anywhere(cast) is True
    deleted = cast.call("memory.delete", {"memory_key": "k", "reason": "eaten"})
    assert (deleted["found"], deleted["tombstoned"], deleted["version"], deleted["noop"]) == (
        True,
        True,
        2,
        False,
    )
    assert seen_anywhere(cast) is False
    assert "plum" not in str(cast.run("memory.get", {"memory_key": "k"}).body)
    restored = cast.call("memory.restore", {"memory_key": "k"})
    assert (restored["restored"], restored["version"], restored["status"]) == (True, 3, "active")
    assert seen_anywhere(cast) is True
    assert [(v["kind"], v["status"], v["reason"]) for v in history(cast, "k")] == [
        ("set", "active", ""),
        ("delete", "deleted", "eaten"),
        ("restore", "active", ""),
    ]


def test_a_tombstone_can_be_restored_for_fourteen_days(cast: Cast) -> None:
    put(cast)
    answer = cast.run("memory.delete", {"memory_key": "k"})
    ((at,),) = sql("SELECT updated_at FROM memories_memory")
    assert datetime.fromisoformat(answer["recoverable_until"]) == at + timedelta(days=14)
    sql("UPDATE memories_memory SET updated_at = updated_at - interval '13 days 23 hours'")
    assert cast.run("memory.restore", {"memory_key": "k"})["restored"] is True


def test_after_fourteen_days_it_is_too_late(cast: Cast) -> None:
    put(cast)
    cast.run("memory.delete", {"memory_key": "k"})
    sql("UPDATE memories_memory SET updated_at = updated_at - interval '14 days'")
    with nothing_changes(but_for=AUDIT):
        refused = cast.call("memory.restore", {"memory_key": "k"})
    assert (refused.status, refused.code) == (404, "NOT_FOUND")
    assert "ended on" in refused.detail["message"]


def test_deleting_a_deleted_key_is_a_noop(cast: Cast) -> None:
    put(cast)
    first = cast.run("memory.delete", {"memory_key": "k"})
    with nothing_changes():
        again = cast.call("memory.delete", {"memory_key": "k"})
    assert (again["tombstoned"], again["noop"], again["version"]) == (True, True, 2)
    assert again["recoverable_until"] == first["recoverable_until"]


def test_deleting_again_never_goes_on_to_another_writers_memory(cast: Cast) -> None:
    put(cast)
    put(cast, value="b's own", agent="b")
    for _ in range(2):
        answer = cast.run("memory.delete", {"memory_key": "k"})
        assert answer["memory_id"] == str(Memory.objects.get(agent="-").pk)
    assert Memory.objects.get(agent="b").status == "active"


def test_a_tombstone_beside_it_does_not_make_a_key_ambiguous(cast: Cast) -> None:
    put(cast, value="a's", agent="a")
    put(cast, value="b's", agent="b")
    cast.run("memory.delete", {"memory_key": "k", "agent": "a"})
    assert cast.run("memory.restore", {"memory_key": "k"})["memory_id"] == str(
        Memory.objects.get(agent="a").pk
    )
    cast.run("memory.delete", {"memory_key": "k", "agent": "a"})
    assert cast.run("memory.delete", {"memory_key": "k"})["memory_id"] == str(
        Memory.objects.get(agent="b").pk
    )


def test_an_unknown_key_is_no_error_of_a_delete_and_404_of_a_restore(cast: Cast) -> None:
    with nothing_changes(but_for=AUDIT):
        answer = cast.call("memory.delete", {"memory_key": "none"})
        refused = cast.call("memory.restore", {"memory_key": "none"})
    assert (answer["found"], answer["tombstoned"]) == (False, False)
    assert (refused.status, refused.code) == (404, "NOT_FOUND")


def test_restoring_what_lives_is_a_noop(cast: Cast) -> None:
    put(cast)
    with nothing_changes():
        answer = cast.run("memory.restore", {"memory_key": "k"})
    assert (answer["restored"], answer["version"]) == (False, 1)


def test_the_restore_of_a_governed_tombstone_waits_for_a_person(cast: Cast) -> None:
    put(cast)
    govern("k", "deleted")
    with nothing_changes(but_for=PLANS):
        waits = cast.call("memory.restore", {"memory_key": "k"})
    assert (waits.status, waits.body["state"]) == (202, "pending_review")
    assert Memory.objects.get().status == "deleted"


@pytest.mark.parametrize("op", ["delete", "restore"])
def test_several_writers_are_ambiguous_and_nothing_is_done(cast: Cast, op: str) -> None:
    for agent in ("a", "b"):
        put(cast, agent=agent)
        if op == "restore":
            cast.run("memory.delete", {"memory_key": "k", "agent": agent})
    with nothing_changes(but_for=AUDIT):
        refused = cast.call(f"memory.{op}", {"memory_key": "k"})
    assert (refused.status, refused.code) == (409, "AMBIGUOUS_KEY")
    assert len(refused.detail["writers"]) == 2


def test_a_bound_token_deletes_nothing_of_another_agent(cast: Cast) -> None:
    put(cast, agent="b")
    answer = cast.run("memory.delete", {"memory_key": "k"}, by=cast.token(agent="a"))
    assert answer["found"] is False
    assert Memory.objects.get().status == "active"


def test_a_delete_in_one_organisation_leaves_the_other_alone(cast: Cast) -> None:
    put(cast)
    cast.run("memory.set", {"memory_key": "k", "value": 1}, by="stranger")
    cast.run("memory.delete", {"memory_key": "k"}, by="stranger")
    assert cast.run("memory.get", {"memory_key": "k"})["found"] is True


def test_deleting_a_stale_memory_tombstones_it(cast: Cast) -> None:
    put(cast)
    govern("k", "stale")
    sql("UPDATE memories_memory SET governed = false")
    assert cast.run("memory.delete", {"memory_key": "k"})["tombstoned"] is True
    assert Memory.objects.get().status == "deleted"


@pytest.mark.parametrize("on_expire", ["tombstone", "stale"])
def test_deleting_what_has_just_expired_leaves_a_tombstone_and_the_whole_history(
    cast: Cast, on_expire: str
) -> None:
    put(cast, ttl_seconds=60, on_expire=on_expire)
    pass_expiry("k")
    answer = cast.run("memory.delete", {"memory_key": "k"})
    assert answer["tombstoned"] is True
    assert Memory.objects.get().status == "deleted"
    kinds = ["set", "expire"] + (["delete"] if on_expire == "stale" else [])
    assert [v["kind"] for v in history(cast, "k")] == kinds
    assert answer["noop"] is (on_expire == "tombstone")


def test_restoring_what_has_just_expired_takes_the_expiry_off(cast: Cast) -> None:
    put(cast, ttl_seconds=60)
    pass_expiry("k")
    assert cast.run("memory.restore", {"memory_key": "k"})["restored"] is True
    assert [v["kind"] for v in history(cast, "k")] == ["set", "expire", "restore"]
    assert cast.run("memory.get", {"memory_key": "k"})["expires_at"] is None


def test_restoring_a_delete_keeps_an_expiry_that_lies_ahead(cast: Cast) -> None:
    put(cast, ttl_seconds=3600)
    ahead = cast.run("memory.get", {"memory_key": "k"})["expires_at"]
    cast.run("memory.delete", {"memory_key": "k"})
    cast.run("memory.restore", {"memory_key": "k"})
    assert cast.run("memory.get", {"memory_key": "k"})["expires_at"] == ahead


def test_a_dry_delete_changes_nothing(cast: Cast) -> None:
    put(cast)
    with nothing_changes():
        dry = cast.run("memory.delete", {"memory_key": "k", "dry_run": True})
    assert (dry["tombstoned"], dry["dry_run"], dry["version"]) == (True, True, 2)


def test_the_statistics_follow_delete_and_restore(cast: Cast) -> None:
    put(cast)
    counted = corpus(cast.team.pk)
    cast.run("memory.delete", {"memory_key": "k"})
    assert corpus(cast.team.pk) == (0, 0)
    cast.run("memory.restore", {"memory_key": "k"})
    assert corpus(cast.team.pk) == counted


def test_a_refused_delete_of_a_locked_memory_is_audited(cast: Cast) -> None:
    put(cast)
    cast.run("memory.lock", {"memory_key": "k", "reason": "audit", "mode": "no_delete"})
    assert cast.call("memory.delete", {"memory_key": "k"}).status == 423
    ((outcome, target),) = sql("SELECT outcome, target FROM governance_auditevent WHERE op = 'memory.delete'")
    assert (outcome, target) == ("refused", "k")
