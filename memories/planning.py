"""Memories as plans know them: a row as it stood, how it stands now, and what depends on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connection
from django.urls import reverse

from governance.plan_kinds import (
    DEPENDANTS_SHOWN,
    Dependant,
    Kind,
    Present,
    register_dependants,
    register_kind,
)
from governance.review import Target
from memories.analysis import title as title_of
from memories.nodes import Guarded

if TYPE_CHECKING:
    from memories.services import Row

KIND = "memory"


def target(
    row: Row | Guarded, planned: str, *, title: str | None = None, changes: bool = True, why: str = ""
) -> Target:
    """A row as it stood before the call, and what the call makes of it; its title where it has no value."""
    if isinstance(row, Guarded):
        return Target(
            row.kind, row.node_id, row.key, row.title, row.version, row.content_sha256, row.lock, row.status,
            planned, changes, why,
        )  # fmt: skip
    return Target(
        KIND, row.id, row.key, title_of(row.state.value, row.key) if title is None else title, row.version,
        row.content_sha256, row.lock, row.status, str(planned), changes, why, row.held,
    )  # fmt: skip


def register() -> None:
    """Called once, when the app is ready."""
    register_kind(Kind(KIND, present, content, "admin:memories_memory_change"))
    register_dependants("memories", dependants)


def present(ids: Sequence[int], lock: bool) -> Mapping[int, Present]:
    """The memories with these ids as they stand; with `lock` their rows are locked, in id order."""
    from memories.services import ROW, row_from

    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {ROW} FROM memories_memory m WHERE m.id = ANY(%s) ORDER BY m.id"  # noqa: S608
            + (" FOR UPDATE" if lock else ""),
            [list(ids)],
        )
        rows = [row_from(columns) for columns in cursor.fetchall()]
    return {
        row.id: Present(
            row.id, row.key, title_of(row.state.value, row.key), row.version, row.content_sha256, row.lock,
            row.status, row.held,
        )
        for row in rows
    }  # fmt: skip


def content(ids: Sequence[int]) -> Mapping[int, Any]:
    """Their present values; None for what was redacted."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, value FROM memories_memory WHERE id = ANY(%s)", [list(ids)])
        return {id_: None if value is None else json.loads(value) for id_, value in cursor.fetchall()}


def dependants(ids: Sequence[int]) -> Mapping[int, Sequence[Dependant]]:
    """Copies that were shared from these memories, and memories that name one as standing in their place."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT of_id, id, memory_key, what FROM (
                 SELECT found.*, row_number() OVER (PARTITION BY of_id ORDER BY id) AS place FROM (
                   SELECT promoted_from AS of_id, id, memory_key, 'a shared copy of it' AS what
                   FROM memories_memory WHERE promoted_from = ANY(%s) AND status <> 'redacted'
                   UNION ALL
                   SELECT m.id, s.id, s.memory_key, 'it stands in its place' FROM memories_memory m
                   JOIN memories_memory s ON s.namespace_id = m.namespace_id
                     AND s.canonical_key = m.memory_key AND s.status = 'superseded'
                   WHERE m.id = ANY(%s)) found) numbered
               WHERE place <= %s ORDER BY of_id, id""",
            [list(ids), list(ids), DEPENDANTS_SHOWN],
        )
        rows = cursor.fetchall()
    found: dict[int, list[Dependant]] = {}
    for id_, other, key, what in rows:
        url = reverse("admin:memories_memory_change", args=[other])
        found.setdefault(id_, []).append(Dependant(KIND, key, what, url))
    return found
