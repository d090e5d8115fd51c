"""A model of facts that is too simple to be wrong: for every day, what is believed, written out day by day.

Nothing here knows of periods in the database. A step of known time is a copy of the whole.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BEFORE, LAST = -1, 8
"""Day -1 stands for all time before day 0, day 8 for all time from day 8 on."""
TODAY = 4
DAYS = range(BEFORE, LAST + 1)
SHARED = "-"


class Entry(NamedTuple):
    """One value on one day, under the id that the store gave its version."""

    id: str
    value: str
    owner: str


@dataclass
class Line:
    """A fact: its days, and who ever had a version in it."""

    key: tuple[str, str]
    owner: str
    days: dict[int, set[Entry]] = field(default_factory=lambda: {day: set() for day in DAYS})
    owners: set[str] = field(default_factory=set)

    @property
    def many(self) -> bool:
        """By the attribute: languages stand side by side."""
        return self.key[1] == "language"

    def days_of(self, id_: str) -> list[int]:
        """The days on which a version is believed."""
        return [day for day in DAYS if any(entry.id == id_ for entry in self.days[day])]

    def entries(self) -> dict[str, Entry]:
        """What is believed on any day, by id."""
        return {entry.id: entry for day in DAYS for entry in self.days[day]}

    def in_the_way(self, value: str, days: list[int], but: str = "") -> bool:
        """Another believed value stands on one of these days."""
        return any(
            entry.id != but and (not self.many or entry.value == value)
            for day in days
            for entry in self.days[day]
        )


def span(start: int | None, end: int | None) -> list[int]:
    """The days from `start` up to, not including, `end`."""
    first = BEFORE if start is None else start
    last = LAST if end is None else end - 1
    return [day for day in DAYS if first <= day <= last]


class Refused(Exception):
    """What the store has to answer instead."""


class Naive:
    """What is believed now, and a copy for every step before."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.owner_of: dict[str, str] = {}
        self.line_of: dict[str, int] = {}
        self.steps: list[list[Line]] = []

    def note(self) -> None:
        """Keep what is believed at this step."""
        self.steps.append(copy.deepcopy(self.lines))

    def line(self, key: tuple[str, str], owner: str) -> Line | None:
        """The fact of that owner."""
        return next((line for line in self.lines if (line.key, line.owner) == (key, owner)), None)

    def _put(self, line: Line, days: list[int], entry: Entry) -> None:
        for day in days:
            line.days[day].add(entry)
        line.owners.add(entry.owner)
        self.owner_of[entry.id] = entry.owner
        self.line_of[entry.id] = self.lines.index(line)

    @staticmethod
    def _take(line: Line, id_: str, days: list[int]) -> None:
        for day in days:
            line.days[day] = {entry for entry in line.days[day] if entry.id != id_}

    # What each op has to do; `made` is called once it is sure to succeed and tells the new ids.

    def remember(
        self, user: str, key: tuple[str, str], value: str, days: list[int], private: bool
    ) -> str | tuple[Line, Entry]:
        """ "unchanged", or the line and the entry to be filled in."""
        owner = user if private else SHARED
        line = self.line(key, owner) or Line(key, owner)
        for entry in line.entries().values():
            if (entry.value, entry.owner) == (value, owner) and line.days_of(entry.id) == days:
                return "unchanged"
        hidden = line.owners - {SHARED, user}
        seen = copy.deepcopy(line)
        for day in DAYS:
            seen.days[day] = {entry for entry in line.days[day] if entry.owner in (SHARED, user)}
        if seen.in_the_way(value, days):
            raise Refused("FACT_CONFLICT")
        if hidden:
            raise Refused("NOT_CORRECTABLE")
        return line, Entry("", value, owner)

    def remembered(self, line: Line, entry: Entry, days: list[int], id_: str) -> None:
        """The store has done it, under this id."""
        if line not in self.lines:
            self.lines.append(line)
        self._put(line, days, entry._replace(id=id_))

    def standing(self, user: str, id_: str) -> Line:
        """The line of a version that the user may change."""
        if self.owner_of[id_] not in (SHARED, user):
            raise Refused("NOT_FOUND")
        line = self.lines[self.line_of[id_]]
        if line.owners - {SHARED, user}:
            raise Refused("NOT_CORRECTABLE")
        if id_ not in line.entries():
            raise Refused("SUPERSEDED")
        return line

    def changed(
        self, user: str, id_: str, value: str, start: int | None, end: int | None
    ) -> tuple[list[int], list[int]] | None:
        """(days of the new value, days that the old one keeps), or None for unchanged."""
        line = self.standing(user, id_)
        days = line.days_of(id_)
        if start is not None and value == line.entries()[id_].value and days == self._with(days, start, end):
            return None
        if start is None:
            raise Refused("VALID_FROM_REQUIRED")
        if start not in days or start == days[0] or (end is not None and end <= start):
            raise Refused("INVALID_ARGUMENT")
        fresh = [day for day in days if day in span(start, end)]
        if line.in_the_way(value, fresh, but=id_):
            raise Refused("FACT_CONFLICT")
        return fresh, [day for day in days if day < start]

    @staticmethod
    def _with(days: list[int], start: int | None, end: int | None) -> list[int]:
        """The days with other ends, where such are given."""
        first = days[0] if start is None else start
        last = days[-1] if end is None else end - 1
        return [day for day in DAYS if first <= day <= last]

    def wrong(self, user: str, id_: str, value: str, start: int | None, end: int | None) -> list[int] | None:
        """The days of the right value, or None for unchanged."""
        line = self.standing(user, id_)
        days, old = line.days_of(id_), line.entries()[id_]
        if value == old.value and days == self._with(days, start, end):
            return None
        beside = {
            entry.id for entry in line.entries().values()
            if entry.id != id_ and (not line.many or entry.value == old.value)
        }  # fmt: skip

        def taken(day: int) -> bool:
            return any(entry.id in beside for entry in line.days.get(day, set()))

        # A bound at which a neighbour starts or ends stays.
        if days[0] != BEFORE and taken(days[0] - 1):
            start = None
        if days[-1] != LAST and taken(days[-1] + 1):
            end = None
        fresh = self._with(days, start, end)
        if not fresh or any(taken(day) for day in fresh):
            raise Refused("INVALID_ARGUMENT")
        if line.in_the_way(value, fresh, but=id_):
            raise Refused("FACT_CONFLICT")
        return fresh

    def corrected(
        self, id_: str, value: str, fresh: list[int], kept: list[int], ids: tuple[str, str]
    ) -> None:
        """The store has done it: the new version's id, and the id of what is left of the old one."""
        line = self.lines[self.line_of[id_]]
        old = line.entries()[id_]
        self._take(line, id_, line.days_of(id_))
        if kept:
            self._put(line, kept, old._replace(id=ids[1]))
        self._put(line, fresh, Entry(ids[0], value, old.owner))

    def retract(self, user: str, id_: str, kind: str, end: int | None) -> list[int]:
        """The days that stay believed."""
        line = self.standing(user, id_)
        if kind == "wrong":
            return []
        days = line.days_of(id_)
        if end is None or end - 1 not in days or end - 1 == days[-1]:
            raise Refused("INVALID_ARGUMENT")
        return [day for day in days if day < end]

    def retracted(self, id_: str, kept: list[int], held_as: str) -> None:
        """The store has done it."""
        line = self.lines[self.line_of[id_]]
        old = line.entries()[id_]
        self._take(line, id_, line.days_of(id_))
        if kept:
            self._put(line, kept, old._replace(id=held_as))

    def share(self, user: str, id_: str) -> list[Entry]:
        """What becomes shared, in the order of its days."""
        line = self.standing(user, id_)
        if self.owner_of[id_] == SHARED:
            return []
        moving = [
            entry for entry in line.entries().values()
            if entry.owner == user and line.days_of(entry.id)[-1] >= TODAY
        ]  # fmt: skip
        if not moving:
            raise Refused("INVALID_TRANSITION")
        if line.owner != SHARED and self.line(line.key, SHARED):
            raise Refused("FACT_CONFLICT")
        return sorted(moving, key=lambda entry: (line.days_of(entry.id)[0], int(entry.id)))

    def shared(self, moving: list[Entry], ids: list[str]) -> None:
        """The store has done it."""
        for old, id_ in zip(moving, ids, strict=True):
            line = self.lines[self.line_of[old.id]]
            days = line.days_of(old.id)
            self._take(line, old.id, days)
            line.owner = SHARED
            self._put(line, days, Entry(id_, old.value, SHARED))


def seen_by(user: str, lines: list[Line]) -> dict[int, set[Any]]:
    """What this user sees on each day."""
    return {
        day: {
            (line.key, entry.id, entry.value, entry.owner == SHARED)
            for line in lines
            for entry in line.days[day]
            if entry.owner in (SHARED, user)
        }
        for day in DAYS
    }
