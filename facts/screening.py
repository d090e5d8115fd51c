"""Flagged texts of facts: acknowledgement by a person, and a second look by a newer catalogue.

A flag belongs to a version, whose texts never change. A person reads a content, not a row: what is
acknowledged in one version is acknowledged in every version of the fact with the same value, but for those
whose sources or reason say such a thing of their own. A newer catalogue of patterns voids every
acknowledgement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import connection, transaction

from facts import planning, selectors
from facts.index import beside, screened
from facts.models import SHARED
from facts.selectors import Fact, me, visible
from facts.services import LINE, Line, line_from
from governance import audit, review
from governance import services as governance
from governance.models import Namespace
from governance.patterns import CATALOGUE_VERSION
from loomsite.ops import AuditEntry, Context, OpError, invalid
from memories.actions import GovernRequest
from memories.analysis import title
from memories.screening import Spans, screen, text_sha256

ACTIVE = "active"


def acknowledge(ctx: Context, request: GovernRequest) -> dict[str, Any] | None:
    """Acknowledge a pattern in these versions, all or nothing, as memory.govern answers it.

    None when no id is a version that the caller sees here. `expected_versions` has the version of each
    version's fact. Raises OpError 400 for facts mixed with memories, 409 when a fact has moved since the dry
    run or is not flagged so.
    """
    facts = _named(ctx, request.ids)
    if not facts:
        return None
    if len(facts) < len(request.ids):
        strangers = sorted(set(request.ids) - {fact.id for fact in facts})
        raise invalid("ids", f"facts are acknowledged by themselves; not facts here: {strangers[:20]}.")
    lines = _locked([fact.lineage_id for fact in facts])
    unread = _unread([fact.id for fact in facts], request.pattern or "")
    shown = [_judged(fact, lines[fact.lineage_id], fact.id in unread, request) for fact in facts]
    if not request.dry_run:
        # A plan compares versions itself, and a request that is asked again means them as they are now.
        if ctx.plan is None and not ctx.is_refresh:
            _require_unmoved(facts, lines, request)
        _require_flagged(shown)
    for fact, line in zip(facts, shown, strict=True):
        if not line["refused"]:
            _read(ctx, fact, request)
    review.consider(
        ctx,
        f"govern.{request.action}",
        lambda: [
            replace(
                planning.target(fact, lines[fact.lineage_id], "acknowledged"),
                changes=unread.get(fact.id, False), why=line["why"] or "",
            )
            for fact, line in zip(facts, shown, strict=True)
        ],
        effect=request.pattern or "",
    )  # fmt: skip
    return {
        "action": request.action,
        "reason": request.reason or None,
        "dry_run": request.dry_run,
        "affected": shown,
        "expected_versions": {str(fact.id): lines[fact.lineage_id].version for fact in facts},
        "state": review.state(ctx),
    }


def _named(ctx: Context, ids: Sequence[int]) -> list[Fact]:
    clause, params = visible("v.owner", [SHARED, me(ctx)])
    return selectors.fetch(
        f"v.id = ANY(%s) AND v.namespace_id = %s AND l.status = 'active' AND {clause}",
        [list(ids), ctx.namespace_id, *params],
    )


def _locked(ids: Sequence[int]) -> dict[int, Line]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {LINE} FROM facts_lineage m WHERE m.id = ANY(%s) ORDER BY m.id FOR UPDATE",  # noqa: S608
            [sorted(set(ids))],
        )
        return {row[0]: line_from(row) for row in cursor.fetchall()}


def _unread(ids: Sequence[int], pattern: str) -> dict[int, bool]:
    """The versions that are flagged with the pattern; the value tells whether it is still to be read."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT version_id, acknowledged_at IS NULL FROM facts_factflag "
            "WHERE version_id = ANY(%s) AND pattern = %s",
            [list(ids), pattern],
        )
        return dict(cursor.fetchall())


def _judged(fact: Fact, line: Line, is_flagged: bool, request: GovernRequest) -> dict[str, Any]:
    return {
        "id": str(fact.id),
        "title": title(fact.value, f"{fact.subject} {fact.attribute}"),
        "previous_status": ACTIVE,
        "new_status": ACTIVE,
        "version": line.version,
        "lock": line.lock.shown(),
        "refused": not is_flagged,
        "why": None if is_flagged else f"it is not flagged with {request.pattern}",
    }


def _require_unmoved(facts: Sequence[Fact], lines: dict[int, Line], request: GovernRequest) -> None:
    expected = request.expected_versions or {}
    conflicts = [
        {"id": str(fact.id), "expected": expected[fact.id], "current": lines[fact.lineage_id].version}
        for fact in facts
        if expected[fact.id] != lines[fact.lineage_id].version
    ]
    if conflicts:
        raise OpError(
            "VERSION_CONFLICT",
            f"{len(conflicts)} of {len(facts)} facts moved since the dry run; nothing was applied. Run it "
            "dry again and look at them.",
            conflicts=conflicts,
        )


def _require_flagged(shown: Sequence[dict[str, Any]]) -> None:
    barred = [line for line in shown if line["refused"]]
    if barred:
        raise OpError(
            "INVALID_TRANSITION",
            "; ".join(f"fact:{line['id']}: {line['why']}" for line in barred[:20]),
            rows=[{"id": line["id"], "status": ACTIVE, "why": line["why"]} for line in barred],
        )


def _read(ctx: Context, fact: Fact, request: GovernRequest) -> None:
    """Acknowledge the pattern in every version of the fact that says the same; audited where that is new."""
    texts = fact.sources, fact.reason
    same = [
        other.id
        for other in selectors.fetch(
            "v.lineage_id = %s AND v.value_sha256 = %s AND EXISTS (SELECT FROM facts_factflag f "
            "WHERE f.version_id = v.id AND f.pattern = %s AND f.acknowledged_at IS NULL)",
            [fact.lineage_id, fact.value_sha256, request.pattern],
        )
        if (other.sources, other.reason) == texts
        or request.pattern not in screen(beside(other.sources, other.reason))
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE facts_factflag SET acknowledged_by = %s, acknowledged_at = clock_timestamp(), "
            "acknowledge_reason = %s WHERE version_id = ANY(%s) AND pattern = %s AND acknowledged_at IS NULL",
            [ctx.caller.principal, request.reason, same, request.pattern],
        )
        if cursor.rowcount == 0:
            return
        cursor.execute(
            "SELECT EXISTS (SELECT FROM facts_factflag WHERE version_id = %s AND acknowledged_at IS NULL)",
            [fact.id],
        )
        still = cursor.fetchone()[0]
    detail = {
        "lineage_id": str(fact.lineage_id), "pattern": request.pattern, "still_held": still,
        "text_sha256": text_sha256(screened(fact)),
    }  # fmt: skip
    if request.actor:
        detail["actor"] = request.actor
    ctx.record(AuditEntry(target=f"fact:{fact.id}", reason=request.reason, detail=detail))


def rescan(limit: int = 200) -> int:
    """Screen again the facts that another catalogue screened; how many facts were looked at."""
    moved: dict[int, list[AuditEntry]] = {}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, namespace_id FROM facts_lineage WHERE screened_with <> %s AND status = 'active' "
            "ORDER BY screened_with, id LIMIT %s FOR UPDATE SKIP LOCKED",
            [CATALOGUE_VERSION, limit],
        )
        lines = dict(cursor.fetchall())
        for fact, found in _screened(list(lines)):
            if bool(found) != fact.held:
                detail = {"lineage_id": str(fact.lineage_id), "held": bool(found), "patterns": sorted(found)}
                entry = AuditEntry(target=f"fact:{fact.id}", detail=detail)
                moved.setdefault(lines[fact.lineage_id], []).append(entry)
        cursor.execute(
            "UPDATE facts_lineage SET screened_with = %s WHERE id = ANY(%s)", [CATALOGUE_VERSION, list(lines)]
        )
        # One organisation's chain at a time, in the same order everywhere.
        for namespace in Namespace.objects.select_related("org").filter(pk__in=moved).order_by("org", "pk"):
            ctx = governance.system_context(org=namespace.org, namespace=namespace, op_name="fact.screen")
            audit.append(ctx, moved[namespace.pk])
    return len(lines)


def _screened(lineages: Sequence[int]) -> list[tuple[Fact, Spans]]:
    """Every version of these facts with what is found in it now, in the place of what was found before."""
    seen: dict[str, Spans] = {}
    result = []
    for fact in selectors.fetch("v.lineage_id = ANY(%s)", [list(lineages)]):
        content = screened(fact)
        if content not in seen:
            seen[content] = screen(content)
        result.append((fact, seen[content]))
    rows = [
        (fact.id, pattern, json.dumps(spans))
        for fact, found in result
        for pattern, spans in sorted(found.items())
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM facts_factflag WHERE version_id = ANY(%s)", [[fact.id for fact, _ in result]]
        )
        if rows:
            ids, patterns, spans = (list(column) for column in zip(*rows, strict=True))
            cursor.execute(
                "INSERT INTO facts_factflag (version_id, pattern, spans, catalogue, acknowledged_by, "
                "acknowledge_reason) SELECT u.id, u.pattern, u.spans, %s, '', '' "
                "FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS u (id, pattern, spans)",
                [CATALOGUE_VERSION, ids, patterns, spans],
            )
    return result
