"""The search as one SQL statement; `memories.ranking` states the formula and its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memories.analysis import ENGLISH
from memories.selectors import STATUS

_GAIN = "idf * tf / (tf + %(k1)s * (1 - %(b)s + %(b)s * doc_len / average))"
_IDF = "ln(1 + (greatest(n - df, 0) + 0.5) / (df + 0.5))"
# What the query's terms are worth in all, found or not: the score of a text that is full of every one.
_CORPUS = """
  corpus AS MATERIALIZED (
    SELECT greatest(sum(docs), 1)::float8 AS n,
           greatest(sum(terms)::float8 / greatest(sum(docs), 1), 1) AS average
    FROM memories_corpusstripe WHERE namespace_id = ANY(%(namespaces)s))"""
# Fenced against the planner where it may know nothing of a young table: neither a CTE nor the memories are
# ever joined row by row with all of `keyword`. The filters are asked from the best score down, and no
# further than the pool is deep.
_LEG = """
  keyword_leg AS MATERIALIZED (
    SELECT id, score, row_number() OVER (ORDER BY score DESC, id) AS place FROM (
      SELECT k.id, k.score FROM (SELECT id, score FROM keyword ORDER BY score DESC, id) k
      CROSS JOIN LATERAL (SELECT FROM memories_memory m WHERE m.id = k.id AND {filters} OFFSET 0) passed
      ORDER BY k.score DESC, k.id LIMIT %(pool)s) best)"""
# Every posting of every term, and document frequencies counted from them.
_WHOLE = f"""{_CORPUS},
  matched AS MATERIALIZED (
    SELECT memory_id, term, tf, doc_len, active FROM memories_posting
    WHERE namespace_id = ANY(%(namespaces)s) AND term = ANY(%(terms)s) AND {{postings}}),
  frequencies AS (SELECT term, count(*) FILTER (WHERE active) AS df FROM matched GROUP BY term),
  weights AS MATERIALIZED (
    SELECT term, average, {_IDF} AS idf FROM frequencies CROSS JOIN corpus),
  keyword AS (
    SELECT memory_id AS id, sum({_GAIN}) AS score FROM matched JOIN weights USING (term) GROUP BY memory_id),
  {_LEG}"""  # noqa: S608 - a constant fragment
# The postings of the rare terms, and the newest of the common ones; the best of those are scored in full.
_PRUNED = f"""{_CORPUS},
  weights AS MATERIALIZED (
    SELECT term, average, {_IDF} AS idf
    FROM unnest(%(terms)s::text[], %(frequencies)s::float8[]) AS given (term, df) CROSS JOIN corpus
    WHERE df > 0),
  matched AS MATERIALIZED (
    SELECT memory_id AS id, sum({_GAIN}) AS part FROM memories_posting JOIN weights USING (term)
    WHERE namespace_id = ANY(%(namespaces)s) AND term = ANY(%(rare)s) AND {{postings}} GROUP BY memory_id),
  newest AS MATERIALIZED (
    SELECT DISTINCT p.memory_id AS id FROM unnest(%(common)s::text[]) AS given (term)
    CROSS JOIN unnest(%(namespaces)s::bigint[]) AS place (namespace)
    CROSS JOIN LATERAL (
      SELECT memory_id FROM memories_posting
      WHERE namespace_id = place.namespace AND term = given.term AND active ORDER BY memory_id DESC
      LIMIT %(newest)s) p),
  shortlist AS MATERIALIZED (
    (SELECT id FROM matched ORDER BY part DESC, id LIMIT %(shortlist)s)
    UNION SELECT id FROM newest),
  keyword AS (
    SELECT s.id, coalesce(k.part, 0) + coalesce(c.rest, 0) AS score
    FROM shortlist s LEFT JOIN matched k ON k.id = s.id
    CROSS JOIN LATERAL (
      SELECT sum({_GAIN}) AS rest FROM memories_posting p JOIN weights USING (term)
      WHERE p.memory_id = s.id AND p.term = ANY(%(common)s)) c
    WHERE k.id IS NOT NULL OR c.rest IS NOT NULL),
  {_LEG}"""  # noqa: S608 - a constant fragment
_EXACT = """
  semantic_leg AS MATERIALIZED (
    SELECT e.memory_id AS id, 1 - min(e.vector <=> %(vector)s::halfvec) AS similarity
    FROM memories_embedding e JOIN memories_memory m ON m.id = e.memory_id
    WHERE e.namespace_id = ANY(%(namespaces)s) AND e.embedder = %(embedder)s AND e.dim = %(dim)s
      AND {filters}
    GROUP BY e.memory_id ORDER BY similarity DESC, e.memory_id LIMIT %(pool)s)"""
# The graph, and an exact scan of what the worker has not yet moved there.
_GRAPH = """
  near AS MATERIALIZED (
    SELECT e.memory_id AS id, {distance} AS distance
    FROM memories_embedding e JOIN memories_memory m ON m.id = e.memory_id
    WHERE e.in_graph AND e.embedder = {embedder} AND e.dim = {dim}
      AND e.namespace_id = ANY(%(namespaces)s) AND {filters}
    ORDER BY {distance} LIMIT %(reach)s),
  tail AS MATERIALIZED (
    SELECT e.memory_id AS id, min(e.vector <=> %(vector)s::halfvec) AS distance
    FROM memories_embedding e JOIN memories_memory m ON m.id = e.memory_id
    WHERE e.namespace_id = ANY(%(namespaces)s) AND NOT e.in_graph AND e.embedder = %(embedder)s
      AND e.dim = %(dim)s AND {filters}
    GROUP BY e.memory_id ORDER BY distance, e.memory_id LIMIT %(pool)s),
  semantic_leg AS MATERIALIZED (
    SELECT id, 1 - min(distance) AS similarity
    FROM (SELECT id, distance FROM near UNION ALL SELECT id, distance FROM tail) both_ways
    GROUP BY id ORDER BY similarity DESC, id LIMIT %(pool)s)"""
# What a leg has to say of a row that only the other one found.
_SCORE = f"""(SELECT sum({_GAIN}) FROM memories_posting JOIN weights USING (term)
     WHERE memory_id = s.id AND term = ANY(%(terms)s))"""  # noqa: S608 - a constant fragment
_SIMILARITY = """(SELECT 1 - min(e.vector <=> %(vector)s::halfvec) FROM memories_embedding e
     WHERE e.memory_id = l.id AND e.embedder = %(embedder)s AND e.dim = %(dim)s)"""
_IDEAL = """(SELECT coalesce(sum(idf), 0) + (cardinality(%(terms)s::text[]) - count(*))
     * (SELECT ln(1 + (n + 0.5) / 0.5) FROM corpus) FROM weights)"""
_HIT = f"""m.memory_key, m.value IS NOT NULL AND octet_length(m.value::text) <= %(value_bytes)s AS small,
  m.value, n.slug AS namespace, m.version, m.tags, m.pinned, {STATUS} AS status, m.created_at, m.updated_at,
  m.source_class, m.agent, m.user_id, m.session_id"""
# The part of a cut text that is nearest to the query.
_NEAREST = """
LEFT JOIN LATERAL (
  SELECT e.chunk, e.starts_at, e.ends_at, count(*) OVER () AS chunks FROM memories_embedding e
  WHERE e.memory_id = r.id AND e.embedder = %(embedder)s AND e.dim = %(dim)s
  ORDER BY e.vector <=> %(vector)s::halfvec, e.chunk LIMIT 1) part ON true"""


@dataclass(frozen=True)
class Plan:
    """Which legs a call needs, and how each is to be found.

    `filters`: a fragment over `m`, applied inside both legs. `postings`: a condition on the postings, empty
    for no keyword leg; `pruned`: by rare terms first. `semantic`: with a vector; `graph`: whose embedder's
    HNSW index may be used, empty for an exact scan; `dim`: the length of its vectors.
    """

    filters: str
    postings: str = ""
    pruned: bool = False
    semantic: bool = False
    graph: str = ""
    dim: int = 0


@dataclass
class Query:
    """The parts of a search and their named parameters."""

    filters: str
    params: dict[str, Any]
    postings: str
    terms: list[str]
    vector: np.ndarray[Any, Any] | None = None
    weight: float = 0.0
    # The embedder is down: by words alone nothing can be said about similarity.
    unjudged: bool = False
    narrowed: bool = False
    languages: list[str] = field(default_factory=lambda: [ENGLISH])


def literal(text: str) -> str:
    """A quoted string for a statement with parameters; an index's predicate matches no parameter."""
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"


def statement(plan: Plan) -> str:
    """The search statement. The approximate leg casts the column as the index does; the exact one must not,
    so that the planner cannot take the graph for it.
    """
    ctes: list[str] = []
    score, best, ideal = "0::float8", "0::float8", "0::float8"
    similarity, nearest, found, raw = "NULL::float8", "0::float8", "0", "0"
    legs, id_, place, scored = "", "", "NULL::bigint", "0"
    part, part_columns = "", "NULL::int AS chunk, NULL::int AS starts_at, NULL::int AS ends_at, 1 AS chunks"
    if plan.postings:
        shape = _PRUNED if plan.pruned else _WHOLE
        ctes.append(shape.format(filters=plan.filters, postings=plan.postings))
        score, best, ideal = "l.score", "(SELECT max(score) FROM keyword_leg)", _IDEAL
        legs, id_, place = "keyword_leg l", "l.id", "l.place"
        scored = "(SELECT count(*) FROM keyword_leg)"
    if plan.semantic:
        if plan.graph:
            distance = f"(e.vector::halfvec({plan.dim})) <=> %(vector)s::halfvec({plan.dim})"
            ctes.append(
                _GRAPH.format(
                    filters=plan.filters, distance=distance, embedder=literal(plan.graph), dim=plan.dim
                )
            )
            raw = "(SELECT count(*) FROM near)"
        else:
            ctes.append(_EXACT.format(filters=plan.filters))
        similarity, nearest = "s.similarity", "(SELECT max(similarity) FROM semantic_leg)"
        found = "(SELECT count(*) FROM semantic_leg)"
        part, part_columns = _NEAREST, "part.chunk, part.starts_at, part.ends_at, part.chunks"
    if plan.postings and plan.semantic:
        legs, id_ = "keyword_leg l FULL JOIN semantic_leg s ON s.id = l.id", "coalesce(l.id, s.id)"
        score, similarity = f"coalesce(l.score, {_SCORE}, 0)", f"coalesce(s.similarity, {_SIMILARITY})"
    elif plan.semantic:
        legs, id_ = "semantic_leg s", "s.id"
    return f"""WITH {",".join(ctes)},
  met AS MATERIALIZED (
    SELECT {id_} AS id, {score} AS keyword_score, {place} AS keyword_rank, {similarity} AS similarity,
           {best} AS best, {nearest} AS nearest
    FROM {legs}),
  scored AS (
    SELECT met.id, keyword_score, keyword_rank, similarity,
           coalesce(keyword_score / nullif(best, 0), 0) AS keyword_share,
           CASE WHEN nearest > 0 THEN coalesce(greatest(similarity, 0) / nearest, 0) ELSE 0 END
             AS similarity_share,
           CASE WHEN m.pinned THEN %(pin)s ELSE 0 END::float8 AS pin,
           -%(recency)s * least(1, extract(epoch FROM max(m.updated_at) OVER () - m.updated_at)::float8
             / %(recency_seconds)s) AS recency
    FROM met JOIN memories_memory m ON m.id = met.id
    WHERE %(min_similarity)s::float8 IS NULL OR similarity >= %(min_similarity)s),
  ranked AS (
    SELECT *, round(((1 - %(weight)s) * keyword_share + %(weight)s * similarity_share + pin + recency)
                    ::numeric, %(digits)s)::float8 AS rank
    FROM scored ORDER BY rank DESC, id LIMIT %(top_k)s)
SELECT r.*, {found} AS semantic_found, {raw} AS graph_found, {scored} AS keyword_found, {ideal} AS ideal,
  {part_columns}, {_HIT}
FROM ranked r JOIN memories_memory m ON m.id = r.id
JOIN governance_namespace n ON n.id = m.namespace_id {part} ORDER BY r.rank DESC, r.id"""  # noqa: S608
