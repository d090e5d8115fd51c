"""Redaction: the content goes for good, from every version and every index; hashes and a marker stay."""

from __future__ import annotations

from dataclasses import replace

from django.db import connection

from governance import plans
from governance.tenancy import visible_namespaces
from memories.models import Status
from memories.services import Gateway, Row


def redact(gate: Gateway, row: Row) -> Row:
    """Redact a memory in the caller's transaction; the new row. OpError 423 when a lock or hold guards it.

    The gateway writes the last version first, so that locks are judged and the audit says who and why; the
    database's erasure function then blanks what stands in the rows.
    """
    row = gate.materialize_expiry(row)
    _mark_forks(gate, row)
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
    plans.forget_text([row.id], gate.ctx)
    return fresh


def _mark_forks(gate: Gateway, row: Row) -> None:
    """Copies that were shared stay: the audit names them, and the caller those that he may see."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, namespace_id FROM memories_memory WHERE promoted_from = %s AND status <> 'redacted' "
            "ORDER BY id LIMIT 100",
            [row.id],
        )
        forks = dict(cursor.fetchall())
    gate.note = {name: text for name, text in gate.note.items() if name != "forks"}
    if not forks:
        return
    gate.note["forks"] = ", ".join(map(str, forks))
    seen = {space["id"] for space in visible_namespaces(gate.ctx.caller)}
    shown = ", ".join(str(id_) for id_, namespace_id in forks.items() if namespace_id in seen)
    if shown:
        gate.ctx.advisories.append(f"memory_key: copies of {row.key} were shared and stay: {shown}")
