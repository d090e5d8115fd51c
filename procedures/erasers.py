"""What procedures keep of a person's text beside the memory rows: copies, and notes on runs of others.

The procedure of a redacted memory row erases itself (`loom_erase_procedure`).
"""

from __future__ import annotations

from typing import Any

from django.db import connection

from governance.erasure import Found, Person, Run, eraser


@eraser("procedures", order=20)
class Procedures:
    """Forks are found by their origin; they are memory rows like any other from there."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """Forks of what was found, and the notes on runs of this user."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT p.memory_id FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id "
                "WHERE p.namespace_id = ANY(%s) AND p.forked_from ->> 'memory_id' = ANY(%s) "
                "AND m.status <> 'redacted'",
                [list(person.namespace_ids), [str(node) for node in sorted(nodes)]],
            )
            forks = {row[0] for row in cursor.fetchall()}
        return Found(counts={"run_notes": len(self._runs(person, lock))}, nodes=forks)

    def _runs(self, person: Person, lock: bool) -> list[Any]:
        """Runs that the user reported with words of theirs."""
        if not person.user_id:
            return []
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM procedures_run WHERE namespace_id = ANY(%s) AND user_id = %s "  # noqa: S608
                "AND (%s = '' OR agent = %s) AND (%s = '' OR session_id = %s) "
                f"AND note <> '' ORDER BY id{' FOR UPDATE' if lock else ''}",
                [
                    list(person.namespace_ids), person.user_id, person.agent, person.agent,
                    person.session_id, person.session_id,
                ],
            )  # fmt: skip
            return [row[0] for row in cursor.fetchall()]

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Blank the notes; path, outcome, costs and the answer (figures) stay in the ledger."""
        runs = self._runs(run.person, True)
        if runs:
            with connection.cursor() as cursor:
                cursor.execute("SELECT loom_erase_run_notes(%s, %s)", [run.person.request_id, runs])
        return {"run_notes": len(runs)}
