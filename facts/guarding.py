"""What facts bring into the ops of memories: locks and holds by `fact:<factId>`, sources, flagged texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

from facts import planning, screening
from facts.models import SHARED
from facts.selectors import me, owners, visible
from facts.services import LINE, line_from
from governance.clock import iso
from loomsite.ops import Context
from memories import nodes
from memories.nodes import Guarded
from memories.services import LOCK_IN_FORCE

PREFIX = "fact:"


def register() -> None:
    """Called once, when the app is ready."""
    nodes.register(prefix=PREFIX, find=find, guarded=guarded, seen=seen)
    planning.register()
    nodes.register_reader(screening.acknowledge)


def find(ctx: Context, key: str) -> Guarded | None:
    """The lineage of a visible version of the request's namespace, its row locked."""
    digits = key[len(PREFIX) :]
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:20]) < 2**63):
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT v.lineage_id, encode(v.value_sha256, 'hex') FROM facts_version v "
            "JOIN facts_lineage l ON l.id = v.lineage_id "
            "WHERE v.id = %s AND v.namespace_id = %s AND v.owner = ANY(%s) AND l.status = 'active'",
            [int(digits), ctx.namespace_id, [SHARED, me(ctx)]],
        )
        row = cursor.fetchone()
        if row is None:
            return None
        cursor.execute(f"SELECT {LINE} FROM facts_lineage m WHERE m.id = %s FOR UPDATE", [row[0]])  # noqa: S608
        line = line_from(cursor.fetchone())
    fact = planning.present([int(digits)], False)[int(digits)]
    return Guarded(
        "facts_lineage", line.id, f"{PREFIX}{int(digits)}", line.version, row[1], line.lock,
        planning.KIND, int(digits), fact.title, fact.status,
    )  # fmt: skip


def guarded(ctx: Context, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Facts with a lock or a hold in force, by the latest version of each that the caller sees."""
    clause, params = visible("v.owner", owners(ctx))
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT m.id, latest.id, latest.owner, CASE WHEN {LOCK_IN_FORCE} THEN m.lock_mode END,
                  m.lock_reason, m.lock_until, m.locked_by, m.locked_at
                FROM facts_lineage m JOIN LATERAL (
                  SELECT v.id, v.owner FROM facts_version v WHERE v.lineage_id = m.id AND {clause}
                  ORDER BY upper_inf(v.known) DESC, v.id DESC LIMIT 1) latest ON true
                WHERE m.namespace_id = %s AND ({LOCK_IN_FORCE} OR m.holds > 0)
                  AND (%s::bigint IS NULL OR m.id < %s)
                ORDER BY m.id DESC LIMIT %s""",  # noqa: S608 - fragments are constant
            [*params, ctx.namespace_id, before, before, limit],
        )
        rows = cursor.fetchall()
    return [
        {
            "memory_key": f"{PREFIX}{version}",
            "memory_id": str(line),
            "agent": "-",
            "user_id": owner,
            "session_id": "-",
            "status": "active",
            "mode": mode or "none",
            "reason": reason if mode else "",
            "until": iso(until) if mode else None,
            "locked_by": by if mode else "",
            "locked_at": iso(at) if mode else None,
        }
        for line, version, owner, mode, reason, until, by, at in rows
    ]


def seen(ctx: Context, ids: Sequence[int], user: str, namespaces: Sequence[int]) -> dict[int, bool]:
    """Versions by their id, and lineages by theirs, private when no version of it is for everybody."""
    mine = [SHARED, user]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT v.id, v.owner <> '-' FROM facts_version v "
            "WHERE v.id = ANY(%s) AND v.namespace_id = ANY(%s) AND v.owner = ANY(%s) UNION ALL "
            "SELECT v.lineage_id, bool_and(v.owner <> '-') FROM facts_version v "
            "WHERE v.lineage_id = ANY(%s) AND v.namespace_id = ANY(%s) AND v.owner = ANY(%s) GROUP BY 1",
            [list(ids), list(namespaces), mine, list(ids), list(namespaces), mine],
        )
        return dict(cursor.fetchall())
