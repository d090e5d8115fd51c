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
    # Rows that one call of a write leaves in the audit when it succeeds.
    audited: int = 0
    # The answer where the rows of `seed` are (202 for what goes to review), and where they are not.
    at_home: int = 200
    elsewhere: int = 200


# `living`, `locked` and `gone` are keys of `seed`; JOB stands for its job's id.
JOB = "<job>"
EXAMPLES: dict[str, Example] = {
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
    "procedure.add": Example(
        "writer", {"name": "Another", "situation": "It is needed", "steps": ["One", "Two"]}, audited=1
    ),
    "procedure.fork": Example(
        "writer",
        {"from_namespace": "team", "memory_key": "procedure_usual", "new_name": "Copy"},
        audited=1,
        elsewhere=404,
    ),
    "procedure.list": Example("viewer", {}),
    "procedure.locate": Example("viewer", {"memory_key": "procedure_usual", "at": "s1"}, elsewhere=404),
    "procedure.match": Example("viewer", {"situation": "the usual work comes up"}),
    "procedure.record_run": Example(
        "writer", {"memory_key": "procedure_usual", "path": ["s1", "s2"]}, audited=1, elsewhere=404
    ),
}


def seed(cast: Cast) -> dict[str, str]:
    """The rows that the examples speak of; what stands for their ids."""
    for key in ("living", "locked", "gone"):
        assert cast.run("memory.set", {"memory_key": key, "value": f"the {key} one"}).status == 200
    assert cast.run("memory.delete", {"memory_key": "gone"}).status == 200
    assert cast.run("memory.lock", {"memory_key": "locked", "reason": "it stays"}).status == 200
    usual = {"name": "Usual", "situation": "The usual work comes up", "steps": ["One", "Two"]}
    assert cast.run("procedure.add", usual).status == 200
    job = Job.objects.create(org=cast.org, namespace=cast.team, kind="nothing")
    return {JOB: str(job.pk)}


def body_of(op: str, ids: dict[str, str]) -> dict[str, Any]:
    """The example's body with its ids filled in."""
    return {
        name: ids.get(value, value) if isinstance(value, str) else value
        for name, value in EXAMPLES[op].body.items()
    }
