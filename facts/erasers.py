"""What facts keep of a person's text: lineages by owner, subject or id, with every version."""

from __future__ import annotations

from django.db import connection

from facts.words import sha_of_word
from governance.erasure import Found, Person, Run, eraser
from loomsite.ops import AuditEntry
from memories.services import GUARDED


@eraser("facts", order=30)
class Facts:
    """A fact goes whole: every version on both axes, subject and attribute."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """By user where no agent or session narrows: facts belong to neither."""
        whole = bool(person.user_id) and not person.agent and not person.session_id
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT m.id, {GUARDED}, m.lock_mode, m.holds FROM facts_lineage m "  # noqa: S608 - constants
                "WHERE m.namespace_id = ANY(%(spaces)s) AND m.status <> 'redacted' "
                "AND (m.id = ANY(%(nodes)s) OR (%(subject)s AND m.subject_sha256 = %(sha)s) "
                "OR EXISTS (SELECT FROM facts_version v WHERE v.lineage_id = m.id AND "
                "(v.id = ANY(%(nodes)s) OR (%(whole)s AND v.owner = %(user)s)))) "
                f"ORDER BY m.id{' FOR UPDATE' if lock else ''}",
                {
                    "spaces": list(person.namespace_ids), "nodes": sorted(nodes),
                    "subject": bool(person.subject), "sha": sha_of_word(person.subject), "whole": whole,
                    "user": person.user_id,
                },
            )  # fmt: skip
            rows = cursor.fetchall()
            ids = [row[0] for row in rows]
            cursor.execute("SELECT id FROM facts_version WHERE lineage_id = ANY(%s)", [ids])
            versions = {row[0] for row in cursor.fetchall()}
        return Found(
            counts={"facts": len(ids), "fact_versions": len(versions)},
            nodes=set(ids),
            aliases=versions,
            guards=[
                {"id": str(id_), "key": f"fact:{id_}", "mode": mode, "holds": holds}
                for id_, guarded, mode, holds in rows
                if guarded
            ],
        )

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """One audit row for each lineage, with the hash of what it held last."""
        ids = sorted(found.nodes)
        if not ids:
            return {}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT l.id, l.namespace_id, l.version, (SELECT encode(v.value_sha256, 'hex') "
                "FROM facts_version v WHERE v.lineage_id = l.id ORDER BY v.id DESC LIMIT 1) "
                "FROM facts_lineage l WHERE l.id = ANY(%s) ORDER BY l.id",
                [ids],
            )
            rows = cursor.fetchall()
            cursor.execute("SELECT loom_erase_facts(%s, %s)", [run.person.request_id, ids])
        for id_, namespace_id, version, sha in rows:
            run.context(namespace_id).record(
                AuditEntry(
                    target=f"fact:{id_}",
                    before_version=version,
                    after_version=version + 1,
                    before_sha256=sha or "",
                    detail={"lineage_id": str(id_), "kind": "redact", "erasure": str(run.person.request_id)},
                )
            )
        return found.counts
