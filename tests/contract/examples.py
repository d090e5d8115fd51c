"""A body for every op, over rows that `seed` makes. A new op without an entry fails the contract tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from governance.models import Job
from tests.conftest import Cast

Need = Literal["viewer", "writer", "admin"]


@dataclass(frozen=True)
class Example:
    """What an op needs, written down by hand and not read from its declaration, and a body that works."""

    needs: Need
    body: dict[str, Any]
    in_namespace: bool = True
    # The row is found by its id in every namespace that the caller sees, whatever the call says of its place.
    by_id: bool = False
    # Rows that one call of a write leaves in the audit when it succeeds.
    audited: int = 0
    # The answer where the rows of `seed` are (202 for what goes to review), and where they are not.
    at_home: int = 200
    # The answer to an empty call where no single field is required.
    empty: int = 200
    elsewhere: int = 200


# `living`, `locked` and `gone` are keys of `seed`; JOB stands for its job's id, FACT for its fact's.
JOB = "<job>"
FACT = "<fact>"
EXAMPLES: dict[str, Example] = {
    "fact.correct": Example(
        "writer", {"factId": FACT, "value": "Bolt", "validFrom": "2024-01-01"}, by_id=True, audited=1
    ),
    "fact.history": Example("viewer", {"subject": "Ada", "attribute": "employer"}, empty=400),
    "fact.recall": Example("viewer", {"subject": "Ada"}),
    "fact.remember": Example("writer", {"subject": "Grace", "attribute": "town", "value": "Oslo"}, audited=1),
    "fact.retract": Example(
        "writer", {"factId": FACT, "kind": "wrong", "reason": "it never was"}, by_id=True, audited=1
    ),
    "fact.share": Example("writer", {"factId": FACT}, by_id=True),
    "job.get": Example("viewer", {"job_id": JOB}, in_namespace=False),
    "memory.delete": Example("writer", {"memory_key": "living"}, audited=1),
    "memory.get": Example("viewer", {"memory_key": "living"}),
    "memory.history": Example("viewer", {"memory_key": "living"}),
    "memory.list": Example("viewer", {}),
    "memory.lock": Example(
        "writer", {"memory_key": "living", "reason": "it stays"}, audited=1, elsewhere=404
    ),
    "memory.restore": Example("writer", {"memory_key": "gone"}, audited=1, elsewhere=404),
    "memory.search": Example("viewer", {"query": "living"}),
    "memory.set": Example("writer", {"memory_key": "living", "value": "another"}, audited=1),
    "memory.set_many": Example("writer", {"items": [{"memory_key": "fresh", "value": 1}]}, audited=1),
    "memory.unlock": Example(
        "admin", {"memory_key": "locked", "reason": "it may go"}, audited=1, elsewhere=404
    ),
    "memory.update": Example("writer", {"memory_key": "living", "value": "another"}, audited=1),
    "namespace.list": Example("viewer", {}, in_namespace=False),
    "ops.capabilities": Example("viewer", {}, in_namespace=False),
    "ops.health": Example("viewer", {}, in_namespace=False),
    "ops.whoami": Example("viewer", {}, in_namespace=False),
}


def seed(cast: Cast) -> dict[str, str]:
    """The rows that the examples speak of; what stands for their ids."""
    for key in ("living", "locked", "gone"):
        assert cast.run("memory.set", {"memory_key": key, "value": f"the {key} one"}).status == 200
    assert cast.run("memory.delete", {"memory_key": "gone"}).status == 200
    assert cast.run("memory.lock", {"memory_key": "locked", "reason": "it stays"}).status == 200
    fact = cast.run(
        "fact.remember",
        {"subject": "Ada", "attribute": "employer", "value": "Acme", "validFrom": "2020-01-01"},
    )  # fmt: skip
    job = Job.objects.create(org=cast.org, namespace=cast.team, kind="nothing")
    return {JOB: str(job.pk), FACT: str(fact["factId"])}


def body_of(op: str, ids: dict[str, str]) -> dict[str, Any]:
    """The example's body with its ids filled in."""
    return {
        name: ids.get(value, value) if isinstance(value, str) else value
        for name, value in EXAMPLES[op].body.items()
    }
