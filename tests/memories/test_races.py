"""Real threads over real connections: nobody's write is lost, no lock is overrun, nothing answers 5xx."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from governance import audit
from memories import services
from memories.models import Memory, MemoryVersion
from tests.conftest import Cast, Reply
from tests.memories.helpers import corpus, history, in_threads, pass_expiry, sql

pytestmark = pytest.mark.django_db(transaction=True)
WRITERS = 8


def agree_with_the_tables(cast: Cast) -> None:
    """What can never be false afterwards: versions without gaps, exact statistics, an unbroken chain."""
    assert (
        sql(
            "SELECT m.id FROM memories_memory m WHERE m.version <> "
            "(SELECT count(*) FROM memories_memoryversion v WHERE v.memory_id = m.id)"
        )
        == []
    )
    for namespace_id in (cast.team.pk, cast.elsewhere.pk):
        ((docs, terms),) = sql(
            "SELECT count(*), coalesce(sum(doc_len), 0) FROM memories_memory "
            "WHERE namespace_id = %s AND status = 'active'",
            [namespace_id],
        )
        assert corpus(namespace_id) == (docs, terms)
    assert (
        sql(
            "SELECT p.memory_id FROM memories_posting p JOIN memories_memory m ON m.id = p.memory_id "
            "WHERE p.active <> (m.status = 'active') OR p.doc_len <> m.doc_len"
        )
        == []
    )
    assert audit.verify(cast.org.pk, cast.org.slug).fault is None


def test_two_who_share_one_key_at_once_are_both_told_what_stands_there(cast: Cast) -> None:
    def share(key: str, agent: str) -> Reply:
        return cast.call("memory.promote", {"memory_key": key, "agent": agent})

    for key in map(str, range(15)):
        for agent, value in (("a", 1), ("b", 1), ("c", 2)):
            cast.run("memory.set", {"memory_key": key, "value": value, "agent": agent})
        replies = in_threads(*(partial(share, key, agent) for agent in ("a", "b", "c")))
        assert sum(reply.status == 200 and reply["changed"] for reply in replies) == 1
        assert {reply.code for reply in replies if reply.status != 200} <= {"VERSION_CONFLICT"}


def test_eight_writers_on_one_key_are_each_told_the_truth_and_none_is_lost(cast: Cast) -> None:
    def write(writer: int) -> list[Reply]:
        return [
            cast.run("memory.set", {"memory_key": "k", "value": f"{writer}/{n}"}, by="mate")
            for n in range(10)
        ]

    replies = [reply for some in in_threads(*(partial(write, w) for w in range(WRITERS))) for reply in some]
    assert {reply.status for reply in replies} == {200}
    versions = sorted(reply["version"] for reply in replies)
    assert versions == list(range(1, WRITERS * 10 + 1))
    said = {reply["version"]: reply["content_sha256"] for reply in replies}
    kept = {v["version"]: v["content_sha256"] for v in history(cast, "k")}
    assert kept == said
    assert {v["value"] for v in history(cast, "k")} == {f"{w}/{n}" for w in range(WRITERS) for n in range(10)}
    agree_with_the_tables(cast)


def test_eight_threads_that_append_with_if_match_lose_nothing(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": []})

    def append(writer: int) -> int:
        conflicts = 0
        for n in range(5):
            while True:
                read = cast.run("memory.get", {"memory_key": "k"})
                reply = cast.run(
                    "memory.update",
                    {
                        "memory_key": "k",
                        "value": [*read["value"], [writer, n]],
                        "if_match_sha256": read["content_sha256"],
                    },
                )
                if reply.status == 200:
                    break
                assert reply.code == "VERSION_CONFLICT"
                conflicts += 1
        return conflicts

    in_threads(*(partial(append, w) for w in range(WRITERS)))
    value = cast.run("memory.get", {"memory_key": "k"})["value"]
    assert sorted(map(tuple, value)) == sorted(itertools.product(range(WRITERS), range(5)))
    assert Memory.objects.get().version == WRITERS * 5 + 1


def test_the_same_new_key_in_many_threads_is_one_lineage(cast: Cast) -> None:
    for round_ in range(10):
        replies = in_threads(
            *(
                partial(cast.run, "memory.set", {"memory_key": f"k{round_}", "value": w})
                for w in range(WRITERS)
            )
        )
        assert sorted(reply["version"] for reply in replies) == list(range(1, WRITERS + 1))
    assert Memory.objects.count() == 10
    agree_with_the_tables(cast)


def test_shuffled_set_many_on_the_same_old_and_new_keys_loses_no_item(cast: Cast) -> None:
    old = [f"old{n}" for n in range(15)]
    cast.run("memory.set_many", {"items": [{"memory_key": key, "value": "start"} for key in old]})

    def write(writer: int) -> list[Reply]:
        shuffle = random.Random(writer)
        replies = []
        for n in range(3):
            keys = old + [f"new{n}-{i}" for i in range(15)]
            shuffle.shuffle(keys)
            items = [{"memory_key": key, "value": f"{key} by {writer} in {n}"} for key in keys]
            replies.append(cast.run("memory.set_many", {"items": items}))
            doomed = shuffle.choice(old)
            replies.append(cast.run("memory.delete", {"memory_key": doomed}))
        return replies

    replies = [reply for some in in_threads(*(partial(write, w) for w in range(WRITERS))) for reply in some]
    assert {reply.status for reply in replies} == {200}
    for key in old + [f"new{n}-{i}" for n in range(3) for i in range(15)]:
        kept = {v["value"] for v in history(cast, key)}
        rounds = range(3) if key.startswith("old") else [int(key[3])]
        assert {f"{key} by {w} in {n}" for w in range(WRITERS) for n in rounds} <= kept, key
    agree_with_the_tables(cast)


def rounds_of_lock_against_write(cast: Cast, rounds: int, write: Callable[[str, int], Reply]) -> set[int]:
    """Each round a lock and a write of one key at once; the statuses that the writes met.

    No write may commit after a committed lock: the version that the lock's audit row saw is the last one.
    """
    keys = [f"k{n}" for n in range(rounds)]
    for start in range(0, rounds, 500):
        some = keys[start : start + 500]
        cast.run(
            "memory.set_many",
            {"items": [{"memory_key": key, "value": 0, "ttl_seconds": 3600} for key in some]},
        )

    def locker() -> list[int]:
        return [cast.run("memory.lock", {"memory_key": key, "reason": "r"}).status for key in keys]

    def writer(first: int) -> list[int]:
        return [write(key, first).status for key in keys]

    # The writers run ahead and behind of the locker, so that they meet somewhere in most rounds.
    locked, *written = in_threads(locker, *(partial(writer, w) for w in range(2)))
    locks = {
        target: seen
        for target, seen in sql(
            "SELECT target, after_version FROM governance_auditevent WHERE op = 'memory.lock' "
            "AND outcome = 'applied'"
        )
    }
    last = dict(sql("SELECT memory_key, version FROM memories_memory WHERE lock_mode = 'read_only'"))
    assert locks == last
    assert set(locked) <= {200, 404}
    assert len(locks) == locked.count(200)
    return {status for statuses in written for status in statuses}


def set_it(cast: Cast, key: str, writer: int) -> Reply:
    return cast.run("memory.set", {"memory_key": key, "value": writer + 1})


def delete_it(cast: Cast, key: str, writer: int) -> Reply:
    if writer:
        return cast.run("memory.update", {"memory_key": key, "value": writer})
    return cast.run("memory.delete", {"memory_key": key})


@pytest.mark.parametrize("write", [set_it, delete_it])
def test_no_write_commits_after_a_committed_lock(cast: Cast, write: Callable[..., Reply]) -> None:
    statuses = rounds_of_lock_against_write(cast, 100, partial(write, cast))
    assert statuses <= {200, 423}
    agree_with_the_tables(cast)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("write", [set_it, delete_it])
def test_no_write_commits_after_a_committed_lock_in_a_thousand_rounds(
    cast: Cast, write: Callable[..., Reply]
) -> None:
    statuses = rounds_of_lock_against_write(cast, 1000, partial(write, cast))
    assert statuses == {200, 423}
    agree_with_the_tables(cast)


def test_a_lock_that_waits_for_a_write_guards_what_the_write_left(cast: Cast) -> None:
    """One round by hand: the write holds the row, the lock waits for it, and then sees the new version."""
    cast.run("memory.set", {"memory_key": "k", "value": 0})
    held = threading.Event()

    def lock() -> Reply:
        assert held.wait(30)
        return cast.run("memory.lock", {"memory_key": "k", "reason": "r"})

    def write_and_wait_for_the_lock() -> None:
        with transaction.atomic():
            assert cast.run("memory.set", {"memory_key": "k", "value": 1}).status == 200
            held.set()
            for _ in range(5_000):
                if sql("SELECT pid FROM pg_locks WHERE NOT granted"):
                    return
                sql("SELECT pg_sleep(0.002)")
            raise AssertionError("the lock never waited")

    locked, _ = in_threads(lock, write_and_wait_for_the_lock)
    assert locked["changed"] is True
    assert sql("SELECT after_version FROM governance_auditevent WHERE op = 'memory.lock'") == [(2,)]
    assert cast.run("memory.set", {"memory_key": "k", "value": 2}).status == 423


def test_the_sweep_against_sets_leaves_every_history_in_order(cast: Cast) -> None:
    keys = [f"k{n}" for n in range(60)]
    cast.run(
        "memory.set_many", {"items": [{"memory_key": key, "value": 0, "ttl_seconds": 60} for key in keys]}
    )
    pass_expiry()

    def write(order: list[str]) -> list[Reply]:
        return [cast.run("memory.set", {"memory_key": key, "value": 1}) for key in order]

    def sweep() -> list[int]:
        return [services.expire_due(limit=5) for _ in range(30)]

    *written, _ = in_threads(partial(write, keys), partial(write, keys[::-1]), sweep)
    assert {reply.status for some in written for reply in some} == {200}
    for key in keys:
        # Whoever came first wrote the end, once, and before the new value.
        assert [v["kind"] for v in history(cast, key)] == ["set", "expire", "set"], key
    assert set(Memory.objects.values_list("status", flat=True)) == {"active"}
    agree_with_the_tables(cast)


def test_two_sweeps_at_once_end_each_memory_once(cast: Cast) -> None:
    items = [{"memory_key": f"k{n}", "value": n, "ttl_seconds": 60} for n in range(80)]
    cast.run("memory.set_many", {"items": items})
    pass_expiry()
    swept = in_threads(*(partial(services.expire_due, 50) for _ in range(4)))
    while more := services.expire_due():
        swept.append(more)
    assert sum(swept) == 80
    assert MemoryVersion.objects.filter(kind="expire").count() == 80
    agree_with_the_tables(cast)


def test_a_writer_who_gives_up_leaves_nothing_behind(cast: Cast) -> None:
    """A row held by another for longer than the statement may wait: 503, retryable, nothing stored."""
    cast.run("memory.set", {"memory_key": "k", "value": 0})

    def write() -> Reply:
        ((usual,),) = sql("SHOW statement_timeout")
        sql("SET statement_timeout = '200ms'")
        try:
            return cast.run("memory.set", {"memory_key": "k", "value": 1})
        finally:
            # The connection goes back to the pool, and the next test must not inherit its haste.
            sql("SELECT set_config('statement_timeout', %s, false)", [usual])

    with transaction.atomic():
        sql("SELECT id FROM memories_memory FOR UPDATE")
        (reply,) = in_threads(write)
    assert (reply.status, reply.code, reply.detail["retryable"]) == (503, "BUSY", True)
    assert Memory.objects.get().version == 1
    assert connection.is_usable()


def test_concurrent_twins_of_one_idempotency_key_write_once(cast: Cast) -> None:
    body: dict[str, Any] = {"memory_key": "k", "value": 1, "ttl_seconds": 60}
    replies = in_threads(
        *(partial(cast.run, "memory.set", body, idempotency_key="twin") for _ in range(WRITERS))
    )
    assert {reply.status for reply in replies} == {200}
    assert {reply["version"] for reply in replies} == {1}
    assert MemoryVersion.objects.count() == 1


# Ops on many rows, on their standing, and governed ones


def _apply(cast: Cast, keys: list[str], action: str = "delete", **more: Any) -> Reply:
    body = {"keys": keys, "action": action, "reason": "r", "dry_run": False, **more}
    return cast.run("memory.apply", body)


def shuffled_sets_against_applied_deletes(cast: Cast, rounds: int) -> None:
    """Writers and bulk deletes of the same keys in any order: nobody locks anybody out, nothing is lost."""
    keys = [f"k{n}" for n in range(20)]
    cast.run("memory.set_many", {"items": [{"memory_key": key, "value": "start"} for key in keys]})

    def write(writer: int) -> list[Reply]:
        shuffle = random.Random(writer)
        replies = []
        for n in range(rounds):
            order = shuffle.sample(keys, len(keys))
            items = [{"memory_key": key, "value": f"{writer}/{n}"} for key in order]
            replies.append(cast.run("memory.set_many", {"items": items}))
        return replies

    def delete(writer: int) -> list[Reply]:
        shuffle = random.Random(100 + writer)
        return [_apply(cast, shuffle.sample(keys, 15)) for _ in range(rounds)]

    def merge(writer: int) -> list[Reply]:
        shuffle = random.Random(200 + writer)
        body = {"into": f"into{writer}", "value": writer}
        return [
            cast.run("memory.consolidate", {**body, "keys": shuffle.sample(keys, 3)}) for _ in range(rounds)
        ]

    jobs: list[Callable[[], list[Reply]]] = [partial(write, w) for w in range(4)]
    jobs += [partial(delete, w) for w in range(3)] + [partial(merge, 0)]
    results = in_threads(*jobs)
    assert [reply.body for some in results[:7] for reply in some if reply.status != 200] == []
    assert {reply.status for reply in results[7]} <= {200, 404}
    for key in keys:
        kept = {v["value"] for v in history(cast, key)}
        assert {f"{w}/{n}" for w in range(4) for n in range(rounds)} <= kept
    agree_with_the_tables(cast)


def test_shuffled_set_many_and_applied_deletes_do_not_lock_each_other_out(cast: Cast) -> None:
    shuffled_sets_against_applied_deletes(cast, 3)


@pytest.mark.soak
def test_much_shuffled_set_many_and_many_applied_deletes(cast: Cast) -> None:
    shuffled_sets_against_applied_deletes(cast, 25)


def guard_against_end(cast: Cast, rounds: int, guard: str, end: str) -> None:
    """Each round a guard and an end of one memory at once: whichever commits first decides."""
    keys = [f"k{n}" for n in range(rounds)]
    for start in range(0, rounds, 500):
        items = [{"memory_key": key, "value": 0} for key in keys[start : start + 500]]
        cast.run("memory.set_many", {"items": items})
    ids = dict(Memory.objects.values_list("memory_key", "pk"))

    def place(key: str) -> int:
        if guard == "hold":
            return cast.run("hold.add", {"memory_key": key, "matter": "m", "reason": "r"}).status
        return cast.run("memory.lock", {"memory_key": key, "reason": "r", "mode": "no_delete"}).status

    def finish(key: str) -> int:
        if end == "delete":
            return cast.run("memory.delete", {"memory_key": key}).status
        if end == "apply":
            outcomes = [row["outcome"] for row in _apply(cast, [key])["rows"]]
            return 200 if outcomes == ["applied"] else 423
        id_ = str(ids[key])
        body = {
            "ids": [id_], "action": "archive", "reason": "r", "confirm_destructive": True,
            "expected_versions": {id_: 1},
        }  # fmt: skip
        return cast.run("memory.govern", body).status

    placed, ended = in_threads(lambda: [place(key) for key in keys], lambda: [finish(key) for key in keys])
    assert set(ended) <= {200, 423} and set(placed) <= {200, 404}
    for key, was_placed, was_ended in zip(keys, placed, ended, strict=True):
        memory = Memory.objects.get(pk=ids[key])
        guarded = memory.holds > 0 or memory.lock_mode != "none"
        if end == "govern":
            # What governance archived may still be guarded afterwards; never the other way round.
            assert (memory.status == "archived") is (was_ended == 200)
            assert guarded is (was_placed == 200)
        else:
            assert (was_placed == 200) is (was_ended == 423) is guarded
    order = sql(
        "SELECT g.target FROM governance_auditevent g JOIN governance_auditevent e USING (org_id, target) "
        "WHERE g.op IN ('hold.add', 'memory.lock') AND g.outcome = 'applied' AND e.outcome = 'applied' "
        "AND e.op IN ('memory.delete', 'memory.apply', 'memory.govern') AND e.seq > g.seq"
    )
    assert order == []
    agree_with_the_tables(cast)


GUARDS = [("lock", "govern"), ("hold", "delete"), ("hold", "apply"), ("hold", "govern")]


@pytest.mark.parametrize(("guard", "end"), GUARDS)
def test_a_guard_and_an_end_at_once_are_decided_by_whoever_commits_first(
    cast: Cast, guard: str, end: str
) -> None:
    guard_against_end(cast, 40, guard, end)


@pytest.mark.soak
@pytest.mark.parametrize(("guard", "end"), GUARDS)
def test_many_guards_and_ends_at_once(cast: Cast, guard: str, end: str) -> None:
    guard_against_end(cast, 500, guard, end)


def test_a_sweep_and_holds_at_once_never_end_what_was_held(cast: Cast) -> None:
    keys = [f"k{n}" for n in range(60)]
    items = [{"memory_key": key, "value": 0, "ttl_seconds": 60} for key in keys]
    cast.run("memory.set_many", {"items": items})

    def hold() -> list[int]:
        body = {"matter": "m", "reason": "r"}
        return [cast.run("hold.add", {**body, "memory_key": key}).status for key in keys]

    def sweep() -> int:
        return sum(services.expire_due(limit=7) for _ in range(25))

    pass_expiry(*keys[::2])
    placed, _, _ = in_threads(hold, sweep, sweep)
    for key, status in zip(keys, placed, strict=True):
        memory = Memory.objects.get(memory_key=key)
        assert (memory.status == "active") is (memory.holds == 1) is (status == 200), key
    assert set(placed[1::2]) == {200}
    agree_with_the_tables(cast)
