"""Expiry by the database clock: not served from the moment on; the sweep writes what that means."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from memories import services
from memories.models import Memory, Posting
from tests.conftest import Cast
from tests.memories.helpers import corpus, end_lock, history, nothing_changes, pass_expiry, sql


def put(cast: Cast, key: str = "k", **more: Any) -> None:
    cast.run("memory.set", {"memory_key": key, "value": "a plum", "ttl_seconds": 60, **more})


def served(cast: Cast, key: str = "k") -> bool:
    found = [cast.run("memory.get", {"memory_key": key})["found"]]
    found.append(key in [m["memory_key"] for m in cast.run("memory.list", {})["memories"]])
    for mode in ("hybrid", "semantic", "keyword"):
        hits = cast.run("memory.search", {"query": "plum", "mode": mode})["results"]
        found.append(key in [hit["memory_key"] for hit in hits])
    assert len(set(found)) == 1, found
    return found[0]


def test_from_the_very_moment_it_is_not_served(cast: Cast) -> None:
    put(cast)
    assert served(cast) is True
    pass_expiry("k")
    with nothing_changes():
        assert served(cast) is False


def test_the_moment_itself_is_too_late_and_the_microsecond_before_is_not(cast: Cast) -> None:
    put(cast)
    for shift, found in (("0", False), ("-1 microsecond", False), ("1 hour", True)):
        # Inside one statement the clock of the judgement stands still.
        sql("UPDATE memories_memory SET expires_at = statement_timestamp() + %s::interval", [shift])
        assert cast.run("memory.get", {"memory_key": "k"})["found"] is found


def test_the_clock_of_this_process_has_no_say(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    put(cast)
    far = time.time() + 10**7
    monkeypatch.setattr(time, "time", lambda: far)
    assert served(cast) is True


@pytest.mark.parametrize(("on_expire", "status"), [("tombstone", "deleted"), ("stale", "stale")])
def test_the_sweep_applies_what_was_asked_for(cast: Cast, on_expire: str, status: str) -> None:
    put(cast, on_expire=on_expire)
    put(cast, "later")
    pass_expiry("k")
    assert services.expire_due() == 1
    assert Memory.objects.get(memory_key="k").status == status
    last = history(cast, "k")[-1]
    assert (last["kind"], last["status"], last["by"], last["reason"]) == (
        "expire",
        status,
        "system",
        "expired",
    )
    assert served(cast, "later") is True
    assert corpus(cast.team.pk)[0] == 1
    assert set(Posting.objects.filter(memory__memory_key="k").values_list("active", flat=True)) == {False}
    audited = sql(
        "SELECT principal, target, after_version FROM governance_auditevent WHERE op = 'memory.expire'"
    )
    assert audited == [("system", "k", 2)]


def test_a_second_sweep_finds_nothing(cast: Cast) -> None:
    put(cast)
    pass_expiry("k")
    services.expire_due()
    with nothing_changes():
        assert services.expire_due() == 0


def test_the_sweep_reaches_every_organisation_and_writes_each_ones_audit(cast: Cast) -> None:
    put(cast)
    cast.run("memory.set", {"memory_key": "s", "value": 1, "ttl_seconds": 60}, by="stranger")
    pass_expiry()
    assert services.expire_due() == 2
    assert sql("SELECT count(DISTINCT org_id) FROM governance_auditevent WHERE op = 'memory.expire'") == [
        (2,)
    ]


@pytest.mark.parametrize("mode", ["no_delete", "read_only"])
def test_a_lock_in_force_defers_the_end_and_the_memory_is_still_served(cast: Cast, mode: str) -> None:
    put(cast)
    cast.run("memory.lock", {"memory_key": "k", "mode": mode, "reason": "audit", "ttl_seconds": 3600})
    pass_expiry("k")
    with nothing_changes():
        assert services.expire_due() == 0
        assert served(cast) is True
    end_lock("k")
    assert served(cast) is False
    assert services.expire_due() == 1


def test_a_loosened_lock_lets_the_deferred_end_come(cast: Cast) -> None:
    put(cast)
    cast.run("memory.lock", {"memory_key": "k", "reason": "audit"})
    pass_expiry("k")
    assert served(cast) is True
    cast.console("memory.unlock", {"memory_key": "k", "reason": "over"})
    assert served(cast) is False


@pytest.mark.parametrize(("on_expire", "status"), [("tombstone", "deleted"), ("stale", "stale")])
def test_a_set_after_the_end_writes_the_end_first(cast: Cast, on_expire: str, status: str) -> None:
    put(cast, on_expire=on_expire)
    pass_expiry("k")
    answer = cast.run("memory.set", {"memory_key": "k", "value": "a plum"})
    assert (answer["revived"], answer["noop"], answer["version"]) == (True, False, 3)
    assert [(v["kind"], v["status"]) for v in history(cast, "k")] == [
        ("set", "active"),
        ("expire", status),
        ("set", "active"),
    ]
    assert cast.run("memory.get", {"memory_key": "k"})["expires_at"] is None
    assert corpus(cast.team.pk)[0] == 1
    assert set(Posting.objects.values_list("active", flat=True)) == {True}
    assert services.expire_due() == 0


def test_a_new_ttl_before_the_end_moves_it(cast: Cast) -> None:
    put(cast)
    first = cast.run("memory.get", {"memory_key": "k"})["expires_at"]
    cast.run("memory.set", {"memory_key": "k", "value": "a plum", "ttl_seconds": 3600})
    assert cast.run("memory.get", {"memory_key": "k"})["expires_at"] > first


def test_more_than_one_batch_is_swept_in_turns(cast: Cast) -> None:
    items = [{"memory_key": f"k{n}", "value": n, "ttl_seconds": 60} for n in range(7)]
    cast.run("memory.set_many", {"items": items})
    pass_expiry()
    assert [services.expire_due(limit=3) for _ in range(4)] == [3, 3, 1, 0]
    assert corpus(cast.team.pk) == (0, 0)


def test_a_sweep_of_many_costs_few_statements_more_than_of_one(
    cast: Cast, django_assert_max_num_queries: Any
) -> None:
    items = [{"memory_key": f"k{n}", "value": f"word {n}", "ttl_seconds": 60} for n in range(20)]
    cast.run("memory.set_many", {"items": items})
    pass_expiry()
    with django_assert_max_num_queries(20 + 14):
        services.expire_due()


def test_the_task_of_the_beat_sweeps(cast: Cast) -> None:
    from memories.tasks import expire_due

    put(cast)
    pass_expiry("k")
    expire_due()
    assert Memory.objects.get().status == "deleted"
    assert connection.in_atomic_block
