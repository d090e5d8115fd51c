"""Reads for the console's pages about facts. Each list is bounded and narrowed to what its reader sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F, QuerySet

from facts import selectors
from facts.models import Lineage
from facts.picture import Area, Picture, picture
from facts.selectors import Fact
from facts.words import sha_of_word
from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount

SHOWN = 100


def lineages(sight: Sight) -> QuerySet[Lineage]:
    """The facts that the user sees: those of its namespaces, private ones included and marked."""
    return Lineage.objects.filter(sight.where()).select_related("namespace__org").annotate(row=F("pk"))


def about(rows: QuerySet[Lineage], subject: str) -> QuerySet[Lineage]:
    """Narrowed to a subject, whatever its case."""
    return rows.filter(subject_sha256=sha_of_word(subject)) if subject else rows


def current(lines: Sequence[Lineage]) -> dict[int, list[Fact]]:
    """What holds now in each of these facts, in one statement."""
    found: dict[int, list[Fact]] = {}
    for fact in selectors.fetch(
        "v.lineage_id = ANY(%s) AND upper_inf(v.known) AND v.valid @> statement_timestamp()",
        [[line.pk for line in lines]],
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
    """What was believed at an instant, about all time or about one instant of it."""
    where, params = "v.lineage_id = %s", [line.pk, *(at for at in (known_at, valid_at) if at is not None)]
    where += " AND v.known @> %s::timestamptz" if known_at is not None else " AND upper_inf(v.known)"
    where += " AND v.valid @> %s::timestamptz" if valid_at is not None else ""
    return selectors.fetch(where, params, "ORDER BY lower(v.valid) NULLS FIRST, v.id")


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
