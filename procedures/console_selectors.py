"""Reads for the console's pages about procedures, narrowed to what their reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Cast, NullIf

from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount
from governance.models import Job
from procedures import gate_settings, judging, ledger, ranking, selectors
from procedures.counting import Counts
from procedures.evolving import Findings, findings_now
from procedures.gate import GateSettings
from procedures.gate_settings import Chosen
from procedures.graph import Difference, Graph, difference
from procedures.judging import Judgement
from procedures.models import Procedure, Revision, Run
from procedures.picture import Picture, picture
from procedures.selectors import Found, RevisionRow, present_graph, procedure_row, revision_graph

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


# Revisions, the gate, and why a flag is set


@dataclass(frozen=True)
class RevisionShown:
    """A revision with what its folded runs did."""

    row: RevisionRow
    runs: Counts
    strikes: int
    in_force: bool
    is_prior: bool
    """The pending revision in force is judged against it."""


def revisions(procedure: Procedure) -> list[RevisionShown]:
    """Every revision, the newest first."""
    rows = selectors.revision_rows(procedure.pk)
    states = selectors.folded_states(procedure.pk, rows)
    return [
        RevisionShown(
            row=row,
            runs=states[row.number].tally.counts,
            strikes=states[row.number].strikes,
            in_force=row.number == procedure.revision,
            is_prior=row.number == procedure.prior_revision,
        )
        for row in reversed(rows.values())
    ]


def compared(procedure: Procedure, number: int, other: int | None = None) -> tuple[Graph, Difference | None]:
    """The graph of a revision, and what it changes of `other` (else of the one it is judged against)."""
    rows = selectors.revision_rows(procedure.pk)
    graph = revision_graph(procedure.pk, number, rows[number].digest)
    other = rows[number].prior if other is None else other
    if other is None or other not in rows:
        return graph, None
    return graph, difference(revision_graph(procedure.pk, other, rows[other].digest), graph)


def drawn_revision(procedure: Procedure, number: int) -> Drawn:
    """A revision with what its own folded runs did (those of what it restores included)."""
    graph = revision_graph(procedure.pk, number)
    tally = selectors.folded_states(procedure.pk, [number])[number].tally
    return Drawn(picture(graph, tally), tally.total, tally.ok)


def settings_of(procedure: Procedure) -> Chosen:
    """The gate settings that an evolve of the server's own uses."""
    return gate_settings.choose(procedure.memory.metadata or {}, procedure.evolve_settings)


def gate_walk(procedure: Procedure, number: int) -> Judgement | None:
    """The gate on a revision, run by run (`walk.s`, `walk.r` between `walk.lower` and `walk.upper`).

    A verdict that was given is replayed with its own settings up to its run; a pending revision up to the
    ledger's present end, unfolded runs included, with the stored settings. None for a revision that was never
    judged.
    """
    rows = selectors.revision_rows(procedure.pk)
    row = rows.get(number)
    if row is None or row.prior is None:
        return None
    if row.verdict is not None:
        given = GateSettings(**row.verdict["settings"])
        return judging.judge(procedure.pk, rows, row, given, row.verdict["run"])
    if row.state != Revision.State.PENDING:
        return None
    chosen = settings_of(procedure)
    return judging.judge(procedure.pk, rows, row, chosen.settings.gate, procedure.runs_total)


@dataclass(frozen=True)
class Why:
    """What stands behind the flags of a procedure."""

    found: Findings
    """Dead ends with their bounds, suspects with their tests, strikes, what a template lacks."""
    applied: Found
    """The flags as they are set; under a read_only lock they may lag behind."""
    chosen: Chosen
    failed: list[Run]
    """The failed runs at the end on the revision in force, the newest first, as far as they are strikes."""


def why(procedure: Procedure) -> Why:
    """The evidence for every flag, from the folded counters, with the stored settings."""
    chosen = settings_of(procedure)
    row = procedure_row(procedure.pk)
    found = findings_now(row, chosen.settings)
    folded = Run.objects.filter(procedure=procedure, revision=row.revision, folded_at__isnull=False)
    failed = folded.filter(ok=False).defer("answer").order_by("-seq")
    return Why(found, row, chosen, list(failed[: min(found.strikes.count, STRIKES_SHOWN)]))


STRIKES_SHOWN = 20


def pending(sight: Sight) -> QuerySet[Procedure]:
    """Procedures that the user sees whose revision in force waits for its verdict."""
    return procedures(sight).filter(prior_revision__isnull=False, memory__status="active")


def latest_evolve(procedure: Procedure) -> Job | None:
    """The evolve that was queued last, whoever asked for it; None when it is not kept any more."""
    return Job.objects.filter(pk=procedure.evolve_job or 0).first()
