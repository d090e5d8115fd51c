"""The gate on a revision as numbers for an SVG template and a table: both statistics run by run. Pure.

The statistics are told apart by dashes and labels, outcomes by their marks, so that nothing depends on
colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from procedures.gate import GateWalk
from procedures.judging import Judgement

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 96, 34, 58
MARKS = 250
"""More outcomes than this would lie on each other; the table has them."""
TABLE_ROWS = 500
LABEL_GAP = 15


@dataclass(frozen=True)
class Trace:
    """A statistic as a path from run 0, with its name at the end."""

    name: str
    css: str
    path: str
    x: float
    y: float


@dataclass(frozen=True)
class Level:
    """A horizontal line."""

    y: float
    css: str
    label: str
    label_y: float


@dataclass(frozen=True)
class Tick:
    """A number on an axis, or a run that is marked."""

    at: float
    label: str


@dataclass(frozen=True)
class Outcome:
    """A run under the picture: a dot when it succeeded, a cross when it failed."""

    x: float
    ok: bool
    title: str


@dataclass(frozen=True)
class Decision:
    """Where the verdict fell."""

    x: float
    y: float
    label: str
    anchor: str


@dataclass(frozen=True)
class Step:
    """A replayed run in the table."""

    number: int
    """From 1, as the gate counts."""
    seq: int
    """In the ledger."""
    ok: bool
    rate: float
    """Percent that succeeded so far."""
    s: float | None
    r: float | None
    decides: bool


@dataclass(frozen=True)
class GatePicture:
    """Everything the templates show of a gate; `traces` is empty in `margin` and before the first run."""

    steps: list[Step]
    left_out: int
    """Runs that the table leaves out, the oldest."""
    traces: list[Trace] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    verticals: list[Tick] = field(default_factory=list)
    across: list[Tick] = field(default_factory=list)
    up: list[Tick] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    decision: Decision | None = None
    beyond: str = ""
    """What lies right of the picture."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class _Plane:
    """Runs and log-likelihood ratios to pixels."""

    runs: int
    low: float
    high: float

    def x(self, run: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * run / self.runs, 1)

    def y(self, llr: float) -> float:
        share = (llr - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    def path(self, values: Sequence[float]) -> str:
        points = [(0, 0.0), *enumerate(values, 1)]
        return "M" + "L".join(f"{self.x(run)} {self.y(value)}" for run, value in points)


def gate_picture(judged: Judgement) -> GatePicture:
    """The drawing and the table of a replay."""
    walk, settings = judged.walk, judged.settings
    steps = _steps(judged)
    left_out = max(0, len(steps) - TABLE_ROWS)
    if not walk.s:
        return GatePicture(steps[left_out:], left_out)
    runs = len(walk.s)
    shown = min(settings.cap, max(runs + math.ceil(runs / 4), settings.min_runs + 2, 10))
    plane = _plane(walk, max(shown, runs))
    verticals = [
        Tick(plane.x(run), label)
        for run, label in ((settings.min_runs, "min_runs"), (settings.cap, "max_runs"))
        if run <= plane.runs
    ]
    beyond = "" if settings.cap <= plane.runs else f"max_runs: {settings.cap} →"
    return GatePicture(
        steps[left_out:],
        left_out,
        traces=_traces(plane, walk),
        levels=[
            Level(plane.y(walk.upper), "bound", f"revert at R ≥ {walk.upper:.2f}", plane.y(walk.upper) - 6),
            Level(plane.y(walk.lower), "bound", f"accept at S ≤ {walk.lower:.2f}", plane.y(walk.lower) + 15),
            Level(plane.y(0), "zero", "", 0),
        ],
        verticals=verticals,
        across=[Tick(plane.x(run), str(run)) for run in range(0, plane.runs + 1, _stride(plane.runs, 10))],
        up=[
            Tick(plane.y(value), str(value))
            for value in range(math.ceil(plane.low), math.floor(plane.high) + 1)
            if value % _stride(math.ceil(plane.high - plane.low), 8) == 0
        ],
        outcomes=[
            Outcome(plane.x(step.number), step.ok, _title(step)) for step in steps if len(steps) <= MARKS
        ],
        decision=_decision(plane, judged),
        beyond=beyond,
    )


def _plane(walk: GateWalk, runs: int) -> _Plane:
    low, high = min(walk.lower, *walk.s), max(walk.upper, *walk.r)
    room = (high - low) * 0.12
    return _Plane(runs, low - room, high + room)


def _stride(span: int, parts: int) -> int:
    """1, 2, 5, 10, 20, ...: the least of them that makes no more than `parts` of the span."""
    step = 1
    while span / step > parts:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _traces(plane: _Plane, walk: GateWalk) -> list[Trace]:
    x = plane.x(len(walk.s)) + 14
    s, r = plane.y(walk.s[-1]), plane.y(walk.r[-1])
    if walk.s == walk.r:
        return [Trace("S = R", "s", plane.path(walk.s), x, s + 4)]
    if s - r < LABEL_GAP:
        middle = (s + r) / 2
        r, s = middle - LABEL_GAP / 2, middle + LABEL_GAP / 2
    return [
        Trace("S (accepts)", "s", plane.path(walk.s), x, round(s + 4, 1)),
        Trace("R (reverts)", "r", plane.path(walk.r), x, round(r + 4, 1)),
    ]


def _decision(plane: _Plane, judged: Judgement) -> Decision | None:
    walk = judged.walk
    if walk.decided_at is None or walk.llr is None:
        return None
    words = {"bound": "", "cap": " by the rates at max_runs", "margin": ""}[walk.by or "margin"]
    if judged.reason == "cost":
        words = f" by {judged.cost.measure if judged.cost else 'cost'}"
    x = plane.x(walk.decided_at)
    left_half = x < (LEFT + WIDTH - RIGHT) / 2
    return Decision(x, plane.y(walk.llr), f"{judged.verdict}{words}", "start" if left_half else "end")


def _steps(judged: Judgement) -> list[Step]:
    walk, ok, steps = judged.walk, 0, []
    for number, trial in enumerate(judged.trials, 1):
        ok += trial.ok
        steps.append(
            Step(
                number=number,
                seq=trial.seq,
                ok=trial.ok,
                rate=100 * ok / number,
                s=walk.s[number - 1] if walk.s else None,
                r=walk.r[number - 1] if walk.r else None,
                decides=number == walk.decided_at,
            )
        )
    return steps


def _title(step: Step) -> str:
    outcome = "ok" if step.ok else "failed"
    return f"Run {step.number} (ledger {step.seq}): {outcome}; S {step.s:.2f}, R {step.r:.2f}"
