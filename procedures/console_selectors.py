"""Reads for the console's pages about procedures, narrowed to what their reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Cast, NullIf

from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount
from procedures import ledger, ranking
from procedures.models import Procedure, Run
from procedures.picture import Picture, picture
from procedures.selectors import present_graph, procedure_row

RUN_FILTERS = {"ok": Q(ok=True), "failed": Q(ok=False), "noted": ~Q(note="")}


def procedures(sight: Sight) -> QuerySet[Procedure]:
    """The procedures that the user sees, those of ended rows included; `rate` is the share that succeeded."""
    return (
        Procedure.objects.filter(sight.where())
        .exclude(memory__status="redacted")
        .select_related("memory", "namespace__org")
        .annotate(
            rate=Cast(F("runs_ok") * 100.0, FloatField()) / Cast(NullIf(F("runs_total"), 0), FloatField())
        )
    )


def status_of(procedure: Procedure) -> str:
    """The word for how far it can be trusted."""
    return ranking.status_of(
        quarantined=procedure.quarantined,
        template=procedure.template,
        exercised=procedure.runs_folded > 0,
        authored=procedure.authored,
    )


def matching(rows: QuerySet[Procedure], words: str) -> QuerySet[Procedure]:
    """Those whose key, name or situation holds `words` as they stand."""
    words = words.replace("\x00", "").strip()[:200]
    if not words:
        return rows
    return rows.filter(
        Q(memory__memory_key__icontains=words)
        | Q(memory__value__name__icontains=words)
        | Q(memory__value__situation__icontains=words)
    )


@dataclass(frozen=True)
class Drawn:
    """A procedure's graph with its counts."""

    picture: Picture
    total: int
    ok: int


def drawn(procedure: Procedure) -> Drawn:
    """The revision in force with what its runs did."""
    row = procedure_row(procedure.pk)
    graph = present_graph(row)
    with ledger.counted(row.id) as counters:
        tally = counters.tally(row.counted)
        shown = picture(graph, tally, frozenset(procedure.dead_ends), frozenset(procedure.fail_prone))
        return Drawn(shown, tally.total, tally.ok)


def runs(procedure: Procedure, which: str = "") -> QuerySet[Run]:
    """The procedure's runs, narrowed by a name of `RUN_FILTERS`."""
    found = Run.objects.filter(procedure=procedure).defer("answer")
    return found.filter(RUN_FILTERS[which]) if which in RUN_FILTERS else found


def counts_per_namespace(ids: Sequence[int]) -> dict[int, BoundedCount]:
    """Served procedures, counted up to a limit in each namespace."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT n.id, (SELECT count(*) FROM (
                 SELECT FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id
                 WHERE p.namespace_id = n.id AND m.status = 'active' LIMIT %s) counted)
               FROM unnest(%s::bigint[]) AS n(id)""",
            [COUNT_LIMIT + 1, list(ids)],
        )
        return {
            pk: BoundedCount(min(number, COUNT_LIMIT), number > COUNT_LIMIT)
            for pk, number in cursor.fetchall()
        }
