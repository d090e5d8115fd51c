"""Erasing a person's text: what is asked for, what holds it, and the run that takes it away for good.

An erasure is the one thing that reaches everything: memories with every version, facts, procedures, notes on
runs, the raw archive, indexes, stored answers, jobs. Each place that holds text registers an `Eraser`
(`@eraser`, in the module `erasers` of its app); governance knows none of the apps above it.

A hold or a lock on any row parks the whole request: nothing is erased until an admin has dealt with what
guards it and resumes the request. What stays, because the audit has to verify, is said in docs/operations.md:
ids, hashes, keys, labels such as the user_id, and the reasons in the audit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from django.db import connection, transaction
from django.utils.module_loading import autodiscover_modules

from governance import audit, services
from governance.jobs import JobRun
from governance.models import ErasureRequest, Namespace
from governance.tenancy import administers_org
from loomsite.ops import AuditEntry, Context, OpError, not_found

OP = "erasure.request"
JOB = "erasure.run"
GUARDS_SHOWN = 100
State = ErasureRequest.State


@dataclass(frozen=True)
class Person:
    """Whose text is meant, and where it is looked for. At least one of `user_id`, `node_ids`, `subject`."""

    org_id: int
    namespace_ids: tuple[int, ...]
    user_id: str = ""
    # These narrow what `user_id` selects.
    agent: str = ""
    session_id: str = ""
    node_ids: frozenset[int] = frozenset()
    subject: str = ""
    raw: bool = True
    request_id: int = 0
    """The running request; 0 while nothing is erased yet."""


@dataclass
class Found:
    """What one eraser would erase."""

    # How many rows of each kind, for people.
    counts: dict[str, int] = field(default_factory=dict)
    # Ids of the shared sequence that it erases.
    nodes: set[int] = field(default_factory=set)
    # Further ids that mean it, such as those of a fact's versions: stored answers may name them.
    aliases: set[int] = field(default_factory=set)
    # What guards it: id, key, mode, holds each.
    guards: list[dict[str, Any]] = field(default_factory=list)
    # What a person should know besides, in words.
    notes: list[str] = field(default_factory=list)


@dataclass
class Run:
    """An erasure under way, in one transaction."""

    person: Person
    reason: str
    requested_by: str
    # By namespace: the context whose audit rows its writes leave.
    contexts: dict[int, Context] = field(default_factory=dict)

    def context(self, namespace_id: int) -> Context:
        """The context of the writes in a namespace."""
        if namespace_id not in self.contexts:
            namespace = Namespace.objects.select_related("org").get(pk=namespace_id)
            ctx = services.system_context(
                org=namespace.org, namespace=namespace, op_name=OP, principal=self.requested_by
            )
            ctx.reason = self.reason
            self.contexts[namespace_id] = ctx
        return self.contexts[namespace_id]


class Eraser(Protocol):
    """A place that holds text. `find` and `erase` get everything that all erasers have found so far."""

    def find(self, person: Person, nodes: set[int], lock: bool) -> Found:
        """What it has of the person and of these nodes; with `lock` the rows are locked in id order."""

    def erase(self, run: Run, found: Found, nodes: set[int], mentions: set[int]) -> dict[str, int]:
        """Erase what it found; how many rows of each kind went. `mentions`: every id that means a node."""


EraserT = TypeVar("EraserT", bound=type[Any])
_erasers: dict[str, tuple[int, type[Any]]] = {}


def eraser(name: str, order: int) -> Callable[[EraserT], EraserT]:
    """Register a class as an eraser; they work by ascending `order`."""

    def register(made: EraserT) -> EraserT:
        if name in _erasers:
            raise RuntimeError(f"two erasers are called {name}")
        _erasers[name] = (order, made)
        return made

    return register


def erasers() -> dict[str, Eraser]:
    """A fresh one of every eraser, in their order. Apps declare theirs in the module `erasers`."""
    autodiscover_modules("erasers")
    ordered = sorted(_erasers.items(), key=lambda item: item[1][0])
    return {name: made() for name, (_, made) in ordered}


@dataclass(frozen=True)
class Search:
    """What all erasers have found together."""

    found: dict[str, Found]
    nodes: set[int]
    mentions: set[int]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by kind; kinds without any are left out."""
        return {kind: number for one in self.found.values() for kind, number in one.counts.items() if number}

    @property
    def guards(self) -> list[dict[str, Any]]:
        """Everything that guards a row."""
        return [guard for one in self.found.values() for guard in one.guards]

    @property
    def notes(self) -> list[str]:
        """Everything that a person should know."""
        return [note for one in self.found.values() for note in one.notes]

    @property
    def digest(self) -> str:
        """SHA-256 of what would go, so that nothing else goes than was shown."""
        shown = json.dumps([sorted(self.nodes), self.counts], sort_keys=True)
        return hashlib.sha256(shown.encode()).hexdigest()


def search(person: Person, *, lock: bool, known: dict[str, Eraser] | None = None) -> Search:
    """Ask every eraser until none finds anything new: a copy of a found memory is found by its origin."""
    known = known or erasers()
    nodes: set[int] = set(person.node_ids)
    while True:
        found = {name: one.find(person, nodes, lock) for name, one in known.items()}
        reached = set().union(*(one.nodes for one in found.values()))
        mentions = reached.union(*(one.aliases for one in found.values()))
        # An asked id may be another name of a node, such as a fact version's; the node stands for it.
        if reached <= nodes:
            return Search(found, reached, mentions)
        nodes |= reached


# Asking


@dataclass(frozen=True)
class Asked:
    """What `erasure.request` was asked."""

    scope: str
    user_id: str
    agent: str
    session_id: str
    node_ids: tuple[int, ...]
    subject: str
    raw: bool


def person_of(ctx: Context, asked: Asked) -> Person:
    """The person of the call. OpError 403 for the organisation's scope without being its admin."""
    assert ctx.namespace_id is not None  # noqa: S101 - the pipeline made or found it
    if asked.scope == ErasureRequest.Scope.ORG and not administers_org(ctx.caller):
        raise OpError("FORBIDDEN", "scope: only an admin of the organisation erases in all its namespaces.")
    return Person(
        org_id=ctx.caller.org_id,
        namespace_ids=_namespaces(ctx.caller.org_id, ctx.namespace_id, asked.scope),
        user_id=asked.user_id,
        agent=asked.agent,
        session_id=asked.session_id,
        node_ids=frozenset(asked.node_ids),
        subject=asked.subject,
        raw=asked.raw,
    )


def _namespaces(org_id: int, namespace_id: int, scope: str) -> tuple[int, ...]:
    if scope != ErasureRequest.Scope.ORG:
        return (namespace_id,)
    return tuple(Namespace.objects.filter(org=org_id).order_by("pk").values_list("pk", flat=True))


def erasure_request(ctx: Context, asked: Asked, digest: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Preview, or store the request: parked when a guard stands in its way, else handed to a worker.

    Raises OpError 403 for what takes an admin of the organisation, 404 for ids that
    are not here, 409 when `digest` names another state than the present one.
    """
    person = person_of(ctx, asked)
    seen = search(person, lock=not dry_run)
    unknown = sorted(person.node_ids - seen.mentions)
    if unknown:
        raise not_found(f"memory_ids: not here: {', '.join(map(str, unknown[:20]))}.")
    if seen.counts.get("raw_turns") and not administers_org(ctx.caller):
        raise OpError(
            "FORBIDDEN",
            "raw: turns of the raw archive are only erased by an admin of the organisation; with raw false "
            "they stay.",
        )
    body: dict[str, Any] = {
        "dry_run": dry_run, "state": "previewed", "counts": seen.counts, "digest": seen.digest,
        "guards": seen.guards[:GUARDS_SHOWN], "guarded": len(seen.guards), "notes": seen.notes,
    }  # fmt: skip
    if dry_run:
        return body
    if digest is not None and digest != seen.digest:
        raise OpError(
            "VERSION_CONFLICT",
            "digest: what would be erased is no longer what was shown; look at a fresh dry run.",
            current_digest=seen.digest,
        )
    row = ErasureRequest.objects.create(
        org_id=ctx.caller.org_id, namespace_id=ctx.namespace_id or 0, scope=asked.scope,
        user_id=asked.user_id, agent=asked.agent, session_id=asked.session_id,
        node_ids=sorted(asked.node_ids),
        subject=asked.subject, raw=asked.raw, reason=ctx.reason, counts=seen.counts,
        guards=seen.guards[:GUARDS_SHOWN], requested_by=ctx.caller.principal,
        state=State.PARKED if seen.guards else State.REQUESTED,
    )  # fmt: skip
    _enqueue(ctx, row)
    ctx.record(_entry(row, "parked" if seen.guards else "applied", guarded=len(seen.guards)))
    return body | {
        "state": row.state, "erasure_id": str(row.pk),
        "job_id": None if row.job_id is None else str(row.job_id),
    }  # fmt: skip


def erasure_resume(ctx: Context, erasure_id: int) -> dict[str, Any]:
    """Take up a parked or failed request again, by an admin; still guarded, it stays parked.

    Raises OpError 404, 409 INVALID_TRANSITION for one that is neither, 403 as `erasure_request`.
    """
    row = (
        ErasureRequest.objects.select_for_update()
        .filter(pk=erasure_id, namespace_id=ctx.namespace_id or 0)
        .first()
    )
    if row is None:
        raise not_found("erasure_id: no such request in this namespace.")
    if row.state not in (State.PARKED, State.FAILED):
        raise OpError(
            "INVALID_TRANSITION", f"erasure_id: the request is {row.state}; only a parked one waits."
        )
    person = person_of(ctx, _asked(row))
    seen = search(person, lock=True)
    if seen.counts.get("raw_turns") and not administers_org(ctx.caller):
        raise OpError(
            "FORBIDDEN", "The request takes in the raw archive: an admin of the organisation resumes it."
        )
    row.state = State.PARKED if seen.guards else State.REQUESTED
    row.counts, row.guards = seen.counts, seen.guards[:GUARDS_SHOWN]
    row.save(update_fields=["state", "counts", "guards"])
    _enqueue(ctx, row)
    ctx.record(_entry(row, "parked" if seen.guards else "applied", guarded=len(seen.guards)))
    return {
        "erasure_id": str(row.pk), "state": row.state, "counts": row.counts, "guards": row.guards,
        "guarded": len(seen.guards), "job_id": None if row.job_id is None else str(row.job_id),
    }  # fmt: skip


def _enqueue(ctx: Context, row: ErasureRequest) -> None:
    if row.state == State.REQUESTED:
        row.job_id = services.job_create(
            ctx=ctx, kind=JOB, input={"erasure_id": row.pk}, namespace_id=row.namespace_id
        )
        row.save(update_fields=["job"])


def _asked(row: ErasureRequest) -> Asked:
    return Asked(row.scope, row.user_id, row.agent, row.session_id, tuple(row.node_ids), row.subject, row.raw)


def _entry(row: ErasureRequest, outcome: str, **detail: Any) -> AuditEntry:
    """The audit row; the subject is text of the person and is not in it."""
    return AuditEntry(
        target=f"erasure:{row.pk}",
        outcome=outcome,
        reason=row.reason,
        detail={
            "state": row.state, "scope": row.scope, "user_id": row.user_id, "ids": len(row.node_ids),
            "by_subject": bool(row.subject), "raw": row.raw, "counts": row.counts, **detail,
        },
    )  # fmt: skip


# Running


def erasure_run(job: JobRun) -> dict[str, Any]:
    """Erase in one transaction, or park; safe to run again. The result says the state and the counts."""
    erasure_id = int(job.input["erasure_id"])
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_erasurerequest SET state = 'running' "
            "WHERE id = %s AND state IN ('requested', 'running', 'failed')",
            [erasure_id],
        )
        if cursor.rowcount == 0:
            row = ErasureRequest.objects.get(pk=erasure_id)
            return {"state": row.state, "counts": row.counts}
    try:
        return _erase(erasure_id)
    except Exception:
        ErasureRequest.objects.filter(pk=erasure_id, state=State.RUNNING).update(state=State.FAILED)
        raise


def _erase(erasure_id: int) -> dict[str, Any]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 0")
        row = ErasureRequest.objects.select_for_update().get(pk=erasure_id)
        if row.state != State.RUNNING:
            return {"state": row.state, "counts": row.counts}
        known = erasers()
        asked = _asked(row)
        person = Person(
            row.org_id, _namespaces(row.org_id, row.namespace_id, row.scope), asked.user_id, asked.agent,
            asked.session_id, frozenset(asked.node_ids), asked.subject, asked.raw, row.pk,
        )  # fmt: skip
        seen = search(person, lock=True, known=known)
        run = Run(person, row.reason, row.requested_by)
        home = run.context(row.namespace_id)
        if seen.guards:
            row.state, row.guards = State.PARKED, seen.guards[:GUARDS_SHOWN]
            row.save(update_fields=["state", "guards"])
            home.record(_entry(row, "parked", guarded=len(seen.guards)))
        else:
            counts: dict[str, int] = {}
            for name, one in known.items():
                counts |= one.erase(run, seen.found[name], seen.nodes, seen.mentions)
            row.state, row.guards, row.subject = State.DONE, [], ""
            row.counts = {kind: number for kind, number in counts.items() if number}
            row.save(update_fields=["state", "guards", "subject", "counts"])
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE governance_erasurerequest SET finished_at = clock_timestamp() WHERE id = %s",
                    [row.pk],
                )
            home.record(_entry(row, "erased", by_subject=bool(asked.subject)))
        # The chain's lock last: every other row is written by now.
        for ctx in run.contexts.values():
            audit.append(ctx, ctx.audit)
    return {"state": row.state, "counts": row.counts}


def id_texts(ids: Sequence[int] | set[int]) -> list[str]:
    """Ids as stored answers and inputs write them."""
    return [str(one) for one in sorted(ids)]
