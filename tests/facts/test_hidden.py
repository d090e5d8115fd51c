"""Hidden facts: a call about one runs the statements of a call about nothing, and answers the same bytes.

What is the same work takes the same time; benchmarks/fact_ops.py measures that it does.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.conftest import Cast, Reply
from tests.facts.facts import remember

pytestmark = pytest.mark.django_db
NOBODY = str(2**40)
# Each is asked by alice: about mallory's private fact, and about one that does not exist.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "recall by subject": ("fact.recall", {"subject": "<subject>"}),
    "recall by subject and attribute": ("fact.recall", {"subject": "<subject>", "attribute": "town"}),
    "recall of all time": ("fact.recall", {"subject": "<subject>", "include_history": True}),
    "recall of a known time": ("fact.recall", {"subject": "<subject>", "known_at": "2099-01-01"}),
    "recall by query": ("fact.recall", {"query": "<subject> Oslo"}),
    "history by id": ("fact.history", {"factId": "<id>"}),
    "history by subject": ("fact.history", {"subject": "<subject>", "attribute": "town"}),
    "correct": ("fact.correct", {"factId": "<id>", "value": 1, "kind": "wrong"}),
    "correct, changed": ("fact.correct", {"factId": "<id>", "value": 1, "validFrom": "2024-01-01"}),
    "retract": ("fact.retract", {"factId": "<id>", "kind": "wrong", "reason": "r"}),
    "share": ("fact.share", {"factId": "<id>"}),
    "lock": ("memory.lock", {"memory_key": "fact:<id>", "reason": "r"}),
    "hold": ("hold.add", {"memory_key": "fact:<id>", "matter": "m", "reason": "r"}),
    "a source": (
        "fact.remember",
        {"subject": "s", "attribute": "a", "value": 1, "sources": ["node:<id>"], "dry_run": True},
    ),
    "remember privately": (
        "fact.remember",
        {
            "subject": "<subject>", "attribute": "town", "value": 1, "visibility": "private", "dry_run": True,
        },
    ),
    "remember for all": (
        "fact.remember", {"subject": "<subject>", "attribute": "town", "value": 1, "dry_run": True}
    ),
}  # fmt: skip


def told(reply: Reply, **names: str) -> str:
    """The answer with what differs by itself taken out: ids, instants, what was asked."""
    text = json.dumps({k: v for k, v in reply.body.items() if k not in ("known_at", "factId", "lineageId")})
    body = json.loads(text)
    if "detail" in body:
        body["detail"].pop("request_id", None)
    text = json.dumps(body, sort_keys=True)
    for name, value in names.items():
        text = text.replace(value, f"<{name}>")
    return text


@pytest.mark.parametrize("name", CALLS)
def test_a_hidden_fact_and_none_cost_the_same_statements_and_answer_the_same(cast: Cast, name: str) -> None:
    op, body = CALLS[name]
    hidden = remember(
        cast, "Oslo", subject="hidden one", attribute="town", visibility="private", user_id="mallory"
    )
    remember(cast, "Oslo", subject="everybody's", attribute="town")

    def asked(subject: str, id_: str) -> tuple[int, str, list[str]]:
        text = json.dumps(body).replace("<subject>", subject).replace("<id>", id_)
        payload = {**json.loads(text), "user_id": "alice"}
        cast.run(op, payload)
        with CaptureQueriesContext(connection) as seen:
            reply = cast.run(op, payload)
        # The text of each statement up to its first value; numbers and names of savepoints differ anyway.
        shapes = [re.sub(r"\d+|_x\d+", "#", entry["sql"].split("'")[0]) for entry in seen.captured_queries]
        shapes = [shape.split('"')[0] if "SAVEPOINT" in shape else shape for shape in shapes]
        return reply.status, told(reply, subject=subject, id=id_), shapes

    assert asked("hidden one", hidden["factId"]) == asked("absent one", NOBODY)
