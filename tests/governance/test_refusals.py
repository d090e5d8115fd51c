"""What a refused call leaves, and that a stored answer goes before a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from governance.models import AuditEvent, IdempotencyKey
from tests.conftest import Cast


def last() -> AuditEvent:
    return AuditEvent.objects.order_by("-pk")[0]


@pytest.mark.parametrize(
    ("op", "body", "target", "named"),
    [
        ("fact.retract", {"factId": "999", "reason": "wrong"}, "fact:999", {}),
        (
            "memory.govern",
            {
                "ids": ["999"], "action": "delete", "reason": "old", "confirm_destructive": True,
                "expected_versions": {"999": 1},
            },
            "",
            {"ids": ["999"], "action": "delete"},
        ),
        ("memory.redact", {"memory_key": "nobody", "reason": "secret"}, "nobody", {}),
    ],
)  # fmt: skip
def test_a_refused_destructive_call_is_audited_with_what_it_was_about(
    cast: Cast, op: str, body: dict[str, Any], target: str, named: dict[str, Any]
) -> None:
    refused = cast.call(op, body)
    assert refused.status == 404, refused.body
    event = last()
    assert (event.op, event.outcome, event.target) == (op, "refused", target)
    assert event.detail["code"] == "NOT_FOUND"
    assert {name: event.detail.get(name) for name in named} == named


def test_a_stored_answer_goes_before_what_stands_there_now(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "agent": "a"})
    body = {"memory_key": "k"}
    first = cast.run("memory.promote", body, idempotency_key="one")
    cast.run("memory.set", {"memory_key": "k", "value": 2, "agent": "b"})
    cast.run("memory.delete", {"memory_key": "k", "agent": "-"})
    assert cast.call("memory.promote", body).code == "AMBIGUOUS_KEY"
    again = cast.run("memory.promote", body, idempotency_key="one")
    assert again.body == first.body and again.headers["Idempotent-Replayed"] == "true"
    other = cast.call("memory.promote", {"memory_key": "none"}, HTTP_IDEMPOTENCY_KEY="one")
    assert other.code in ("IDEMPOTENCY_CONFLICT", "NOT_FOUND")


def test_a_redaction_clears_answers_that_name_the_row_by_its_key_alone(cast: Cast) -> None:
    cast.run("procedure.add", {"name": "Ship", "situation": "A release is due", "steps": ["One", "Two"]})
    run = {"memory_key": "procedure_ship", "path": ["s1", "TOPSECRET"]}
    cast.run("procedure.record_run", run, idempotency_key="run")
    assert "TOPSECRET" in str(IdempotencyKey.objects.get(key="run").answer)
    gone = cast.console("memory.redact", {"memory_key": "procedure_ship", "reason": "secret"})
    assert gone.status == 200, gone.body
    assert IdempotencyKey.objects.get(key="run").answer is None
    again = cast.call("procedure.record_run", run, HTTP_IDEMPOTENCY_KEY="run")
    assert again.code == "IDEMPOTENCY_CONFLICT"
