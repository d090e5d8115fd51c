"""A body for every op, over rows that `seed` makes. A new op without an entry fails the contract tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from governance.models import ErasureRequest, Job
from governance.services import worker_heartbeat
from tests.conftest import Cast

Need = Literal["viewer", "writer", "reviewer", "admin"]


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
    elsewhere: int = 200
    # The op means exactly the identity of the call, so that a bound token does not mean the rows of `seed`.
    exact: bool = False
    # One of several optional fields is needed.
    some_field: bool = False
    # Its rows are at home in the namespace, whatever agent, user or session the call says.
    ignores_identity: bool = False
    # A read of the console: where no namespace is, its role is missed first.
    console_read: bool = False
    # In the console, a writer without the role makes a plan of it.
    planned: bool = False
    # What whoever made the rows of `seed` is answered, where that differs from anybody else at home.
    to_maker: int | None = None

    @property
    def answers(self) -> int:
        """The status for the maker of the rows."""
        return self.at_home if self.to_maker is None else self.to_maker


# `living`, `second`, `locked`, `gone` and `private` are keys of `seed`; the rest stand for ids.
JOB, LIVING, FACT, ERASURE, PLAN = "<job>", "<living>", "<fact>", "<erasure>", "<plan>"
EXAMPLES: dict[str, Example] = {
    "audit.list": Example("reviewer", {"limit": 5}, console_read=True),
    "audit.verify": Example("admin", {}, console_read=True),
    "erasure.request": Example(
        "admin",
        {"memory_ids": [LIVING], "reason": "asked for"},
        audited=1,
        elsewhere=404,
        some_field=True,
        ignores_identity=True,
    ),
    "erasure.resume": Example(
        "admin", {"erasure_id": ERASURE}, audited=1, elsewhere=404, ignores_identity=True
    ),
    "context.pack": Example("viewer", {"query": "living"}, some_field=True),
    "fact.correct": Example(
        "writer", {"factId": FACT, "value": "Bolt", "validFrom": "2024-01-01"}, by_id=True, audited=1
    ),
    "fact.history": Example("viewer", {"subject": "Ada", "attribute": "employer"}, some_field=True),
    "fact.recall": Example("viewer", {"subject": "Ada"}),
    "fact.remember": Example("writer", {"subject": "Grace", "attribute": "town", "value": "Oslo"}, audited=1),
    "fact.retract": Example(
        "writer", {"factId": FACT, "kind": "wrong", "reason": "it never was"}, by_id=True, audited=1
    ),
    "fact.share": Example("writer", {"factId": FACT}, by_id=True),
    "hold.add": Example(
        "writer",
        {"memory_key": "living", "matter": "case 2", "reason": "asked for"},
        audited=1,
        elsewhere=404,
    ),
    "hold.release": Example(
        "admin",
        {"memory_key": "locked", "matter": "case 1", "reason": "closed"},
        audited=1,
        elsewhere=404,
        planned=True,
    ),
    "job.get": Example("viewer", {"job_id": JOB}, in_namespace=False),
    "lock.list": Example("viewer", {}),
    "memory.apply": Example(
        "writer",
        {
            "keys": ["living"],
            "action": "label",
            "label": {"tags": ["seen"]},
            "reason": "tidy",
            "dry_run": False,
        },
        audited=1,
    ),
    # Without dry_run: false it only tells.
    "memory.clear": Example("writer", {"filter": {"key_prefix": "liv"}, "reason": "tidy"}),
    "memory.consolidate": Example(
        "writer", {"keys": ["living", "second"], "into": "one", "value": "both"}, audited=3, elsewhere=404
    ),
    "memory.delete": Example("writer", {"memory_key": "living"}, audited=1),
    "memory.get": Example("viewer", {"memory_key": "living"}),
    "memory.govern": Example(
        "writer",
        {
            "ids": [LIVING],
            "action": "stale",
            "reason": "out of date",
            "expected_versions": {LIVING: 1},
            "confirm_destructive": True,
        },
        audited=1,
        elsewhere=404,
    ),
    "memory.history": Example("viewer", {"memory_key": "living"}),
    "memory.list": Example("viewer", {}),
    "memory.lock": Example(
        "writer", {"memory_key": "living", "reason": "it stays"}, audited=1, elsewhere=404
    ),
    "memory.pin": Example("writer", {"memory_key": "living"}, audited=1, elsewhere=404, exact=True),
    "memory.promote": Example(
        "writer", {"memory_key": "private", "agent": "scout"}, audited=1, elsewhere=404
    ),
    # A token's real run goes to review.
    "memory.redact": Example(
        "writer", {"memory_key": "living", "reason": "a secret", "dry_run": True}, elsewhere=404
    ),
    "memory.restore": Example("writer", {"memory_key": "gone"}, audited=1, elsewhere=404),
    "memory.search": Example("viewer", {"query": "living"}),
    "memory.set": Example("writer", {"memory_key": "living", "value": "another"}, audited=1),
    "memory.set_many": Example("writer", {"items": [{"memory_key": "fresh", "value": 1}]}, audited=1),
    "memory.unlock": Example(
        "admin", {"memory_key": "locked", "reason": "it may go"}, audited=1, elsewhere=404, planned=True
    ),
    "memory.unpin": Example("writer", {"memory_key": "living"}, elsewhere=404),
    "memory.update": Example("writer", {"memory_key": "living", "value": "another"}, audited=1),
    "namespace.list": Example("viewer", {}, in_namespace=False),
    "ops.capabilities": Example("viewer", {}, in_namespace=False),
    "ops.health": Example("viewer", {}, in_namespace=False),
    "ops.whoami": Example("viewer", {}, in_namespace=False),
    "plan.get": Example("viewer", {"plan_id": PLAN}, by_id=True),
    "plan.list": Example("viewer", {}),
    # Whoever asked for it withdraws it, and nobody else.
    "plan.withdraw": Example("writer", {"plan_id": PLAN}, by_id=True, audited=1, at_home=403, to_maker=200),
    "raw.append": Example("writer", {"session_id": "talk", "role": "user", "content": "hello"}, audited=1),
    "raw.get": Example("viewer", {"session_id": "talk"}),
    "raw.list_sessions": Example("viewer", {}),
    "raw.search": Example("viewer", {"query": "hello"}),
    "procedure.add": Example(
        "writer", {"name": "Another", "situation": "It is needed", "steps": ["One", "Two"]}, audited=1
    ),
    # Nobody takes the job; with a worker that beats, the answer tells that it waits.
    "procedure.evolve": Example(
        "writer", {"memory_key": "procedure_usual", "wait_s": 0}, at_home=202, elsewhere=404
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
    "procedure.revise": Example(
        "writer",
        {
            "memory_key": "procedure_usual",
            "graph": {
                "nodes": [
                    {"id": "s1", "kind": "step", "text": "One"},
                    {"id": "s2", "kind": "step", "text": "Another"},
                ],
                "edges": [{"src": "s1", "dst": "s2", "kind": "dep"}],
            },
        },
        audited=1,
        elsewhere=404,
    ),
}


def seed(cast: Cast) -> dict[str, str]:
    """The rows that the examples speak of; what stands for their ids."""
    ids = {}
    for key in ("living", "second", "locked", "gone"):
        ids[key] = cast.run("memory.set", {"memory_key": key, "value": f"the {key} one"})["memory_id"]
    private = {"memory_key": "private", "value": "the private one", "agent": "scout"}
    assert cast.run("memory.set", private).status == 200
    assert cast.run("memory.delete", {"memory_key": "gone"}).status == 200
    assert cast.run("memory.lock", {"memory_key": "locked", "reason": "it stays"}).status == 200
    hold = {"memory_key": "locked", "matter": "case 1", "reason": "asked for"}
    assert cast.run("hold.add", hold).status == 200
    turn = {"session_id": "talk", "role": "user", "content": "hello"}
    assert cast.run("raw.append", turn).status == 200
    fact = cast.run(
        "fact.remember",
        {"subject": "Ada", "attribute": "employer", "value": "Acme", "validFrom": "2020-01-01"},
    )  # fmt: skip
    usual = {"name": "Usual", "situation": "The usual work comes up", "steps": ["One", "Two"]}
    assert cast.run("procedure.add", usual).status == 200
    worker_heartbeat()
    job = Job.objects.create(org=cast.org, namespace=cast.team, kind="nothing")
    erasure = ErasureRequest.objects.create(
        org=cast.org, namespace=cast.team, user_id="nobody", reason="asked for", requested_by="owner",
        state="parked",
    )  # fmt: skip
    waits = cast.run(
        "memory.govern",
        {
            "ids": [ids["second"]], "action": "delete", "reason": "old", "confirm_destructive": True,
            "expected_versions": {ids["second"]: 1},
        },
    )  # fmt: skip
    assert waits.status == 202
    plan = str(waits.body["plan_id"])
    return {
        JOB: str(job.pk),
        LIVING: ids["living"],
        FACT: str(fact["factId"]),
        ERASURE: str(erasure.pk),
        PLAN: plan,
    }


def _filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {ids.get(name, name): _filled(item, ids) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def body_of(op: str, ids: dict[str, str]) -> dict[str, Any]:
    """The example's body with its ids filled in."""
    return {name: _filled(value, ids) for name, value in EXAMPLES[op].body.items()}
