"""The gate on a pending revision: did success fall, and is a success paid for dearly? Pure.

The revision's runs are replayed in ledger order and the first crossing counts, so the verdict does not depend
on how often anybody asked. Three ways to judge success:

- `sprt`, baseline `plugin`: Wald's sequential probability ratio test (A. Wald, "Sequential Tests of
  Statistical Hypotheses", Ann. Math. Statist. 16, 1945) of "the rate is p0" against "it is p0 - min_drop",
  with the smoothed rate of the prior revision for p0.
- `sprt`, baseline `integrated` (the default): p0 is not known, so each likelihood is averaged over what the
  prior revision's runs say of it, Beta(ok + 1, failed + 1) (the mixture form of Wald 1945, and Bayes factors:
  Jeffreys, "Theory of Probability", 1939). `S` has the alternative "a drop of exactly min_drop" and decides
  *accept*. `C` has "a drop of at least min_drop", the new rate uniform on (0, p0 - min_drop);
  R = max(S, C) decides *revert*.
- `margin`: the two plain rates are compared once.

Log-likelihood ratios are in nats; positive speaks for "worse".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from procedures.counting import Counts
from procedures.quadrature import Panel

Mode = Literal["sprt", "margin"]
BaselineKind = Literal["integrated", "plugin"]
Verdict = Literal["undecided", "accept", "revert"]
DecidedBy = Literal["", "bound", "cap", "margin"]

LEAST_RATE = 0.005
"""The lowest new rate of S, where p0 - min_drop would be below."""
PLUGIN_RATES = (0.01, 0.99)
"""`plugin` keeps p0 within, and the new rate above the first."""
TIE = 1e-9
"""What is this close to a bound or a margin is on it: 2 ln 4 and ln 16 are equal."""


@dataclass(frozen=True)
class GateSettings:
    """How a pending revision is judged. The defaults are those of `procedure.evolve`."""

    mode: Mode = "sprt"
    baseline: BaselineKind = "integrated"
    min_runs: int = 3
    """No verdict before so many runs."""
    max_runs: int = 50
    """The point estimate decides at this run (at `min_runs` where that is more)."""
    margin: float = 0.05
    min_drop: float = 0.15
    alpha: float = 0.05
    beta: float = 0.2
    cost_tolerance: float = 0.25
    cost_min_samples: int | None = None
    """None: as `min_runs`."""

    @property
    def upper(self) -> float:
        """Revert at or above: ln((1 - beta) / alpha)."""
        return math.log((1 - self.beta) / self.alpha)

    @property
    def lower(self) -> float:
        """Accept at or below: ln(beta / (1 - alpha))."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def cap(self) -> int:
        """The run at which the point estimate decides."""
        return max(self.min_runs, self.max_runs)


# Likelihood ratios


class Ratios(NamedTuple):
    """Both statistics after some runs."""

    s: float
    r: float


@dataclass(frozen=True)
class KnownRate:
    """Wald's test for a p0 that is known, or taken as if it were. S and R are one statistic."""

    p0: float
    p1: float

    def at(self, ok: int, failed: int) -> Ratios:
        """A success adds ln(p1 / p0), a failure ln((1 - p1) / (1 - p0))."""
        llr = ok * math.log(self.p1 / self.p0) + failed * math.log((1 - self.p1) / (1 - self.p0))
        return Ratios(llr, llr)


@dataclass(frozen=True)
class IntegratedRate:
    """Likelihoods averaged over p0 ~ Beta(prior.ok + 1, prior.failed + 1).

    Averaging the likelihood of a new rate over p0 is averaging it over the distribution that p0 gives that
    rate. Those distributions (`dropped` for S, `lower` for C) do not depend on the runs, so they are laid out
    as weighted points once for a prior; a run then costs one sum over the points.
    """

    prior: Counts
    dropped: Sequence[Point]
    lower: Sequence[Point]

    def at(self, ok: int, failed: int) -> Ratios:
        """The ratios after `ok` successes and `failed` failures in any order."""
        a, b = self.prior.ok + 1, self.prior.failed + 1
        same = _log_beta(a + ok, b + failed) - _log_beta(a, b)
        s = _log_mean(self.dropped, ok, failed) - same
        c = _log_mean(self.lower, ok, failed) - same
        return Ratios(s, max(s, c))


class Point(NamedTuple):
    """A rate with the logarithm of its weight."""

    log_weight: float
    log_rate: float
    log_rest: float
    """ln(1 - rate)."""


def _point(weight: float, rate: float) -> Point:
    return Point(math.log(weight), math.log(rate), math.log1p(-rate))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_mean(points: Sequence[Point], ok: int, failed: int) -> float:
    """ln of the weighted sum of rate^ok (1 - rate)^failed."""
    terms = [weight + ok * rate + failed * rest for weight, rate, rest in points]
    top = max(terms)
    return top + math.log(sum([math.exp(term - top) for term in terms]))


@lru_cache(maxsize=64)
def integrated_rate(prior: Counts, drop: float, runs: int = 50) -> IntegratedRate:
    """The points for a prior. `runs`: up to how many the ratios are asked for; it sets how many points.

    Gauss-Legendre over the part of the Beta density within `DEPTH` nats of its peak. Three things are exact
    or smooth by construction: rates that would fall below `LEAST_RATE` are one point; below all that the
    prior says of p0 - drop the density of C is constant; and where it has a logarithmic pole, at rate 0, the
    points are laid out in the cube root of the rate.
    """
    nodes = 56 + 4 * math.isqrt(max(runs, 1))
    density = _Beta(prior.ok + 1, prior.failed + 1)
    low, high = density.support()
    at_least = min(max(low, drop + LEAST_RATE), high)
    dropped = [
        _point(weight * density(p0), p0 - drop)
        for p0, weight in Panel(at_least, high).points(nodes)
        if density(p0) > 0
    ]
    _add_floor(dropped, density.mass(low, at_least, nodes))
    start = min(max(low, drop), high)
    lower = _composite(density, drop, start, high, nodes)
    # A p0 that cannot fall by `drop` has no such alternative: C is S there.
    _add_floor(lower, density.mass(low, start, nodes))
    return IntegratedRate(prior, dropped, lower)


def _add_floor(points: list[Point], mass: float) -> None:
    if mass > 0:
        points.append(_point(mass, LEAST_RATE))


def _composite(density: _Beta, drop: float, start: float, high: float, nodes: int) -> list[Point]:
    """The density of the new rate p under C: Beta(p0) / (p0 - drop), summed over p0 > p + drop."""
    if high <= start:
        return []
    left, right = start - drop, high - drop
    cubic = left < TIE
    panel = Panel(left, right, cubic=cubic)
    found: list[Point] = []
    above, edge = 0.0, right
    for rate, weight in reversed(panel.points(nodes)):
        above += sum(w * density(p + drop) / p for p, w in Panel(rate, edge, cubic=cubic).points(8))
        edge = rate
        if above > 0:
            found.append(_point(weight * above, rate))
    if not cubic:
        above += sum(w * density(p + drop) / p for p, w in Panel(left, edge).points(8))
        found += [_point(weight * above, rate) for rate, weight in Panel(0.0, left).points(nodes)]
    return found


DEPTH = 200.0
"""Nats below its peak at which a Beta density is cut off."""


@dataclass(frozen=True)
class _Beta:
    """A Beta density with a, b >= 1, so that its logarithm is concave."""

    a: int
    b: int

    def log(self, p: float) -> float:
        if not 0 < p < 1:
            return -math.inf
        return (self.a - 1) * math.log(p) + (self.b - 1) * math.log1p(-p) - _log_beta(self.a, self.b)

    def __call__(self, p: float) -> float:
        return math.exp(self.log(p))

    def support(self) -> tuple[float, float]:
        """Where the density is within `DEPTH` nats of its peak."""
        spread = self.a + self.b - 2
        mode = (self.a - 1) / spread if spread else 0.5
        inside = min(max(mode, 1e-12), 1 - 1e-12)
        least = self.log(inside) - DEPTH
        return self._edge(inside, 0.0, least), self._edge(inside, 1.0, least)

    def _edge(self, inside: float, outside: float, least: float) -> float:
        step = 1e-12 if outside == 0.0 else -1e-12
        if self.log(outside + step) >= least:
            return outside
        for _ in range(60):
            middle = (inside + outside) / 2
            if self.log(middle) >= least:
                inside = middle
            else:
                outside = middle
        return outside

    def mass(self, low: float, high: float, nodes: int) -> float:
        if high <= low:
            return 0.0
        return sum(weight * self(p) for p, weight in Panel(low, high).points(nodes))


# The gate


@dataclass(frozen=True)
class Judged:
    """The gate after some runs: the verdict there, both statistics (None in `margin`), and what decided."""

    verdict: Verdict
    ratios: Ratios | None
    by: DecidedBy = ""


@dataclass(frozen=True)
class Gate:
    """The test of one pending revision; a function of how many runs succeeded and failed so far."""

    settings: GateSettings
    before: Counts
    """Runs of the prior revision that precede the opening of the pending one in the ledger."""
    before_rate: float
    """The point estimate of the rate before, which decides at the cap: (ok + 1) / (total + 2)."""
    rate: KnownRate | IntegratedRate | None
    """None in `margin`."""

    def at(self, ok: int, failed: int) -> Judged:
        """What is decided after so many runs, nothing having been decided before them."""
        total = ok + failed
        ratios = None if self.rate is None else self.rate.at(ok, failed)
        if total < self.settings.min_runs:
            return Judged("undecided", ratios)
        if ratios is None:
            return self._margin(ok, total)
        if ratios.r >= self.settings.upper - TIE:
            return Judged("revert", ratios, "bound")
        if ratios.s <= self.settings.lower + TIE:
            return Judged("accept", ratios, "bound")
        return self._capped(ok, total, ratios)

    def _margin(self, ok: int, total: int) -> Judged:
        if self.before.total < self.settings.min_runs:
            # The runs before do not become more: without the cap such a revision would be pending for ever.
            return self._capped(ok, total, None)
        fell = self.before.ok / self.before.total - ok / total
        return Judged("revert" if fell > self.settings.margin + TIE else "accept", None, "margin")

    def _capped(self, ok: int, total: int, ratios: Ratios | None) -> Judged:
        if total < self.settings.cap:
            return Judged("undecided", ratios)
        fell = self.before_rate - Counts(total, ok).smoothed
        return Judged("revert" if fell >= self.settings.min_drop - TIE else "accept", ratios, "cap")


def gate_of(prior: Counts, settings: GateSettings) -> Gate:
    """The gate after the prior revision's runs."""
    rate: KnownRate | IntegratedRate | None = None
    if settings.mode == "sprt" and settings.baseline == "integrated":
        rate = integrated_rate(prior, settings.min_drop, settings.cap)
    elif settings.mode == "sprt":
        rate = plugin_rate(prior.smoothed, settings.min_drop)
    return Gate(settings, prior, prior.smoothed, rate)


def plugin_rate(p0: float, drop: float) -> KnownRate:
    """Wald's test with an estimate for p0; both rates are kept off 0 and 1."""
    least, most = PLUGIN_RATES
    p0 = min(max(p0, least), most)
    return KnownRate(p0, max(p0 - drop, least))


@dataclass(frozen=True)
class GateWalk:
    """A replay up to its verdict, with the numbers behind it."""

    verdict: Verdict
    decided_at: int | None
    """The run (from 1) that brought the verdict."""
    by: DecidedBy
    """`bound`: a statistic crossed; `cap`: the point estimate at the last run; `margin`; "": undecided."""
    llr: float | None
    """R when it decided, else S after the last run replayed; None in `margin` and before the first run."""
    before: Counts
    after: Counts
    """Runs replayed: up to and with the one that brought the verdict."""
    s: list[float] = field(default_factory=list)
    r: list[float] = field(default_factory=list)
    """Both statistics after each replayed run; empty in `margin`."""
    upper: float = 0.0
    lower: float = 0.0
    """Revert at R >= upper, accept at S <= lower."""


def walk(prior: Counts, outcomes: Iterable[bool], settings: GateSettings) -> GateWalk:
    """Replay the pending revision's outcomes in ledger order; stops at the first verdict.

    Reads no more than `settings.cap` outcomes. About 60 microseconds a run, and some milliseconds for a prior
    that was not seen lately.
    """
    return walk_gate(gate_of(prior, settings), outcomes)


def walk_gate(gate: Gate, outcomes: Iterable[bool]) -> GateWalk:
    """As `walk`, for a gate that is made already."""
    ok = total = 0
    s: list[float] = []
    r: list[float] = []
    judged = Judged("undecided", None)
    for won in outcomes:
        total += 1
        ok += bool(won)
        judged = gate.at(ok, total - ok)
        if judged.ratios is not None:
            s.append(judged.ratios.s)
            r.append(judged.ratios.r)
        if judged.verdict != "undecided":
            break
    decided = judged.verdict != "undecided"
    llr: float | None = None
    if judged.ratios is not None:
        by_r = judged.verdict == "revert" and judged.by == "bound"
        llr = judged.ratios.r if by_r else judged.ratios.s
    return GateWalk(
        verdict=judged.verdict,
        decided_at=total if decided else None,
        by=judged.by,
        llr=llr,
        before=gate.before,
        after=Counts(total, ok),
        s=s,
        r=r,
        upper=gate.settings.upper,
        lower=gate.settings.lower,
    )


# The cost tie-break

MEASURES = ("duration_ms", "steps_taken", "tokens")
"""Costs in the order in which they are asked."""


class Cost(NamedTuple):
    """What the successful runs that report a measure spent."""

    samples: int
    median: float


@dataclass(frozen=True)
class CostCheck:
    """The tie-break: on which measure it was decided, and by how much the median rose."""

    revert: bool
    measure: str
    """"" when no measure has enough samples on both sides."""
    before: Cost | None = None
    after: Cost | None = None
    rise: float | None = None
    """after / before - 1; None without a measure, or when the median before was 0."""


def cost_check(before: Mapping[str, Cost], after: Mapping[str, Cost], settings: GateSettings) -> CostCheck:
    """The first measure with enough successful runs on both sides decides; only after a success-accept.

    Sides: the prior revision's runs before the opening, and the pending one's up to its verdict. A measure
    that nobody reported may be absent.
    """
    least = settings.min_runs if settings.cost_min_samples is None else settings.cost_min_samples
    for measure in MEASURES:
        was, now = before.get(measure), after.get(measure)
        if was is None or now is None or not was.samples or not now.samples:
            continue
        if min(was.samples, now.samples) < least:
            continue
        limit = was.median * (1 + settings.cost_tolerance)
        rise = now.median / was.median - 1 if was.median else None
        return CostCheck(now.median > limit + TIE * max(1.0, limit), measure, was, now, rise)
    return CostCheck(False, "")


def median_cost(values: Iterable[int | None], *, zero_is_unknown: bool) -> Cost | None:
    """The median over the reported values; None when none is. Even counts: the mean of the middle two."""
    known = sorted(v for v in values if v is not None and not (zero_is_unknown and v == 0))
    if not known:
        return None
    half = len(known) // 2
    middle = known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2
    return Cost(len(known), float(middle))
