"""Reads over procedures: by key, as a list, by situation, and a place in a graph."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from django.db import connection
from pgvector import HalfVector

from governance.clock import iso
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, OpError
from memories.analysis import query_terms
from memories.embedders import EmbedderUnavailable, Vectors, embed_query, get_embedder, is_zero
from memories.selectors import SERVED, decode_cursor, encode_cursor
from procedures import ledger, locate, ranking
from procedures.counting import Tally
from procedures.folding import RevisionState
from procedures.graph import KEY_PREFIX, Graph, read
from procedures.ranking import Candidate, Ranked

FAN_OUT = 20
"""More namespaces than this are not searched in one call; the rest is named."""
# A procedure belongs to nobody in particular, whoever runs it.
NOBODY = "m.agent = '-' AND m.user_id = '-' AND m.session_id = '-'"
COLUMNS = """m.id, m.memory_key, m.value, m.tags, m.version, m.held, m.created_at, p.revision, p.authored,
  p.quarantined, p.template, p.tools, p.dead_ends, p.fail_prone, p.runs_total, p.runs_ok, p.runs_folded,
  m.namespace_id, p.prior_revision, p.fail_prone_edges, p.evidence, p.evolve_settings, m.metadata,
  (SELECT r.digest FROM procedures_revision r WHERE r.procedure_id = p.memory_id AND r.number = p.revision),
  ARRAY(SELECT r.number FROM procedures_revision r WHERE r.procedure_id = p.memory_id
        AND r.state NOT IN ('rejected', 'reverted', 'withdrawn'))"""


@dataclass(frozen=True)
class Found:
    """A procedure as it stands: its memory row and what the app keeps beside it."""

    id: int
    key: str
    value: dict[str, Any]
    tags: list[str]
    version: int
    held: bool
    created_at: datetime
    revision: int
    authored: bool
    quarantined: bool
    template: bool
    tools: list[str]
    dead_ends: list[str]
    fail_prone: list[str]
    runs_total: int
    runs_ok: int
    runs_folded: int
    namespace_id: int
    prior_revision: int | None
    """While the revision in force is pending: the one that it would replace."""
    fail_prone_edges: list[list[str]]
    """Fail-prone transitions as [src, dst]."""
    evidence: dict[str, Any]
    evolve_settings: Any
    """Gate settings stored in the console, or None."""
    metadata: dict[str, Any]
    digest: str
    counted: list[int]
    """Revisions whose runs count for the present graph: all but what was turned down."""

    @property
    def name(self) -> str:
        """Its name as given."""
        return str(self.value.get("name", ""))

    @property
    def situation(self) -> str:
        """When it applies."""
        return str(self.value.get("situation", ""))

    @property
    def steps(self) -> list[str]:
        """The texts along its proven path."""
        return list(self.value.get("steps", ()))

    @property
    def status(self) -> str:
        """The one word for how far it can be trusted; a folded run exercises it."""
        return ranking.status_of(
            quarantined=self.quarantined,
            template=self.template,
            exercised=self.runs_folded > 0,
            authored=self.authored,
        )

    @property
    def run_stats(self) -> dict[str, int]:
        """Its runs, and how many of them succeeded."""
        return {"total": self.runs_total, "ok": self.runs_ok}


_FIELDS = tuple(field.name for field in fields(Found))


def found_from(columns: Sequence[Any]) -> Found:
    """A Found from `COLUMNS`."""
    found = dict(zip(_FIELDS, columns, strict=True))
    for name in ("value", "fail_prone_edges", "evidence", "evolve_settings", "metadata"):
        found[name] = None if found[name] is None else json.loads(found[name])
    return Found(**{**found, "value": found["value"] or {}})


def missing(key: str) -> OpError:
    """The 404 for a key that holds no procedure."""
    return OpError("NOT_FOUND", f"{key}: no such procedure here; procedure.list shows the keys.")


def procedure_get(namespace_id: int | None, key: str) -> Found:
    """The served procedure under `key`. OpError 404."""
    if namespace_id is not None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {COLUMNS} FROM memories_memory m JOIN procedures_procedure p ON p.memory_id = m.id "  # noqa: S608
                f"WHERE m.namespace_id = %s AND m.memory_key = %s AND {NOBODY} AND {SERVED}",
                [namespace_id, key],
            )
            row = cursor.fetchone()
        if row is not None:
            return found_from(row)
    raise missing(key)


@dataclass(frozen=True)
class RevisionRow:
    """One revision of a procedure, without its graph and counters."""

    number: int
    state: str
    digest: str
    proposed_by: str
    reason: str
    opened_after: int
    opened_at: datetime
    closed_at: datetime | None
    prior: int | None
    restores: int | None
    baseline: dict[str, Any] | None
    verdict: dict[str, Any] | None

    @property
    def turned_down(self) -> bool:
        """Its runs do not count for the graph in force."""
        return self.state in ("rejected", "reverted", "withdrawn")


def revision_rows(procedure_id: int) -> dict[int, RevisionRow]:
    """Every revision by its number, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT number, state, digest, proposed_by, reason, opened_after, opened_at, closed_at, prior, "
            "restores, baseline, verdict FROM procedures_revision WHERE procedure_id = %s ORDER BY number",
            [procedure_id],
        )
        rows = cursor.fetchall()
    return {
        row[0]: RevisionRow(*row[:10], *(None if text is None else json.loads(text) for text in row[10:]))
        for row in rows
    }


def counted_once(rows: Mapping[int, RevisionRow]) -> list[int]:
    """Revisions whose folded counters add up to what counts for the graph in force.

    All but those that were turned down, and those whose counters a restored one has taken over.
    """
    taken_over = {row.restores for row in rows.values()}
    return [row.number for row in rows.values() if not row.turned_down and row.number not in taken_over]


def folded_states(procedure_id: int, numbers: Iterable[int]) -> dict[int, RevisionState]:
    """The folded counters of these revisions, by number."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT number, counters FROM procedures_revision WHERE procedure_id = %s AND number = ANY(%s) "
            "ORDER BY number",
            [procedure_id, list(numbers)],
        )
        return {number: RevisionState.read(json.loads(counters)) for number, counters in cursor.fetchall()}


def folded_tally(procedure_id: int) -> Tally:
    """What all folded runs did that count for the graph in force."""
    every = Tally()
    for state in folded_states(procedure_id, counted_once(revision_rows(procedure_id))).values():
        every.merge(state.tally)
    return every


def last_gate(rows: Mapping[int, RevisionRow]) -> dict[str, Any] | None:
    """The latest verdict as {verdict, revision, at}, or None."""
    judged = [row for row in rows.values() if row.verdict is not None]
    if not judged:
        return None
    # Verdicts come in the order of the revisions: only one is pending at a time.
    verdict = judged[-1].verdict or {}
    return {"verdict": verdict["verdict"], "revision": judged[-1].number, "at": verdict["at"]}


def procedure_row(procedure_id: int) -> Found:
    """The procedure with this id, whatever the status of its memory row."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {COLUMNS} FROM memories_memory m JOIN procedures_procedure p ON p.memory_id = m.id "  # noqa: S608
            "WHERE m.id = %s",
            [procedure_id],
        )
        return found_from(cursor.fetchone())


_GRAPHS: OrderedDict[tuple[int, int, str], Graph] = OrderedDict()
GRAPHS_KEPT = 256


def revision_graph(procedure_id: int, number: int, digest: str | None = None) -> Graph:
    """The graph of a revision; parsed once a process, for it never changes.

    The digest (asked for when it is not given) is part of the name under which the graph is kept.
    """
    with connection.cursor() as cursor:
        if digest is None:
            cursor.execute(
                "SELECT digest FROM procedures_revision WHERE procedure_id = %s AND number = %s",
                [procedure_id, number],
            )
            (digest,) = cursor.fetchone()
        name = (procedure_id, number, digest)
        known = _GRAPHS.get(name)
        if known is None:
            cursor.execute(
                "SELECT graph FROM procedures_revision WHERE procedure_id = %s AND number = %s",
                [procedure_id, number],
            )
            known = read(json.loads(cursor.fetchone()[0]))
            # What has been redacted is empty under its old digest; it is not kept.
            if known.digest == digest:
                _GRAPHS[name] = known
            while len(_GRAPHS) > GRAPHS_KEPT:
                _GRAPHS.popitem(last=False)
    return known


def present_graph(row: Found) -> Graph:
    """The graph in force."""
    return revision_graph(row.id, row.revision, row.digest)


# List


def procedure_list(
    ctx: Context, *, prefix: str, tags: Sequence[str], limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of procedures by key, and the cursor of the next one, or None after the last."""
    after = decode_cursor(cursor, str)[0] if cursor else None
    if ctx.namespace_id is None:
        return [], None
    parts = ["m.namespace_id = %s", NOBODY, SERVED, "starts_with(m.memory_key, %s)"]
    params: list[Any] = [ctx.namespace_id, KEY_PREFIX + prefix]
    if tags:
        parts.append("m.tags && %s::varchar[]")
        params.append(list(tags))
    if after is not None:
        parts.append('m.memory_key COLLATE "C" > %s')
        params.append(after)
    with connection.cursor() as db:
        db.execute(
            f"SELECT {COLUMNS} FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id "  # noqa: S608
            f'WHERE {" AND ".join(parts)} ORDER BY m.memory_key COLLATE "C" LIMIT %s',
            [*params, limit + 1],
        )
        rows = [found_from(row) for row in db.fetchall()]
    page = [
        {
            "name": row.name,
            "situation": row.situation,
            "tags": row.tags,
            "memory_key": row.key,
            "created_at": iso(row.created_at),
            "status": row.status,
            "held": row.held,
            "run_stats": row.run_stats,
        }
        for row in rows[:limit]
    ]
    return page, encode_cursor(rows[limit - 1].key) if len(rows) > limit else None


# Match


@dataclass(frozen=True)
class MatchRequest:
    """A match as asked."""

    situation: str
    top_k: int = 5
    tags: Sequence[str] = ()
    all_mine: bool = True
    templates_only: bool = False
    include_candidates: bool = True
    include_quarantined: bool = False
    recent_tools: Sequence[str] = ()
    tool_boost: float = 0.2
    utility_weight: float = ranking.UTILITY_WEIGHT
    goal: str | None = None


def _fan_out(ctx: Context, all_mine: bool) -> tuple[dict[int, str], list[str]]:
    """Namespaces to search (id -> name, in order) and the names of those that are too many.

    The request's namespace comes first, then the most recently written.
    """
    if not all_mine:
        return ({} if ctx.namespace_id is None else {ctx.namespace_id: ctx.namespace}), []
    names = {row["id"]: str(row["namespace"]) for row in visible_namespaces(ctx.caller)}
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT n.id FROM unnest(%s::bigint[]) AS n (id) LEFT JOIN LATERAL (
                 SELECT m.updated_at FROM memories_memory m WHERE m.namespace_id = n.id
                 ORDER BY m.updated_at DESC, m.id DESC LIMIT 1) newest ON true
               ORDER BY n.id <> %s, newest.updated_at DESC NULLS LAST, n.id""",
            [list(names), ctx.namespace_id or 0],
        )
        order = [row[0] for row in cursor.fetchall()]
    return {id_: names[id_] for id_ in order[:FAN_OUT]}, [names[id_] for id_ in order[FAN_OUT:]]


def procedure_match(ctx: Context, request: MatchRequest) -> dict[str, Any]:
    """What fits the situation, best first, with what was searched."""
    namespaces, skipped = _fan_out(ctx, request.all_mine)
    best: list[Ranked] = []
    if namespaces:
        candidates = [
            candidate for candidate in _candidates(ctx, request, list(namespaces))
            if _wanted(candidate.status, request)
        ]  # fmt: skip
        best = ranking.ranked(candidates, request.recent_tools, request.tool_boost, request.utility_weight)
    shown = _shown(best[: request.top_k], namespaces)
    return {
        "matches": shown,
        "matched": len(best),
        "procedure_key": shown[0]["memory_key"] if shown else "",
        "score": shown[0]["score"] if shown else 0.0,
        "namespaces_searched": list(namespaces.values()),
        "namespaces_skipped": skipped,
    }


def _wanted(status: str, request: MatchRequest) -> bool:
    if status == "quarantined":
        return request.include_quarantined
    if request.templates_only:
        return status == "template"
    return request.include_candidates or status != "candidate"


def _query_vectors(ctx: Context, request: MatchRequest) -> tuple[Vectors | None, Vectors | None]:
    """(situation, goal) as vectors; None where there is none, and the answer then says `degraded`."""
    try:
        situation = embed_query(request.situation)
        goal = embed_query(request.goal) if request.goal else None
    except EmbedderUnavailable:
        return None, None
    return (None if is_zero(situation) else situation), (None if goal is None or is_zero(goal) else goal)


_NEAR = "1 - (s.vector <=> %s::halfvec)"


def _candidates(ctx: Context, request: MatchRequest, namespaces: list[int]) -> list[Candidate]:
    """Every procedure of these namespaces above the floor: an exact scan, one statement."""
    situation, goal = _query_vectors(ctx, request)
    where = f"p.namespace_id = ANY(%s) AND {NOBODY} AND {SERVED} AND NOT m.held"
    params: list[Any] = [namespaces]
    if request.tags:
        where += " AND m.tags && %s::varchar[]"
        params.append(list(request.tags))
    first = "NULL::float8, NULL::float8"
    given: list[Any] = []
    on = "false"
    joined: list[Any] = []
    if situation is not None:
        texts = [HalfVector(vector).to_text() for vector in (situation, goal) if vector is not None]
        first = _NEAR + (", " + _NEAR if goal is not None else ", NULL::float8")
        given = texts
        on = "s.procedure_id = p.memory_id AND s.embedder = %s AND s.dim = %s"
        joined = [get_embedder().name, len(situation)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT {first}, p.memory_id, p.quarantined, p.template, p.authored, p.runs_total, p.runs_ok,
                  p.runs_folded, p.tools, CASE WHEN s.procedure_id IS NULL THEN m.value ->> 'situation' END
                FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id
                LEFT JOIN procedures_situation s ON {on} WHERE {where}""",  # noqa: S608 - fragments are constant
            [*given, *joined, *params],
        )
        rows = cursor.fetchall()
    floor = ranking.floor_of(get_embedder().name)
    terms = frozenset(query_terms(request.situation))
    goal_terms = frozenset(query_terms(request.goal or ""))
    found = []
    by_words = False
    for near, near_goal, id_, quarantined, template, authored, total, ok, folded, tools, text in rows:
        least = floor
        if near is None:
            # No vector of this embedder: words are better than nothing, and the answer says so.
            by_words = True
            least = ranking.WORD_FLOOR
            stored = frozenset(query_terms(text or ""))
            near = ranking.word_similarity(terms, stored)
            near_goal = ranking.word_similarity(goal_terms, stored) if goal_terms else None
        similarity = near
        if near_goal is not None:
            share = ranking.SITUATION_SHARE
            similarity = share * near + (1 - share) * near_goal
        if similarity >= least:
            status = ranking.status_of(
                quarantined=quarantined, template=template, exercised=folded > 0, authored=authored
            )
            found.append(Candidate(id_, round(similarity, 9), status, total, ok, tools))
    if by_words:
        ctx.degraded.append("embedding")
    return found


def _shown(best: Sequence[Ranked], namespaces: dict[int, str]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {COLUMNS} FROM memories_memory m JOIN procedures_procedure p ON p.memory_id = m.id "  # noqa: S608
            "WHERE m.id = ANY(%s)",
            [[one.candidate.id for one in best]],
        )
        rows = {row[0]: found_from(row) for row in cursor.fetchall()}
    shown = []
    for one in best:
        row = rows[one.candidate.id]
        prone: list[str] = []
        if row.fail_prone:
            graph = present_graph(row)
            prone = [graph.by_id[id_].words for id_ in row.fail_prone if id_ in graph.by_id]
        shown.append(
            {
                "memory_key": row.key,
                "name": row.name,
                "namespace": namespaces[row.namespace_id],
                "situation": row.situation,
                "steps": row.steps,
                "tags": row.tags,
                "status": row.status,
                "score": round(one.score, 6),
                "similarity": round(one.candidate.similarity, 6),
                "tool_overlap": round(one.tool_overlap, 6),
                "utility": round(one.utility, 6),
                "run_stats": row.run_stats,
                "revision": row.revision,
                "fail_prone_steps": prone,
            }
        )
    return shown


def procedure_versions(ctx: Context, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Memory id and version of the rows under these keys."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT m.memory_key, m.id, m.version FROM memories_memory m WHERE m.namespace_id = %s "  # noqa: S608
            f"AND m.memory_key = ANY(%s) AND {NOBODY} AND m.status <> 'redacted'",
            [ctx.namespace_id, list(keys)],
        )
        return {key: (id_, version) for key, id_, version in cursor.fetchall()}


# Locate


@dataclass(frozen=True)
class LocateRequest:
    """A place as asked."""

    key: str
    at: str = ""
    recent_path: Sequence[str] = ()
    hops: int = 2
    max_notes: int = 5


def procedure_locate(ctx: Context, request: LocateRequest) -> dict[str, Any]:
    """The place, what can follow, what failed there before, and all of it as text for a prompt."""
    row = procedure_get(ctx.namespace_id, request.key)
    if row.held:
        ctx.advisories.append(
            "memory_key: this procedure is held: a text in it looks like an instruction, and no reviewer has "
            "read it yet"
        )
    graph = present_graph(row)
    with ledger.counted(row.id) as counters:
        tally = counters.tally(row.counted)
        place = locate.located(
            graph, tally, request.at, request.recent_path, request.hops, frozenset(row.dead_ends)
        )
        sources: list[str | None] = [*place.sources] if place.active is not None else [None]
        seqs = {seq: (src, dst) for src in sources for seq, dst in counters.died.get(src, ())}
        newest = sorted(seqs, reverse=True)[: request.max_notes]
        agent = counters.agents.get(ctx.agent) if ctx.agent not in (None, "-") and ctx.agent else None
        for_agent = {"total": agent[0], "ok": agent[1]} if agent else {}
        levels = [[locate.shown_node(graph, tally, id_) for id_ in level] for level in place.levels]
        notes = _notes(row.id, newest, seqs)
        text = locate.rendered(
            name=row.name, status=row.status, runs=(row.runs_total, row.runs_ok), graph=graph, tally=tally,
            place=place, notes=notes,
        )  # fmt: skip

        def shown(ids: Sequence[str]) -> list[dict[str, Any]]:
            return [locate.shown_node(graph, tally, id_) for id_ in ids]

        return {
            "memory_key": row.key,
            "name": row.name,
            "status": row.status,
            "matched": place.active is not None,
            "active": None if place.active is None else shown([place.active])[0],
            "hops": levels,
            "entry_nodes": [] if place.active is not None else shown(graph.entries),
            "dominant_next": place.dominant,
            "revisits": place.revisits,
            "looping": place.looping,
            "exits": shown(place.exits),
            "failure_notes": notes,
            "rendered": text,
            "run_stats": row.run_stats,
            "for_agent": for_agent,
        }


def _notes(
    procedure_id: int, seqs: Sequence[int], died: dict[int, tuple[str | None, str]]
) -> list[dict[str, Any]]:
    """Failure notes by run, the newest first; read from the rows, so that what was redacted is not shown."""
    if not seqs:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, note, at, agent FROM procedures_run WHERE procedure_id = %s AND seq = ANY(%s) "
            "AND note <> '' ORDER BY seq DESC",
            [procedure_id, list(seqs)],
        )
        rows = cursor.fetchall()
    notes = []
    for seq, note, at, agent in rows:
        src, dst = died[seq]
        place = {"node": dst} if src is None else {"edge": f"{src} -> {dst}"}
        notes.append({**place, "note": note, "at": iso(at), "agent": agent})
    return notes
