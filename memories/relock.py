"""Loosened for a while: the lock comes back by a job, which outlives restarts and is audited."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection, transaction

from governance import audit
from governance import services as governance
from governance.clock import iso
from governance.jobs import JobRun
from governance.locks import LockState
from governance.models import Namespace
from loomsite.ops import OpError
from memories.nodes import Guarded
from memories.services import Gateway, LockRequest, Row, memory_lock

RELOCK_JOB = "memory.relock"
LONGEST_S = 30 * 24 * 3600


def relock_later(gate: Gateway, row: Row | Guarded, lock: LockState, seconds: int) -> None:
    """Store the job that locks the row again as it was locked, in the caller's transaction.

    The job holds ids and the lock's mode and end, no stored text.
    """
    # A fact's key is its id; a memory is found again by its own.
    which = {"key": row.key} if isinstance(row, Guarded) else {"memory_id": str(row.id)}
    given = {**which, "mode": lock.mode, "until": iso(lock.until), "seconds": seconds}
    governance.job_create(ctx=gate.ctx, kind=RELOCK_JOB, input=given, delay_s=seconds)


def relock(run: JobRun) -> dict[str, Any]:
    """Lock again what was loosened for a while. Safe to run again: the same lock twice changes nothing.

    Left alone, with the reason in the result: what is gone, what has a firmer lock by now, and a lock whose
    own end has passed meanwhile.
    """
    assert run.namespace_id is not None  # noqa: S101 - a lock is in a namespace, and so is its job
    namespace = Namespace.objects.select_related("org").get(pk=run.namespace_id)
    with transaction.atomic():
        ctx = governance.system_context(org=namespace.org, namespace=namespace, op_name=RELOCK_JOB)
        gate = Gateway(ctx)
        until = None if run.input["until"] is None else datetime.fromisoformat(run.input["until"])
        if until is not None and until <= gate.now():
            return {"relocked": False, "why": "the lock would have ended by now"}
        key = run.input.get("key")
        if key is None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT memory_key, agent, user_id, session_id FROM memories_memory WHERE id = %s",
                    [int(run.input["memory_id"])],
                )
                key, ctx.agent, ctx.user_id, ctx.session_id = cursor.fetchone()
        reason = f"Locked again: it was loosened for {run.input['seconds']} s."
        try:
            _, changed = memory_lock(gate, key, LockRequest(run.input["mode"], reason, until))
        except OpError as error:
            if error.code not in ("NOT_FOUND", "FORBIDDEN"):
                raise
            return {"relocked": False, "why": error.code}
        gate.flush()
        audit.append(ctx, ctx.audit)
    return {"relocked": changed}
