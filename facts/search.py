"""Recall by query: the hybrid of `memories.ranking` over the versions that a recall may answer.

The unit of the index is the version, so that a query can be asked of any known time. There are two ways to
the same formula:

- *exact*: every eligible version is compared; statistics are taken over what the caller may see, at that
  known time and under the call's filters. It is the way of small sets, and of every question of an earlier
  known time, whose answer must never change.
- *by index*: postings from the best score down and the HNSW graph, the filters inside both; statistics are
  taken over all versions that the caller may see, of whatever time.

Either way a hidden version moves no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from django.db import connection, transaction
from pgvector import HalfVector

from facts import selectors
from facts.selectors import HELD, Fact, Question, conditions, owners, pinned_at, visible
from governance.clock import iso
from loomsite.ops import Context, invalid
from memories import ranking
from memories.analysis import query_terms
from memories.embedders import EmbedderUnavailable, embed_query, get_embedder, is_zero
from memories.graph import DEFAULT
from memories.search import MAX_TERMS
from memories.selectors import decode_cursor, encode_cursor

# The graph of migration 0004 holds the vectors of the default embedder; those of another are compared.
INDEXED_DIM = 256
# A query ranks so many; the cursor carries the places of those that the page does not show.
RANKED = 200
# Up to so many eligible versions each is compared; more are searched by index (see docs/benchmarks.md).
EXACT_LIMIT = 10_000

_GAIN = "idf * tf / (tf + %(k1)s * (1 - %(b)s + %(b)s * doc_len / average))"
_RANKED = """
SELECT id, near, score, similarity FROM (
  SELECT id, near, score, similarity,
    round(((1 - %(weight)s) * coalesce(score / nullif(best, 0), 0) + %(weight)s
    * CASE WHEN nearest > 0 THEN coalesce(greatest(similarity, 0) / nearest, 0) ELSE 0 END)::numeric,
    %(digits)s) AS rank FROM met) r
WHERE rank > 0 ORDER BY rank DESC, id LIMIT %(ranked)s
"""
_AVERAGE = """(SELECT coalesce(avg(d.doc_len), 1) FROM
      (SELECT DISTINCT id, doc_len FROM matched) d)::float8"""
_WEIGHTS = """SELECT term, average, ln(1 + (greatest(n - count(*), 0) + 0.5) / (count(*) + 0.5)) AS idf
    FROM matched CROSS JOIN corpus GROUP BY term, average, n"""
_EXACT = f"""
WITH eligible AS MATERIALIZED (
    SELECT v.id FROM {selectors.TABLES} WHERE {{filters}} AND NOT {HELD}),
  matched AS MATERIALIZED (
    SELECT p.version_id AS id, p.term, p.tf, p.doc_len FROM facts_factposting p JOIN eligible e
    ON e.id = p.version_id WHERE p.namespace_id = %(namespace)s AND p.term = ANY(%(terms)s)),
  corpus AS MATERIALIZED (
    SELECT greatest(count(*), 1)::float8 AS n, {_AVERAGE} AS average FROM eligible),
  weights AS MATERIALIZED ({_WEIGHTS}),
  keyword AS MATERIALIZED (
    SELECT id, sum({_GAIN}) AS score FROM matched JOIN weights USING (term) GROUP BY id),
  keyword_leg AS MATERIALIZED (SELECT id, score FROM keyword ORDER BY score DESC, id LIMIT %(pool)s),
  compared AS MATERIALIZED (
    SELECT e.version_id AS id, 1 - (e.vector <=> %(vector)s::halfvec) AS similarity
    FROM facts_factembedding e JOIN eligible ON eligible.id = e.version_id
    WHERE %(vector)s IS NOT NULL AND e.embedder = %(embedder)s AND e.dim = %(dim)s),
  semantic AS MATERIALIZED (SELECT id, similarity FROM compared ORDER BY similarity DESC, id LIMIT %(pool)s),
  met AS (
    SELECT u.id, coalesce(k.score, 0) AS score, s.similarity, max(k.score) OVER () AS best,
           max(s.similarity) OVER () AS nearest, 0 AS near
    FROM (SELECT id FROM keyword_leg UNION SELECT id FROM semantic) u
    LEFT JOIN keyword k USING (id) LEFT JOIN compared s USING (id))
{_RANKED}"""  # noqa: S608 - fragments are constant
# Fenced against the planner as in `memories.search`: the filters are asked from the best score down, and no
# further than the pool is deep.
_PASSED = f"""CROSS JOIN LATERAL (SELECT FROM {selectors.TABLES} WHERE v.id = {{id}} AND {{filters}}
    AND NOT {HELD} OFFSET 0) passed"""  # noqa: S608 - a constant fragment
_BY_INDEX = f"""
WITH matched AS MATERIALIZED (
    SELECT version_id AS id, term, tf, doc_len FROM facts_factposting
    WHERE namespace_id = %(namespace)s AND term = ANY(%(terms)s) AND {{owner}}),
  corpus AS MATERIALIZED (
    SELECT greatest(sum(docs), 1)::float8 AS n, {_AVERAGE} AS average
    FROM facts_factcorpusstripe WHERE namespace_id = %(namespace)s AND {{owner}}),
  weights AS MATERIALIZED ({_WEIGHTS}),
  keyword AS (
    SELECT id, sum({_GAIN}) AS score FROM matched JOIN weights USING (term) GROUP BY id),
  keyword_leg AS MATERIALIZED (
    SELECT k.id, k.score FROM (SELECT id, score FROM keyword ORDER BY score DESC, id) k
    {_PASSED.replace("{id}", "k.id")} ORDER BY k.score DESC, k.id LIMIT %(pool)s),
  semantic AS MATERIALIZED (
    SELECT e.version_id AS id,
           1 - ((e.vector::halfvec({INDEXED_DIM})) <=> %(vector)s::halfvec({INDEXED_DIM})) AS similarity
    FROM facts_factembedding e {_PASSED.replace("{id}", "e.version_id")}
    WHERE e.embedder = {{embedder}} AND e.dim = {INDEXED_DIM} AND e.namespace_id = %(namespace)s
    ORDER BY (e.vector::halfvec({INDEXED_DIM})) <=> %(vector)s::halfvec({INDEXED_DIM}) LIMIT %(pool)s),
  met AS MATERIALIZED (
    SELECT id, score, similarity, max(score) OVER () AS best, max(similarity) OVER () AS nearest,
           (SELECT count(*) FROM semantic) AS near FROM (
      SELECT coalesce(k.id, s.id) AS id,
        coalesce(k.score, (SELECT sum({_GAIN}) FROM facts_factposting JOIN weights USING (term)
          WHERE namespace_id = %(namespace)s AND version_id = s.id AND term = ANY(%(terms)s)), 0) AS score,
        coalesce(s.similarity, (SELECT 1 - (e.vector <=> %(vector)s::halfvec) FROM facts_factembedding e
          WHERE e.version_id = k.id AND e.embedder = {{embedder}} AND e.dim = {INDEXED_DIM})) AS similarity
      FROM keyword_leg k FULL JOIN semantic s ON s.id = k.id) u)
{_RANKED}"""  # noqa: S608 - fragments are constant


def fact_search(
    ctx: Context, ask: Question, query: str, limit: int, cursor: str | None, *, near: bool = False
) -> tuple[list[dict[str, Any]], datetime, str | None]:
    """A page of facts, best first; the effective known time; the cursor of the next page.

    The order is made once, on the first page; at most `RANKED` are in it. `near`: only what shares a word
    with the query or is as near to it as the embedder's floor, for what nobody asked for by itself.
    """
    known_at: datetime | None
    if cursor:
        mark, pinned, ids = decode_cursor(cursor, str, str, list)
        at = known_at = pinned_at(ask, query, mark, pinned)
        if not all(type(id_) is int and 0 < id_ < 2**63 for id_ in ids):
            raise invalid("cursor", "is not one that this op answered.")
    else:
        at, known_at = ask.known_at or selectors.now(), ask.known_at
        ids = ranked(ctx, ask, query, near=near) if ctx.namespace_id is not None else []
    page, rest = ids[:limit], ids[limit:]
    if ctx.namespace_id is None or not page:
        return [], at, None
    where, params = conditions(ctx, ask, known_at)
    found = {fact.id: fact for fact in selectors.fetch(f"{where} AND v.id = ANY(%s)", [*params, page])}
    facts = [_without_held(found[id_]) for id_ in page if id_ in found]
    following = encode_cursor(ask.mark(query), iso(at), rest) if rest else None
    return selectors.shown_all(facts, at, ask.valid_at, known_at), at, following


def _without_held(fact: Fact) -> Fact:
    """What is found is read into prompts; a replaced text that waits for a reader is not."""
    if fact.replaced is None or not fact.replaced_held:
        return fact
    return replace(fact, replaced={**fact.replaced, "value": None})


# (version, how many the graph found, keyword score, cosine similarity where one was had) by rank.
_Row = tuple[int, int, float, float | None]


@dataclass(frozen=True)
class _Parts:
    """The fragments of a statement, over `v` and `l`, and their named parameters."""

    filters: str
    owner: str
    params: dict[str, Any]


def ranked(
    ctx: Context, ask: Question, query: str, exact: bool | None = None, *, near: bool = False
) -> list[int]:
    """The versions that a query finds, best first; `exact` None lets the size of the set choose the way."""
    parts = _parts(ctx, ask)
    terms = query_terms(query)[:MAX_TERMS]
    vector, weight = None, 0.0
    try:
        found = embed_query(query)
    except EmbedderUnavailable:
        ctx.degraded.append("embedding")
    else:
        if not is_zero(found):
            vector, weight = found, get_embedder().weight if terms else 1.0
    parts.params.update({
        "terms": terms, "k1": ranking.K1, "b": ranking.B, "digits": ranking.DIGITS, "weight": weight,
        "pool": ranking.pool_size(RANKED), "ranked": RANKED, "embedder": get_embedder().name,
        "vector": None if vector is None else HalfVector(vector).to_text(),
        "dim": 0 if vector is None else len(vector),
    })  # fmt: skip
    if exact is None:
        exact = not _indexed(vector) or ask.known_at is not None or not _is_large(parts)
    if not exact:
        rows = _by_index(parts)
        if rows and rows[0][1] == parts.params["pool"]:
            return _ids(rows, near)
        # The scan of the graph gave up before it had enough: few versions pass the filters.
    return _ids(_fetch(_EXACT, parts), near)


def _ids(rows: Sequence[_Row], near: bool) -> list[int]:
    floor = get_embedder().floor
    return [id_ for id_, _, score, similarity in rows if not near or score > 0 or (similarity or 0) >= floor]


def _parts(ctx: Context, ask: Question) -> _Parts:
    params: dict[str, Any] = {"namespace": ctx.namespace_id}

    def named(clause: str, values: list[Any], prefix: str) -> str:
        for i, value in enumerate(values):
            clause = clause.replace("%s", f"%({prefix}{i})s", 1)
            params[f"{prefix}{i}"] = value
        return clause

    filters = named(*conditions(ctx, ask, ask.known_at), "filter")
    return _Parts(filters, named(*visible("owner", owners(ctx, ask.user)), "owner"), params)


def _indexed(vector: np.ndarray[Any, Any] | None) -> bool:
    return vector is not None and len(vector) == INDEXED_DIM and get_embedder().name == DEFAULT


def _is_large(parts: _Parts) -> bool:
    """True when more versions are eligible than are compared one by one; counts no further than that."""
    params = {**parts.params, "limit": EXACT_LIMIT}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(docs), 0) > %(limit)s FROM facts_factcorpusstripe "  # noqa: S608
            f"WHERE namespace_id = %(namespace)s AND {parts.owner}",
            params,
        )
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(
            f"SELECT count(*) > %(limit)s FROM (SELECT FROM {selectors.TABLES} WHERE {parts.filters} "  # noqa: S608
            "LIMIT %(limit)s + 1) counted",
            params,
        )
        return bool(cursor.fetchone()[0])


def _by_index(parts: _Parts) -> list[_Row]:
    with transaction.atomic(), connection.cursor() as cursor:
        # The graph goes on until enough rows pass the filters, in order of distance.
        cursor.execute(
            "SELECT set_config('hnsw.iterative_scan', 'strict_order', true), "
            "set_config('hnsw.max_scan_tuples', '200000', true), set_config('hnsw.ef_search', '200', true)"
        )
        return _fetch(_BY_INDEX, parts)


def _fetch(sql: str, parts: _Parts) -> list[_Row]:
    # A literal, because it has to match the predicate of the index.
    embedder = "'" + get_embedder().name.replace("'", "''").replace("%", "%%") + "'"
    with connection.cursor() as cursor:
        cursor.execute(sql.format(filters=parts.filters, owner=parts.owner, embedder=embedder), parts.params)
        return cursor.fetchall()  # type: ignore[no-any-return]
