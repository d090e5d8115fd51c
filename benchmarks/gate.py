"""The gate over simulated procedures whose baseline is not known: false reverts, power, disasters.

A procedure succeeds at some rate and has n0 = 3..50 runs before a pending revision; then the revision runs at
the same rate (a revert is false), at a rate 0.30 lower (a revert is right), or at 0.05 (how long does it
take?). `integrated` is compared with `plugin` on the same draws, and the rows of the table in the contract
with what they say there. Also: how much a replay costs. Writes the plot of docs/concepts/gate.md.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import ROOT, SEED, percentile, print_table
from benchmarks.plot import Panel, Series, write
from procedures.counting import Counts
from procedures.gate import BaselineKind, Gate, GateSettings, gate_of, integrated_rate, walk

SERVER = False
BASELINES: tuple[BaselineKind, ...] = ("integrated", "plugin")
DROP = 0.30
DISASTER = 0.05
PRIORS = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
RATES = (0.9, 0.7, 0.5)
PROCEDURES = 10_000
TABLE_PROCEDURES = 40_000
REPLAY_MS = 20.0
PLOT = ROOT / "docs" / "images" / "gate.svg"
# rate, n0: false revert, power, mean runs to a verdict in a disaster; each integrated and plugin.
TABLE = {
    (0.9, 5): ((0.001, 0.002), (0.66, 0.70), (5.1, 6.1)),
    (0.9, 10): ((0.004, 0.025), (0.81, 0.83), (3.8, 5.1)),
    (0.8, 10): ((0.044, 0.092), (0.79, 0.81), (5.0, 6.9)),
    (0.8, 20): ((0.052, 0.087), (0.88, 0.89), (3.9, 6.4)),
    (0.7, 10): ((0.101, 0.129), (0.80, 0.81), (6.9, 8.8)),
    (0.5, 20): ((0.119, 0.133), (0.89, 0.91), (10.4, 12.7)),
}


class Drawn:
    """A gate that remembers its verdicts: they depend on how many runs succeeded and failed, and no more."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._known: dict[tuple[int, int], str] = {}

    def go(self, rate: float, rng: random.Random) -> tuple[str, int]:
        """Simulate one revision: (verdict, runs it took)."""
        ok = failed = 0
        while True:
            if rng.random() < rate:
                ok += 1
            else:
                failed += 1
            verdict = self._known.get((ok, failed))
            if verdict is None:
                verdict = self._known[ok, failed] = self._gate.at(ok, failed).verdict
            if verdict != "undecided":
                return verdict, ok + failed


@dataclass
class Shares:
    """What came out over many procedures."""

    false_revert: float = 0.0
    power: float = 0.0
    disaster: float = 0.0

    def row(self) -> list[float]:
        """In the order of the contract's table."""
        return [self.false_revert, self.power, self.disaster]


_gates: dict[tuple[str, Counts], Drawn] = {}


def _gate(baseline: BaselineKind, prior: Counts) -> Drawn:
    found = _gates.get((baseline, prior))
    if found is None:
        found = _gates[baseline, prior] = Drawn(gate_of(prior, GateSettings(baseline=baseline)))
    return found


def simulated(rate: float, prior: int, procedures: int, seed: int) -> dict[BaselineKind, Shares]:
    """Both baselines over the same procedures, each of which has runs of its own before the revision."""
    rng = random.Random(seed)
    before = [sum(rng.random() < rate for _ in range(prior)) for _ in range(procedures)]
    found = {}
    for baseline in BASELINES:
        shares = found[baseline] = Shares()
        draws = random.Random(seed + 1)
        for ok in before:
            gate = _gate(baseline, Counts(prior, ok))
            shares.false_revert += gate.go(rate, draws)[0] == "revert"
            shares.power += gate.go(max(rate - DROP, 0.0), draws)[0] == "revert"
            shares.disaster += gate.go(DISASTER, draws)[1]
        for name in ("false_revert", "power", "disaster"):
            setattr(shares, name, getattr(shares, name) / procedures)
    return found


def run(_client: httpx.Client | None, _data_dir: Path | None) -> dict[str, Any]:
    """Shares by rate and n0, the contract's rows beside their simulation, and milliseconds of a replay."""
    rows, curves = [], {}
    for rate in RATES:
        for prior in PRIORS:
            found = simulated(rate, prior, PROCEDURES, SEED + prior)
            curves[rate, prior] = found
            rows.append([rate, prior, *(x for pair in _pairs(found) for x in pair)])
    head = [
        "rate", "n0", "false revert", "plugin", f"power at -{DROP:.2f}", "plugin",
        "runs to a verdict at 0.05", "plugin",
    ]  # fmt: skip
    print_table(f"Gate: {PROCEDURES:,} procedures a row; integrated, then plugin", head, rows)
    table, bars = _against_the_table()
    print_table(f"Gate: the contract's rows, {TABLE_PROCEDURES:,} procedures each", ["n", *head], table)
    milliseconds = _replay()
    print(f"\nreplay of 50 runs, milliseconds of the processor: {milliseconds}")
    bars[f"replay of 50 runs under {REPLAY_MS:.0f} ms"] = milliseconds["unseen prior p95"] < REPLAY_MS
    draw(curves)
    print(f"drawn: {PLOT.relative_to(ROOT)}")
    return {"rows": rows, "table": table, "milliseconds": milliseconds, "bars": bars}


def _pairs(found: dict[BaselineKind, Shares]) -> list[tuple[float, float]]:
    return list(zip(found["integrated"].row(), found["plugin"].row(), strict=True))


def _against_the_table() -> tuple[list[list[Any]], dict[str, bool]]:
    rows: list[list[Any]] = []
    bars = {}
    for (rate, prior), expected in TABLE.items():
        pairs = _pairs(simulated(rate, prior, TABLE_PROCEDURES, SEED))
        rows.append(["simulated", rate, prior, *(x for pair in pairs for x in pair)])
        rows.append(["contract", rate, prior, *(x for pair in expected for x in pair)])
        # The tolerances of the contract; sampling adds at most 0.003 and 0.05 (one standard error).
        near = [
            abs(got - said) <= tolerance
            for pair, wanted, tolerance in zip(pairs, expected, (0.02, 0.02, 0.1), strict=True)
            for got, said in zip(pair, wanted, strict=True)
        ]
        bars[f"rate {rate}, n0 = {prior}: as in the contract"] = all(near)
    return rows, bars


def _replay() -> dict[str, float]:
    """Walks of fifty runs that never cross a bound, for priors seen and not seen before."""
    undecided = GateSettings(alpha=1e-12, beta=1e-12)
    outcomes = [n % 4 > 0 for n in range(50)]
    cold, warm = [], []
    for n in range(100):
        prior = Counts(20 + n, 15 + n)
        integrated_rate.cache_clear()
        for times in (cold, warm):
            started = time.process_time()
            seen = walk(prior, outcomes, undecided)
            times.append((time.process_time() - started) * 1000)
            if seen.after.total != 50:
                raise RuntimeError("the walk ended before its fiftieth run")
    return {
        "unseen prior median": round(percentile(cold, 50), 2),
        "unseen prior p95": round(percentile(cold, 95), 2),
        "seen prior median": round(percentile(warm, 50), 2),
    }


def draw(curves: dict[tuple[float, int], dict[BaselineKind, Shares]]) -> None:
    """False reverts, power and the delay in a disaster, over n0."""

    def lines(measure: str) -> Sequence[Series]:
        return [
            Series(
                f"rate {rate:g} before, {baseline}",
                [(prior, getattr(curves[rate, prior][baseline], measure)) for prior in PRIORS],
                colour,
                dashed=baseline == "plugin",
            )
            for colour, rate in enumerate(RATES)
            for baseline in BASELINES
        ]

    ticks = (3, 10, 20, 30, 40, 50)
    x_label = "runs before (n0)"
    panels = [
        Panel(
            "False reverts: same rate as before", x_label, ticks, (0, 0.1, 0.2, 0.3), lines("false_revert")
        ),
        Panel(f"Power: a drop by {DROP:.2f}", x_label, ticks, (0.5, 0.6, 0.7, 0.8, 0.9, 1), lines("power")),
        Panel(f"Runs to a verdict at {DISASTER}", x_label, ticks, (0, 10, 20, 30), lines("disaster")),
    ]
    write(PLOT, "The gate by the number of runs before the revision: false reverts, power, delay", panels)
