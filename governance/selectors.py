"""Reads over tenancy, jobs and health."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from governance.clock import iso
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, not_found


def job_get(ctx: Context, job_id: int) -> dict[str, Any]:
    """A job of a namespace that the caller may read; OpError 404 otherwise."""
    seen = {row["id"] for row in visible_namespaces(ctx.caller)}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, namespace_id, kind, state, progress, attempts, result, error, created_at, "
            "finished_at FROM governance_job WHERE id = %s AND org_id = %s",
            [job_id, ctx.caller.org_id],
        )
        row = cursor.fetchone()
    if row is None or row[1] not in seen:
        raise not_found("job_id: no such job for this caller.")
    result = json.loads(row[6]) if row[6] is not None else None
    return {
        "job_id": str(row[0]),
        "op": row[2],
        "state": row[3],
        "progress": row[4],
        "attempts": row[5],
        "result": result,
        "error": row[7] or None,
        "created_at": iso(row[8]),
        "finished_at": iso(row[9]),
    }


def worker_seen() -> dict[str, Any]:
    """When a worker was last heard from: `alive`, `last_seen`, `age_s`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(at), extract(epoch FROM clock_timestamp() - max(at)) FROM governance_workerbeat"
        )
        at, age = cursor.fetchone()
    return {
        "alive": at is not None and float(age) <= settings.LOOM_WORKER_STALE_S,
        "last_seen": iso(at),
        "age_s": None if age is None else round(float(age), 1),
    }


_migrated = threading.Event()


def migrations_pending() -> int:
    """How many migrations wait to be applied. Once none does, none will for this process's code."""
    if _migrated.is_set():
        return 0
    executor = MigrationExecutor(connection)
    pending = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if not pending:
        _migrated.set()
    return pending


# Parts that apps above report on: name -> a probe that answers "ok", or what is wrong in a few words.
HEALTH_PROBES: dict[str, Callable[[], str]] = {}


def queue_counts(org_id: int) -> dict[str, int]:
    """The organisation's unfinished and failed jobs, by state."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, count(*) FROM governance_job WHERE org_id = %s AND state <> 'done' GROUP BY state",
            [org_id],
        )
        return {state: count for state, count in cursor.fetchall()}
