"""Recall by query: the hybrid of `memories.ranking` over the versions that a recall may answer.

The unit of the index is the version, so that a query can be asked of any known time. Statistics are taken
over what the caller may see, at that known time and under the call's filters: a hidden version moves no rank.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection
from pgvector import HalfVector

from facts import selectors
from facts.selectors import HELD, Question, conditions, cursor_instant
from governance.clock import iso
from loomsite.ops import Context, invalid
from memories import ranking
from memories.analysis import query_terms
from memories.embedders import EmbedderUnavailable, embed_query, get_embedder, is_zero
from memories.search import MAX_TERMS
from memories.selectors import decode_cursor, encode_cursor

# A query ranks so many; the cursor carries the places of those that the page does not show.
RANKED = 200

_GAIN = "idf * tf / (tf + %(k1)s * (1 - %(b)s + %(b)s * doc_len / average))"
_STATEMENT = f"""
WITH eligible AS MATERIALIZED (
    SELECT v.id FROM {selectors.TABLES} WHERE {{filters}} AND NOT {HELD}),
  matched AS MATERIALIZED (
    SELECT p.version_id AS id, p.term, p.tf, p.doc_len FROM facts_factposting p JOIN eligible e
    ON e.id = p.version_id WHERE p.namespace_id = %(namespace)s AND p.term = ANY(%(terms)s)),
  corpus AS MATERIALIZED (
    SELECT greatest(count(*), 1)::float8 AS n, (SELECT coalesce(avg(d.doc_len), 1) FROM
      (SELECT DISTINCT id, doc_len FROM matched) d)::float8 AS average FROM eligible),
  weights AS MATERIALIZED (
    SELECT term, average, ln(1 + (greatest(n - count(*), 0) + 0.5) / (count(*) + 0.5)) AS idf
    FROM matched CROSS JOIN corpus GROUP BY term, average, n),
  keyword AS (
    SELECT id, sum({_GAIN}) AS score FROM matched JOIN weights USING (term) GROUP BY id),
  semantic AS (
    SELECT e.version_id AS id, 1 - (e.vector <=> %(vector)s::halfvec) AS similarity
    FROM facts_factembedding e JOIN eligible ON eligible.id = e.version_id
    WHERE %(vector)s IS NOT NULL AND e.embedder = %(embedder)s AND e.dim = %(dim)s
    ORDER BY similarity DESC, e.version_id LIMIT %(pool)s),
  met AS (
    SELECT coalesce(k.id, s.id) AS id, coalesce(k.score, 0) AS score, s.similarity,
           max(k.score) OVER () AS best, max(s.similarity) OVER () AS nearest
    FROM keyword k FULL JOIN semantic s ON s.id = k.id)
SELECT id FROM (
  SELECT id, round(((1 - %(weight)s) * coalesce(score / nullif(best, 0), 0) + %(weight)s
    * CASE WHEN nearest > 0 THEN coalesce(greatest(similarity, 0) / nearest, 0) ELSE 0 END)::numeric,
    %(digits)s) AS rank FROM met) r
WHERE rank > 0 ORDER BY rank DESC, id LIMIT %(ranked)s
"""  # noqa: S608 - fragments are constant


def fact_search(
    ctx: Context, ask: Question, query: str, limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], datetime, str | None]:
    """A page of facts, best first; the effective known time; the cursor of the next page.

    The order is made once, on the first page; at most `RANKED` are in it.
    """
    known_at: datetime | None
    if cursor:
        pinned, ids = decode_cursor(cursor, str, list)
        at = known_at = cursor_instant(pinned)
        if not all(type(id_) is int and 0 < id_ < 2**63 for id_ in ids):
            raise invalid("cursor", "is not one that this op answered.")
    else:
        at, known_at = ask.known_at or selectors.now(), ask.known_at
        ids = _ranked(ctx, ask, query) if ctx.namespace_id is not None else []
    page, rest = ids[:limit], ids[limit:]
    if ctx.namespace_id is None or not page:
        return [], at, None
    where, params = conditions(ctx, ask, known_at)
    found = {fact.id: fact for fact in selectors.fetch(f"{where} AND v.id = ANY(%s)", [*params, page])}
    facts = [found[id_] for id_ in page if id_ in found]
    following = encode_cursor(iso(at), rest) if rest else None
    return selectors.shown_all(facts, at, ask.valid_at, known_at), at, following


def _ranked(ctx: Context, ask: Question, query: str) -> list[int]:
    where, values = conditions(ctx, ask, ask.known_at)
    params: dict[str, Any] = {}
    for i, value in enumerate(values):
        where = where.replace("%s", f"%(filter{i})s", 1)
        params[f"filter{i}"] = value
    terms = query_terms(query)[:MAX_TERMS]
    vector, weight = None, 0.0
    try:
        found = embed_query(query)
    except EmbedderUnavailable:
        ctx.degraded.append("embedding")
    else:
        if not is_zero(found):
            vector, weight = found, get_embedder().weight if terms else 1.0
    params |= {
        "namespace": ctx.namespace_id, "terms": terms, "k1": ranking.K1, "b": ranking.B,
        "digits": ranking.DIGITS, "weight": weight, "pool": ranking.pool_size(RANKED), "ranked": RANKED,
        "vector": None if vector is None else HalfVector(vector).to_text(),
        "embedder": get_embedder().name, "dim": 0 if vector is None else len(vector),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_STATEMENT.format(filters=where), params)
        return [row[0] for row in cursor.fetchall()]
