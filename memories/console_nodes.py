"""What apps above memories bring into the console's lists of locks, holds and held texts.

Memories, facts and procedures draw their ids from one sequence, so lists of several apps are merged by id.
A procedure is a memory row, so the memories' own part of each list has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from governance.console import COUNT_LIMIT, Count, Page, Sight
from governance.models import Namespace
from loomsite.ops import Role
from memories.console_flags import FlagView


@dataclass(frozen=True)
class GuardRow:
    """What a lock in force or a hold guards, as the list shows it; `loosen_url` "" where not offered."""

    pk: int
    title: str
    url: str
    namespace: Namespace
    lock_now: str
    lock_reason: str
    locked_by: str
    locked_at: datetime | None
    lock_until: datetime | None
    holds: int
    loosen_url: str = ""


@dataclass(frozen=True)
class HeldRow:
    """A flagged text that waits for a reader; `acknowledge_url` "" where its viewer may not."""

    pk: int
    since: datetime
    title: str
    url: str
    status: str
    namespace: Namespace
    source_class: str
    flags: Sequence[FlagView]
    acknowledge_url: str = ""


@dataclass(frozen=True)
class HeldQuery:
    """Which held texts: by pattern and namespace ("" for any), where the reader has at least this role."""

    pattern: str = ""
    namespace: str = ""
    at_least: Role = Role.VIEWER


@dataclass(frozen=True)
class Shelf:
    """One app's part of the lists. Every list is a page and one row more; `after` is where it starts."""

    # (sight, only locks that end soon, namespace, cursor of ids, page size) -> by id, the latest first.
    guarded: Callable[[Sight, bool, str, str, int], Sequence[GuardRow]]
    guarded_count: Callable[[Sight, bool, str], Count]
    # (sight, query, (since, id) to start behind, page size) -> the one that waits longest first.
    held: Callable[[Sight, HeldQuery, tuple[datetime, int] | None, int], Sequence[HeldRow]]
    held_count: Callable[[Sight, HeldQuery], Count]
    # (sight, ids of guarded rows) -> (page, form that releases a hold) of those that are the app's.
    places: Callable[[Sight, Sequence[int]], dict[int, tuple[str, str]]]


_shelves: list[Shelf] = []


def register(shelf: Shelf) -> None:
    """Called once by an app, when its console pages are loaded."""
    _shelves.append(shelf)


def total(counts: Iterable[Count]) -> Count:
    """The sum of bounded counts, itself bounded."""
    found = list(counts)
    number = sum(count.number for count in found)
    return Count(min(number, COUNT_LIMIT), number > COUNT_LIMIT or any(count.more for count in found))


def guarded(seen: Sight, is_soon: bool, namespace: str, cursor: str, size: int) -> Page:
    """A page of what locks and holds guard in every app, the latest id first."""
    rows = [row for shelf in _shelves for row in shelf.guarded(seen, is_soon, namespace, cursor, size)]
    rows.sort(key=lambda row: -row.pk)
    return Page(rows[:size], str(rows[size - 1].pk) if len(rows) > size else None)


def guarded_count(seen: Sight, is_soon: bool, namespace: str = "") -> Count:
    """How many there are."""
    return total(shelf.guarded_count(seen, is_soon, namespace) for shelf in _shelves)


def held(seen: Sight, query: HeldQuery, cursor: str, size: int) -> Page:
    """A page of the texts that wait for a reader in every app, the one that waits longest first."""
    place = _place(cursor)
    rows = [row for shelf in _shelves for row in shelf.held(seen, query, place, size)]
    rows.sort(key=lambda row: (row.since, row.pk))
    last = rows[size - 1] if len(rows) > size else None
    return Page(rows[:size], f"{last.since.isoformat()}~{last.pk}" if last else None)


def held_count(seen: Sight, query: HeldQuery) -> Count:
    """How many there are."""
    return total(shelf.held_count(seen, query) for shelf in _shelves)


def places(seen: Sight, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Page and release form of guarded rows that the reader sees, by id."""
    found: dict[int, tuple[str, str]] = {}
    for shelf in _shelves:
        found |= shelf.places(seen, ids)
    return found


def _place(cursor: str) -> tuple[datetime, int] | None:
    """The (since, id) of a cursor; None, the first page, for one that does not parse."""
    since, _, pk = cursor.partition("~")
    try:
        moment, number = datetime.fromisoformat(since), int(pk)
    except ValueError:
        return None
    return (moment, number) if moment.tzinfo is not None and abs(number) < 2**63 else None


def behind(rows: Any, place: tuple[datetime, int] | None, since: str, size: int) -> list[Any]:
    """The rows of a queryset behind a place in the order of (`since`, pk), a page and one more."""
    from django.db.models import Q

    if place is not None:
        moment, pk = place
        later = Q(**{f"{since}__gt": moment}) | Q(**{since: moment}, pk__gt=pk)
        rows = rows.filter(Q(**{f"{since}__gte": moment}) & later)
    return list(rows.order_by(since, "pk")[: size + 1])
