"""Redaction: the content goes for good, from every version and every index; hashes and a marker stay."""

from __future__ import annotations

from dataclasses import replace

from django.db import connection

from memories.models import Status
from memories.services import Gateway, Row


def redact(gate: Gateway, row: Row) -> Row:
    """Redact a memory in the caller's transaction; the new row. OpError 423 when a lock or hold guards it.

    The gateway writes the last version first, so that locks are judged and the audit says who and why; the
    database's erasure function then blanks what stands in the rows.
    """
    row = gate.materialize_expiry(row)
    state = replace(row.state, status=Status.REDACTED, pinned=False)
    fresh = gate.write(row, row.key, row.identity, state, "redact", governed=True)
    gate.flush()
    with connection.cursor() as cursor:
        cursor.execute("SELECT loom_erase_memory(%s)", [row.id])
        # A stored answer may repeat the text. The claim stays, so that a repeated call does not store the
        # text anew, and says that its answer was erased.
        cursor.execute(
            "UPDATE governance_idempotencykey SET status = NULL, answer = NULL "
            "WHERE org_id = %s AND answer @? %s::jsonpath",
            [gate.ctx.caller.org_id, f'$.** ? (@.memory_id == "{row.id}" || @.id == "{row.id}")'],
        )
    return fresh
