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
        sql("SET statement_timeout = '200ms'")
        return cast.run("memory.set", {"memory_key": "k", "value": 1})

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
