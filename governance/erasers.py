"""What governance itself keeps of other people's text: stored answers, and jobs with their results."""

from __future__ import annotations

from django.db import connection

from governance import plans
from governance.erasure import Found, Person, Run, eraser, id_texts

# Every scalar of a JSON document that equals one of these ids, as a text or as a number.
_NAMES = """EXISTS (SELECT FROM jsonb_path_query({column}, 'strict $.**') x
            WHERE jsonb_typeof(x) IN ('string', 'number') AND x #>> '{{}}' = ANY(%(ids)s))"""


@eraser("answers", order=80)
class Answers:
    """Stored answers of idempotent writes that name what goes.

    The claim stays, so that a repeated call does not store the text anew; it says that its answer was erased.
    """

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """They are found by ids once all ids are known."""
        return Found()

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Clear them."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_idempotencykey SET status = NULL, answer = NULL "  # noqa: S608 - constants
                f"WHERE org_id = %(org)s AND answer IS NOT NULL AND {_NAMES.format(column='answer')}",
                {"org": run.person.org_id, "ids": id_texts(mentions)},
            )
            return {"stored_answers": cursor.rowcount}


@eraser("jobs", order=81)
class Jobs:
    """Results and errors of jobs that name what goes; an ended one loses its input too."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """They are found by ids once all ids are known."""
        return Found()

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Clear them. A job that is still to run keeps its input: ids, of which it will find nothing left."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_job SET error = '', "  # noqa: S608 - constant fragments
                "result = CASE WHEN result IS NULL THEN NULL ELSE '{\"erased\": true}'::jsonb END, "
                "input = CASE WHEN state IN ('done', 'failed') THEN '{\"erased\": true}'::jsonb "
                "ELSE input END "
                f"WHERE org_id = %(org)s AND kind <> 'erasure.run' AND ({_NAMES.format(column='input')} "
                f"OR {_NAMES.format(column='result')})",
                {"org": run.person.org_id, "ids": id_texts(mentions)},
            )
            return {"jobs": cursor.rowcount}


@eraser("plans", order=85)
class Plans:
    """Plans that repeat titles, reasons or inputs of what goes."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """They are found by ids once all ids are known."""
        return Found()

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Blank them; an open one is over, for it could no longer be applied as it was asked."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT p.namespace_id, array_agg(DISTINCT t.node_id) FROM governance_plantarget t "
                "JOIN governance_plan p ON p.id = t.plan_id WHERE t.node_id = ANY(%s) "
                "GROUP BY p.namespace_id ORDER BY p.namespace_id",
                [sorted(mentions)],
            )
            named = cursor.fetchall()
        return {"plans": sum(plans.forget_text(sorted(ids), run.context(space)) for space, ids in named)}
