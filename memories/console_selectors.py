"""Reads for the console's pages about memories. Each list is bounded and narrowed to what its reader sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import BooleanField, Case, CharField, Count, F, Q, QuerySet, Value, When
from django.db.models.functions import Left, Length, Now

from governance.console import COUNT_LIMIT, Sight
from governance.console import Count as BoundedCount
from governance.diffs import DiffLine, diff
from governance.models import AuditEvent, Hold
from governance.templatetags.console import pretty
from loomsite.ops import Role
from memories.analysis import query_terms
from memories.models import Flag, Memory, MemoryVersion, Posting, RawSession, RawTurn, Status

EXPIRING_DAYS = 7
VERSIONS = 20
COMPARED_BYTES = 64 * 1024
TURN_CHARS = 4_000
"""Characters of a turn that the list of turns shows."""

IN_FORCE = ~Q(lock_mode="none") & (Q(lock_until__isnull=True) | Q(lock_until__gt=Now()))


def memories(sight: Sight) -> QuerySet[Memory]:
    """The memories that the user sees, deleted ones included.

    `lock_now` is the mode in force by the database's clock; `is_due` says that an active one's time is up.
    """
    return (
        Memory.objects.filter(sight.where())
        .select_related("namespace__org")
        .annotate(
            lock_now=Case(
                When(IN_FORCE, then=F("lock_mode")), default=Value("none"), output_field=CharField()
            ),
            is_due=Case(
                When(expires_at__lte=Now(), status="active", then=Value(True)),
                default=Value(False),
                output_field=BooleanField(),
            ),
        )
    )


def memory_rows(sight: Sight) -> QuerySet[Memory]:
    """`memories` without what a list does not show."""
    return memories(sight).defer("value", "metadata", "tags", "source_trace")


def matching(rows: QuerySet[Memory], words: str) -> QuerySet[Memory]:
    """Those whose key holds `words` as they stand, or whose text holds every one of the words."""
    words = words.replace("\x00", "").strip()[:200]
    if not words:
        return rows
    found = Q(memory_key__icontains=words)
    terms = query_terms(words)[:10]
    if terms:
        having = (
            Posting.objects.filter(term__in=terms)
            .values("memory_id")
            .annotate(found=Count("term"))
            .filter(found=len(terms))
            .values("memory_id")
        )
        found |= Q(pk__in=having)
    return rows.filter(found)


def locked_memories(sight: Sight) -> QuerySet[Memory]:
    """The memories whose lock is in force."""
    return memory_rows(sight).filter(IN_FORCE)


def guarded_memories(sight: Sight) -> QuerySet[Memory]:
    """The memories that a lock in force or a hold guards."""
    return memory_rows(sight).filter(IN_FORCE | Q(holds__gt=0))


def open_holds(sight: Sight) -> QuerySet[Hold]:
    """The holds that stand, on whatever governed row."""
    return Hold.objects.filter(sight.where(), released_at__isnull=True).select_related("namespace__org")


def of_namespace(place: str) -> Q:
    """A condition for rows of the namespace that a reader named: `org/namespace`, or its name alone."""
    place = place.replace("\x00", "")
    # A namespace's name may hold a slash, an organisation's does not.
    org, _, slug = place.partition("/")
    return Q(namespace__slug=place) | Q(namespace__org__slug=org, namespace__slug=slug)


def holds_of(memory: Memory) -> list[Hold]:
    """The memory's holds, those that stand first."""
    rows = Hold.objects.filter(node_id=memory.pk, namespace=memory.namespace_id)
    return list(rows.order_by(F("released_at").desc(nulls_first=True), "-placed_at", "-id")[:100])


def flags_of(memory: Memory) -> list[Flag]:
    """What screening found in the memory's present text."""
    return list(Flag.objects.filter(memory=memory).order_by("pattern")[:100])


def held_memories(sight: Sight, at_least: Role = Role.VIEWER) -> QuerySet[Memory]:
    """Flagged memories that wait for a reader, where the user has that role."""
    rows = memories(sight).filter(sight.where(at_least=at_least), held=True)
    return rows.exclude(status__in=(Status.DELETED, Status.REDACTED))


@dataclass(frozen=True)
class Sources:
    """Where a memory comes from and who wrote it, as far as its reader may see."""

    promoted_from: Memory | None
    promoted_to: list[Memory]
    canonical: Memory | None
    writers: list[str]


def sources_of(sight: Sight, memory: Memory) -> Sources:
    """The memory's relatives and its writers."""
    seen = Memory.objects.filter(sight.where()).select_related("namespace__org")
    seen = seen.only("pk", "memory_key", "status", "namespace__slug", "namespace__org__slug")
    canonical = None
    if memory.canonical_key:
        same = seen.filter(namespace=memory.namespace_id, memory_key=memory.canonical_key)
        canonical = same.exclude(status=Status.REDACTED).order_by("status", "pk").first()
    writers = MemoryVersion.objects.filter(memory=memory).order_by("principal")
    return Sources(
        promoted_from=seen.filter(pk=memory.promoted_from).first() if memory.promoted_from else None,
        promoted_to=list(seen.filter(promoted_from=memory.pk).order_by("pk")[:20]),
        canonical=canonical,
        writers=list(writers.values_list("principal", flat=True).distinct()[:20]),
    )


def raw_sessions(sight: Sight) -> QuerySet[RawSession]:
    """The archived conversations that the user sees."""
    return RawSession.objects.filter(sight.where()).select_related("namespace__org")


def raw_turns(session: RawSession) -> QuerySet[RawTurn]:
    """A session's turns, each with the beginning of its text as `shown` and its `length`."""
    rows = RawTurn.objects.filter(session=session).defer("content")
    return rows.annotate(shown=Left("content", TURN_CHARS), length=Length("content"))


def locks_expiring(sight: Sight) -> QuerySet[Memory]:
    """Locks in force that end within a week."""
    return locked_memories(sight).filter(lock_until__lte=Now() + timedelta(days=EXPIRING_DAYS))


@dataclass(frozen=True)
class Step:
    """One version of a memory and what it changed."""

    row: MemoryVersion
    changes: list[str]
    lines: list[DiffLine]
    is_first: bool


@dataclass(frozen=True)
class Timeline:
    """A page of versions, newest first; `before` leads to older ones."""

    steps: list[Step]
    before: int | None


def timeline(memory: Memory, before: int | None = None) -> Timeline:
    """The memory's versions older than `before` (all when None), each compared with the one before it."""
    rows = MemoryVersion.objects.filter(memory=memory)
    if before is not None:
        rows = rows.filter(version__lt=before)
    found = list(rows.order_by("-version")[: VERSIONS + 1])
    steps = [
        step(row, found[index + 1] if index + 1 < len(found) else None)
        for index, row in enumerate(found[:VERSIONS])
    ]
    return Timeline(steps, found[VERSIONS - 1].version if len(found) > VERSIONS else None)


def step(row: MemoryVersion, previous: MemoryVersion | None, *, is_whole: bool = False) -> Step:
    """One version against the one before it; large values are compared only where `is_whole`."""
    if previous is None:
        return Step(row, [], [], True)
    fields = ("status", "memory_type", "tags", "metadata", "confidence", "pinned", "expires_at", "on_expire")
    changes = [
        f"{name.replace('_', ' ')}: {_short(getattr(previous, name))} → {_short(getattr(row, name))}"
        for name in fields
        if getattr(previous, name) != getattr(row, name)
    ]
    if row.content_sha256 == previous.content_sha256 and row.value == previous.value:
        return Step(row, changes, [], False)
    old, new = pretty(previous.value), pretty(row.value)
    if not is_whole and max(len(old), len(new)) > COMPARED_BYTES:
        lines = [
            DiffLine(
                "…", f"a large value: {len(old):,} characters before, {len(new):,} after; see the version"
            )
        ]
    else:
        lines = diff(old, new) if not is_whole else diff(old, new, shown=4_000)
    return Step(row, changes, lines, False)


def _short(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return "none"
    if isinstance(value, list | dict | bool):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = value.isoformat() if isinstance(value, datetime) else str(value)
    return text if len(text) <= 120 else f"{text[:120]}…"


def version_of(memory: Memory, version: int) -> Step | None:
    """One version compared whole with the one before it; None when there is no such version."""
    found = list(MemoryVersion.objects.filter(memory=memory, version__lte=version).order_by("-version")[:2])
    if not found or found[0].version != version:
        return None
    return step(found[0], found[1] if len(found) > 1 else None, is_whole=True)


def audit_of(memory: Memory, events: QuerySet[AuditEvent], limit: int = 20) -> list[AuditEvent]:
    """The newest of `events` about this lineage; refused calls by key count as about it."""
    about = Q(detail__memory_id=str(memory.pk)) | ~Q(detail__has_key="memory_id")
    rows = events.filter(about, org=memory.namespace.org_id, target=memory.memory_key[:600])
    return list(rows.filter(namespace=memory.namespace.slug).order_by("-seq")[:limit])


def counts_per_namespace(ids: Sequence[int]) -> dict[int, BoundedCount]:
    """Memories that are not deleted or redacted, counted up to a limit in each namespace."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT n.id, (SELECT count(*) FROM (
                 SELECT FROM memories_memory m
                 WHERE m.namespace_id = n.id AND m.status NOT IN ('deleted', 'redacted') LIMIT %s) counted)
               FROM unnest(%s::bigint[]) AS n(id)""",
            [COUNT_LIMIT + 1, list(ids)],
        )
        return {
            pk: BoundedCount(min(number, COUNT_LIMIT), number > COUNT_LIMIT)
            for pk, number in cursor.fetchall()
        }
