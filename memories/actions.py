"""Changes of many memories at once, or of their standing: pin, holds, apply, promote, consolidate, govern.

All of them go through the write gateway (`memories.services.Gateway`). A dry run is the same code; the
pipeline rolls it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection

from governance import review
from governance.locks import locked, require_plain
from governance.tenancy import visible_namespaces
from loomsite.ops import AuditEntry, Context, Effect, OpError, Role, invalid, not_found
from memories.analysis import title
from memories.erasure import redact
from memories.models import Status
from memories.nodes import Guarded, acknowledged_elsewhere
from memories.planning import target
from memories.screening import acknowledge, flags_of
from memories.selectors import SERVED, memory_get, scope
from memories.services import (
    MANY,
    ROW,
    Gateway,
    Identity,
    LockRequest,
    MadeMeanwhile,
    Pin,
    Row,
    State,
    embed_all,
    guarded_row,
    lock_row,
    pinned_conflict,
    refuse_managed,
    refused_entry,
    titled,
)

LIVING = tuple(status for status in Status.values if status not in (Status.DELETED, Status.REDACTED))


# Pins


def memory_pin(gate: Gateway, key: str, pinned: bool) -> tuple[Row, bool]:
    """Pin or unpin what the call's exact tuple holds; (row, changed)."""
    refuse_managed(key)
    who = Identity.of(gate.ctx)
    row = gate.exact([(key, who)]).get((key, who)) if pinned else gate.by_key(key, (Status.ACTIVE,))
    if row is None or not row.served:
        raise not_found(
            f"{key}: no such memory here under exactly this identity; memory.list shows the keys."
        )
    others = row.state.pinned and row.pinned_by != gate.ctx.caller.principal
    if others and not pinned and gate.ctx.role < Role.ADMIN:
        raise OpError(
            "FORBIDDEN",
            f"{key} is pinned by {row.pinned_by}; whoever pinned it, or an admin in the console, unpins it.",
            memory_key=key,
            pinned_by=row.pinned_by,
        )
    fresh = gate.write(
        row, row.key, row.identity, replace(row.state, pinned=pinned), "pin" if pinned else "unpin"
    )
    return fresh, fresh is not row


# Holds


def hold_add(gate: Gateway, key: str, matter: str, reason: str) -> tuple[Row | Guarded, bool]:
    """Put the memory under a legal hold for a matter; (row, changed). The same matter again is a no-op."""
    require_plain(reason)
    row = guarded_row(gate, key, LIVING)
    if isinstance(row, Row):
        row = gate.settle(row)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO governance_hold (org_id, namespace_id, node_id, target, matter, reason, placed_by, "
            "placed_at, released_by, release_reason) "
            "SELECT %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), '', '' WHERE NOT EXISTS ("
            "SELECT FROM governance_hold WHERE node_id = %s AND matter = %s AND released_at IS NULL)",
            [
                gate.ctx.caller.org_id, gate.namespace_id, row.id, row.key, matter, reason,
                gate.ctx.caller.principal, row.id, matter,
            ],
        )  # fmt: skip
        if cursor.rowcount == 0:
            return row, False
        cursor.execute(f"UPDATE {row.table} SET holds = holds + 1 WHERE id = %s", [row.id])  # noqa: S608
    fresh = replace(row, lock=replace(row.lock, holds=row.lock.holds + 1))
    _record_hold(gate, row, matter, reason, "placed")
    return fresh, True


def hold_release(gate: Gateway, key: str, matter: str, reason: str) -> tuple[Row | Guarded, bool]:
    """Release one hold; (row, changed). The pipeline has checked that an admin asks."""
    row = guarded_row(gate, key, tuple(status for status in Status.values if status != Status.REDACTED))
    with connection.cursor() as cursor:
        # The triggers let this row be loosened, and only in this transaction.
        cursor.execute("SELECT set_config('loom.loosen', %s, true)", [str(row.id)])
        cursor.execute(
            "UPDATE governance_hold SET released_at = clock_timestamp(), released_by = %s, "
            "release_reason = %s WHERE node_id = %s AND matter = %s AND released_at IS NULL",
            [gate.ctx.caller.principal, reason, row.id, matter],
        )
        released = cursor.rowcount == 1
        if released:
            cursor.execute(f"UPDATE {row.table} SET holds = holds - 1 WHERE id = %s", [row.id])  # noqa: S608
        cursor.execute("SELECT set_config('loom.loosen', '', true)")
    if not released:
        return row, False
    _record_hold(gate, row, matter, reason, "released")
    review.consider(
        gate.ctx, "hold.release", lambda: [target(row, "hold released")], effect=f"the hold for {matter}"
    )
    return replace(row, lock=replace(row.lock, holds=row.lock.holds - 1)), True


def _record_hold(gate: Gateway, row: Row | Guarded, matter: str, reason: str, what: str) -> None:
    gate.ctx.record(
        AuditEntry(
            target=row.key,
            before_version=row.version,
            after_version=row.version,
            before_sha256=row.content_sha256,
            after_sha256=row.content_sha256,
            reason=reason,
            detail={"memory_id": str(row.id), "matter": matter, "hold": what},
        )
    )


# Apply


@dataclass(frozen=True)
class Selection:
    """What an apply or a clear is about: exactly one of keys, a filter, the ids that a search found."""

    keys: Sequence[str] | None = None
    filter: dict[str, Any] | None = None
    found: Sequence[int] | None = None
    limit: int = 10_000


def select(
    gate: Gateway, selection: Selection, *, keep_values: bool = True
) -> tuple[list[Row], dict[int, str]]:
    """The rows that a selection names, of exactly the call's identity fields, locked in id order; those of
    the plan while one is applied, whatever the selection would find now. Their titles, by id, come with them.

    Identity narrows as on reads: what the call leaves out means any that the token covers.
    """
    frozen = review.frozen_ids(gate.ctx)
    if frozen is not None:
        return _named(gate, frozen, keep_values=keep_values)
    if selection.keys is not None:
        found = _by_keys(gate, selection.keys)
        return found, {row.id: title(row.state.value, row.key) for row in found}
    where, params = scope(gate.ctx)
    parts = [where, SERVED]
    if selection.found is not None:
        parts.append("m.id = ANY(%s) AND NOT m.held")
        params.append(list(selection.found))
    else:
        for clause, value in filter_clauses(selection.filter or {}):
            parts.append(clause)
            params.append(value)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT m.id FROM memories_memory m WHERE {' AND '.join(parts)} "  # noqa: S608
            "ORDER BY m.id LIMIT %s FOR UPDATE",
            [*params, selection.limit],
        )
        ids = [row[0] for row in cursor.fetchall()]
    # Judged again: the end of a row may have fallen between the statement's start and its lock.
    rows, titles = _named(gate, ids, keep_values=keep_values)
    return [row for row in rows if row.served], titles


def _by_keys(gate: Gateway, keys: Sequence[str]) -> list[Row]:
    rows = [row for row in gate.by_keys(keys, (Status.ACTIVE,)).values() if row is not None]
    here = {row.key for row in rows}
    missing = [key for key in dict.fromkeys(keys) if key not in here]
    if missing:
        shown = ", ".join(missing[:20])
        gate.ctx.advisories.append(f"keys: {len(missing)} not here: {shown}"[:1000])
    return sorted(rows, key=lambda row: row.id)


def filter_clauses(given: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """SQL over `m` for a selector's fields; every one that is given must hold."""
    clauses = {
        "memory_type": "m.memory_type = %s",
        "tags_any": "m.tags && %s::varchar[]",
        "tags_all": "m.tags @> %s::varchar[]",
        "key_prefix": "starts_with(m.memory_key, %s)",
        "created_before": "m.created_at < %s",
        "created_after": "m.created_at >= %s",
        "confidence_lte": "m.confidence <= %s",
        "source_trace": "m.source_trace = %s",
    }
    for name, clause in clauses.items():
        if given.get(name) is not None:
            yield clause, given[name]


def found_by(ctx: Context, query: str, limit: int) -> list[int]:
    """The ids that a search finds, best first; asked before the transaction opens, for it embeds."""
    from memories.search import SearchRequest, memory_search

    hits = memory_search(ctx, SearchRequest(query=query, top_k=limit))
    return [int(hit["memory_id"]) for hit in hits["results"]]


@dataclass(frozen=True)
class Application:
    """One action of memory.apply with its block."""

    action: str
    expires_at: datetime | None = None
    on_expire: str = "tombstone"
    lock: LockRequest | None = None
    tags: tuple[str, ...] = ()
    tag_mode: str = "add"
    confidence_factor: float | None = None
    confidence_delta: float | None = None


def memory_apply(gate: Gateway, rows: Sequence[Row], what: Application) -> list[dict[str, Any]]:
    """Do one thing to many rows; a row that a lock refuses is told so and left, never an error."""
    results = []
    together: list[tuple[Row, State]] = []
    for row in rows:
        line: dict[str, Any] = {"memory_key": row.key, "memory_id": str(row.id), "version": row.version}
        try:
            fresh = _apply_one(gate, row, what, together)
        except OpError as error:
            if error.code not in ("LOCKED", "FORBIDDEN", "MANAGED_KEY"):
                raise
            results.append({**line, "outcome": "refused", "why": error.message})
            if error.code == "LOCKED":
                gate.ctx.record(refused_entry(row.key, error))
            continue
        results.append({**line, "version": fresh.version, "outcome": "applied", "why": None})
    done = gate.write_many(together, what.action, governed=what.action == "clear")
    for line in results:
        if int(line["memory_id"]) in done:
            line["version"] = done[int(line["memory_id"])].version
    return results


def _apply_one(gate: Gateway, row: Row, what: Application, together: list[tuple[Row, State]]) -> Row:
    """Do it to one row, or put it among those that are written together."""
    state = row.state
    if what.action == "lock":
        assert what.lock is not None  # noqa: S101 - the schema requires the block
        lock_row(gate, row, what.lock)
        return row
    if what.action == "label":
        state = replace(state, tags=_labelled(state.tags, what.tags, what.tag_mode))
        return gate.write(row, row.key, row.identity, state, what.action)
    if what.action in ("delete", "clear"):
        state = replace(state, status=Status.DELETED)
    elif what.action == "expire":
        state = replace(state, expires_at=what.expires_at, on_expire=what.on_expire)
    else:
        state = replace(state, confidence=_demoted(state.confidence, what))
    gate.require(row, state)
    together.append((row, state))
    return row


def _labelled(have: tuple[str, ...], tags: tuple[str, ...], mode: str) -> tuple[str, ...]:
    if mode == "replace":
        return tags
    if mode == "remove":
        return tuple(tag for tag in have if tag not in tags)
    return tuple(dict.fromkeys((*have, *tags)))


def _demoted(confidence: float | None, what: Application) -> float:
    """A memory that never said how sure it is counts as sure."""
    base = 1.0 if confidence is None else confidence
    if what.confidence_factor is not None:
        base *= what.confidence_factor
    else:
        base += what.confidence_delta or 0.0
    return round(min(1.0, max(0.0, base)), 9)


# Promote and consolidate


def memory_promote(gate: Gateway, key: str, target: Gateway) -> tuple[Row, Row, bool]:
    """Share a private or session memory: (source, the lineage it now has as well, changed).

    `target` writes into the namespace that was named; there the memory belongs to nobody in particular.
    """
    refuse_managed(key)
    row = gate.by_key(key, (Status.ACTIVE,))
    if row is None:
        raise not_found(f"{key}: no such memory here; memory.list shows the keys.")
    nobody = Identity()
    if target.namespace_id == gate.namespace_id and row.identity == nobody:
        return row, row, False
    there = target.exact([(key, nobody)]).get((key, nobody))
    if there is None:
        state = replace(row.state, pinned=False)
        target.note = {"namespace": target.ctx.namespace, "promoted_from": str(row.id)}
        try:
            return row, target.write(None, key, nobody, state, "promote", promoted_from=row.id), True
        except MadeMeanwhile as made:
            there = made.row
    if there.served and there.state.content_sha256 == row.state.content_sha256:
        return row, there, False
    if there.governed and not there.served:
        raise OpError(
            "GOVERNED_KEY",
            f"{key} was {there.status} there by governance, and a copy does not revive it. A reviewer "
            "restores it in the console.",
            memory_key=key,
            memory_id=str(there.id),
            status=there.status,
        )
    raise OpError(
        "VERSION_CONFLICT",
        f"{key} stands there already with other content or has ended there; memory.set writes to it.",
        memory_key=key,
        memory_id=str(there.id),
        status=there.status,
        current_sha256=there.state.content_sha256 if there.served else None,
    )


def memory_consolidate(
    gate: Gateway,
    keys: Sequence[str],
    into: str,
    value: Any,
    write: Callable[[Row | None], tuple[Row | None, Row]],
) -> tuple[Row, list[Row]]:
    """Put one memory in the place of several: (the canonical one, the superseded sources).

    `write` stores `value` under `into`, in the source of that key when it is one, and returns its row as it
    was (None for a new one) and as it is. A locked source, or one that somebody else pinned, refuses the
    whole call.
    """
    for key in keys:
        if key != into:
            refuse_managed(key)
    found = gate.by_keys(keys, (Status.ACTIVE,))
    missing = [key for key in found if found[key] is None]
    if missing:
        raise not_found(f"{', '.join(missing)[:1000]}: no such memory here; memory.list shows the keys.")
    sources = [row for key, row in found.items() if row is not None and key != into]
    for row in sources:
        # To be superseded is to have another value in one's place.
        if row.state.pinned and row.pinned_by != gate.ctx.caller.principal:
            raise pinned_conflict(
                gate.ctx, row.key, Pin(row.id, row.pinned_by, row.state.value, row.held), value
            )
    before, canonical_row = write(found.get(into))
    superseded = []
    for row in sorted(sources, key=lambda row: row.id):
        state = replace(row.state, status=Status.SUPERSEDED, pinned=False)
        superseded.append(gate.write(row, row.key, row.identity, state, "consolidate", canonical_key=into))
    touched = [target(row, Status.SUPERSEDED) for row in sources]
    if before is not None:
        touched.append(target(before, "holds the new value", changes=canonical_row is not before))
    review.consider(gate.ctx, "memory.consolidate", lambda: touched, effect=f"into {into}"[:200])
    return canonical_row, superseded


def promotion_vectors(ctx: Context, key: str) -> dict[str, Any] | None:
    """The vector of the memory that is about to be shared, computed before the transaction opens."""
    found = memory_get(ctx, key)
    return None if found is None else embed_all([(key, found["value"])])


def elsewhere(ctx: Context, namespace: str) -> Context:
    """The same call in another namespace that the caller may write. OpError 404."""
    for row in visible_namespaces(ctx.caller):
        if row["namespace"] == namespace and Role.of(row["role"]) >= Role.WRITER:
            return replace(ctx, namespace=namespace, namespace_id=row["id"], role=Role.of(row["role"]))
    raise not_found(f"to: no namespace {namespace!r} that this caller may write; namespace.list shows yours.")


def memory_redact(gate: Gateway, key: str) -> Row:
    """Redact the memory that a key means, whatever its status. OpError 404, 409, 423."""
    row = gate.by_key(key, tuple(status for status in Status.values if status != Status.REDACTED))
    if row is None:
        raise not_found(f"{key}: no such memory here; memory.list shows the keys.")
    fresh = redact(gate, row)
    waits = review.consider(gate.ctx, "memory.redact", lambda: [target(row, Status.REDACTED)])
    # What waits has changed nothing, and the answer speaks of the row as it is.
    return row if waits else fresh


# Govern

ACTIONS = {
    "delete": Status.DELETED,
    "reject": Status.REJECTED,
    "stale": Status.STALE,
    "archive": Status.ARCHIVED,
    "redact": Status.REDACTED,
}
# What a status may become. Restoring is apart: only a reviewer does it, in the console.
TRANSITIONS: dict[str, frozenset[str]] = {
    Status.ACTIVE: frozenset({"stale", "rejected", "archived", "deleted", "redacted"}),
    Status.STALE: frozenset({"rejected", "archived", "deleted", "redacted"}),
    Status.REJECTED: frozenset({"deleted", "redacted"}),
    Status.ARCHIVED: frozenset({"deleted", "redacted"}),
    Status.SUPERSEDED: frozenset({"deleted", "redacted"}),
    Status.DELETED: frozenset({"redacted"}),
    Status.REDACTED: frozenset(),
}


@dataclass(frozen=True)
class GovernRequest:
    """A governed action as asked; `ids` are distinct and in ascending order."""

    ids: Sequence[int]
    action: str
    reason: str
    dry_run: bool
    expected_versions: dict[int, int] | None
    confirmed: bool
    pattern: str | None = None
    actor: str = ""


def memory_govern(gate: Gateway, request: GovernRequest) -> dict[str, Any]:
    """Judge and, unless it is a dry run, do one governed action on exactly these rows: all or nothing."""
    if not request.dry_run:
        _require_confirmation(request)
    if request.pattern is not None:
        elsewhere = acknowledged_elsewhere(gate.ctx, request)
        if elsewhere is not None:
            return elsewhere
    rows, titles = _named(gate, request.ids, keep_values=request.action == "redact")
    if gate.ctx.plan is not None or gate.ctx.is_refresh:
        # The plan compares them itself, and a request that is asked again means them as they are now.
        request = replace(request, expected_versions={row.id: row.version for row in rows})
    flags = flags_of([row.id for row in rows]) if request.pattern is not None else {}
    shown = [_judged(gate, row, request, flags.get(row.id, []), titles) for row in rows]
    if request.actor:
        gate.note = {"actor": request.actor}
    if not request.dry_run:
        _refuse(request, rows, shown)
    changed = [_changes(line, request, flags.get(row.id, [])) for row, line in zip(rows, shown, strict=True)]
    versions = _governed(gate, [row for row, does in zip(rows, changed, strict=True) if does], request)
    review.consider(
        gate.ctx,
        f"govern.{request.action}",
        lambda: [
            target(row, _planned(line, request), title=line["title"], changes=changes, why=line["why"] or "")
            for row, line, changes in zip(rows, shown, changed, strict=True)
        ],
        effect=request.pattern or "",
    )
    if review.state(gate.ctx) == "applied":
        for row, line in zip(rows, shown, strict=True):
            line["version"] = versions.get(row.id, row.version)
    return {
        "action": request.action,
        "reason": request.reason or None,
        "dry_run": request.dry_run,
        "affected": shown,
        "expected_versions": {str(row.id): row.version for row in rows},
        "state": review.state(gate.ctx),
    }


def _changes(line: dict[str, Any], request: GovernRequest, flags: Sequence[dict[str, Any]]) -> bool:
    """Whether the action does anything to the row."""
    if request.pattern is None:
        return not line["refused"] and line["new_status"] != line["previous_status"]
    return any(flag["pattern"] == request.pattern and not flag["acknowledged"] for flag in flags)


def _planned(line: dict[str, Any], request: GovernRequest) -> str:
    return line["new_status"] if request.pattern is None else "acknowledged"


def _require_confirmation(request: GovernRequest) -> None:
    if not request.confirmed:
        raise OpError(
            "CONFIRM_REQUIRED",
            "confirm_destructive: a real run needs it to be true. Run it with dry_run first; that answers "
            "the expected_versions too.",
        )
    if not request.reason:
        raise invalid("reason", "a real run needs one that is not blank.", "missing")
    given = set(request.expected_versions or {})
    missing, extra = sorted(set(request.ids) - given), sorted(given - set(request.ids))
    if missing or extra:
        raise OpError(
            "EXPECTED_VERSIONS",
            "expected_versions must name exactly the ids: "
            + "; ".join(
                f"{word} {', '.join(map(str, ids[:20]))}"
                for word, ids in (("missing", missing), ("not among the ids", extra))
                if ids
            )
            + ". A dry run answers it ready to use.",
            missing=[str(id_) for id_ in missing],
            extra=[str(id_) for id_ in extra],
        )


def _named(gate: Gateway, ids: Sequence[int], *, keep_values: bool) -> tuple[list[Row], dict[int, str]]:
    """The rows with these ids, locked in id order, and their titles by id; values only where they are kept.

    OpError 404 naming those that the caller does not see.
    """
    where, params = scope(gate.ctx)
    rows: list[Row] = []
    titles: dict[int, str] = {}
    wanted = sorted(ids)
    for first in range(0, len(wanted), MANY):
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {ROW} FROM memories_memory m WHERE {where} AND m.id = ANY(%s) "  # noqa: S608
                "ORDER BY m.id FOR UPDATE",
                [*params, wanted[first : first + MANY]],
            )
            for columns in cursor.fetchall():
                row, titles[columns[0]] = titled(columns, keep_value=keep_values)
                rows.append(row)
    unknown = sorted(set(ids) - {row.id for row in rows})
    if unknown:
        raise OpError(
            "NOT_FOUND",
            f"ids: not in this project: {', '.join(map(str, unknown[:20]))}; memory.list shows the ids.",
            unknown=[str(id_) for id_ in unknown],
        )
    return rows, titles


def _judged(
    gate: Gateway,
    row: Row,
    request: GovernRequest,
    flags: Sequence[dict[str, Any]],
    titles: Mapping[int, str],
) -> dict[str, Any]:
    """What would become of a row, or why nothing."""
    line: dict[str, Any] = {
        "id": str(row.id),
        "title": titles[row.id],
        "previous_status": row.status,
        "new_status": row.status,
        "version": row.version,
        "lock": row.lock.shown(),
        "refused": False,
        "why": None,
    }
    if request.action == "acknowledge-pattern":
        if request.pattern not in {flag["pattern"] for flag in flags}:
            line |= {"refused": True, "why": f"it is not flagged with {request.pattern}"}
        return line
    wanted = ACTIONS[request.action]
    if wanted == row.status:
        return line
    if wanted not in TRANSITIONS[row.status]:
        line |= {"refused": True, "why": f"a {row.status} memory cannot become {wanted}"}
    elif row.lock.refuses(Effect.EXISTENCE):
        line |= {
            "refused": True,
            "why": locked(row.lock, Effect.EXISTENCE, gate.ctx.op.name, row.key, row.id).message,
        }
    else:
        line["new_status"] = str(wanted)
    return line


def _refuse(request: GovernRequest, rows: Sequence[Row], shown: Sequence[dict[str, Any]]) -> None:
    """All or nothing: what stands against any row refuses the call, naming every such row."""
    expected = request.expected_versions or {}
    conflicts = [
        {"id": str(row.id), "expected": expected[row.id], "current": row.version}
        for row in rows
        if expected[row.id] != row.version
    ]
    if conflicts:
        raise OpError(
            "VERSION_CONFLICT",
            f"{len(conflicts)} of {len(rows)} memories moved since the dry run; nothing was applied. "
            "Run it dry again and look at them.",
            conflicts=conflicts,
        )
    barred = [(row, line) for row, line in zip(rows, shown, strict=True) if line["refused"]]
    held = [row for row, _ in barred if row.lock.refuses(Effect.EXISTENCE)]
    if held:
        raise OpError(
            "LOCKED",
            f"Locked, so nothing was applied: {', '.join(f'{row.key} ({row.id})' for row in held[:20])}. "
            "An admin of the namespace loosens locks in the console.",
            ids=[str(row.id) for row in held],
            locks=[{"id": str(row.id), "memory_key": row.key, **(row.lock.shown() or {})} for row in held],
            blocked={"op": "memory.govern", "effect": str(Effect.EXISTENCE)},
        )
    if barred:
        raise OpError(
            "INVALID_TRANSITION",
            "; ".join(f"{row.key} ({row.id}): {line['why']}" for row, line in barred[:20]),
            rows=[{"id": str(row.id), "status": row.status, "why": line["why"]} for row, line in barred],
        )


def _governed(gate: Gateway, rows: Sequence[Row], request: GovernRequest) -> dict[int, int]:
    """Do the action to these rows; the version that each has then, by id."""
    if request.action == "acknowledge-pattern":
        for row in rows:
            acknowledge(gate.ctx, row.id, row.key, request.pattern or "", request.reason, gate.note)
        return {}
    if request.action == "redact":
        return {row.id: redact(gate, row).version for row in rows}
    status = ACTIONS[request.action]
    changes = [(row, replace(row.state, status=status)) for row in map(gate.materialize_expiry, rows)]
    gate.flush()
    done = gate.write_many(changes, request.action, governed=status != Status.STALE)
    return {id_: row.version for id_, row in done.items()}
