"""Changes to procedures: add, record a run, fork. The memory row is written through the write gateway."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from pgvector import HalfVector

from governance import services as governance
from governance.clock import iso
from governance.locks import locked
from governance.models import Namespace, Org
from loomsite.ops import AuditEntry, Context, Door, Effect, OpError, invalid, limits
from memories.embedders import Embedder, EmbedderUnavailable, Vectors, get_embedder, is_zero
from memories.models import OnExpire, Status
from memories.reembed import count
from memories.screening import screen
from memories.services import (
    Gateway,
    Identity,
    MadeMeanwhile,
    Row,
    State,
    canonical,
    content_sha256,
    embed_all,
    embedding_text,
)
from procedures import ledger
from procedures.counting import PATH_IDS, Tally
from procedures.graph import (
    ID_CHARS,
    KEY_PREFIX,
    Graph,
    branches_of,
    chain,
    proven_path,
    read,
    slug,
    steps_of,
)
from procedures.selectors import (
    COLUMNS,
    Found,
    found_from,
    present_graph,
    procedure_get,
    revision_graph,
)

MEMORY_TYPE = "procedure"
TAG = "procedure"
EMBED_JOB = "procedure.embed"
EVOLVE_JOB = "procedure.evolve"
NOBODY = Identity()


@dataclass(frozen=True)
class Recipe:
    """A procedure as asked for."""

    name: str
    situation: str
    steps: Sequence[str] = ()
    tags: Sequence[str] = ()
    metadata: str = "{}"
    graph: Graph | None = None
    source_class: str = "local_tool_output"

    @property
    def key(self) -> str:
        """The key of its memory row."""
        return KEY_PREFIX + slug(self.name)


@dataclass(frozen=True)
class Prepared:
    """Vectors computed before the transaction opened; None when no embedding can be had now."""

    by_text: dict[str, Any] | None
    situation: Vectors | None


@dataclass(frozen=True)
class Flags:
    """What evolve has found of a procedure, by ids of its graph. Part of the row's value."""

    quarantined: bool = False
    template: bool = False
    dead_ends: tuple[str, ...] = ()
    fail_prone: tuple[str, ...] = ()
    fail_prone_edges: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, found: Found) -> Flags:
        """As they stand."""
        return cls(
            found.quarantined,
            found.template,
            tuple(found.dead_ends),
            tuple(found.fail_prone),
            tuple((src, dst) for src, dst in found.fail_prone_edges),
        )

    def within(self, graph: Graph) -> Flags:
        """What is left of them for another graph before any of its runs: what fails does so there too."""
        return Flags(
            quarantined=self.quarantined,
            fail_prone=tuple(id_ for id_ in self.fail_prone if id_ in graph.by_id),
            fail_prone_edges=tuple(pair for pair in self.fail_prone_edges if pair in graph.pairs),
        )

    def shown(self) -> dict[str, Any]:
        """As JSON; only what is set."""
        said = {
            "quarantined": self.quarantined,
            "template": self.template,
            "dead_ends": list(self.dead_ends),
            "fail_prone": list(self.fail_prone),
            "fail_prone_transitions": [f"{src} -> {dst}" for src, dst in self.fail_prone_edges],
        }
        return {name: value for name, value in said.items() if value}


NO_FLAGS = Flags()


def value_of(
    name: str, situation: str, graph: Graph, path: Sequence[str], revision: int, flags: Flags = NO_FLAGS
) -> Any:
    """What the memory row holds. What the graph says besides (`Graph.names`) is screened with it."""
    value: dict[str, Any] = {
        "name": name,
        "situation": situation,
        "steps": steps_of(graph, path, flags.dead_ends),
        "revision": revision,
    }
    branches = branches_of(graph, path, flags.dead_ends)
    if branches:
        value["branches"] = branches
    if flags != NO_FLAGS:
        value["flags"] = flags.shown()
    return value


@dataclass(frozen=True)
class _Plan:
    """What an add amounts to: the graph in force afterwards, its number, the value of the row."""

    graph: Graph
    number: int
    is_new: bool
    value: Any


def _plan(recipe: Recipe, present: Found | None, *, served: bool = True) -> _Plan:
    """OpError 409 USE_REVISE when runs stand against the change of the graph. `served`: it has not ended."""
    if present is None:
        graph = recipe.graph or chain(recipe.steps)
        return _opened(recipe, graph, 1)
    current = present_graph(present)
    same_steps = recipe.graph is None and list(recipe.steps) == present.steps
    graph = current if same_steps else recipe.graph or chain(recipe.steps)
    if graph.digest == current.digest:
        with ledger.counted(present.id) as counters:
            path = proven_path(current, counters.tally(present.counted))
        value = value_of(recipe.name, recipe.situation, current, path, present.revision, Flags.of(present))
        return _Plan(current, present.revision, False, value)
    if present.runs_total:
        way = "" if served else "memory.restore it first: it has ended, and its runs are kept with it. "
        raise OpError(
            "USE_REVISE",
            f"{present.key} has {present.runs_total} runs, so its graph is changed by procedure.revise, "
            f"which is judged by what follows. {way}Nothing was stored.",
            memory_key=present.key,
            revision=present.revision,
            run_stats=present.run_stats,
        )
    return _opened(recipe, graph, last_number(present.id) + 1)


def _opened(recipe: Recipe, graph: Graph, number: int) -> _Plan:
    path = proven_path(graph, Tally())
    return _Plan(graph, number, True, value_of(recipe.name, recipe.situation, graph, path, number))


def last_number(procedure_id: int) -> int:
    """The highest number of its revisions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(number) FROM procedures_revision WHERE procedure_id = %s", [procedure_id])
        return int(cursor.fetchone()[0])


def prepare(namespace_id: int | None, recipe: Recipe) -> Prepared:
    """The vectors that an add needs, as things stand now."""
    present = None
    try:
        present = procedure_get(namespace_id, recipe.key)
    except OpError as error:
        if error.code != "NOT_FOUND":
            raise
    try:
        value = _plan(recipe, present).value
    except OpError as error:
        if error.code != "USE_REVISE":
            raise
        # The transaction refuses it, unless things have changed by then.
        return Prepared({}, None)
    return Prepared(embed_all([(recipe.key, value)]), situation_vector(recipe.situation))


def situation_vector(text: str) -> Vectors | None:
    """The vector that `match` compares; None when no embedding can be had now."""
    try:
        vector: Vectors = get_embedder().embed([text])[0]
    except EmbedderUnavailable:
        return None
    return vector


@dataclass(frozen=True)
class Added:
    """A procedure after an add or a fork."""

    row: Row
    revision: int
    steps: list[str]


def procedure_add(
    ctx: Context,
    recipe: Recipe,
    prepared: Prepared | None,
    *,
    kind: str = "set",
    forked_from: dict[str, Any] | None = None,
) -> Added:
    """Make a procedure, or rewrite the one of this name. OpError 409 USE_REVISE, GOVERNED_KEY; 413; 423.

    409 VERSION_CONFLICT when the key belongs to a procedure of another name, and for a fork, which is never a
    rewrite, whenever its key stands already.
    """
    gate = Gateway(ctx, prepared.by_text if prepared else None, manages=KEY_PREFIX)
    who = (recipe.key, NOBODY)
    try:
        return _add(gate, recipe, prepared, gate.exact([who]).get(who), kind, forked_from)
    except MadeMeanwhile as made:
        return _add(gate, recipe, prepared, made.row, kind, forked_from)


def _add(
    gate: Gateway,
    recipe: Recipe,
    prepared: Prepared | None,
    row: Row | None,
    kind: str,
    forked_from: dict[str, Any] | None,
) -> Added:
    ctx = gate.ctx
    if row is not None and forked_from is not None:
        raise OpError(
            "VERSION_CONFLICT",
            f"{row.key} stands in {ctx.namespace} already (or has ended there); fork under another new_name.",
            memory_key=row.key,
            memory_id=str(row.id),
            status=row.status,
        )
    if row is not None and row.governed and row.state.status != Status.ACTIVE:
        raise OpError(
            "GOVERNED_KEY",
            f"{row.key} was {row.state.status} by governance, and adding it again does not revive it. "
            "A reviewer restores it in the console.",
            memory_key=row.key,
            memory_id=str(row.id),
            status=row.state.status,
        )
    present = lock_present(row) if row is not None else None
    if present is not None and present.name and present.name != recipe.name:
        raise _other_name(recipe, present)
    plan = _plan(recipe, present, served=row is None or row.served)
    require_within_limit(plan.value)
    # What was embedded beforehand may have been overtaken; a job then fills it in.
    if gate.vectors is not None and embedding_text(recipe.key, plan.value) not in gate.vectors:
        gate.vectors = None
    if row is not None:
        if plan.is_new and row.lock.refuses(Effect.VALUE):
            raise locked(row.lock, Effect.VALUE, ctx.op.name, row.key, row.id)
        row = gate.materialize_expiry(row)
    state = _state(recipe, plan.value, row)
    gate.beside[recipe.key] = plan.graph.names
    fresh = gate.write(row, recipe.key, NOBODY, state, kind)
    gate.flush()
    # What is read_only is not vouched for in passing either: a call that changes nothing changes nothing.
    by_person = (ctx.caller.acts_for == "person" or ctx.caller.door == Door.CONSOLE) and not (
        row is not None and row.lock.refuses(Effect.VALUE)
    )
    tools = sorted(plan.graph.tools)
    unchanged = (
        present is not None and row is not None and fresh.state.content_sha256 == row.state.content_sha256
    )
    with connection.cursor() as cursor:
        if present is None:
            cursor.execute(
                "INSERT INTO procedures_procedure (memory_id, namespace_id, revision, authored, tools, "
                "forked_from) VALUES (%s, %s, 1, %s, %s, %s)",
                [fresh.id, gate.namespace_id, by_person, tools,
                 None if forked_from is None else json.dumps(forked_from)],
            )  # fmt: skip
        else:
            cursor.execute(
                "UPDATE procedures_procedure SET revision = %s, authored = %s, tools = %s, "
                "prior_revision = CASE WHEN %s THEN NULL ELSE prior_revision END WHERE memory_id = %s",
                [plan.number, by_person or (present.authored and unchanged), tools, plan.is_new, fresh.id],
            )
        if plan.is_new:
            # A pending one that nothing has run gives way like any other.
            cursor.execute(
                "UPDATE procedures_revision SET closed_at = clock_timestamp(), "
                "state = CASE WHEN state = 'pending' THEN 'withdrawn' ELSE state END "
                "WHERE procedure_id = %s AND closed_at IS NULL",
                [fresh.id],
            )
            cursor.execute(
                "INSERT INTO procedures_revision (procedure_id, namespace_id, number, graph, digest, "
                "proposed_by, reason, state, opened_at) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, 'accepted', clock_timestamp())",
                [fresh.id, gate.namespace_id, plan.number, json.dumps(plan.graph.stored()), plan.graph.digest,
                 ctx.caller.principal, ctx.reason],
            )  # fmt: skip
    _keep_situation(gate, fresh.id, recipe.situation, prepared)
    return Added(fresh, plan.number, list(plan.value["steps"]))


def _other_name(recipe: Recipe, present: Found) -> OpError:
    """The 409 for a name whose key is taken by a procedure of another name."""
    return OpError(
        "VERSION_CONFLICT",
        f"name: {recipe.name!r} has the key {present.key}, which belongs to the procedure {present.name!r}. "
        "Choose another name; to rewrite that procedure, give its name exactly. Nothing was stored.",
        memory_key=present.key,
        memory_id=str(present.id),
        name=present.name,
    )


def lock_present(row: Row) -> Found | None:
    """What stands beside a row that is locked already, locked against runs; None for a plain memory."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {COLUMNS} FROM memories_memory m JOIN procedures_procedure p ON p.memory_id = m.id "  # noqa: S608
            "WHERE m.id = %s FOR UPDATE OF p",
            [row.id],
        )
        columns = cursor.fetchone()
    return None if columns is None else found_from(columns)


def texts_beside(keys: Mapping[int, str]) -> dict[int, str]:
    """The texts of the graphs in force that the rows' values do not hold, by memory id."""
    ids = [id_ for id_, key in keys.items() if key.startswith(KEY_PREFIX)]
    if not ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.memory_id, r.graph FROM procedures_procedure p JOIN procedures_revision r "
            "ON r.procedure_id = p.memory_id AND r.number = p.revision WHERE p.memory_id = ANY(%s)",
            [ids],
        )
        return {id_: read(json.loads(graph)).names for id_, graph in cursor.fetchall()}


def _state(recipe: Recipe, value: Any, row: Row | None) -> State:
    base = row.state if row is not None else None
    sha = content_sha256(value)
    same = base is not None and base.content_sha256 == sha
    return State(
        value=value,
        content_sha256=sha,
        memory_type=MEMORY_TYPE,
        tags=tuple(dict.fromkeys((*recipe.tags, TAG))),
        metadata=recipe.metadata,
        confidence=base.confidence if base else None,
        expires_at=base.expires_at if base and base.status == Status.ACTIVE else None,
        on_expire=base.on_expire if base else OnExpire.TOMBSTONE,
        source_trace=base.source_trace if base else "",
        source_class=base.source_class if base and same else recipe.source_class,
    )


def require_within_limit(value: Any) -> None:
    """OpError 413 for a value that is too large to store."""
    size = len(canonical(value).encode())
    if size > limits.VALUE_BYTES:
        raise OpError(
            "TOO_LARGE",
            f"Name, situation and steps have {size} bytes as JSON; the limit is {limits.VALUE_BYTES}.",
            limit=limits.VALUE_BYTES,
        )


def text_sha256(text: str) -> str:
    """What a situation's vector is bound to."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _keep_situation(gate: Gateway, id_: int, situation: str, prepared: Prepared | None) -> None:
    sha = text_sha256(situation)
    with connection.cursor() as cursor:
        # Vectors of a text that is no longer there, of whatever embedder, would be found for it.
        cursor.execute(
            "DELETE FROM procedures_situation WHERE procedure_id = %s AND text_sha256 <> %s", [id_, sha]
        )
        cursor.execute(
            "SELECT FROM procedures_situation WHERE procedure_id = %s AND embedder = %s",
            [id_, get_embedder().name],
        )
        if cursor.fetchone() is not None:
            return
        vector = prepared.situation if prepared else None
        if vector is not None and not is_zero(vector):
            write_situation(cursor, id_, gate.namespace_id, vector, sha, get_embedder().name)
            return
    if vector is None:
        gate.ctx.degraded.append("embedding")
        governance.job_create(ctx=gate.ctx, kind=EMBED_JOB, input={"procedure_id": id_})


def write_situation(
    cursor: Any, id_: int, namespace_id: int, vector: Vectors, sha: str, embedder: str
) -> None:
    """Store or replace the vector (float32[dim], stored as halfvec) of a situation by this embedder."""
    cursor.execute(
        "INSERT INTO procedures_situation (procedure_id, namespace_id, embedder, dim, vector, text_sha256) "
        "VALUES (%s, %s, %s, %s, %s::halfvec, %s) ON CONFLICT (procedure_id, embedder) DO UPDATE SET "
        "dim = excluded.dim, vector = excluded.vector, text_sha256 = excluded.text_sha256",
        [id_, namespace_id, embedder, len(vector), HalfVector(vector).to_text(), sha],
    )


def situation_fill(procedure_id: int, embedder: Embedder | None = None) -> bool:
    """Embed a situation that has no vector yet; False when there is nothing to do.

    Raises EmbedderUnavailable. Safe to run again.
    """
    embedder = embedder or get_embedder()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.namespace_id, m.value ->> 'situation' FROM memories_memory m WHERE m.id = %s "
            "AND m.status <> 'redacted'",
            [procedure_id],
        )
        row = cursor.fetchone()
        if row is None or row[1] is None:
            return False
        namespace_id, situation = row
        vector: Vectors = embedder.embed([situation])[0]
        if is_zero(vector):
            return False
        # Stored only if the text is still the one that was embedded.
        cursor.execute(
            "SELECT FROM memories_memory m WHERE m.id = %s AND m.status <> 'redacted' "
            "AND m.value ->> 'situation' = %s FOR SHARE",
            [procedure_id, situation],
        )
        if cursor.fetchone() is None:
            return False
        write_situation(cursor, procedure_id, namespace_id, vector, text_sha256(situation), embedder.name)
    return True


class SituationVectors:
    """The vectors of situations, for `memories.reembed`."""

    name = "procedures"
    _LACKING = """FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id
      WHERE m.status <> 'redacted' AND NOT EXISTS (
        SELECT FROM procedures_situation s WHERE s.procedure_id = p.memory_id AND s.embedder = %s)"""

    def left(self, embedder: str) -> int:
        """See `Source.left`."""
        return count(f"SELECT count(*) {self._LACKING}", [embedder])

    def step(self, embedder: Embedder, after: int, limit: int) -> tuple[int | None, int]:
        """See `Source.step`."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT p.memory_id {self._LACKING} AND p.memory_id > %s ORDER BY p.memory_id LIMIT %s",  # noqa: S608
                [embedder.name, after, limit],
            )
            ids = [row[0] for row in cursor.fetchall()]
        stored = 0
        for id_ in ids:
            with transaction.atomic():
                stored += situation_fill(id_, embedder)
        return (ids[-1] if ids else None), stored

    def prune(self, embedder: str, limit: int) -> int:
        """See `Source.prune`."""
        return count(
            """WITH gone AS (DELETE FROM procedures_situation e USING (
                 SELECT procedure_id, embedder FROM procedures_situation o WHERE embedder <> %s
                   AND EXISTS (SELECT FROM procedures_situation c WHERE c.procedure_id = o.procedure_id
                               AND c.embedder = %s) LIMIT %s) o
               WHERE (e.procedure_id, e.embedder) = (o.procedure_id, o.embedder) RETURNING 1)
               SELECT count(*) FROM gone""",
            [embedder, embedder, limit],
        )


# Runs


@dataclass(frozen=True)
class Report:
    """A run as reported."""

    key: str
    path: Sequence[str] = ()
    ok: bool = True
    note: str = ""
    steps_taken: int | None = None
    duration_ms: int = 0
    tokens: int = 0
    report_id: str | None = None
    revision: int | None = None


def run_record(ctx: Context, report: Report) -> dict[str, Any]:
    """Append a run to the ledger; the op's answer. OpError 404, 400 for an unknown revision.

    A report_id that was reported before gets its first answer, whatever else the report says. Runs of one
    procedure are numbered under its row lock, so that their order is that of their commits.
    """
    row = procedure_get(ctx.namespace_id, report.key)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT revision, runs_total, runs_ok, runs_folded FROM procedures_procedure "
            "WHERE memory_id = %s FOR UPDATE",
            [row.id],
        )
        current, total, won, folded = cursor.fetchone()
        if report.report_id is not None:
            cursor.execute(
                "SELECT answer FROM procedures_run WHERE procedure_id = %s AND report_id = %s",
                [row.id, report.report_id],
            )
            before = cursor.fetchone()
            if before is not None:
                answer: dict[str, Any] = json.loads(before[0])
                return answer
        number = current if report.revision is None else report.revision
        graph = _known_graph(row, number)
        path, advisories = _path(graph, report.path)
        held = screen(report.note) if report.note else {}
        if held:
            advisories.append(f"note: kept, and not shown to other runs ({', '.join(sorted(held))})")
        stats = {
            "total": total + 1, "ok": won + report.ok, "unfolded": total + 1 - folded
        }  # fmt: skip
        answer = {"memory_key": row.key, "version": 0, "run_stats": stats}
        if advisories:
            answer["advisories"] = advisories
        who = Identity.of(ctx)
        cursor.execute(
            "INSERT INTO procedures_run (procedure_id, namespace_id, seq, revision, principal, token_prefix, "
            "agent, user_id, session_id, path, ok, note, note_held, steps_taken, duration_ms, tokens, "
            "report_id, answer, at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
            "%s, %s, clock_timestamp())",
            [
                row.id, row.namespace_id, total + 1, number, ctx.caller.principal, ctx.caller.token_prefix,
                who.agent, who.user_id, who.session_id, path, report.ok, report.note, bool(held),
                report.steps_taken, report.duration_ms, report.tokens, report.report_id,
                json.dumps(answer) if report.report_id is not None else None,
            ],
        )  # fmt: skip
        cursor.execute(
            "UPDATE procedures_procedure SET runs_total = runs_total + 1, runs_ok = runs_ok + %s, "
            "last_run_at = clock_timestamp() WHERE memory_id = %s",
            [int(report.ok), row.id],
        )
    ctx.record(audit_of(row, {"run": total + 1, "ok": report.ok, "revision": number, "nodes": len(path)}))
    return answer


def audit_of(row: Found, detail: dict[str, Any]) -> AuditEntry:
    """An audit row about a procedure whose memory row stays as it is."""
    return AuditEntry(
        target=row.key,
        before_version=row.version,
        after_version=row.version,
        detail={"memory_id": str(row.id), **detail},
    )


def _known_graph(row: Found, number: int) -> Graph:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM procedures_revision WHERE procedure_id = %s AND number = %s", [row.id, number]
        )
        if cursor.fetchone() is None:
            raise invalid(
                "revision", f"{row.key} has no revision {number}; the current one is {row.revision}."
            )
    return revision_graph(row.id, number)


def _path(graph: Graph, given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The path as it is kept, and what has to be said of it."""
    advisories = []
    if len(given) > PATH_IDS:
        advisories.append(f"path: has {len(given)} ids; the first {PATH_IDS} are kept")
    path = [graph.resolve(id_) or id_[:ID_CHARS] for id_ in given[:PATH_IDS]]
    if any(len(id_) > ID_CHARS for id_ in given[:PATH_IDS]):
        advisories.append(f"path: ids longer than {ID_CHARS} characters are cut")
    unknown = list(dict.fromkeys(id_ for id_ in path if id_ not in graph.by_id))
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        advisories.append(f"path: counted as undeclared: {shown}")
    return path, advisories


# Evolve


def evolve_queue(ctx: Context, procedure_id: int, given: dict[str, Any], *, dry_run: bool = False) -> int:
    """Queue an evolve for the caller, whose name its changes bear; the job's id."""
    caller = ctx.caller
    job_id = governance.job_create(
        ctx=ctx,
        kind=EVOLVE_JOB,
        input={
            "procedure_id": procedure_id,
            "given": given,
            "dry_run": dry_run,
            "principal": caller.principal,
            "token_prefix": caller.token_prefix,
            "agent": ctx.agent or caller.bound_agent,
            "user_id": ctx.user_id,
            "session_id": ctx.session_id,
            "run_id": ctx.run_id,
            "reason": ctx.reason,
            "request_id": ctx.request_id,
        },
    )
    if not dry_run:
        with connection.cursor() as cursor:
            # For the sweep and the console. Not worth waiting for an evolve that holds the row.
            cursor.execute(
                "UPDATE procedures_procedure SET evolve_job = %s WHERE memory_id IN "
                "(SELECT memory_id FROM procedures_procedure WHERE memory_id = %s "
                "FOR NO KEY UPDATE SKIP LOCKED)",
                [job_id, procedure_id],
            )
    return job_id


QUEUED_AT_ONCE = 200
FAILED_REST_S = 600
"""An evolve that failed for good is not queued again for so long."""


def evolve_due() -> list[int]:
    """Queue an evolve for each procedure whose runs have paused; the ids of the jobs.

    The procedures themselves say that they have unfolded runs, so nothing is lost with the queue. One that
    has an evolve waiting gets no other.
    """
    made = []
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                """SELECT p.memory_id, p.namespace_id, o.id, o.slug, n.slug
                   FROM procedures_procedure p
                   JOIN memories_memory m ON m.id = p.memory_id AND m.status = 'active'
                   JOIN governance_namespace n ON n.id = p.namespace_id
                   JOIN governance_org o ON o.id = n.org_id
                   LEFT JOIN governance_job j ON j.id = p.evolve_job
                   WHERE p.runs_folded < p.runs_total
                     AND p.last_run_at <= clock_timestamp() - make_interval(secs => %s)
                     AND (j.id IS NULL OR j.state = 'done' OR (j.state = 'failed'
                          AND j.finished_at < clock_timestamp() - make_interval(secs => %s)))
                   ORDER BY p.last_run_at LIMIT %s FOR UPDATE OF p SKIP LOCKED""",
                [settings.LOOM_EVOLVE_QUIET_S, FAILED_REST_S, QUEUED_AT_ONCE],
            )
            due = cursor.fetchall()
            for id_, namespace_id, org_id, org, namespace in due:
                ctx = governance.system_context(
                    org=Org(pk=org_id, slug=org),
                    namespace=Namespace(pk=namespace_id, slug=namespace),
                    op_name=EVOLVE_JOB,
                )
                made.append(evolve_queue(ctx, id_, {}))
    return made


# Fork


def fork_recipe(source: Found, new_name: str, source_class: str) -> Recipe:
    """What a fork adds: the source's present graph under its own or a new name."""
    return Recipe(
        name=new_name or source.name,
        situation=source.situation,
        tags=[tag for tag in source.tags if tag != TAG],
        graph=present_graph(source),
        source_class=source_class,
    )


def procedure_fork(
    ctx: Context, source: Found, origin: dict[str, str], recipe: Recipe, prepared: Prepared | None
) -> tuple[Added, dict[str, Any]]:
    """Copy a procedure into the call's namespace without its evidence; (it, where it came from)."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        (at,) = cursor.fetchone()
    graph = present_graph(source)
    forked_from = {
        **origin,
        "key": source.key,
        "memory_id": str(source.id),
        "revision": source.revision,
        "digest": graph.digest,
        "template": source.template,
        "run_stats": source.run_stats,
        "by": ctx.caller.principal,
        "why": ctx.reason,
        "at": iso(at),
    }
    added = procedure_add(ctx, recipe, prepared, kind="fork", forked_from=forked_from)
    if ctx.audit:
        ctx.audit[-1].detail["forked_from"] = {**origin, "key": source.key, "revision": source.revision}
    return added, forked_from
