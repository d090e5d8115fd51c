"""What the tests of memories share: looks at the tables, and moves of the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, connections

from tests.conftest import Cast

# What a read of the server may touch all the same, and what lives outside the app.
NOT_COMPARED = {"governance_token", "django_session", "django_migrations"}
# Where a refused destructive or locked call leaves its row.
AUDIT = {"governance_auditevent", "governance_audithead"}
# Where a call that waits for a person leaves its plan.
PLANS = {"governance_plan", "governance_plantarget", *AUDIT}


def sql(statement: str, params: list[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run one statement; its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def tables() -> dict[str, list[Any]]:
    """Every row of every table as text, for "nothing changed" byte for byte."""
    names = [
        name
        for (name,) in sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        if name not in NOT_COMPARED
    ]
    return {name: sql(f'SELECT t::text FROM "{name}" t ORDER BY 1') for name in names}


@contextmanager
def nothing_changes(but_for: Collection[str] = ()) -> Iterator[None]:
    """Every table is afterwards what it was, but for those named."""
    before = tables()
    yield
    after = tables()
    assert {name for name in after if after[name] != before[name]} <= set(but_for)


def pass_expiry(*keys: str) -> None:
    """Let the expiry of these memories be a second ago (all of them without names), locked or not."""
    # Time passes under a lock too; only a test has to move the expiry for it, which the trigger refuses.
    trigger = "ALTER TABLE memories_memory {} TRIGGER memory_guard"
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql(trigger.format("DISABLE"))
    where = "memory_key = ANY(%s)" if keys else "%s IS NOT NULL"
    sql(
        "UPDATE memories_memory SET expires_at = clock_timestamp() - interval '1 second' "
        f"WHERE expires_at IS NOT NULL AND {where}",
        [list(keys)],
    )
    sql(trigger.format("ENABLE"))
    sql("SET CONSTRAINTS ALL DEFERRED")


def end_lock(key: str) -> None:
    """Let the lock's end be a second ago; the trigger is told, as it is by memory.unlock."""
    ((id_,),) = sql("SELECT id FROM memories_memory WHERE memory_key = %s", [key])
    sql("SELECT set_config('loom.loosen', %s, false)", [str(id_)])
    sql(
        "UPDATE memories_memory SET lock_until = clock_timestamp() - interval '1 second' WHERE id = %s", [id_]
    )
    sql("SELECT set_config('loom.loosen', '', false)")


def govern(key: str, status: str) -> None:
    """Retire a row as governance does."""
    sql(
        "UPDATE memories_memory SET status = %s, governed = true, version = version + 1 "
        "WHERE memory_key = %s",
        [status, key],
    )


def history(cast: Cast, key: str, **more: Any) -> list[dict[str, Any]]:
    """The versions of a key, oldest first."""
    reply = cast.run("memory.history", {"memory_key": key, "limit": 200, **more})
    return list(reversed(reply["versions"]))


def in_threads(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs at once, each in a thread with its own connection; their results in order.

    A fault in a thread is raised here.
    """
    start = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)
    faults: list[BaseException] = []

    def work(place: int) -> None:
        try:
            start.wait(30)
            results[place] = jobs[place]()
        except BaseException as fault:  # noqa: BLE001 - raised again below
            faults.append(fault)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads)
    return results


def corpus(namespace_id: int) -> tuple[int, int]:
    """The statistics that the search believes: documents, terms."""
    ((docs, terms),) = sql(
        "SELECT coalesce(sum(docs), 0), coalesce(sum(terms), 0) FROM memories_corpusstripe "
        "WHERE namespace_id = %s",
        [namespace_id],
    )
    return int(docs), int(terms)
