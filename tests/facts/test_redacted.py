"""A fact that governance has erased: it is as if it had never been, and other facts repeat nothing of it."""

from __future__ import annotations

import pytest

from facts.models import FactCorpusStripe
from facts.selectors import now
from governance.clock import iso
from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember
from tests.memories.helpers import sql

pytestmark = pytest.mark.django_db


def redact(lineage: str) -> None:
    """What the eraser does last."""
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("UPDATE facts_lineage SET status = 'redacted' WHERE id = %s", [lineage])


def test_what_replaced_it_elsewhere_forgets_the_old_value_and_counts_go(cast: Cast) -> None:
    made = remember(cast, "quokka")
    correct(cast, made["factId"], "numbat", kind="wrong", subject="Bo", reason="quokka was wrong")
    docs = sum(FactCorpusStripe.objects.values_list("docs", flat=True))
    redact(made["lineageId"])
    (fact,) = recall(cast, subject="Bo")
    assert (fact["value"], fact["replaced"]) == ("numbat", None)
    assert sum(FactCorpusStripe.objects.values_list("docs", flat=True)) == docs - 1
    assert sql("SELECT count(*) FROM facts_version WHERE replaced::text LIKE '%quokka%'") == [(0,)]


def test_no_op_finds_it_at_any_known_time(cast: Cast) -> None:
    made = remember(cast, "quokka", validFrom="2020-01-01")
    before = iso(now())
    redact(made["lineageId"])
    for more in ({"known_at": before}, {"include_history": True}, {"query": "quokka"}):
        assert recall(cast, **more) == []
    for op, body in (
        ("fact.history", {}), ("fact.correct", {"value": 1, "kind": "wrong"}),
        ("fact.retract", {"kind": "wrong", "reason": "r"}), ("fact.share", {}),
    ):  # fmt: skip
        assert cast.run(op, {"factId": made["factId"], **body}).status == 404
    for op in ("memory.lock", "memory.unlock"):
        reply = cast.run(op, {"memory_key": f"fact:{made['factId']}", "reason": "r"}, "owner")
        assert reply.status in (403, 404)
