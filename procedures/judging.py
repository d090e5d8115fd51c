"""What the gate is asked with: the prior revision's runs before the opening, and the pending one's in order.

Both are read from the ledger, never from counters, so that the verdict is the same however often anybody
asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from django.db import connection

from governance.clock import iso
from procedures.counting import Counts
from procedures.gate import (
    MEASURES,
    Cost,
    CostCheck,
    GateSettings,
    GateWalk,
    Verdict,
    cost_check,
    median_cost,
    walk,
)
from procedures.selectors import RevisionRow

Costs = dict[str, Cost]
Reason = Literal["", "success", "cost"]


@dataclass(frozen=True)
class Baseline:
    """What the prior revision had shown when the pending one opened."""

    counts: Counts
    costs: Costs

    def stored(self) -> dict[str, Any]:
        """As JSON: {total, ok, costs: {measure: [samples, median]}}."""
        return {
            "total": self.counts.total,
            "ok": self.counts.ok,
            "costs": {name: list(cost) for name, cost in self.costs.items()},
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Baseline:
        """From `stored`."""
        costs = {
            name: Cost(int(samples), float(median)) for name, (samples, median) in stored["costs"].items()
        }
        return cls(Counts(int(stored["total"]), int(stored["ok"])), costs)


class Trial(NamedTuple):
    """A run of the pending revision, as the gate reads it."""

    seq: int
    ok: bool
    duration_ms: int
    steps_taken: int | None
    tokens: int


def _parts(rows: Mapping[int, RevisionRow], number: int, upto: int) -> list[tuple[int, int]]:
    """(revision, last run) of all that counts as this revision's runs: what it restores, until it opened."""
    parts, row = [(number, upto)], rows[number]
    while row.restores is not None:
        parts.append((row.restores, min(upto, row.opened_after)))
        row = rows[row.restores]
    return parts


def baseline_of(procedure_id: int, rows: Mapping[int, RevisionRow], pending: RevisionRow) -> Baseline:
    """The runs of its prior revision that precede its opening; kept with it once they have been counted."""
    if pending.baseline is not None:
        return Baseline.read(pending.baseline)
    assert pending.prior is not None  # noqa: S101 - what is pending is judged against something
    parts = _parts(rows, pending.prior, pending.opened_after)
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT count(*), count(*) FILTER (WHERE r.ok),
                 count(*) FILTER (WHERE r.ok AND r.duration_ms > 0),
                 percentile_cont(0.5) WITHIN GROUP (ORDER BY r.duration_ms)
                   FILTER (WHERE r.ok AND r.duration_ms > 0),
                 count(r.steps_taken) FILTER (WHERE r.ok),
                 percentile_cont(0.5) WITHIN GROUP (ORDER BY r.steps_taken) FILTER (WHERE r.ok),
                 count(*) FILTER (WHERE r.ok AND r.tokens > 0),
                 percentile_cont(0.5) WITHIN GROUP (ORDER BY r.tokens) FILTER (WHERE r.ok AND r.tokens > 0)
               FROM procedures_run r JOIN unnest(%s::int[], %s::bigint[]) AS part (revision, upto)
                 ON r.revision = part.revision AND r.seq <= part.upto
               WHERE r.procedure_id = %s""",
            [[number for number, _ in parts], [upto for _, upto in parts], procedure_id],
        )
        total, ok, *costs = cursor.fetchone()
    found = {
        measure: Cost(samples, float(median))
        for measure, samples, median in zip(MEASURES, costs[::2], costs[1::2], strict=True)
        if samples
    }
    return Baseline(Counts(total, ok), found)


def trials_of(procedure_id: int, pending: RevisionRow, upto: int, limit: int) -> list[Trial]:
    """The pending revision's runs up to run `upto` in ledger order, `limit` at most."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, ok, duration_ms, steps_taken, tokens FROM procedures_run WHERE procedure_id = %s "
            "AND seq > %s AND seq <= %s AND revision = %s ORDER BY seq LIMIT %s",
            [procedure_id, pending.opened_after, upto, pending.number, limit],
        )
        return [Trial(*row) for row in cursor.fetchall()]


@dataclass(frozen=True)
class Judgement:
    """The gate on a revision, with everything that led to it."""

    revision: int
    settings: GateSettings
    walk: GateWalk
    verdict: Verdict
    reason: Reason
    """Why it is reverted."""
    run: int | None
    """Ledger number of the run that brought the verdict."""
    trials: list[Trial]
    """The runs that were replayed."""
    costs_before: Costs
    costs_after: Costs
    cost: CostCheck | None = None
    """The tie-break, where success alone would accept."""
    baseline: Baseline = field(default_factory=lambda: Baseline(Counts(), {}))

    @property
    def llr(self) -> float | None:
        """The statistic that decided, rounded for answers."""
        return None if self.walk.llr is None else round(self.walk.llr, 6)

    def stored(self, at: datetime) -> dict[str, Any]:
        """As JSON, for the revision and the audit."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "mode": self.settings.mode,
            "by": self.walk.by,
            "llr": self.llr,
            "bounds": [round(self.walk.lower, 6), round(self.walk.upper, 6)],
            "before": shown(self.walk.before),
            "after": shown(self.walk.after),
            "cost_before": medians(self.costs_before),
            "cost_after": medians(self.costs_after),
            "cost_measure": "" if self.cost is None else self.cost.measure,
            "run": self.run,
            "at": iso(at),
            "settings": asdict(self.settings),
        }


def shown(counts: Counts) -> dict[str, int]:
    """As answers show it: {total, ok}."""
    return {"total": counts.total, "ok": counts.ok}


def medians(costs: Costs) -> dict[str, float]:
    """The median of each measure that was reported."""
    return {name: round(cost.median, 6) for name, cost in costs.items()}


def _costs(trials: list[Trial]) -> Costs:
    won = [trial for trial in trials if trial.ok]
    found = {
        name: median_cost([getattr(trial, name) for trial in won], zero_is_unknown=name != "steps_taken")
        for name in MEASURES
    }
    return {name: cost for name, cost in found.items() if cost is not None}


def judge(
    procedure_id: int,
    rows: Mapping[int, RevisionRow],
    revision: RevisionRow,
    settings: GateSettings,
    upto: int,
) -> Judgement:
    """Replay a revision's runs up to run `upto` of the ledger; see `procedures.gate` for the methods."""
    baseline = baseline_of(procedure_id, rows, revision)
    trials = trials_of(procedure_id, revision, upto, settings.cap)
    walked = walk(baseline.counts, [trial.ok for trial in trials], settings)
    replayed = trials[: walked.after.total]
    after = _costs(replayed)
    verdict, check = walked.verdict, None
    reason: Reason = ""
    if verdict == "accept":
        check = cost_check(baseline.costs, after, settings)
        if check.revert:
            verdict, reason = "revert", "cost"
    elif verdict == "revert":
        reason = "success"
    return Judgement(
        revision=revision.number,
        settings=settings,
        walk=walked,
        verdict=verdict,
        reason=reason,
        run=None if walked.decided_at is None else replayed[walked.decided_at - 1].seq,
        trials=replayed,
        costs_before=baseline.costs,
        costs_after=after,
        cost=check,
        baseline=baseline,
    )
