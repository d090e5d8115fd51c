"""The hybrid search as one SQL statement; `memories.ranking` states the formula and its source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from django.db import connection, transaction
from pgvector import HalfVector

from governance.clock import iso
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, Role
from memories import ranking
from memories.analysis import excerpt, flatten, query_terms
from memories.embedders import EmbedderUnavailable, embed_query, get_embedder, is_zero
from memories.models import Status
from memories.selectors import SERVED, STATUS, scope

# Up to so many documents an exact scan of their vectors is both faster than the graph and never misses.
EXACT_LIMIT = 20_000
# More namespaces than this are not searched in one call; the rest is named.
FAN_OUT = 20
VALUE_BYTES = 2048
MAX_TERMS = 64
INDEXED_DIM = 256


@dataclass(frozen=True)
class SearchRequest:
    """A search as asked."""

    query: str
    top_k: int = 10
    mode: str = "hybrid"
    tags: Sequence[str] | None = None
    memory_type: str | None = None
    key_prefix: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    include_status: Sequence[str] = ()
    min_similarity: float | None = None
    explain: bool = False
    all_mine: bool = False


@dataclass
class _Query:
    """The parts of the statement and their named parameters."""

    filters: str
    params: dict[str, Any] = field(default_factory=dict)
    postings: str = "active"
    terms: list[str] = field(default_factory=list)
    vector: np.ndarray[Any, Any] | None = None
    weight: float = 0.0
    # The embedder is down: by words alone nothing can be said about similarity.
    unjudged: bool = False


def memory_search(ctx: Context, request: SearchRequest) -> dict[str, Any]:
    """Hits, best first, with what was searched, and the advice to abstain when nothing is near."""
    namespaces, searched, skipped = _namespaces(ctx, request)
    answer: dict[str, Any] = {
        "results": [],
        "abstain": True,
        "abstain_reason": "Nothing stored here is near the query.",
        "namespaces_searched": searched,
        "namespaces_skipped": skipped,
    }
    query = _prepare(ctx, request, namespaces)
    if not namespaces or not (query.terms or query.vector is not None):
        return answer
    rows = _run(query, request, namespaces)
    near = [ranking.Ranked(row["id"], row["rank"], row["keyword_score"], row["similarity"]) for row in rows]
    if rows and not ranking.nothing_near(near, get_embedder().floor):
        answer.update(abstain=False, abstain_reason=None)
    answer["results"] = [_hit(row, request, query.weight) for row in rows]
    return answer


def _namespaces(ctx: Context, request: SearchRequest) -> tuple[list[int], list[str], list[str]]:
    if not request.all_mine:
        here = [] if ctx.namespace_id is None else [ctx.namespace_id]
        return here, [ctx.namespace] if here else [], []
    visible = visible_namespaces(ctx.caller)
    if Status.DELETED in request.include_status:
        # Tombstones are for those who could restore them, in every namespace by its own role.
        visible = [row for row in visible if Role.of(row["role"]) >= Role.WRITER]
    # The request's own namespace first, so that the cap never drops it.
    visible.sort(key=lambda row: (row["namespace"] != ctx.namespace, row["namespace"]))
    taken, rest = visible[:FAN_OUT], visible[FAN_OUT:]
    return (
        [row["id"] for row in taken],
        [row["namespace"] for row in taken],
        [row["namespace"] for row in rest],
    )


def _prepare(ctx: Context, request: SearchRequest, namespaces: list[int]) -> _Query:
    where, params = scope(ctx, namespaces=namespaces)
    names: dict[str, Any] = {}
    for i, value in enumerate(params):
        where = where.replace("%s", f"%(scope{i})s", 1)
        names[f"scope{i}"] = value
    statuses = list(request.include_status) or [Status.ACTIVE]
    # What waits for a person's eyes is not read back into prompts.
    parts = [where, "NOT m.held", SERVED if statuses == [Status.ACTIVE] else f"{STATUS} = ANY(%(statuses)s)"]
    names["statuses"] = [str(status) for status in statuses]
    for clause, name, value in (
        ("m.tags && %(tags)s::varchar[]", "tags", list(request.tags) if request.tags is not None else None),
        ("m.memory_type = %(memory_type)s", "memory_type", request.memory_type),
        ("starts_with(m.memory_key, %(key_prefix)s)", "key_prefix", request.key_prefix or None),
        ("m.created_at >= %(created_after)s", "created_after", request.created_after),
        ("m.created_at < %(created_before)s", "created_before", request.created_before),
    ):
        if value is not None:
            parts.append(clause)
            names[name] = value
    query = _Query(" AND ".join(parts), names, postings="active" if statuses == [Status.ACTIVE] else "true")
    if request.mode in ("hybrid", "keyword"):
        query.terms = query_terms(request.query)[:MAX_TERMS]
    if request.mode in ("hybrid", "semantic"):
        try:
            vector = embed_query(request.query)
        except EmbedderUnavailable:
            # Words are better than nothing, and the answer says so.
            ctx.degraded.append("embedding")
            query.terms = query.terms or query_terms(request.query)[:MAX_TERMS]
            query.unjudged = True
            if request.min_similarity is not None:
                ctx.advisories.append("min_similarity: not applied, because no meanings could be compared")
        else:
            query.vector = None if is_zero(vector) else vector
    if query.vector is not None:
        query.weight = 1.0 if not query.terms else get_embedder().weight
    return query


def _run(query: _Query, request: SearchRequest, namespaces: list[int]) -> list[dict[str, Any]]:
    params = query.params
    params.update(
        namespaces=namespaces, pool=ranking.pool_size(request.top_k), top_k=request.top_k,
        weight=query.weight, digits=ranking.DIGITS, terms=query.terms, k1=ranking.K1, b=ranking.B,
        min_similarity=None if query.unjudged else request.min_similarity, value_bytes=VALUE_BYTES,
    )  # fmt: skip
    postings, semantic = query.postings if query.terms else "", query.vector is not None
    if query.vector is not None:
        embedder, dim = get_embedder().name, len(query.vector)
        params.update(vector=HalfVector(query.vector).to_text(), embedder=embedder, dim=dim)
        if dim == INDEXED_DIM and _documents(namespaces) > EXACT_LIMIT:
            with transaction.atomic(), connection.cursor() as cursor:
                # The graph goes on until enough rows pass the filters, in order of distance.
                cursor.execute(
                    "SELECT set_config('hnsw.iterative_scan', 'strict_order', true), "
                    "set_config('hnsw.max_scan_tuples', '200000', true), "
                    "set_config('hnsw.ef_search', '200', true)"
                )
                rows = _fetch(statement(query.filters, postings, semantic, embedder), params)
            if rows and rows[0]["semantic_found"] == params["pool"]:
                return rows
            # The scan gave up before it had enough: few rows pass the filters, and those few are soon
            # compared one by one.
    return _fetch(statement(query.filters, postings, semantic), params)


def _documents(namespaces: list[int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(docs), 0) FROM memories_corpusstripe WHERE namespace_id = ANY(%s)",
            [namespaces],
        )
        return int(cursor.fetchone()[0])


def _fetch(sql: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


_GAIN = "idf * tf / (tf + %(k1)s * (1 - %(b)s + %(b)s * doc_len / average))"
# Fenced against the planner where it may know nothing of a young table: neither a CTE nor the memories are
# ever joined row by row with all of `keyword`. The filters are asked from the best score down, and no
# further than the pool is deep.
_KEYWORD = f"""
  corpus AS MATERIALIZED (
    SELECT greatest(sum(docs), 1)::float8 AS n,
           greatest(sum(terms)::float8 / greatest(sum(docs), 1), 1) AS average
    FROM memories_corpusstripe WHERE namespace_id = ANY(%(namespaces)s)),
  matched AS MATERIALIZED (
    SELECT memory_id, term, tf, doc_len, active FROM memories_posting
    WHERE namespace_id = ANY(%(namespaces)s) AND term = ANY(%(terms)s) AND {{postings}}),
  frequencies AS (SELECT term, count(*) FILTER (WHERE active) AS df FROM matched GROUP BY term),
  weights AS MATERIALIZED (
    SELECT term, average, ln(1 + (greatest(n - df, 0) + 0.5) / (df + 0.5)) AS idf
    FROM frequencies CROSS JOIN corpus),
  keyword AS (
    SELECT memory_id AS id, sum({_GAIN}) AS score FROM matched JOIN weights USING (term) GROUP BY memory_id),
  keyword_leg AS MATERIALIZED (
    SELECT id, score, row_number() OVER (ORDER BY score DESC, id) AS place FROM (
      SELECT k.id, k.score FROM (SELECT id, score FROM keyword ORDER BY score DESC, id) k
      CROSS JOIN LATERAL (SELECT FROM memories_memory m WHERE m.id = k.id AND {{filters}} OFFSET 0) passed
      ORDER BY k.score DESC, k.id LIMIT %(pool)s) best)"""  # noqa: S608 - a constant fragment
_SEMANTIC = """
  semantic_leg AS MATERIALIZED (
    SELECT e.memory_id AS id, 1 - ({distance}) AS similarity
    FROM memories_embedding e JOIN memories_memory m ON m.id = e.memory_id
    WHERE e.embedder = {embedder} AND e.dim = %(dim)s AND e.namespace_id = ANY(%(namespaces)s)
      AND {filters}
    ORDER BY {distance}{tie} LIMIT %(pool)s)"""
# What a leg has to say of a row that only the other one found.
_SCORE = f"""(SELECT sum({_GAIN}) FROM memories_posting JOIN weights USING (term)
     WHERE memory_id = s.id AND term = ANY(%(terms)s))"""  # noqa: S608 - a constant fragment
_SIMILARITY = """(SELECT 1 - (e.vector <=> %(vector)s::halfvec) FROM memories_embedding e
     WHERE e.memory_id = l.id AND e.embedder = %(embedder)s AND e.dim = %(dim)s)"""
_HIT = f"""m.memory_key, m.value IS NOT NULL AND octet_length(m.value::text) <= %(value_bytes)s AS small,
  m.value, n.slug AS namespace, m.version, m.tags, m.pinned, {STATUS} AS status, m.created_at, m.updated_at,
  m.source_class, m.agent, m.user_id, m.session_id"""


def statement(filters: str, postings: str, semantic: bool, graph_of: str = "") -> str:
    """The search statement with the legs that this call needs.

    `filters` is a fragment over `m`, applied inside both legs; `postings` a condition on the postings, empty
    for no keyword leg. `graph_of` names the embedder whose HNSW index the semantic leg may use, empty for an
    exact scan. The approximate leg casts the column as the index does; the exact one must not, so that the
    planner cannot take the graph for it.
    """
    ctes: list[str] = []
    score, best = "0::float8", "0::float8"
    similarity, nearest, found = "NULL::float8", "0::float8", "0"
    if postings:
        ctes.append(_KEYWORD.format(filters=filters, postings=postings))
        score, best = "l.score", "(SELECT max(score) FROM keyword_leg)"
        legs, id_, place = "keyword_leg l", "l.id", "l.place"
    if semantic:
        distance, name = "e.vector <=> %(vector)s::halfvec", "%(embedder)s"
        if graph_of:
            distance = f"(e.vector::halfvec({INDEXED_DIM})) <=> %(vector)s::halfvec({INDEXED_DIM})"
            # A literal, because it has to match the predicate of the index.
            name = "'" + graph_of.replace("'", "''").replace("%", "%%") + "'"
        tie = "" if graph_of else ", e.memory_id"
        ctes.append(_SEMANTIC.format(filters=filters, distance=distance, embedder=name, tie=tie))
        similarity, nearest = "s.similarity", "(SELECT max(similarity) FROM semantic_leg)"
        found = "(SELECT count(*) FROM semantic_leg)"
        legs, id_, place = "semantic_leg s", "s.id", "NULL::bigint"
    if postings and semantic:
        legs, id_, place = (
            "keyword_leg l FULL JOIN semantic_leg s ON s.id = l.id",
            "coalesce(l.id, s.id)",
            "l.place",
        )
        score, similarity = f"coalesce(l.score, {_SCORE}, 0)", f"coalesce(s.similarity, {_SIMILARITY})"
    return f"""WITH {",".join(ctes)},
  met AS MATERIALIZED (
    SELECT {id_} AS id, {score} AS keyword_score, {place} AS keyword_rank, {similarity} AS similarity,
           {best} AS best, {nearest} AS nearest
    FROM {legs}),
  scored AS (
    SELECT id, keyword_score, keyword_rank, similarity,
           coalesce(keyword_score / nullif(best, 0), 0) AS keyword_share,
           CASE WHEN nearest > 0 THEN coalesce(greatest(similarity, 0) / nearest, 0) ELSE 0 END
             AS similarity_share
    FROM met WHERE %(min_similarity)s::float8 IS NULL OR similarity >= %(min_similarity)s),
  ranked AS (
    SELECT *, round(((1 - %(weight)s) * keyword_share + %(weight)s * similarity_share)::numeric,
                    %(digits)s)::float8 AS rank
    FROM scored ORDER BY rank DESC, id LIMIT %(top_k)s)
SELECT r.*, {found} AS semantic_found, {_HIT} FROM ranked r JOIN memories_memory m ON m.id = r.id
JOIN governance_namespace n ON n.id = m.namespace_id ORDER BY r.rank DESC, r.id"""  # noqa: S608


def _hit(row: dict[str, Any], request: SearchRequest, weight: float) -> dict[str, Any]:
    hit: dict[str, Any] = {
        "memory_key": row["memory_key"],
        "memory_id": str(row["id"]),
        "namespace": row["namespace"],
    }
    value = None if row["value"] is None else json.loads(row["value"])
    if row["small"]:
        hit["value"] = value
    else:
        hit["excerpt"] = excerpt(flatten(value), request.query)
    hit |= {
        "similarity": None if row["similarity"] is None else round(row["similarity"], 6),
        "keyword_rank": row["keyword_rank"],
        "rank_score": row["rank"],
        "version": row["version"],
        "tags": row["tags"],
        "pinned": row["pinned"],
        "status": row["status"],
        "created_at": iso(row["created_at"]),
        "updated_at": iso(row["updated_at"]),
        "source_class": row["source_class"],
        "agent": row["agent"],
        "user_id": row["user_id"],
        "session_id": row["session_id"],
    }
    if request.explain:
        hit["explain"] = {
            "keyword_score": round(row["keyword_score"], 6),
            "keyword_share": round(row["keyword_share"], 6),
            "similarity_share": round(row["similarity_share"], 6),
            "weight": weight,
        }
    return hit
