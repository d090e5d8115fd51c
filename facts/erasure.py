"""Erasure of facts: their words go for good, from every version and every index.

When and by whom each version was written stays, and the hashes of the values, so that the audit can still be
checked against them. The subject and attribute may be remembered anew; the erased fact is not found by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from django.db import connection

from facts.models import SHARED
from facts.services import Line, Writer
from governance.locks import locked
from loomsite.ops import AuditEntry, Context, Effect

ERASED = "redacted"


def erased_word(lineage_id: int) -> bytes:
    """What stands in the place of the hash of an erased subject or attribute, as in `loom_erase_fact`."""
    return hashlib.sha256(f"erased {lineage_id}".encode()).digest()


def lineages_of_user(namespace_ids: Sequence[int], user: str) -> list[int]:
    """The facts of these namespaces that belong to one user, or did before they were shared."""
    if user == SHARED:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT v.lineage_id FROM facts_version v JOIN facts_lineage l ON l.id = v.lineage_id "
            "WHERE v.namespace_id = ANY(%s) AND v.owner = %s AND l.status <> %s ORDER BY 1",
            [list(namespace_ids), user, ERASED],
        )
        return [row[0] for row in cursor.fetchall()]


def lineages_about(namespace_ids: Sequence[int], subject_sha256: bytes) -> list[int]:
    """The facts of these namespaces about one subject (`facts.words.sha_of_word`), whoever sees them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM facts_lineage WHERE namespace_id = ANY(%s) AND subject_sha256 = %s "
            "AND status <> %s ORDER BY id",
            [list(namespace_ids), subject_sha256, ERASED],
        )
        return [row[0] for row in cursor.fetchall()]


def guarded(lineage_ids: Sequence[int]) -> list[int]:
    """Those of them under a lock in force or a hold, which an erasure has to wait for."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM facts_lineage WHERE id = ANY(%s) AND (holds > 0 OR (lock_mode <> 'none' "
            "AND (lock_until IS NULL OR lock_until > clock_timestamp()))) ORDER BY id",
            [list(lineage_ids)],
        )
        return [row[0] for row in cursor.fetchall()]


def erase_lineages(ctx: Context, lineage_ids: Sequence[int]) -> list[int]:
    """Erase these facts of `ctx`'s namespace in the caller's transaction; the ids of those erased now.

    Ids of other namespaces and of what is erased already are passed over. Raises OpError 423 when a lock or a
    hold guards one of them; nothing is erased then. What is written to an erased fact's stored answers is
    forgotten as well: a repeated call with its idempotency key is told so.
    """
    writer = Writer(ctx, None, "")
    lines = [line for line in writer.locked(lineage_ids).values() if line.namespace_id == ctx.namespace_id]
    lines = [line for line in lines if not _is_erased(line)]
    for line in lines:
        if line.lock.in_force:
            raise locked(line.lock, Effect.EXISTENCE, ctx.op.name, f"fact {line.id}", line.id)
    for line in lines:
        _erase(writer, line)
    return [line.id for line in lines]


def _is_erased(line: Line) -> bool:
    return not line.subject and not line.attribute


def _erase(writer: Writer, line: Line) -> None:
    """End what is believed of it, mark it, and let the database's eraser blank it."""
    ctx, believed = writer.ctx, writer.believed(line)
    writer.close(believed, writer.tick([line]))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE facts_lineage SET status = %s WHERE id = %s", [ERASED, line.id])
        cursor.execute("SELECT loom_erase_fact(%s)", [line.id])
        cursor.execute(
            "UPDATE governance_idempotencykey SET status = NULL, answer = NULL "
            "WHERE org_id = %s AND answer @? %s::jsonpath",
            [ctx.caller.org_id, f'$.** ? (@.lineageId == "{line.id}")'],
        )
    ctx.record(
        AuditEntry(
            target=f"fact:{line.id}",
            before_version=line.version,
            after_version=line.version + 1,
            reason=ctx.reason,
            detail={"lineage_id": str(line.id), "erased": True},
        )
    )
