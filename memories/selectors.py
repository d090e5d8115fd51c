"""Reads over memories. One rule of visibility (`scope`) serves every one of them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from django.db import connection

from governance.clock import iso
from loomsite.ops import Context, OpError, invalid
from loomsite.ops.text import clean
from memories.models import Status
from memories.nodes import guarded_elsewhere

IN_FORCE = "(m.lock_mode <> 'none' AND (m.lock_until IS NULL OR m.lock_until > statement_timestamp()))"
NOT_OVERDUE = f"(m.expires_at IS NULL OR m.expires_at > statement_timestamp() OR {IN_FORCE} OR m.holds > 0)"
SERVED = f"m.status = 'active' AND {NOT_OVERDUE}"
# What is overdue has ended for whoever reads, whether or not the sweep came by.
STATUS = f"""CASE WHEN m.status <> 'active' OR {NOT_OVERDUE} THEN m.status
  WHEN m.on_expire = 'stale' THEN 'stale' ELSE 'deleted' END"""
_LOCK = f"""CASE WHEN {IN_FORCE} THEN m.lock_mode END, m.lock_reason, m.lock_until, m.holds, m.held"""
_SHOWN = f"""m.id, m.memory_key, m.agent, m.user_id, m.session_id, m.value, m.content_sha256, m.memory_type,
  m.tags, m.metadata, m.confidence, m.pinned, m.expires_at, {STATUS}, m.version, m.source_class,
  m.created_at, m.updated_at, {_LOCK}"""


def scope(
    ctx: Context, *, namespaces: Sequence[int] | None = None, named: bool = True
) -> tuple[str, list[Any]]:
    """The rows that this call may see: a WHERE fragment over `m` and its parameters.

    An identity field that the call names narrows to exactly that value. Left out, it means any that the
    token covers: for a bound token its own value and "-". With `named` false that holds for all fields.
    """
    ids = list(namespaces) if namespaces is not None else [ctx.namespace_id]
    parts = ["m.namespace_id = ANY(%s)"]
    params: list[Any] = [ids]
    if len(ids) == 1:
        parts, params = ["m.namespace_id = %s"], [ids[0]]
    for column, asked, bound in (
        ("agent", ctx.agent, ctx.caller.bound_agent),
        ("user_id", ctx.user_id, ctx.caller.bound_user),
        ("session_id", ctx.session_id, None),
    ):
        if asked is not None and named:
            parts.append(f"m.{column} = %s")
            params.append(asked)
        elif bound is not None:
            parts.append(f"m.{column} IN ('-', %s)")
            params.append(bound)
    return " AND ".join(parts), params


class Addressed(Protocol):
    """What `choose` needs of a row."""

    @property
    def identity(self) -> Any:
        """The exact tuple of the lineage."""


AddressedT = TypeVar("AddressedT", bound=Addressed)


def choose(ctx: Context, key: str, rows: Sequence[AddressedT]) -> AddressedT | None:
    """The one lineage that a call by key means: the exact tuple, else the only one, else 409."""
    from memories.services import Identity

    exact = Identity.of(ctx)
    for row in rows:
        if row.identity == exact:
            return row
    if len(rows) <= 1:
        return rows[0] if rows else None
    writers = [
        {"agent": row.identity.agent, "user_id": row.identity.user_id, "session_id": row.identity.session_id}
        for row in rows[:50]
    ]
    raise OpError(
        "AMBIGUOUS_KEY",
        f"{key} is held by {len(rows)} writers; name agent, user_id or session_id of the one that is meant.",
        memory_key=key,
        writers=writers,
    )


# Many may hold a key; the one that is meant must be among those that are looked at.
_EXACT_FIRST = "(m.agent, m.user_id, m.session_id) <> (%s, %s, %s)"


def _exact(ctx: Context) -> tuple[str, str, str]:
    from memories.services import Identity

    who = Identity.of(ctx)
    return who.agent, who.user_id, who.session_id


class _Candidate:
    """A row found by key, with the columns of `_SHOWN`."""

    def __init__(self, columns: Sequence[Any]) -> None:
        from memories.services import Identity

        self.columns = columns
        self.identity = Identity(*columns[2:5])


def memory_get(ctx: Context, key: str) -> dict[str, Any] | None:
    """The served memory under `key`, or None. OpError 409 when several writers hold it."""
    if ctx.namespace_id is None:
        return None
    where, params = scope(ctx)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {_SHOWN} FROM memories_memory m WHERE {where} AND m.memory_key = %s AND {SERVED} "  # noqa: S608
            f"ORDER BY {_EXACT_FIRST}, m.id LIMIT 50",
            [*params, key, *_exact(ctx)],
        )
        found = choose(ctx, key, [_Candidate(columns) for columns in cursor.fetchall()])
    return None if found is None else _shown(found.columns)


def _shown(columns: Sequence[Any]) -> dict[str, Any]:
    (
        id_, key, agent, user_id, session_id, value, sha, memory_type, tags, metadata, confidence, pinned,
        expires_at, status, version, source_class, created_at, updated_at, lock_mode, lock_reason, lock_until,
        holds, held,
    ) = columns  # fmt: skip
    lock = None
    if lock_mode:
        lock = {"mode": lock_mode, "reason": lock_reason, "until": iso(lock_until), "holds": holds}
    elif holds:
        lock = {"mode": "none", "reason": "", "until": None, "holds": holds}
    return {
        "memory_key": key,
        "memory_id": str(id_),
        "value": None if value is None else json.loads(value),
        "memory_type": memory_type,
        "version": version,
        "version_text": str(version),
        "content_sha256": sha,
        "status": status,
        "tags": tags,
        "metadata": json.loads(metadata),
        "confidence": confidence,
        "pinned": pinned,
        "expires_at": iso(expires_at),
        "agent": agent,
        "user_id": user_id,
        "session_id": session_id,
        "source_class": source_class,
        "created_at": iso(created_at),
        "updated_at": iso(updated_at),
        "lock": lock,
        "held": held,
    }


def memory_get_canonical(ctx: Context, key: str) -> dict[str, Any] | None:
    """The served memory in whose favour `key` was superseded, over several steps if need be, or None."""
    if ctx.namespace_id is None:
        return None
    where, params = scope(ctx)
    seen: set[str] = set()
    while key not in seen:
        seen.add(key)
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT m.canonical_key, m.agent, m.user_id, m.session_id FROM memories_memory m "  # noqa: S608
                f"WHERE {where} AND m.memory_key = %s AND m.status = 'superseded' "
                f"ORDER BY {_EXACT_FIRST}, m.id LIMIT 50",
                [*params, key, *_exact(ctx)],
            )
            rows = cursor.fetchall()
        # The exact tuple's own, else what all of them say.
        names = {row[0] for row in rows[:1] if tuple(row[1:]) == _exact(ctx)} or {row[0] for row in rows}
        if len(names) != 1:
            return None
        (key,) = names
        if (found := memory_get(ctx, key)) is not None:
            return found
    return None


def memory_get_as_of(ctx: Context, key: str, as_of: datetime) -> dict[str, Any] | None:
    """What `memory_get` would have answered at `as_of`, from the versions; None when nothing was served.

    Locks are not part of a version; the answer carries none. An end that a lock or hold defers to this day
    is not taken for one.
    """
    if ctx.namespace_id is None:
        return None
    where, params = scope(ctx)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT m.id, m.memory_key, m.agent, m.user_id, m.session_id, v.value, v.content_sha256,
                  v.memory_type, v.tags, v.metadata, v.confidence, v.pinned, v.expires_at, v.status,
                  v.version, v.source_class, m.created_at, v.at, NULL, NULL, NULL, 0, m.held
                FROM memories_memory m JOIN LATERAL (
                  SELECT * FROM memories_memoryversion v WHERE v.memory_id = m.id AND v.at <= %s
                  ORDER BY v.version DESC LIMIT 1) v ON true
                WHERE {where} AND m.memory_key = %s AND m.status <> 'redacted' AND v.status = 'active'
                  AND (v.expires_at IS NULL OR v.expires_at > %s OR (
                    v.version = m.version AND v.expires_at <= clock_timestamp() AND {SERVED}))
                ORDER BY {_EXACT_FIRST}, m.id LIMIT 50""",  # noqa: S608 - fragments are constant
            [as_of, *params, key, as_of, *_exact(ctx)],
        )
        found = choose(ctx, key, [_Candidate(columns) for columns in cursor.fetchall()])
    return None if found is None else _shown(found.columns)


def encode_cursor(*parts: Any) -> str:
    """An opaque place in a list."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, *kinds: type) -> list[Any]:
    """The parts of a cursor made by `encode_cursor`. OpError 400 for anything else."""
    wrong = invalid("cursor", "is not one that this op answered.")
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        # What a client made up may hold what no stored text can: the same hygiene as for a body.
        parts = list(clean({"cursor": json.loads(raw)})[0]["cursor"])
    except (binascii.Error, ValueError, TypeError, RecursionError, OpError) as error:
        raise wrong from error
    if [type(part) for part in parts] != list(kinds):
        raise wrong
    if any(isinstance(part, int) and not 0 <= part < 2**63 for part in parts):
        raise wrong
    return parts


def memory_list(
    ctx: Context,
    *,
    prefix: str | None,
    tags_any: Sequence[str] | None,
    memory_type: str | None,
    status: str,
    order: str,
    limit: int,
    cursor: str | None,
    include_values: bool,
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of memories and the cursor of the next one, or None after the last.

    `order` is `updated` (newest first) or `key`. Stable under inserts: a page starts after a place, not
    after a count.
    """
    if ctx.namespace_id is None:
        if cursor:
            _list_place(order, cursor)
        return [], None
    where, params = scope(ctx)
    parts = [where]
    if status == Status.ACTIVE:
        parts.append(SERVED)
    else:
        parts.append(f"{STATUS} = %s")
        params.append(status)
    if prefix:
        parts.append("starts_with(m.memory_key, %s)")
        params.append(prefix)
    if tags_any is not None:
        parts.append("m.tags && %s::varchar[]")
        params.append(list(tags_any))
    if memory_type is not None:
        parts.append("m.memory_type = %s")
        params.append(memory_type)
    if cursor:
        place = _list_place(order, cursor)
        if order == "key":
            parts.append('(m.memory_key COLLATE "C", m.id) > (%s, %s)')
        else:
            parts.append("(m.updated_at, m.id) < (%s::timestamptz, %s)")
        params.extend(place)
    ordering = 'm.memory_key COLLATE "C", m.id' if order == "key" else "m.updated_at DESC, m.id DESC"
    columns = _SHOWN if include_values else _SHOWN.replace("m.value,", "NULL,", 1)
    with connection.cursor() as db:
        db.execute(
            f"SELECT {columns} FROM memories_memory m WHERE {' AND '.join(parts)} "  # noqa: S608
            f"ORDER BY {ordering} LIMIT %s",
            [*params, limit + 1],
        )
        rows = db.fetchall()
    page = [_shown(row) for row in rows[:limit]]
    for item in page:
        if not include_values:
            del item["value"]
    following = None
    if len(rows) > limit:
        last = page[-1]
        first = last["memory_key"] if order == "key" else last["updated_at"]
        following = encode_cursor(order, first, int(last["memory_id"]))
    return page, following


def _list_place(order: str, cursor: str) -> list[Any]:
    made_for, first, id_ = decode_cursor(cursor, str, str, int)
    if made_for != order:
        raise invalid("cursor", f"belongs to order={made_for}; go on with that order, or start anew.")
    if order == "key":
        return [first, id_]
    return [instant(first), id_]


def instant(text: str) -> datetime:
    """The instant within a cursor. OpError 400 for anything else."""
    try:
        # Back to UTC, for Python reads forms of ISO 8601 that PostgreSQL does not.
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise invalid("cursor", "is not one that this op answered.") from error


def memory_history(
    ctx: Context, key: str, limit: int, cursor: str | None
) -> tuple[dict[str, Any] | None, list[dict[str, Any]], str | None]:
    """(the lineage, a page of its versions newest first, the next cursor); (None, [], None) when unknown."""
    before = decode_cursor(cursor, int)[0] if cursor else None
    if ctx.namespace_id is None:
        return None, [], None
    where, params = scope(ctx)
    with connection.cursor() as db:
        db.execute(
            f"SELECT {_SHOWN} FROM memories_memory m WHERE {where} AND m.memory_key = %s "  # noqa: S608
            f"ORDER BY {_EXACT_FIRST}, (m.status = 'active') DESC, m.id DESC LIMIT 50",
            [*params, key, *_exact(ctx)],
        )
        rows = [_Candidate(columns) for columns in db.fetchall()]
        live = [row for row in rows if row.columns[13] != Status.REDACTED]
        found = choose(ctx, key, live or rows[:1])
        if found is None:
            return None, [], None
        db.execute(
            """SELECT version, kind, status, value, content_sha256, memory_type, tags, metadata, confidence,
                 pinned, expires_at, source_class, source_trace, principal, token_prefix, agent, reason,
                 request_id, at
               FROM memories_memoryversion WHERE memory_id = %s AND (%s::bigint IS NULL OR version < %s)
               ORDER BY version DESC LIMIT %s""",
            [found.columns[0], before, before, limit + 1],
        )
        versions = db.fetchall()
    redacted = found.columns[13] == Status.REDACTED
    page = [
        {
            "version": row[0],
            "kind": row[1],
            "status": row[2],
            "value": None if redacted or row[3] is None else json.loads(row[3]),
            "content_sha256": row[4],
            "memory_type": row[5],
            "tags": [] if redacted else row[6],
            "metadata": {} if redacted else json.loads(row[7]),
            "confidence": row[8],
            "pinned": row[9],
            "expires_at": iso(row[10]),
            "source_class": row[11],
            "source_trace": row[12],
            "by": row[13],
            "token_prefix": row[14],
            "agent": row[15],
            "reason": row[16],
            "request_id": row[17],
            "at": iso(row[18]),
        }
        for row in versions[:limit]
    ]
    following = encode_cursor(page[-1]["version"]) if len(versions) > limit else None
    return _shown(found.columns), page, following


def lock_list(ctx: Context, limit: int, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """A page of memories and facts with a lock or hold in force, the latest id first, and the next cursor."""
    before = decode_cursor(cursor, int)[0] if cursor else None
    if ctx.namespace_id is None:
        return [], None
    where, params = scope(ctx)
    with connection.cursor() as db:
        db.execute(
            f"SELECT m.id, m.memory_key, m.agent, m.user_id, m.session_id, {STATUS}, {_LOCK}, m.locked_by, "  # noqa: S608
            f"m.locked_at FROM memories_memory m WHERE {where} AND m.status <> 'redacted' "
            f"AND ({IN_FORCE} OR m.holds > 0) AND (%s::bigint IS NULL OR m.id < %s) "
            "ORDER BY m.id DESC LIMIT %s",
            [*params, before, before, limit + 1],
        )
        rows = db.fetchall()
        others = guarded_elsewhere(ctx, before, limit + 1)
        db.execute(
            "SELECT node_id, matter, reason, placed_by, placed_at FROM governance_hold "
            "WHERE node_id = ANY(%s) AND released_at IS NULL ORDER BY id",
            [[row[0] for row in rows] + [int(row["memory_id"]) for row in others]],
        )
        holds: dict[int, list[dict[str, Any]]] = {}
        for node_id, matter, reason, by, at in db.fetchall():
            line = {"matter": matter, "reason": reason, "placed_by": by, "placed_at": iso(at)}
            holds.setdefault(node_id, []).append(line)
    page = [
        {
            "memory_key": row[1],
            "memory_id": str(row[0]),
            "agent": row[2],
            "user_id": row[3],
            "session_id": row[4],
            "status": row[5],
            "mode": row[6] or "none",
            "reason": row[7] if row[6] else "",
            "until": iso(row[8]) if row[6] else None,
            "locked_by": row[11] if row[6] else "",
            "locked_at": iso(row[12]) if row[6] else None,
        }
        for row in rows
    ]
    page = sorted([*page, *others], key=lambda line: -int(line["memory_id"]))
    shown = [{**line, "holds": holds.get(int(line["memory_id"]), [])} for line in page[:limit]]
    return shown, encode_cursor(int(shown[-1]["memory_id"])) if len(page) > limit else None
