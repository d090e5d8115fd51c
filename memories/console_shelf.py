"""The memories' part of the console's lists of locks, holds and held texts; procedures are memory rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse

from governance.console import Count, Sight, bounded_count, keyset
from loomsite.ops import Role
from memories import console_selectors
from memories.console_flags import flag_views
from memories.console_nodes import GuardRow, HeldQuery, HeldRow, Shelf, behind, register
from memories.models import Flag, Memory

HELD_PLACES = 2
"""Matches of a pattern that the list of held texts shows; the page of each shows more."""


def register_shelf() -> None:
    """Called once, when the console's pages are loaded."""
    register(Shelf(guarded, guarded_count, held, held_count, places))


def _guarded(seen: Sight, is_soon: bool, namespace: str) -> QuerySet[Memory]:
    rows = console_selectors.locks_expiring(seen) if is_soon else console_selectors.guarded_memories(seen)
    return rows.filter(console_selectors.of_namespace(namespace)) if namespace else rows


def guarded(seen: Sight, is_soon: bool, namespace: str, cursor: str, size: int) -> list[GuardRow]:
    """Memories that a lock in force or a hold guards."""
    page = keyset(_guarded(seen, is_soon, namespace), cursor, "-pk", size=size + 1)
    return [_guard_row(seen, memory) for memory in page.rows]


def _guard_row(seen: Sight, memory: Any) -> GuardRow:
    may_loosen = memory.lock_now != "none" and seen.role_in(memory.namespace) >= Role.ADMIN
    return GuardRow(
        pk=memory.pk,
        title=memory.memory_key,
        url=reverse("admin:memories_memory_change", args=[memory.pk]),
        namespace=memory.namespace,
        lock_now=memory.lock_now,
        lock_reason=memory.lock_reason,
        locked_by=memory.locked_by,
        locked_at=memory.locked_at,
        lock_until=memory.lock_until,
        holds=memory.holds,
        loosen_url=reverse("admin:memories_memory_act", args=[memory.pk, "loosen"]) if may_loosen else "",
    )


def guarded_count(seen: Sight, is_soon: bool, namespace: str) -> Count:
    """How many of them."""
    return bounded_count(_guarded(seen, is_soon, namespace))


def _held(seen: Sight, query: HeldQuery) -> QuerySet[Memory]:
    rows = console_selectors.held_memories(seen, query.at_least)
    if query.namespace:
        rows = rows.filter(console_selectors.of_namespace(query.namespace))
    if query.pattern:
        name = query.pattern.replace("\x00", "")
        waiting = Flag.objects.filter(pattern=name, acknowledged_at__isnull=True)
        rows = rows.filter(pk__in=waiting.values("memory_id"))
    return rows


def held(seen: Sight, query: HeldQuery, place: tuple[datetime, int] | None, size: int) -> list[HeldRow]:
    """Memories whose text waits for a reader."""
    rows = behind(_held(seen, query), place, "updated_at", size)
    flags: dict[int, list[Flag]] = defaultdict(list)
    for flag in Flag.objects.filter(memory__in=[memory.pk for memory in rows]).order_by("pattern"):
        flags[flag.memory_id].append(flag)
    return [_held_row(seen, memory, flags[memory.pk]) for memory in rows]


def _held_row(seen: Sight, memory: Memory, flags: Sequence[Flag]) -> HeldRow:
    may_read = seen.role_in(memory.namespace) >= Role.REVIEWER
    return HeldRow(
        pk=memory.pk,
        since=memory.updated_at,
        title=memory.memory_key,
        url=reverse("admin:memories_memory_change", args=[memory.pk]),
        status=memory.status,
        namespace=memory.namespace,
        source_class=memory.source_class,
        flags=[view for view in flag_views(memory, flags, HELD_PLACES) if view.is_open],
        acknowledge_url=f"{reverse('admin:memories_memory_act', args=[memory.pk, 'acknowledge'])}?"
        if may_read
        else "",
    )


def held_count(seen: Sight, query: HeldQuery) -> Count:
    """How many of them."""
    return bounded_count(_held(seen, query))


def places(seen: Sight, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Page and release form of these memories."""
    return {
        pk: (
            reverse("admin:memories_memory_change", args=[pk]),
            reverse("admin:memories_memory_act", args=[pk, "release"]),
        )
        for pk in console_selectors.memory_rows(seen).filter(pk__in=ids).values_list("pk", flat=True)
    }
