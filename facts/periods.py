"""Arithmetic of half-open periods `[start, end)`; computes without the database.

The periods are those of SQL:2011 (ISO/IEC 9075-2:2011, application-time periods): the start belongs to the
period, the end does not, and two periods that touch do not overlap. An open bound is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeVar

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)\s?([Zz]|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, order=True)
class Bound:
    """An instant in UTC; `is_date` says that it was given as a day and is printed as one."""

    instant: datetime
    is_date: bool = True

    def __str__(self) -> str:
        return printed(self.instant, self.is_date)


def parse(text: object) -> Bound:
    """The bound that `YYYY-MM-DD` (the start of that day in UTC) or an ISO 8601 timestamp with a zone means.

    Raises ValueError, whose text tells what would be right, for anything else: a naive timestamp, a day that
    the calendar does not have, an instant outside of the years 0001 to 9999 in UTC.
    """
    if not isinstance(text, str):
        raise ValueError("must be a date such as 2026-01-31, or a timestamp such as 2026-01-31T09:00:00Z")
    text = text.strip()
    try:
        if _DATE.fullmatch(text):
            day = date.fromisoformat(text)
            return Bound(datetime(day.year, day.month, day.day, tzinfo=UTC))
        match = _INSTANT.fullmatch(text)
        if match is None:
            raise ValueError(
                "must be a date such as 2026-01-31, or a timestamp such as 2026-01-31T09:00:00Z; "
                "leave it out for an open end"
            )
        day_part, clock, zone = match.groups()
        if zone is None:
            raise ValueError("needs a zone, for example 2026-01-31T09:00:00Z; or give the date alone")
        moment = datetime.fromisoformat(f"{day_part}T{clock}{zone.upper()}")
        return Bound(moment.astimezone(UTC), is_date=False)
    except OverflowError as error:
        raise ValueError("must lie between the years 0001 and 9999 in UTC") from error


def printed(instant: datetime, is_date: bool) -> str:
    """The bound as it was given: a date, or a timestamp in UTC."""
    utc = instant.astimezone(UTC)
    if is_date:
        return f"{utc.year:04d}-{utc.month:02d}-{utc.day:02d}"
    return utc.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Period:
    """`[start, end)`; None is unbounded."""

    start: Bound | None = None
    end: Bound | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.start.instant >= self.end.instant:
            raise ValueError("a period ends after it starts")

    def same(self, other: Period) -> bool:
        """Equal bounds, whether given as dates or as timestamps."""
        return _at(self.start) == _at(other.start) and _at(self.end) == _at(other.end)

    def overlaps(self, other: Period) -> bool:
        """True when some instant is in both."""
        return _before(self.start, other.end) and _before(other.start, self.end)

    def holds(self, instant: datetime) -> bool:
        """True when the instant is in the period."""
        return (self.start is None or self.start.instant <= instant) and (
            self.end is None or instant < self.end.instant
        )

    @property
    def instants(self) -> tuple[datetime | None, datetime | None]:
        """Both bounds as the database takes them; None for an open one."""
        return _at(self.start), _at(self.end)

    def __str__(self) -> str:
        if self.start is None and self.end is None:
            return "at all times"
        if self.end is None:
            return f"from {self.start} on"
        return f"until {self.end}" if self.start is None else f"from {self.start} to {self.end}"


def _at(bound: Bound | None) -> datetime | None:
    return None if bound is None else bound.instant


def _before(start: Bound | None, end: Bound | None) -> bool:
    return start is None or end is None or start.instant < end.instant


def earlier(one: Bound | None, other: Bound | None) -> Bound | None:
    """The earlier of two ends; None is the latest of all."""
    if one is None or other is None:
        return one or other
    return one if one.instant <= other.instant else other


T = TypeVar("T")


@dataclass(frozen=True)
class Refitted:
    """A period with other dates: what it is now, and the names of the dates that stayed as they were."""

    period: Period
    kept: tuple[str, ...]


def refit(
    period: Period, start: Bound | None, end: Bound | None, neighbours: Iterable[Period]
) -> Refitted | Period:
    """`period` with the dates that are given, where no neighbour shares the bound that would move.

    A bound at which a neighbour starts or ends stays, and is named in `kept`. Answers the neighbour that the
    new period would cross instead. Raises ValueError for a period that would be empty or inverted.
    """
    others = list(neighbours)
    kept = []
    new_start, new_end = period.start, period.end
    if start is not None and start.instant != _at(period.start):
        if _shared(period.start, others):
            kept.append("validFrom")
        else:
            new_start = start
    elif start is not None:
        new_start = start
    if end is not None and end.instant != _at(period.end):
        if _shared(period.end, others):
            kept.append("validTo")
        else:
            new_end = end
    elif end is not None:
        new_end = end
    fresh = Period(new_start, new_end)
    for other in others:
        if fresh.overlaps(other):
            return other
    return Refitted(fresh, tuple(kept))


def _shared(bound: Bound | None, others: list[Period]) -> bool:
    if bound is None:
        return False
    return any(bound.instant in (_at(other.start), _at(other.end)) for other in others)
