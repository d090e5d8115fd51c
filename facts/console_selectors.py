"""Reads for the console's pages about facts. Each list is bounded and narrowed to what its reader sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Case, CharField, F, QuerySet, Value, When

from facts import selectors
from facts.index import screened
from facts.models import SHARED, FactFlag, Lineage
from facts.picture import Area, Picture, picture
from facts.selectors import Fact
from facts.words import sha_of_word
from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount
from governance.models import Hold
from governance.patterns import CATALOGUE
from memories.console_flags import FlagView, marked
from memories.console_selectors import IN_FORCE

SHOWN = 100
FEW = 5
"""So many values of a fact stand in a list."""


def lineages(sight: Sight) -> QuerySet[Lineage]:
    """The facts that the user sees: those of its namespaces, private ones included and marked.

    `lock_now` is the mode in force by the database's clock.
    """
    return (
        Lineage.objects.filter(sight.where(), status="active")
        .select_related("namespace__org")
        .annotate(
            lock_now=Case(
                When(IN_FORCE, then=F("lock_mode")), default=Value("none"), output_field=CharField()
            )
        )
    )


def about(rows: QuerySet[Lineage], subject: str) -> QuerySet[Lineage]:
    """Narrowed to a subject, whatever its case."""
    return rows.filter(subject_sha256=sha_of_word(subject)) if subject else rows


def current(lines: Sequence[Lineage]) -> dict[int, list[Fact]]:
    """What holds now in each of these facts, a few values of each and one more, in one statement."""
    found: dict[int, list[Fact]] = {}
    for fact in selectors.fetch(
        "v.id IN (SELECT c.id FROM unnest(%s::bigint[]) AS asked (id) CROSS JOIN LATERAL ("
        "SELECT o.id FROM facts_version o WHERE o.lineage_id = asked.id AND upper_inf(o.known) "
        "AND o.valid @> statement_timestamp() LIMIT %s) c)",
        [[line.pk for line in lines], FEW + 1],
    ):
        found.setdefault(fact.lineage_id, []).append(fact)
    return found


def versions(line: Lineage) -> tuple[list[Fact], bool]:
    """The latest versions of a fact, oldest known first, and whether there are more."""
    found = selectors.fetch(
        "v.lineage_id = %s", [line.pk, SHOWN + 1], "ORDER BY lower(v.known) DESC, v.id DESC LIMIT %s"
    )
    return found[:SHOWN][::-1], len(found) > SHOWN


def believed(line: Lineage, known_at: datetime | None, valid_at: datetime | None) -> list[Fact]:
    """What was believed at an instant, or about one instant of it; the first `SHOWN` by start."""
    where = "v.lineage_id = %s"
    params: list[Any] = [line.pk, *(at for at in (known_at, valid_at) if at is not None)]
    where += " AND v.known @> %s::timestamptz" if known_at is not None else " AND upper_inf(v.known)"
    where += " AND v.valid @> %s::timestamptz" if valid_at is not None else ""
    return selectors.fetch(where, [*params, SHOWN], "ORDER BY lower(v.valid) NULLS FIRST, v.id LIMIT %s")


def standing(line: Lineage, version: int) -> Fact | None:
    """That version, while it is believed."""
    found = selectors.fetch("v.id = %s AND v.lineage_id = %s AND upper_inf(v.known)", [version, line.pk])
    return found[0] if found else None


def first_owner(line: Lineage) -> str:
    """The user who alone sees older versions of the fact; "-" where there is nothing to hide."""
    found = selectors.fetch("v.lineage_id = %s AND v.owner <> '-'", [line.pk], "ORDER BY v.id LIMIT 1")
    return found[0].owner if found else SHARED


def key_version(line: Lineage) -> int:
    """The version by whose id the ops name this fact: the latest that its owner sees, believed ones first."""
    (fact,) = selectors.fetch(
        "v.lineage_id = %s AND v.owner = %s",
        [line.pk, line.owner],
        "ORDER BY upper_inf(v.known) DESC, v.id DESC LIMIT 1",
    )
    return fact.id


def holds_of(line: Lineage) -> list[Hold]:
    """The fact's holds, those that stand first."""
    rows = Hold.objects.filter(node_id=line.pk, namespace=line.namespace_id)
    return list(rows.order_by(F("released_at").desc(nulls_first=True), "-placed_at", "-id")[:100])


def flag_views(text: str, flags: Sequence[FactFlag], since: datetime, most: int) -> list[FlagView]:
    """What screening found in a version's text, what waits first, each with at most `most` matches shown."""
    views = []
    for flag in flags:
        known = CATALOGUE.get(flag.pattern)
        spans = [(int(start), int(end)) for start, end in flag.spans]
        views.append(
            FlagView(
                flag.pattern, known.meaning if known else "", list(marked(text, spans[:most])), len(spans),
                since, flag.acknowledged_by, flag.acknowledged_at, flag.acknowledge_reason,
            )
        )  # fmt: skip
    return sorted(views, key=lambda view: (not view.is_open, view.pattern))


def flagged(facts: Sequence[Fact], most: int = 20) -> list[tuple[Fact, list[FlagView]]]:
    """Each flagged content among these versions once, by its latest version, with what was found."""
    found: dict[int, list[FactFlag]] = {}
    for flag in FactFlag.objects.filter(version__in=[fact.id for fact in facts]).order_by("pattern"):
        found.setdefault(flag.version_id, []).append(flag)
    by_content = {screened(fact): fact for fact in facts if fact.id in found}
    return [
        (fact, flag_views(text, found[fact.id], fact.known_from, most)) for text, fact in by_content.items()
    ]


def flags_in(line: Lineage, version: int) -> list[FlagView]:
    """What screening found in one version of the fact."""
    return [
        view
        for _, views in flagged(selectors.fetch("v.id = %s AND v.lineage_id = %s", [version, line.pk]), 50)
        for view in views
    ]


def open_patterns(line: Lineage, version: int) -> list[str]:
    """The patterns that wait for a reader in one version of the fact."""
    rows = FactFlag.objects.filter(
        version=version, version__lineage=line.pk, acknowledged_at__isnull=True
    ).order_by("pattern")
    return list(rows.values_list("pattern", flat=True))


def drawn(facts: Sequence[Fact]) -> Picture:
    """The two-axis picture of these versions."""
    return picture(
        [
            Area(
                json.dumps(fact.value, ensure_ascii=False), fact.period, fact.known_from, fact.known_to,
                fact.value_sha256,
            )
            for fact in facts
        ]
    )  # fmt: skip


def step_of(picture: Picture, known_at: datetime | None) -> int:
    """The picture's row in which an instant lies; the latest for None, the first for one before all."""
    if known_at is None:
        return picture.last_row
    reached = [i for i, row in enumerate(picture.rows) if datetime.fromisoformat(row.instant) <= known_at]
    return reached[-1] if reached else 0


def counts_per_namespace(ids: Sequence[int]) -> dict[int, BoundedCount]:
    """Facts in each namespace, counted up to a limit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n.id, (SELECT count(*) FROM (SELECT FROM facts_lineage l WHERE l.namespace_id = n.id "
            "LIMIT %s) counted) FROM unnest(%s::bigint[]) AS n(id)",
            [COUNT_LIMIT + 1, list(ids)],
        )
        return {
            pk: BoundedCount(min(number, COUNT_LIMIT), number > COUNT_LIMIT)
            for pk, number in cursor.fetchall()
        }


def after_correction(now: Sequence[Fact], answer: dict[str, Any], line: Lineage) -> list[dict[str, Any]]:
    """The timeline that a correction would leave, from what holds now and the answer of its dry run.

    Rows of `value`, `validFrom`, `validTo` and `change`: "", "cut" or "new".
    """
    corrected = answer["corrected"]
    rows = [
        {**fact.named(), "change": ""} for fact in now if str(fact.id) != corrected["factId"]
    ]  # fmt: skip
    if corrected["heldAs"] and not answer["unchanged"]:
        rows.append({**corrected, "change": "cut"})
    if answer["lineageId"] == str(line.pk):
        rows.append({**answer, "change": "" if answer["unchanged"] else "new"})
    return sorted(rows, key=lambda row: (row["validFrom"] or "", str(row["value"])))
