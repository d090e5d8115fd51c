"""Evolve: runs are folded into counters, and what follows from them into flags, steps and verdicts.

One transaction locks the procedure's rows, folds unfolded runs in ledger order into the counters of their own
revision and marks them; so nothing is folded twice, and what is committed is a whole evolve up to some run.
A long backlog is done in several such transactions (`PIECE`), because reports of further runs wait for the
lock: the state after some runs does not depend on how they were divided.

A read_only lock lets runs be folded; flags, steps and verdicts are then reported and not applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from governance import audit
from governance.directory import several_may_write
from governance.jobs import JobRun
from governance.models import Namespace
from governance.services import system_context
from loomsite.ops import Context, Effect, not_found
from memories.services import Gateway, Row, content_sha256
from procedures import evidence, judging, selectors
from procedures.counting import Tally
from procedures.evidence import DeadEnd, FailProne, Strikes, Suspect, Template
from procedures.folding import FoldedRun, Retention, RevisionState
from procedures.gate_settings import Chosen, EvolveFields, choose
from procedures.graph import KEY_PREFIX, Graph
from procedures.judging import Judgement
from procedures.models import Revision
from procedures.selectors import Found, RevisionRow, missing, revision_graph
from procedures.services import EVOLVE_JOB, NOBODY, Flags, audit_of, last_number, lock_present, value_of

PIECE = 25_000
"""Runs folded in one transaction; some seconds, in which reports of further runs wait."""
CHUNK = 5_000
"""Runs read at a time."""
ACCEPTED, REJECTED = Revision.State.ACCEPTED, Revision.State.REJECTED
SUSPECTS_SHOWN = 20
"""Flagged steps and transitions whose numbers an audit row holds."""


@dataclass(frozen=True)
class Request:
    """An evolve as asked: `given` names the settings that go before the stored ones."""

    procedure_id: int
    given: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False


def context_of(run: JobRun) -> Context:
    """The context of whoever queued the job."""
    namespace = Namespace.objects.select_related("org").filter(pk=run.namespace_id or 0).first()
    if namespace is None:
        raise not_found("the job's namespace is not there any more")
    asked = run.input
    ctx = system_context(
        org=namespace.org,
        namespace=namespace,
        op_name=EVOLVE_JOB,
        principal=asked.get("principal", "system"),
    )
    ctx.caller = replace(ctx.caller, token_prefix=asked.get("token_prefix", ""))
    ctx.agent, ctx.user_id = asked.get("agent"), asked.get("user_id")
    ctx.session_id, ctx.run_id = asked.get("session_id"), asked.get("run_id", "")
    ctx.reason = asked.get("reason", "")
    ctx.request_id = asked.get("request_id") or ctx.request_id
    return ctx


def evolve(ctx: Context, request: Request, run: JobRun | None = None) -> dict[str, Any]:
    """Fold what is unfolded and act on it; the op's output. OpError 404 for a procedure that has ended.

    Of a job that was interrupted, `run.kept` holds what earlier attempts achieved; it is not done again.
    A dry run runs all of it in a transaction that is rolled back.
    """
    done: dict[str, Any] | None = run.kept if run is not None else None
    if done is not None and not done.get("unfinished"):
        return done
    if not request.dry_run:
        while True:
            with transaction.atomic():
                done, share = _joined(done, _piece(ctx, request))
                audit.append(ctx, ctx.audit)
                if run is not None:
                    run.keep(done)
            ctx.audit.clear()
            if not done.get("unfinished"):
                return done
            if run is not None:
                run.progress(share)
    with transaction.atomic():
        done = None
        while done is None or done.get("unfinished"):
            done, _ = _joined(done, _piece(ctx, request))
        transaction.set_rollback(True)
    ctx.audit.clear()
    return done


# What the gate said stays said when a later piece has nothing pending any more.
_GATE_FIELDS = (
    "gate", "gate_mode", "gate_llr", "gate_before", "gate_after", "gate_cost_before", "gate_cost_after",
    "gate_reason",
)  # fmt: skip


def _joined(before: dict[str, Any] | None, piece: _Piece) -> tuple[dict[str, Any], float]:
    """The answer of an evolve so far, and the share of the backlog that is folded."""
    now = piece.answer
    if before is not None:
        now["folded_runs"] += before["folded_runs"]
        now["changed"] = now["changed"] or before["changed"]
        if before["gate"] in ("accept", "revert"):
            now |= {name: before[name] for name in _GATE_FIELDS}
    if piece.left:
        now["unfinished"] = True
    total = now["folded_runs"] + piece.left
    return now, 1.0 if not total else now["folded_runs"] / total


@dataclass(frozen=True)
class _Piece:
    """What one transaction amounts to."""

    answer: dict[str, Any]
    left: int
    """Unfolded runs that remain."""


def _piece(ctx: Context, request: Request) -> _Piece:
    """One transaction's work, in the caller's transaction."""
    gate, row, present = locked_rows(ctx, request.procedure_id)
    chosen = choose(present.metadata, present.evolve_settings, request.given)
    upto = min(present.runs_total, present.runs_folded + PIECE)
    work = _Work(present, selectors.revision_rows(present.id), _now())
    judgement = work.judgement(chosen.settings, upto)
    applies = not row.lock.refuses(Effect.VALUE)
    verdict_at = None
    if judgement is not None and judgement.run is not None and applies:
        # A verdict that a lock, or other settings, kept from being applied counts from now.
        verdict_at = max(judgement.run, present.runs_folded)
        work.fold(verdict_at)
        work.apply(judgement, verdict_at)
    work.fold(upto)
    findings = work.findings(chosen.settings, several_may_write(present.namespace_id))
    fresh = row
    if applies:
        fresh = _write_row(gate, row, present, work, findings)
    flagged = findings.flags != Flags.of(present)
    moved = fresh is not row or (applies and flagged)
    if work.folded or moved or verdict_at is not None:
        _store(work, findings if applies else None, judgement if verdict_at is not None else None)
        _record(
            ctx, gate, present, work, findings, judgement, chosen, applied=applies, moved=fresh is not row
        )
    gate.flush()
    answer = _answer(present, fresh, work, findings, judgement, changed=applies and flagged)
    notes = list(chosen.advisories)
    if not applies:
        notes.append("memory_key: locked read_only; flags, steps and verdicts are reported and not applied")
    if notes:
        answer["advisories"] = notes
    return _Piece(answer, present.runs_total - upto)


def locked_rows(ctx: Context, procedure_id: int) -> tuple[Gateway, Row, Found]:
    """The memory row and the procedure's, locked in this order like every other write does."""
    gate = Gateway(ctx, None, manages=KEY_PREFIX)
    with connection.cursor() as cursor:
        cursor.execute("SELECT memory_key FROM memories_memory WHERE id = %s", [procedure_id])
        found = cursor.fetchone()
    key = str(found[0]) if found else "the procedure"
    row = gate.exact([(key, NOBODY)]).get((key, NOBODY))
    present = lock_present(row) if row is not None and row.id == procedure_id and row.served else None
    if row is None or present is None:
        raise missing(key)
    return gate, row, present


def _now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
    return at


# Folding


@dataclass
class _Work:
    """A procedure under its lock: the states that folding moves, and the revisions that a verdict moves."""

    present: Found
    rows: dict[int, RevisionRow]
    at: datetime
    folded: int = 0
    baseline: tuple[int, dict[str, Any]] | None = None
    restored: RevisionRow | None = None

    def __post_init__(self) -> None:
        self.revision = self.present.revision
        self.prior = self.present.prior_revision
        self.position = self.present.runs_folded
        self.retention = Retention.read(self.present.evidence.get("retention", {}))
        self.states: dict[int, RevisionState] = {}
        self.touched: set[int] = set()

    def judgement(self, settings: EvolveFields, upto: int) -> Judgement | None:
        """The gate on the pending revision as of run `upto`; None when nothing is pending."""
        if self.prior is None:
            return None
        pending = self.rows[self.revision]
        found = judging.judge(self.present.id, self.rows, pending, settings.gate, upto)
        if pending.baseline is None:
            self.baseline = pending.number, found.baseline.stored()
        return found

    def fold(self, upto: int) -> None:
        """Fold and mark the runs after the position, up to and with run `upto`."""
        while self.position < upto:
            last = min(upto, self.position + CHUNK)
            with connection.cursor() as cursor:
                # Paths as JSON, which is read several times faster than an array.
                cursor.execute(
                    "SELECT to_json(path)::text, ok, revision, principal, session_id FROM procedures_run "
                    "WHERE procedure_id = %s AND seq > %s AND seq <= %s ORDER BY seq",
                    [self.present.id, self.position, last],
                )
                runs = cursor.fetchall()
                self._load({run[2] for run in runs})
                for path, ok, revision, principal, session in runs:
                    self.states[revision].add(FoldedRun(json.loads(path), ok, revision, principal, session))
                    self.retention.add(ok)
                    self.touched.add(revision)
                cursor.execute(
                    "UPDATE procedures_run SET folded_at = %s "
                    "WHERE procedure_id = %s AND seq > %s AND seq <= %s",
                    [self.at, self.present.id, self.position, last],
                )
                # The trigger refuses a run that is folded already; here is a ledger with a gap.
                if not len(runs) == cursor.rowcount == last - self.position:
                    raise RuntimeError(
                        f"procedure {self.present.id}: runs {self.position + 1} to {last} are not all there"
                    )
            self.folded += len(runs)
            self.position = last

    def _load(self, numbers: Iterable[int]) -> None:
        wanted = [number for number in numbers if number not in self.states]
        if wanted:
            self.states |= selectors.folded_states(self.present.id, wanted)
            for number in wanted:
                graph = revision_graph(self.present.id, number, self.rows[number].digest)
                self.states[number].tally.declared = graph.declared

    def apply(self, judgement: Judgement, position: int) -> None:
        """Accept the pending revision, or bring the prior topology back under a new number."""
        number, prior = judgement.revision, self.prior
        assert prior is not None  # noqa: S101 - only what is pending is judged
        verdict = judgement.stored(self.at)
        state = ACCEPTED if judgement.verdict == "accept" else REJECTED
        self.rows[number] = replace(self.rows[number], state=state, verdict=verdict)
        self.prior = None
        if judgement.verdict == "accept":
            return
        fresh = last_number(self.present.id) + 1
        self._load([prior])
        self.states[fresh] = self.states[prior].restored()
        self.touched.add(fresh)
        self.restored = self.rows[fresh] = RevisionRow(
            number=fresh, state=ACCEPTED, digest=self.rows[prior].digest, proposed_by="",
            reason=f"revision {number} was reverted ({judgement.reason})", opened_after=position,
            opened_at=self.at, closed_at=None, prior=None, restores=prior, baseline=None, verdict=None,
        )  # fmt: skip
        self.revision = fresh

    # What follows

    def graph(self) -> Graph:
        """The graph in force."""
        restored = self.restored
        number = self.revision if restored is None or restored.restores is None else restored.restores
        return revision_graph(self.present.id, number)

    def findings(self, settings: EvolveFields, shared: bool) -> Findings:
        """What the folded counters say of the graph in force."""
        counted = selectors.counted_once(self.rows)
        self._load([*counted, self.revision])
        every = Tally()
        for number in counted:
            every.merge(self.states[number].tally)
        return findings(
            self.graph(), every, self.states[self.revision], settings,
            pending=self.prior is not None, shared=shared,
        )  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """What follows from folded counters, each with its numbers."""

    graph: Graph
    every: Tally
    path: list[str]
    """Ids along the proven path, those of dead ends left out."""
    dead_ends: list[DeadEnd]
    fail_prone: FailProne
    strikes: Strikes
    template: Template

    @property
    def flags(self) -> Flags:
        """As flags."""
        return Flags(
            quarantined=self.strikes.quarantined,
            template=self.template.template,
            dead_ends=tuple(one.id for one in self.dead_ends),
            fail_prone=tuple(sorted(self.fail_prone.steps(), key=self.graph.order.__getitem__)),
            fail_prone_edges=tuple(sorted(self.fail_prone.transitions())),
        )


def findings(
    graph: Graph,
    every: Tally,
    present: RevisionState,
    settings: EvolveFields,
    *,
    pending: bool,
    shared: bool,
) -> Findings:
    """Judge folded counters. `every`: all that count for the graph, `present`: those of its revision."""
    dead = evidence.dead_ends(graph, every, present.tally, settings.min_runs)
    if len(dead) == len(graph.nodes):
        # Runs that know none of the nodes are no evidence against each of them.
        dead = []
    hidden = {one.id for one in dead}
    path = evidence.linear_path(graph, every, hidden)
    if not path:
        # The path that worked most leads over nodes only that nobody used.
        path = [node.id for node in graph.nodes if node.id not in hidden]
    struck = evidence.strikes(present, settings.strikes, shared=shared)
    return Findings(
        graph=graph,
        every=every,
        path=path,
        dead_ends=dead,
        fail_prone=evidence.fail_prone(graph, every),
        strikes=struck,
        template=evidence.template(
            present,
            pending=pending,
            quarantined=struck.quarantined,
            dead_ends_left=bool(hidden.intersection(path)),
            shared=shared,
        ),
    )


def findings_now(present: Found, settings: EvolveFields) -> Findings:
    """What the folded counters say at present; reads only."""
    rows = selectors.revision_rows(present.id)
    counted = selectors.counted_once(rows)
    states = selectors.folded_states(present.id, {*counted, present.revision})
    every = Tally()
    for number in counted:
        every.merge(states[number].tally)
    return findings(
        selectors.present_graph(present), every, states[present.revision], settings,
        pending=present.prior_revision is not None, shared=several_may_write(present.namespace_id),
    )  # fmt: skip


# Storing


def _write_row(gate: Gateway, row: Row, present: Found, work: _Work, found: Findings) -> Row:
    """The memory row with the steps, flags and revision that follow; the same row when nothing moved."""
    value = value_of(present.name, present.situation, found.graph, found.path, work.revision, found.flags)
    state = replace(row.state, value=value, content_sha256=content_sha256(value))
    gate.beside[row.key] = found.graph.names
    return gate.write(row, row.key, NOBODY, state, "evolve", reason=_why(present, found, work))


def _why(present: Found, found: Findings, work: _Work) -> str:
    """What moved, in a few words for the history."""
    was, now = Flags.of(present), found.flags
    said = []
    if work.restored is not None:
        said.append(work.restored.reason)
    if now.quarantined != was.quarantined:
        said.append(f"{found.strikes.count} failures in a row" if now.quarantined else "quarantine ended")
    if now.template != was.template:
        said.append("became a template" if now.template else "is no template any more")
    for name, before, after in (
        ("dead ends", was.dead_ends, now.dead_ends),
        ("fail-prone steps", was.fail_prone, now.fail_prone),
        ("fail-prone transitions", was.fail_prone_edges, now.fail_prone_edges),
    ):
        if before != after:
            said.append(f"{len(after)} {name}")
    return "; ".join(said) or "the proven path has moved"


def _store(work: _Work, found: Findings | None, judgement: Judgement | None) -> None:
    """Counters, revisions and flags; the flags only where they are applied."""
    id_ = work.present.id
    with connection.cursor() as cursor:
        if work.restored is not None:
            _insert_restored(cursor, work, work.restored)
        for number in sorted(work.touched):
            cursor.execute(
                "UPDATE procedures_revision SET counters = %s WHERE procedure_id = %s AND number = %s",
                [json.dumps(work.states[number].stored()), id_, number],
            )
        if work.baseline is not None:
            number, stored = work.baseline
            cursor.execute(
                "UPDATE procedures_revision SET baseline = %s WHERE procedure_id = %s AND number = %s",
                [json.dumps(stored), id_, number],
            )
        if judgement is not None:
            _close(cursor, work, judgement)
        cursor.execute(
            "UPDATE procedures_procedure SET runs_folded = %s, evidence = %s WHERE memory_id = %s",
            [work.position, json.dumps({"retention": work.retention.stored()}), id_],
        )
        if found is not None:
            flags = found.flags
            cursor.execute(
                "UPDATE procedures_procedure SET revision = %s, prior_revision = %s, tools = %s, "
                "quarantined = %s, template = %s, dead_ends = %s, fail_prone = %s, fail_prone_edges = %s "
                "WHERE memory_id = %s",
                [
                    work.revision, work.prior, sorted(found.graph.tools), flags.quarantined, flags.template,
                    list(flags.dead_ends), list(flags.fail_prone), json.dumps(flags.fail_prone_edges), id_,
                ],
            )  # fmt: skip


def _insert_restored(cursor: Any, work: _Work, row: RevisionRow) -> None:
    cursor.execute(
        "INSERT INTO procedures_revision (procedure_id, namespace_id, number, graph, digest, proposed_by, "
        "reason, state, opened_after, opened_at, restores) "
        "SELECT procedure_id, namespace_id, %s, graph, digest, proposed_by, %s, %s, %s, %s, number "
        "FROM procedures_revision WHERE procedure_id = %s AND number = %s",
        [row.number, row.reason, row.state, row.opened_after, row.opened_at, work.present.id, row.restores],
    )


def _close(cursor: Any, work: _Work, judgement: Judgement) -> None:
    """Keep the verdict; what is not in force any more closes."""
    judged = work.rows[judgement.revision]
    cursor.execute(
        "UPDATE procedures_revision SET state = %s, verdict = %s WHERE procedure_id = %s AND number = %s",
        [judged.state, json.dumps(judged.verdict), work.present.id, judged.number],
    )
    cursor.execute(
        "UPDATE procedures_revision SET closed_at = %s WHERE procedure_id = %s AND closed_at IS NULL "
        "AND number <> %s",
        [work.at, work.present.id, work.revision],
    )


def _suspects(found: FailProne) -> list[dict[str, Any]]:
    return [suspect_shown(one) for one in found.suspects if one.flagged][:SUSPECTS_SHOWN]


def suspect_shown(one: Suspect) -> dict[str, Any]:
    """A contrasted step or transition as JSON."""
    return {
        "kind": one.kind, "what": one.label, "traversals": one.traversals, "runs": one.runs,
        "failed": one.failed, "share": round(one.share, 6), "p": float(f"{one.p:.6g}"),
        "adjusted": float(f"{one.adjusted:.6g}"),
    }  # fmt: skip


def _record(
    ctx: Context,
    gate: Gateway,
    present: Found,
    work: _Work,
    found: Findings,
    judgement: Judgement | None,
    chosen: Chosen,
    *,
    applied: bool,
    moved: bool,
) -> None:
    """One audit row: what was folded, and of everything that changed the numbers behind it."""
    was, now = Flags.of(present), found.flags
    detail: dict[str, Any] = {
        "folded": work.folded,
        "runs": [work.position - work.folded + 1, work.position] if work.folded else [],
        "run_stats": present.run_stats,
        "settings": chosen.source,
        "applied": applied,
    }
    if judgement is not None and judgement.run is not None:
        detail["gate"] = {"revision": judgement.revision, **judgement.stored(work.at)}
    if now.quarantined != was.quarantined:
        detail["quarantined"] = asdict(found.strikes)
    if now.template != was.template:
        template = found.template
        detail["template"] = {
            "template": template.template, "runs": judging.shown(template.runs),
            "rate": round(template.rate, 6), "needed": template.needed, "sources": template.sources,
            "missing": list(template.missing),
        }  # fmt: skip
    if now.dead_ends != was.dead_ends:
        detail["dead_ends"] = [
            {"id": one.id, "runs": one.runs, "upper": round(one.upper, 6)} for one in found.dead_ends
        ]
    if (now.fail_prone, now.fail_prone_edges) != (was.fail_prone, was.fail_prone_edges):
        base = found.fail_prone
        detail["fail_prone"] = {
            "base": judging.shown(base.base),
            "base_rate": round(base.base_rate, 6),
            "flagged": _suspects(base),
        }  # fmt: skip
    if moved and ctx.audit:
        ctx.audit[-1].detail.update(detail)
    else:
        ctx.record(audit_of(present, detail))


# The answer


def _answer(
    present: Found,
    row: Row,
    work: _Work,
    found: Findings,
    judgement: Judgement | None,
    *,
    changed: bool,
) -> dict[str, Any]:
    graph, flags = found.graph, found.flags
    return {
        "memory_key": row.key,
        "state": "done",
        "version": row.version,
        "revision": work.revision,
        "changed": changed,
        "template": flags.template,
        "folded_runs": work.folded,
        **gate_shown(judgement),
        "last_gate": selectors.last_gate(work.rows),
        "dead_end_steps": [graph.by_id[id_].words for id_ in flags.dead_ends],
        "fail_prone_steps": [graph.by_id[id_].words for id_ in flags.fail_prone],
        "fail_prone_transitions": [f"{src} -> {dst}" for src, dst in flags.fail_prone_edges],
        "run_stats": present.run_stats,
        "strikes": found.strikes.count,
        "quarantined": flags.quarantined,
        "retention": work.retention.shown(),
    }


def gate_shown(judgement: Judgement | None) -> dict[str, Any]:
    """The gate's part of an answer."""
    if judgement is None:
        nothing = {"total": 0, "ok": 0}
        return {
            "gate": "none", "gate_mode": "", "gate_llr": None, "gate_before": nothing,
            "gate_after": dict(nothing), "gate_cost_before": {}, "gate_cost_after": {}, "gate_reason": "",
        }  # fmt: skip
    return {
        "gate": judgement.verdict,
        "gate_mode": judgement.settings.mode,
        "gate_llr": judgement.llr,
        "gate_before": judging.shown(judgement.walk.before),
        "gate_after": judging.shown(judgement.walk.after),
        "gate_cost_before": judging.medians(judgement.costs_before),
        "gate_cost_after": judging.medians(judgement.costs_after),
        "gate_reason": judgement.reason,
    }
