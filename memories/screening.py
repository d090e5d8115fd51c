"""Screening of stored text for prompt injection: what is flagged is held until a person has read it.

A flag belongs to exactly the text in which it was found and to the catalogue of patterns that found it: an
edit or a newer catalogue voids every acknowledgement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import connection

from governance import services as governance
from governance.models import Namespace
from governance.patterns import CATALOGUE, CATALOGUE_VERSION, scan
from loomsite.ops import AuditEntry, Context, OpError, invalid
from memories.analysis import flatten, search_text

# A hostile text may match in thousands of places; a person needs the first few.
SPANS_KEPT = 50
Spans = dict[str, list[list[int]]]
Beside = Callable[[Mapping[int, str]], dict[int, str]]
_beside: list[Beside] = []


def register_beside(source: Beside) -> None:
    """Have texts screened that an app keeps beside its memories: `source` maps {id: key} to {id: text}."""
    _beside.append(source)


def texts_beside(keys: Mapping[int, str]) -> dict[int, str]:
    """What stands beside these memories, by id; nothing for those that have nothing."""
    found: dict[int, str] = {}
    for source in _beside:
        found |= source(keys)
    return found


def screened_text(
    key: str, value: Any, tags: Sequence[str], metadata: Any, source_trace: str, beside: str = ""
) -> str:
    """Every text of a memory that a reader may be handed: what is searched, metadata, source, what is beside.

    The spans of a flag count in it. `metadata` is the JSON object, not its text.
    """
    parts = [search_text(key, value, tags)]
    if metadata:
        parts.append(flatten(metadata))
    if source_trace:
        parts.append(source_trace)
    if beside:
        parts.append(beside)
    return "\n".join(parts)


def screen(text: str) -> Spans:
    """Every pattern found in `text`, with its [start, end) spans in characters."""
    found: Spans = {}
    for match in scan(text):
        spans = found.setdefault(match.pattern, [])
        if len(spans) < SPANS_KEPT:
            spans.append([match.start, match.end])
    return found


def text_sha256(text: str) -> str:
    """What a flag is bound to."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_flags(cursor: Any, flags: Mapping[int, tuple[str, Spans]]) -> None:
    """Replace the flags of these memories by what was found in their texts: id -> (text's SHA-256, spans)."""
    cursor.execute("DELETE FROM memories_flag WHERE memory_id = ANY(%s)", [list(flags)])
    rows = [
        (memory_id, pattern, json.dumps(spans), sha)
        for memory_id, (sha, found) in flags.items()
        for pattern, spans in sorted(found.items())
    ]
    if rows:
        ids, patterns, spans, shas = (list(column) for column in zip(*rows, strict=True))
        cursor.execute(
            "INSERT INTO memories_flag (memory_id, pattern, spans, content_sha256, catalogue, found_at, "
            "acknowledged_by, acknowledge_reason) "
            "SELECT *, %s, clock_timestamp(), '', '' "
            "FROM unnest(%s::bigint[], %s::text[], %s::jsonb[], %s::text[])",
            [CATALOGUE_VERSION, ids, patterns, spans, shas],
        )


def advise(ctx: Context, key: str, found: Spans) -> None:
    """Tell the writer that his text is held."""
    if found:
        names = ", ".join(sorted(found))
        ctx.advisories.append(
            f"value: {key} is stored and held out of search until a reviewer has read it ({names})"
        )


def acknowledge(
    ctx: Context, memory_id: int, key: str, pattern: str, reason: str, note: Mapping[str, str] | None = None
) -> bool:
    """A person has read this pattern in this content; the last one releases the memory. True if it changed.

    Raises OpError 400 for a pattern that the catalogue does not have or that was not found in this memory.
    """
    if pattern not in CATALOGUE:
        raise invalid("acknowledge_pattern", f"is none of {', '.join(sorted(CATALOGUE))}.")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT acknowledged_at IS NOT NULL, content_sha256 FROM memories_flag "
            "WHERE memory_id = %s AND pattern = %s",
            [memory_id, pattern],
        )
        row = cursor.fetchone()
        if row is None:
            raise OpError(
                "INVALID_TRANSITION", f"{key} is not flagged with {pattern}.", memory_key=key, pattern=pattern
            )
        if row[0]:
            return False
        cursor.execute(
            "UPDATE memories_flag SET acknowledged_by = %s, acknowledged_at = clock_timestamp(), "
            "acknowledge_reason = %s WHERE memory_id = %s AND pattern = %s",
            [ctx.caller.principal, reason, memory_id, pattern],
        )
        cursor.execute(
            "UPDATE memories_memory SET held = EXISTS (SELECT FROM memories_flag f "
            "WHERE f.memory_id = %s AND f.acknowledged_at IS NULL) WHERE id = %s RETURNING held",
            [memory_id, memory_id],
        )
        held = cursor.fetchone()[0]
    ctx.record(
        AuditEntry(
            target=key,
            reason=reason,
            detail={
                "memory_id": str(memory_id), "pattern": pattern, "text_sha256": row[1], "still_held": held,
                **(note or {}),
            },
        )
    )  # fmt: skip
    return True


def flags_of(memory_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """The flags of these memories as answers and pages show them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT memory_id, pattern, spans, acknowledged_by, acknowledged_at IS NOT NULL "
            "FROM memories_flag WHERE memory_id = ANY(%s) ORDER BY memory_id, pattern",
            [list(memory_ids)],
        )
        rows = cursor.fetchall()
    flags: dict[int, list[dict[str, Any]]] = {}
    for memory_id, pattern, spans, by, acknowledged in rows:
        flags.setdefault(memory_id, []).append(
            {
                "pattern": pattern,
                "meaning": CATALOGUE[pattern].meaning if pattern in CATALOGUE else "",
                "spans": json.loads(spans),
                "acknowledged": acknowledged,
                "acknowledged_by": by or None,
            }
        )
    return flags


def rescan(limit: int = 500) -> int:
    """Screen again what another catalogue screened, so that a new pattern reaches old texts; how many."""
    from django.db import transaction

    from governance import audit

    seen = 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, namespace_id, memory_key, value, tags, metadata, source_trace, held "
            "FROM memories_memory WHERE screened_with <> %s AND status <> 'redacted' "
            "ORDER BY screened_with, id LIMIT %s FOR UPDATE SKIP LOCKED",
            [CATALOGUE_VERSION, limit],
        )
        rows = cursor.fetchall()
        flags: dict[int, tuple[str, Spans]] = {}
        moved: dict[int, list[AuditEntry]] = {}
        beside = texts_beside({row[0]: row[2] for row in rows})
        for id_, namespace_id, key, value, tags, metadata, source_trace, held in rows:
            stored = json.loads(value) if value is not None else None
            text = screened_text(key, stored, tags, json.loads(metadata), source_trace, beside.get(id_, ""))
            found = screen(text)
            flags[id_] = (text_sha256(text), found)
            if bool(found) != held:
                entry = AuditEntry(
                    target=key, detail={"memory_id": str(id_), "held": bool(found), "patterns": sorted(found)}
                )
                moved.setdefault(namespace_id, []).append(entry)
        if rows:
            write_flags(cursor, flags)
            cursor.execute(
                "UPDATE memories_memory m SET screened_with = %s, held = f.held "
                "FROM unnest(%s::bigint[], %s::bool[]) AS f (id, held) WHERE m.id = f.id",
                [CATALOGUE_VERSION, list(flags), [bool(found) for _, found in flags.values()]],
            )
        # One organisation's chain at a time, in the same order everywhere.
        for namespace in Namespace.objects.select_related("org").filter(pk__in=moved).order_by("org", "pk"):
            ctx = governance.system_context(org=namespace.org, namespace=namespace, op_name="memory.screen")
            audit.append(ctx, moved[namespace.pk])
        seen = len(rows)
    return seen
