"""The facts' part of the console's lists of locks, holds and held texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.urls import reverse

from facts.console_selectors import flag_views, lineages
from facts.index import text_of
from facts.models import FactFlag, Lineage, Version
from governance.console import Count, Sight, bounded_count, keyset
from loomsite.ops import Role
from memories.console_nodes import GuardRow, HeldQuery, HeldRow, Shelf, behind, register
from memories.console_selectors import EXPIRING_DAYS, IN_FORCE, of_namespace
from memories.console_shelf import HELD_PLACES


def register_shelf() -> None:
    """Called once, when the console's pages are loaded."""
    register(Shelf(guarded, guarded_count, held, held_count, places))


def _guarded(seen: Sight, is_soon: bool, namespace: str) -> QuerySet[Lineage]:
    rows = lineages(seen)
    if is_soon:
        rows = rows.filter(IN_FORCE, lock_until__lte=Now() + timedelta(days=EXPIRING_DAYS))
    else:
        rows = rows.filter(IN_FORCE | Q(holds__gt=0))
    return rows.filter(of_namespace(namespace)) if namespace else rows


def guarded(seen: Sight, is_soon: bool, namespace: str, cursor: str, size: int) -> list[GuardRow]:
    """Facts that a lock in force or a hold guards."""
    page = keyset(_guarded(seen, is_soon, namespace), cursor, "-pk", size=size + 1)
    return [_guard_row(seen, line) for line in page.rows]


def _guard_row(seen: Sight, line: Any) -> GuardRow:
    may_loosen = line.lock_now != "none" and seen.role_in(line.namespace) >= Role.ADMIN
    return GuardRow(
        pk=line.pk,
        title=f"{line.subject}: {line.attribute}",
        url=reverse("admin:facts_lineage_change", args=[line.pk]),
        namespace=line.namespace,
        lock_now=line.lock_now,
        lock_reason=line.lock_reason,
        locked_by=line.locked_by,
        locked_at=line.locked_at,
        lock_until=line.lock_until,
        holds=line.holds,
        loosen_url=reverse("admin:facts_lineage_act", args=[line.pk, "loosen"]) if may_loosen else "",
    )


def guarded_count(seen: Sight, is_soon: bool, namespace: str) -> Count:
    """How many of them."""
    return bounded_count(_guarded(seen, is_soon, namespace))


def _held(seen: Sight, query: HeldQuery) -> QuerySet[Any]:
    """One version for each content that waits: the latest of its fact with that value."""
    waiting = FactFlag.objects.filter(version=OuterRef("pk"), acknowledged_at__isnull=True)
    if query.pattern:
        waiting = waiting.filter(pattern=query.pattern.replace("\x00", ""))
    later = Version.objects.filter(
        lineage=OuterRef("lineage"), value_sha256=OuterRef("value_sha256"), pk__gt=OuterRef("pk")
    )
    rows = Version.objects.filter(
        seen.where(at_least=query.at_least), Exists(waiting), ~Exists(later), lineage__status="active"
    )
    if query.namespace:
        rows = rows.filter(of_namespace(query.namespace))
    return rows.annotate(since=F("known__startswith"))


def held(seen: Sight, query: HeldQuery, place: tuple[datetime, int] | None, size: int) -> list[HeldRow]:
    """Facts with a text that waits for a reader."""
    rows = behind(_held(seen, query).select_related("lineage", "namespace__org"), place, "since", size)
    flags: dict[int, list[FactFlag]] = defaultdict(list)
    for flag in FactFlag.objects.filter(version__in=[row.pk for row in rows]).order_by("pattern"):
        flags[flag.version_id].append(flag)
    return [_held_row(seen, row, flags[row.pk]) for row in rows]


def _held_row(seen: Sight, version: Any, flags: Sequence[FactFlag]) -> HeldRow:
    line = version.lineage
    may_read = seen.role_in(version.namespace) >= Role.REVIEWER
    form = reverse("admin:facts_lineage_act", args=[line.pk, "acknowledge"])
    text = text_of(line.subject, line.attribute, version.value)
    return HeldRow(
        pk=version.pk,
        since=version.since,
        title=f"{line.subject}: {line.attribute}",
        url=reverse("admin:facts_lineage_change", args=[line.pk]),
        status="active",
        namespace=version.namespace,
        source_class=version.source_class,
        flags=[view for view in flag_views(text, flags, version.since, HELD_PLACES) if view.is_open],
        acknowledge_url=f"{form}?fact={version.pk}&" if may_read else "",
    )


def held_count(seen: Sight, query: HeldQuery) -> Count:
    """How many of them."""
    return bounded_count(_held(seen, query))


def places(seen: Sight, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Page and release form of these facts."""
    return {
        pk: (
            reverse("admin:facts_lineage_change", args=[pk]),
            reverse("admin:facts_lineage_act", args=[pk, "release"]),
        )
        for pk in lineages(seen).filter(pk__in=ids).values_list("pk", flat=True)
    }
