"""The two-axis picture of a fact: valid time to the right, known time upwards. Computes; draws nothing.

The picture of bitemporal relations after Snodgrass, Developing Time-Oriented Database Applications in SQL
(1999), chapter 10. Each bound has a column or row of its own of equal width: it shows order, not length, so
that a correction after an hour is seen beside a job of ten years.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from facts.periods import Bound, Period, printed

LEFT, BOTTOM, TOP = 150, 34, 12
COLUMN, ROW = 120, 56
TONES = 6
LABEL_CHARS = 14


@dataclass(frozen=True)
class Area:
    """What is to be drawn of one version: `known` from when until when it was believed."""

    label: str
    period: Period
    known_from: datetime
    known_to: datetime | None
    tone_of: bytes


@dataclass(frozen=True)
class Box:
    """A rectangle in units of the picture, with its words; `tone` numbers the value, equal for equal ones."""

    x: int
    y: int
    width: int
    height: int
    label: str
    title: str
    tone: int
    believed: bool
    # Where the belief began and ended, as places in `Picture.rows`; one past the last: it has not ended.
    first_row: int = 0
    end_row: int = 0

    @property
    def text_x(self) -> int:
        """Where the label starts."""
        return self.x + 8

    @property
    def text_y(self) -> int:
        """The label's line."""
        return self.y + 22


@dataclass(frozen=True)
class Tick:
    """A bound on an axis."""

    at: int
    label: str
    # The bound as a recall takes it.
    instant: str = ""


@dataclass(frozen=True)
class Picture:
    """Everything that a template needs to draw it."""

    width: int
    height: int
    boxes: Sequence[Box]
    columns: Sequence[Tick]
    rows: Sequence[Tick]
    left: int = LEFT
    base: int = 0

    @property
    def last_row(self) -> int:
        """The place of the latest row."""
        return max(0, len(self.rows) - 1)

    @property
    def tick_y(self) -> int:
        """The line of the dates under the picture."""
        return self.base + 22


def picture(areas: Sequence[Area]) -> Picture:
    """The picture of these versions; an open end reaches the edge."""
    valid: dict[datetime, str] = {}
    for area in areas:
        for bound in (area.period.start, area.period.end):
            if bound is not None:
                valid[bound.instant] = _day(bound)
    known = sorted({area.known_from for area in areas} | {a.known_to for a in areas if a.known_to})
    xs = {instant: LEFT + COLUMN * (place + 1) for place, instant in enumerate(sorted(valid))}
    height = ROW * max(1, len(known))
    base = TOP + height
    ys = {instant: base - ROW * place for place, instant in enumerate(known)}
    place_of = {instant: place for place, instant in enumerate(known)}
    right = LEFT + COLUMN * (len(xs) + 1)
    tones: dict[bytes, int] = {}
    boxes = []
    for area in areas:
        start, end = area.period.start, area.period.end
        x1 = LEFT if start is None else xs[start.instant]
        x2 = right if end is None else xs[end.instant]
        y1 = TOP if area.known_to is None else ys[area.known_to]
        label = area.label if len(area.label) <= LABEL_CHARS else area.label[: LABEL_CHARS - 1] + "…"
        until = f"until {_minute(area.known_to)}" if area.known_to else "still"
        boxes.append(
            Box(
                x1, y1, x2 - x1, ys[area.known_from] - y1, label,
                f"{area.label}: {area.period}; believed from {_minute(area.known_from)}, {until}",
                tones.setdefault(area.tone_of, len(tones) % TONES), area.known_to is None,
                place_of[area.known_from], len(known) if area.known_to is None else place_of[area.known_to],
            )
        )  # fmt: skip
    return Picture(
        right + 8, base + BOTTOM, boxes, [Tick(xs[instant], valid[instant]) for instant in sorted(valid)],
        [Tick(ys[instant], _minute(instant), instant.isoformat()) for instant in known], base=base,
    )  # fmt: skip


def _day(bound: Bound) -> str:
    return str(bound) if bound.is_date else printed(bound.instant, True)


def _minute(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%S")
