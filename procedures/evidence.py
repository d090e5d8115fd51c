"""What the folded runs of a procedure show, each finding with the numbers behind it. Pure.

The proven path itself is in `procedures.graph`, the gate on a pending revision in `procedures.gate`, the
counting in `procedures.counting` and `procedures.folding`. Results are frozen dataclasses of plain values:
`dataclasses.asdict` makes JSON of them, for audit rows and the console.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from procedures.counting import Count, Counts, Tally
from procedures.folding import (
    SOURCES_NEEDED,
    TEMPLATE_KEPT_RATE,
    TEMPLATE_RATE,
    TEMPLATE_RUNS,
    RevisionState,
    Sources,
)
from procedures.graph import Graph, proven_path

# Dead ends

CONFIDENCE = 0.95


@dataclass(frozen=True)
class DeadEnd:
    """A node that no run came through."""

    id: str
    runs: int
    """Runs of the revision that report a path."""
    upper: float
    """The 95 % upper bound on the share of runs that use it."""


def upper_bound_of_none(runs: int) -> float:
    """The exact 95 % upper bound on a share when none of `runs` showed it: 1 - 0.05 ** (1 / runs).

    About 3 / runs: the rule of three (Hanley and Lippman-Hand, "If nothing goes wrong, is everything all
    right?", JAMA 249, 1983). 1.0 without a run.
    """
    return 1.0 if runs <= 0 else 1 - (1 - CONFIDENCE) ** (1 / runs)


def dead_ends(graph: Graph, every: Tally, present: Tally, min_runs: int) -> list[DeadEnd]:
    """Nodes that no folded run traversed, in declared order; [] before `min_runs` runs of this revision.

    `every`: all folded runs that count for the graph, `present`: those of its revision. A run without a path
    does not say where it went, so it is no evidence here and does not count towards `min_runs`.
    """
    runs = present.pathed
    if runs < max(min_runs, 1):
        return []
    upper = upper_bound_of_none(runs)
    return [DeadEnd(node.id, runs, upper) for node in graph.nodes if not every.node(node.id).total]


def linear_path(graph: Graph, tally: Tally, dead: Collection[str]) -> list[str]:
    """Ids of the proven path without dead ends: the order of the linear steps."""
    return [id_ for id_ in proven_path(graph, tally) if id_ not in dead]


# Fail-prone steps and transitions

LEAST_TRAVERSALS = 5
EXCESS = 0.2
"""The failure share has to exceed the base failure rate by so much."""
FALSE_DISCOVERIES = 0.05


@dataclass(frozen=True)
class Suspect:
    """A step or transition that was contrasted with the runs that did not take it."""

    kind: Literal["step", "transition"]
    what: tuple[str, ...]
    """(id,) or (src, dst)."""
    traversals: int
    runs: int
    """Runs that took it."""
    failed: int
    """Of those, the failed ones."""
    share: float
    """failed / runs."""
    p: float
    """One-sided Fisher exact probability of so many failures or more."""
    adjusted: float
    """The same after Benjamini and Hochberg."""
    flagged: bool

    @property
    def label(self) -> str:
        """The id, or "src -> dst"."""
        return " -> ".join(self.what)


@dataclass(frozen=True)
class FailProne:
    """All that was contrasted, least probable first."""

    base: Counts
    """All runs."""
    base_rate: float
    """The base failure rate; 0 without a run."""
    suspects: list[Suspect]

    def steps(self) -> list[str]:
        """Ids of the flagged steps."""
        return [one.what[0] for one in self.suspects if one.flagged and one.kind == "step"]

    def transitions(self) -> list[tuple[str, str]]:
        """The flagged transitions."""
        return [
            (one.what[0], one.what[1]) for one in self.suspects if one.flagged and one.kind == "transition"
        ]


def fisher_greater(failed_with: int, runs_with: int, failed: int, runs: int) -> float:
    """P(X >= failed_with), X hypergeometric: of `runs` runs `failed` failed, and `runs_with` took the step.

    Fisher's exact test, one-sided (R. A. Fisher, "The Logic of Inductive Inference", J. Roy. Statist. Soc.
    98, 1935). Sums the shorter tail; its terms fall faster than a geometric series.
    """
    low, high = max(0, runs_with + failed - runs), min(runs_with, failed)
    if failed_with <= low:
        return 1.0
    if failed_with > high:
        return 0.0
    if failed_with * runs > runs_with * failed:
        return min(1.0, _tail(failed_with, high, 1, runs_with, failed, runs))
    return max(0.0, 1 - _tail(failed_with - 1, low, -1, runs_with, failed, runs))


def _tail(start: int, end: int, step: Literal[1, -1], drawn: int, marked: int, runs: int) -> float:
    """The hypergeometric probabilities from `start` on to `end`, away from the middle."""
    term = math.exp(
        _log_choose(marked, start) + _log_choose(runs - marked, drawn - start) - _log_choose(runs, drawn)
    )
    total, x = term, start
    while x != end and term > total * 1e-17:
        if step > 0:
            term *= (marked - x) * (drawn - x) / ((x + 1) * (runs - marked - drawn + x + 1))
        else:
            term *= x * (runs - marked - drawn + x) / ((marked - x + 1) * (drawn - x + 1))
        total += term
        x += step
    return total


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def benjamini_hochberg(probabilities: Sequence[float]) -> list[float]:
    """Adjusted probabilities in the given order: rejecting those below q keeps the false discovery rate at q.

    Y. Benjamini and Y. Hochberg, "Controlling the False Discovery Rate", J. Roy. Statist. Soc. B 57, 1995.
    """
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted = [1.0] * len(probabilities)
    least = 1.0
    for rank in range(len(order), 0, -1):
        place = order[rank - 1]
        least = min(least, probabilities[place] * len(order) / rank)
        adjusted[place] = least
    return adjusted


def fail_prone(graph: Graph, tally: Tally) -> FailProne:
    """Steps and transitions over-represented on failed runs.

    The unit of the test is the run: a step in a loop is traversed often by one outcome. Contrasted are
    declared nodes, and transitions between declared nodes whether declared themselves or not, with at least
    `LEAST_TRAVERSALS` traversals and not on every run. All of these are one family for the adjustment: to
    adjust only over those that look bad would be to choose by the data that is tested.
    """
    base = tally.counts
    rate = base.failed / base.total if base.total else 0.0
    known = graph.by_id
    tried: list[tuple[Literal["step", "transition"], tuple[str, ...], Count]] = [
        ("step", (node.id,), tally.node(node.id)) for node in graph.nodes
    ]
    tried += [
        ("transition", pair, count)
        for pair, count in sorted(tally.edges().items())
        if pair[0] in known and pair[1] in known
    ]
    tested = [
        (kind, what, count)
        for kind, what, count in tried
        if count.total >= LEAST_TRAVERSALS and count.runs < base.total
    ]
    raw = [
        fisher_greater(count.runs - count.runs_ok, count.runs, base.failed, base.total)
        for _, _, count in tested
    ]
    suspects = []
    for (kind, what, count), p, adjusted in zip(tested, raw, benjamini_hochberg(raw), strict=True):
        failed = count.runs - count.runs_ok
        share = failed / count.runs
        flagged = adjusted < FALSE_DISCOVERIES and share >= rate + EXCESS - 1e-9
        suspects.append(Suspect(kind, what, count.total, count.runs, failed, share, p, adjusted, flagged))
    suspects.sort(key=lambda one: (one.p, one.kind, one.what))
    return FailProne(base, rate, suspects)


# Strikes


@dataclass(frozen=True)
class Strikes:
    """Whether a procedure is in quarantine, and why (not)."""

    count: int
    """Failed runs at the end of the ledger on the revision in force."""
    limit: int
    """0: never."""
    sources: int
    """Distinct sessions that reported them, at most `SOURCES_NEEDED` being counted."""
    sources_needed: int
    """1 where one principal alone may write."""
    quarantined: bool


def enough_sources(sources: Sources, shared: bool) -> bool:
    """Whether evidence is more than one session's; one is enough where only one principal may write."""
    return sources.count >= (SOURCES_NEEDED if shared else 1)


def strikes(state: RevisionState, limit: int, *, shared: bool) -> Strikes:
    """Quarantine by the revision in force: at `limit` failures in a row, reported by more than one session.

    `shared`: more than one principal may write. A success has cleared the count when it was folded; a
    revision that a revert opened starts without a strike (`RevisionState.restored`).
    """
    struck = 0 < limit <= state.strikes
    return Strikes(
        count=state.strikes,
        limit=limit,
        sources=state.strike_sources.count,
        sources_needed=SOURCES_NEEDED if shared else 1,
        quarantined=struck and enough_sources(state.strike_sources, shared),
    )


# Template


@dataclass(frozen=True)
class Template:
    """Whether a procedure is a template; `missing` names what it lacks."""

    template: bool
    runs: Counts
    """Of the revision in force."""
    rate: float
    """Smoothed."""
    needed: float
    """The rate it is held against: 0.8 to become one, 0.7 to stay one."""
    sources: int
    missing: tuple[str, ...]


def template(
    state: RevisionState,
    *,
    pending: bool,
    quarantined: bool,
    dead_ends_left: bool,
    shared: bool,
) -> Template:
    """Promotion and demotion by the runs of the revision in force.

    A template stays one until its smoothed rate falls below 0.7 (`RevisionState.proven`), as long as the
    other conditions hold.
    `dead_ends_left`: the linear steps still hold a dead end.
    """
    runs = state.tally.counts
    needed = TEMPLATE_KEPT_RATE if state.proven else TEMPLATE_RATE
    conditions = {
        "a revision is pending": not pending,
        "quarantined": not quarantined,
        f"fewer than {TEMPLATE_RUNS} runs on this revision": runs.total >= TEMPLATE_RUNS,
        f"success rate below {needed}": state.proven or runs.total < TEMPLATE_RUNS,
        "a dead end is left in the steps": not dead_ends_left,
        "successes of one session only": enough_sources(state.ok_sources, shared),
    }
    missing = tuple(what for what, holds in conditions.items() if not holds)
    return Template(not missing, runs, runs.smoothed, needed, state.ok_sources.count, missing)
