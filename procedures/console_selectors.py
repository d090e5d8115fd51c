"""Reads for the console's pages about procedures, narrowed to what their reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Cast, NullIf

from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount
from governance.models import Job
from procedures import gate_settings, judging, ledger, ranking, selectors
from procedures.counting import Counts, Tally
from procedures.evolving import Findings, findings_now
from procedures.folding import Retention
from procedures.gate import GateSettings
from procedures.gate_settings import Chosen
from procedures.graph import KEY_PREFIX, Difference, Graph, difference, slug
from procedures.judging import Judgement
from procedures.models import Procedure, Revision, Run
from procedures.picture import Picture, picture, picture_of_difference
from procedures.selectors import Found, RevisionRow, present_graph, procedure_row, revision_graph
from procedures.services import EVOLVE_JOB

_TRUSTED = Q(quarantined=True) | Q(template=True)
STATUS_FILTERS = {
    "quarantined": Q(quarantined=True),
    "template": Q(quarantined=False, template=True),
    "exercised": ~_TRUSTED & Q(runs_folded__gt=0),
    "authored": ~_TRUSTED & Q(runs_folded=0, authored=True),
    "candidate": ~_TRUSTED & Q(runs_folded=0, authored=False),
    "pending": Q(prior_revision__isnull=False),
}
"""By the word of `status_of`; `pending` is beside those, for a revision that waits for its verdict."""
REVISIONS_SHOWN = 100
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


def of_name(sight: Sight, namespace: str, name: str) -> Procedure | None:
    """The served procedure that a store under this name would rewrite, if the user sees one.

    One whose other name has the same key is none: the op refuses to overwrite it.
    """
    org, _, space = namespace.partition("/")
    found = (
        procedures(sight)
        .filter(
            namespace__org__slug=org,
            namespace__slug=space,
            memory__memory_key=KEY_PREFIX + slug(name.strip()),
            memory__status="active",
        )
        .first()
    )
    same = found is not None and (found.memory.value or {}).get("name") == name.strip()
    return found if same else None


def authored(present: Procedure | None, graph: Graph) -> Picture:
    """A graph before it is stored: beside the one that it would replace, if there is one."""
    if present is None:
        return picture(graph, Tally())
    return picture_of_difference(present_graph(procedure_row(present.pk)), graph)


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
    """The newest `REVISIONS_SHOWN` revisions, the newest first."""
    every = selectors.revision_rows(procedure.pk)
    rows = dict(list(every.items())[-REVISIONS_SHOWN:])
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


@dataclass(frozen=True)
class Compared:
    """Two revisions and what differs."""

    before: RevisionRow
    after: RevisionRow
    difference: Difference
    picture: Picture


def comparison(procedure: Procedure, before: int | None, after: int | None) -> Compared | None:
    """The two revisions that were asked for; else the one in force and what it is judged against, or came
    after. None where there is only one, or no such revision.
    """
    rows = selectors.revision_rows(procedure.pk)
    if after is None:
        after = procedure.revision
    if after not in rows:
        return None
    if before is None:
        earlier = [number for number in rows if number < after]
        before = rows[after].prior or (earlier[-1] if earlier else None)
    if before is None or before not in rows:
        return None
    graphs = [revision_graph(procedure.pk, number, rows[number].digest) for number in (before, after)]
    return Compared(rows[before], rows[after], difference(*graphs), picture_of_difference(*graphs))


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


def judged_numbers(procedure: Procedure) -> list[int]:
    """Revisions on which the gate has looked, the newest first."""
    rows = selectors.revision_rows(procedure.pk)
    return [
        row.number
        for row in reversed(rows.values())
        if row.prior is not None and (row.verdict is not None or row.state == Revision.State.PENDING)
    ][:REVISIONS_SHOWN]


@dataclass(frozen=True)
class Why:
    """What stands behind the flags of a procedure."""

    found: Findings
    """Dead ends with their bounds, suspects with their tests, strikes, what a template lacks."""
    applied: Found
    """The flags as they are set; under a read_only lock they may lag behind."""
    chosen: Chosen
    retention: dict[str, Any]
    last_gate: dict[str, Any] | None
    failed: list[Run]
    """The failed runs at the end on the revision in force, the newest first, as far as they are strikes."""


def why(procedure: Procedure) -> Why:
    """The evidence for every flag, from the folded counters, with the stored settings."""
    chosen = settings_of(procedure)
    row = procedure_row(procedure.pk)
    found = findings_now(row, chosen.settings)
    folded = Run.objects.filter(procedure=procedure, revision=row.revision, folded_at__isnull=False)
    failed = folded.filter(ok=False).defer("answer").order_by("-seq")
    retention = Retention.read(row.evidence.get("retention", {})).shown()
    last = selectors.last_gate(selectors.revision_rows(row.id))
    return Why(found, row, chosen, retention, last, list(failed[: min(found.strikes.count, STRIKES_SHOWN)]))


STRIKES_SHOWN = 20


def pending(sight: Sight) -> QuerySet[Procedure]:
    """Procedures that the user sees whose revision in force waits for its verdict."""
    return procedures(sight).filter(prior_revision__isnull=False, memory__status="active")


def latest_evolve(procedure: Procedure) -> Job | None:
    """The evolve that was queued last, whoever asked for it; None when it is not kept any more."""
    return Job.objects.filter(pk=procedure.evolve_job or 0).first()


def evolve_job(procedure: Procedure, asked: str) -> Job | None:
    """The evolve of this procedure with the asked id, else the one that was queued last."""
    if asked.isascii() and asked.isdigit() and len(asked) < 19:
        found = Job.objects.filter(pk=int(asked), kind=EVOLVE_JOB, input__procedure_id=procedure.pk).first()
        if found is not None:
            return found
    return latest_evolve(procedure)


def evolve_lines(job: Job) -> list[str]:
    """What an evolve has done, in a few plain sentences; none before its end."""
    answer = job.result or {}
    if job.state == Job.State.FAILED:
        return [f"It failed: {job.error}"]
    if job.state != Job.State.DONE or "folded_runs" not in answer:
        return []
    dry = bool((job.input or {}).get("dry_run"))
    lines = ["Nothing was changed: this was a dry run."] if dry else []
    lines.append(f"Runs folded: {answer['folded_runs']}.")
    if answer["gate"] != "none":
        after, before = answer["gate_after"], answer["gate_before"]
        why = f" ({answer['gate_reason']})" if answer["gate_reason"] else ""
        lines.append(
            f"Gate: {answer['gate']}{why}, {after['ok']} of {after['total']} runs succeeded against "
            f"{before['ok']} of {before['total']} before."
        )
    lines.append("Flags changed." if answer["changed"] else "No flag changed.")
    for name, label in (
        ("dead_end_steps", "Dead ends"), ("fail_prone_steps", "Fail-prone steps"),
        ("fail_prone_transitions", "Fail-prone transitions"),
    ):  # fmt: skip
        if answer[name]:
            lines.append(f"{label}: {', '.join(text[:80] for text in answer[name][:5])}.")
    if answer["quarantined"]:
        lines.append(f"Quarantined after {answer['strikes']} failures in a row.")
    lines.append(f"Revision in force: {answer['revision']}.")
    return [*lines, *answer.get("advisories", ())]
