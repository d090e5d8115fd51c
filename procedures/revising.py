"""Revise: another graph for a procedure, in force at once and pending until the gate has judged its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.db import connection

from governance.locks import locked
from loomsite.ops import Context, Effect, OpError
from memories.services import Gateway, Row, content_sha256, embed_all, embedding_text
from procedures import selectors
from procedures.graph import KEY_PREFIX, Graph, proven_path
from procedures.models import Revision
from procedures.selectors import Found, RevisionRow, folded_tally, missing, procedure_get
from procedures.services import NOBODY, Flags, last_number, lock_present, require_within_limit, value_of

PENDING, REJECTED = Revision.State.PENDING, Revision.State.REJECTED


@dataclass(frozen=True)
class Proposal:
    """A revision as asked for."""

    key: str
    graph: Graph
    force: bool = False


@dataclass(frozen=True)
class _Plan:
    """What a proposal amounts to: the revision in force afterwards, and the one it is judged against."""

    number: int
    prior: int | None
    """None where a pending revision is withdrawn and nothing new opens."""
    withdrawn: int | None


def prepare(namespace_id: int | None, proposal: Proposal) -> dict[str, Any] | None:
    """The vector of the row's text to come, made before the transaction opens; None when it cannot be had."""
    present = procedure_get(namespace_id, proposal.key)
    try:
        plan = _plan(present, selectors.revision_rows(present.id), proposal)
    except OpError as error:
        if error.code not in ("REVISION_PENDING", "REJECTED_TOPOLOGY"):
            raise
        # The transaction refuses it, unless things have changed by then.
        return {}
    if plan is None:
        return {}
    return embed_all([(proposal.key, _value(present, proposal.graph, plan))])


def _value(present: Found, graph: Graph, plan: _Plan) -> Any:
    path = proven_path(graph, folded_tally(present.id))
    flags = Flags.of(present).within(graph)
    return value_of(present.name, present.situation, graph, path, plan.number, flags)


def _plan(present: Found, rows: Mapping[int, RevisionRow], proposal: Proposal) -> _Plan | None:
    """None for the graph in force. OpError 409 REVISION_PENDING, REJECTED_TOPOLOGY."""
    digest = proposal.graph.digest
    if digest == present.digest:
        return None
    pending = present.revision if present.prior_revision is not None else None
    if pending is not None and not proposal.force:
        row = rows[pending]
        raise OpError(
            "REVISION_PENDING",
            f"{present.key}: revision {pending} by {row.proposed_by} waits for its verdict, which comes with "
            "its runs (procedure.record_run). Nothing was stored; force withdraws it.",
            memory_key=present.key,
            revision=pending,
            prior_revision=present.prior_revision,
            proposed_by=row.proposed_by,
        )
    tried = [row for row in rows.values() if row.state == REJECTED and row.digest == digest]
    if tried and not proposal.force:
        verdict = tried[-1].verdict or {}
        raise OpError(
            "REJECTED_TOPOLOGY",
            f"{present.key}: this graph was tried as revision {tried[-1].number} and reverted "
            f"({_figures(verdict)}). Nothing was stored; force tries it again.",
            memory_key=present.key,
            revision=tried[-1].number,
            gate=verdict,
        )
    prior = present.revision if present.prior_revision is None else present.prior_revision
    if digest == rows[prior].digest:
        return _Plan(prior, None, pending)
    return _Plan(last_number(present.id) + 1, prior, pending)


def _figures(verdict: Mapping[str, Any]) -> str:
    if not verdict:
        return "its numbers are not kept"
    before, after = verdict["before"], verdict["after"]
    said = f"{before['ok']} of {before['total']} runs ok before, {after['ok']} of {after['total']} after"
    return said + ("; its successes cost more" if verdict["reason"] == "cost" else "")


def procedure_revise(ctx: Context, proposal: Proposal, vectors: dict[str, Any] | None) -> dict[str, Any]:
    """Open a revision; the op's answer. OpError 404; 409 REVISION_PENDING, REJECTED_TOPOLOGY; 413; 423."""
    gate = Gateway(ctx, vectors, manages=KEY_PREFIX)
    who = (proposal.key, NOBODY)
    row = gate.exact([who]).get(who)
    present = lock_present(row) if row is not None and row.served else None
    if row is None or present is None:
        raise missing(proposal.key)
    plan = _plan(present, selectors.revision_rows(present.id), proposal)
    if plan is None:
        prior = present.revision if present.prior_revision is None else present.prior_revision
        return _answer(row, present.revision, prior, present.digest, present.steps)
    if row.lock.refuses(Effect.VALUE):
        raise locked(row.lock, Effect.VALUE, ctx.op.name, row.key, row.id)
    value = _value(present, proposal.graph, plan)
    require_within_limit(value)
    if gate.vectors is not None and embedding_text(row.key, value) not in gate.vectors:
        # It has been overtaken; a job fills it in.
        gate.vectors = None
    state = replace(row.state, value=value, content_sha256=content_sha256(value))
    gate.beside[row.key] = proposal.graph.names
    fresh = gate.write(row, row.key, NOBODY, state, "revise")
    gate.flush()
    ctx.audit[-1].detail.update(
        revision=plan.number, prior_revision=present.revision, digest=proposal.graph.digest,
        pending=plan.prior is not None, withdrawn=plan.withdrawn, forced=proposal.force,
    )  # fmt: skip
    _store(ctx, present, proposal.graph, plan)
    judged_against = present.revision if plan.prior is None else plan.prior
    return _answer(fresh, plan.number, judged_against, proposal.graph.digest, list(value["steps"]))


def _answer(row: Row, revision: int, prior: int, digest: str, steps: list[str]) -> dict[str, Any]:
    return {
        "memory_key": row.key,
        "version": row.version,
        "revision": revision,
        "prior_revision": prior,
        "digest": digest,
        "steps": steps,
    }


def _store(ctx: Context, present: Found, graph: Graph, plan: _Plan) -> None:
    flags = Flags.of(present).within(graph)
    with connection.cursor() as cursor:
        if plan.withdrawn is not None:
            cursor.execute(
                "UPDATE procedures_revision SET state = 'withdrawn', closed_at = clock_timestamp() "
                "WHERE procedure_id = %s AND number = %s",
                [present.id, plan.withdrawn],
            )
        if plan.prior is not None:
            cursor.execute(
                "INSERT INTO procedures_revision (procedure_id, namespace_id, number, graph, digest, "
                "proposed_by, reason, state, opened_after, opened_at, prior) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), %s)",
                [
                    present.id, present.namespace_id, plan.number, json.dumps(graph.stored()), graph.digest,
                    ctx.caller.principal, ctx.reason, PENDING, present.runs_total, plan.prior,
                ],
            )  # fmt: skip
        cursor.execute(
            "UPDATE procedures_procedure SET revision = %s, prior_revision = %s, tools = %s, "
            "template = false, dead_ends = '{}', fail_prone = %s, fail_prone_edges = %s WHERE memory_id = %s",
            [
                plan.number, plan.prior, sorted(graph.tools), list(flags.fail_prone),
                json.dumps(flags.fail_prone_edges), present.id,
            ],
        )  # fmt: skip
