"""What memories keep of a person's text: lineages with every version and index, and the raw archive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.db import connection

from governance.erasure import Found, Person, Run, eraser
from memories.models import Status
from memories.services import GUARDED, ROW, Gateway, Row, row_from

SHOWN = 20


def _selected(person: Person, nodes: set[int]) -> tuple[str, dict[str, Any]]:
    """The condition for a person's memories (`m`), and its parameters."""
    return (
        "m.namespace_id = ANY(%(spaces)s) AND (m.id = ANY(%(nodes)s) OR m.promoted_from = ANY(%(nodes)s) "
        "OR (%(user)s <> '' AND m.user_id = %(user)s AND (%(agent)s = '' OR m.agent = %(agent)s) "
        "AND (%(session)s = '' OR m.session_id = %(session)s)))",
        {
            "spaces": list(person.namespace_ids), "nodes": sorted(nodes), "user": person.user_id,
            "agent": person.agent, "session": person.session_id,
        },
    )  # fmt: skip


@eraser("memories", order=10)
class Memories:
    """Memories by user or id, and the copies of them that were shared within reach."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """Redacted ones are among the nodes and not counted: only the reasons of their versions are left."""
        where, params = _selected(person, nodes)
        found = Found()
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT m.id, m.memory_key, m.status, {GUARDED}, m.lock_mode, m.holds "  # noqa: S608
                f"FROM memories_memory m WHERE {where} ORDER BY m.id{' FOR UPDATE' if lock else ''}",
                params,
            )
            rows = cursor.fetchall()
            found.nodes = {row[0] for row in rows}
            cursor.execute(
                "SELECT count(*) FROM memories_memoryversion v JOIN memories_memory m ON m.id = v.memory_id "
                "WHERE m.id = ANY(%s) AND m.status <> 'redacted'",
                [sorted(found.nodes)],
            )
            versions = cursor.fetchone()[0]
        living = [row for row in rows if row[2] != Status.REDACTED]
        found.counts = {"memories": len(living), "memory_versions": versions}
        found.guards = [
            {"id": str(id_), "key": key, "mode": mode, "holds": holds}
            for id_, key, _, guarded, mode, holds in living
            if guarded
        ]
        found.notes = _beyond(person, found.nodes)
        return found

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Redact each through the gateway, which audits it, then take the words out of the rows."""
        by_space: dict[int, list[Row]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {ROW}, m.namespace_id FROM memories_memory m WHERE m.id = ANY(%s) "  # noqa: S608
                "AND m.status <> 'redacted' ORDER BY m.id FOR UPDATE",
                [sorted(found.nodes)],
            )
            for *columns, namespace_id in cursor.fetchall():
                by_space.setdefault(namespace_id, []).append(row_from(columns))
        for namespace_id, rows in by_space.items():
            # Whatever app writes the content of the key: it ends here.
            gate = Gateway(run.context(namespace_id), manages="")
            gate.note = {"erasure": str(run.person.request_id)}
            for row in map(gate.materialize_expiry, rows):
                state = replace(row.state, status=Status.REDACTED, pinned=False)
                gate.write(row, row.key, row.identity, state, "redact", governed=True)
            gate.flush()
        ids = [row.id for rows in by_space.values() for row in rows]
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(loom_erase_memory(id)) FROM unnest(%s::bigint[]) AS id", [ids])
            cursor.execute("SELECT loom_erase_reasons(%s, %s)", [run.person.request_id, sorted(found.nodes)])
        return found.counts


def _beyond(person: Person, nodes: set[int]) -> list[str]:
    """What holds the same text and is not part of it: copies out of reach, the same content elsewhere."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id FROM memories_memory m JOIN governance_namespace n ON n.id = m.namespace_id "
            "WHERE m.promoted_from = ANY(%s) AND n.org_id = %s AND m.status <> 'redacted' "
            "AND m.id <> ALL(%s) ORDER BY m.id LIMIT %s",
            [sorted(nodes), person.org_id, sorted(nodes), SHOWN],
        )
        copies = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute(
            "SELECT o.id FROM memories_memory o JOIN (SELECT DISTINCT namespace_id, content_sha256 "
            "FROM memories_memory WHERE id = ANY(%s) AND status <> 'redacted') m "
            "ON o.namespace_id = m.namespace_id AND o.content_sha256 = m.content_sha256 "
            "WHERE o.id <> ALL(%s) AND o.status <> 'redacted' ORDER BY o.id LIMIT %s",
            [sorted(nodes), sorted(nodes), SHOWN],
        )
        same = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute(
            "SELECT c.id FROM memories_memory s JOIN memories_memory c ON c.namespace_id = s.namespace_id "
            "AND c.memory_key = s.canonical_key WHERE s.id = ANY(%s) AND s.status = 'superseded' "
            "AND s.canonical_key <> '' AND c.id <> ALL(%s) AND c.status <> 'redacted' ORDER BY c.id LIMIT %s",
            [sorted(nodes), sorted(nodes), SHOWN],
        )
        canonical = [str(row[0]) for row in cursor.fetchall()]
    notes = []
    if copies:
        notes.append(f"copies in other namespaces stay (scope org takes them in): {', '.join(copies)}")
    if same:
        notes.append(f"memories of others hold the same content and stay: {', '.join(same)}")
    if canonical:
        notes.append(f"memories that some were consolidated into stay: {', '.join(dict.fromkeys(canonical))}")
    return notes


@eraser("raw", order=40)
class Raw:
    """The conversations of a user in the raw archive, when the request takes the archive in."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """Turns that still hold text."""
        if not person.user_id:
            return Found()
        sessions, turns = self._sessions(person, lock)
        if person.raw:
            return Found(counts={"raw_conversations": len(sessions), "raw_turns": turns})
        note = f"{turns} turns of the raw archive stay, as raw is false"
        return Found(notes=[note] if turns else [])

    def _sessions(self, person: Person, lock: bool) -> tuple[list[int], int]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT s.id FROM memories_rawsession s WHERE s.namespace_id = ANY(%s) AND s.user_id = %s "  # noqa: S608
                "AND (%s = '' OR s.agent = %s) AND (%s = '' OR s.session_id = %s) "
                "AND EXISTS (SELECT FROM memories_rawturn t WHERE t.session_id = s.id AND t.content <> '') "
                f"ORDER BY s.id{' FOR UPDATE' if lock else ''}",
                [
                    list(person.namespace_ids), person.user_id, person.agent, person.agent,
                    person.session_id, person.session_id,
                ],
            )  # fmt: skip
            sessions = [row[0] for row in cursor.fetchall()]
            cursor.execute(
                "SELECT count(*) FROM memories_rawturn WHERE session_id = ANY(%s) AND content <> ''",
                [sessions],
            )
            return sessions, int(cursor.fetchone()[0])

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Blank the turns; the database lets it only under this request."""
        if not run.person.raw or not run.person.user_id:
            return {}
        sessions, turns = self._sessions(run.person, True)
        if sessions:
            with connection.cursor() as cursor:
                cursor.execute("SELECT loom_erase_raw(%s, %s)", [run.person.request_id, sessions])
        return {"raw_conversations": len(sessions), "raw_turns": turns}
