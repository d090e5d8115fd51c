"""The hybrid search: which legs a call needs, how each is best found, and what is said of the hits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from pgvector import HalfVector

from governance.clock import iso
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, Role
from memories import ranking
from memories.analysis import analyze, excerpt, flatten, query_terms
from memories.embedders import EmbedderUnavailable, embed_query, get_embedder, is_zero
from memories.models import Status
from memories.search_sql import Plan, Query, statement
from memories.selectors import SERVED, STATUS, scope
from memories.text_config import languages_of

# Up to so many documents an exact scan of their vectors and all postings of the query's terms is both fast
# and never misses; `benchmarks/scale.py` shows both sides of it.
EXACT_LIMIT = 20_000
# More namespaces than this are not searched in one call; the rest is named.
FAN_OUT = 20
VALUE_BYTES = 2048
MAX_TERMS = 64

# In a larger corpus the keyword leg reads at most so many postings, the rarest terms' first, and scores at
# most `SHORTLIST` of their texts in full. A text outside has none of the rare terms, or less of them than
# any on the list: it could have passed one on it only by what the common terms add, each at most its idf.
POSTINGS_READ = 40_000
SHORTLIST = 1_000
# Of each of the `COMMON_READ` least common of the other terms, the newest so many texts are scored too: they
# are what a query of nothing but common words finds.
NEWEST = 300
COMMON_READ = 4
# A term with more documents than this is counted once in so many seconds, and to two digits.
COMMON_DF = 5_000
COUNT_SECONDS = 300.0


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
    rows = _run(ctx, query, request, namespaces)
    if rows and not _nothing_near(query, rows):
        answer.update(abstain=False, abstain_reason=None)
    answer["results"] = [_hit(row, request, query) for row in rows]
    return answer


def _nothing_near(query: Query, rows: list[dict[str, Any]]) -> bool:
    coverage = max(map(_coverage, rows)) if query.terms else None
    similarities = [row["similarity"] for row in rows if row["similarity"] is not None]
    # Rows that are not embedded yet: words alone can judge them.
    similarity = max(similarities) if query.vector is not None and similarities else None
    return ranking.nothing_near(coverage, similarity, get_embedder().floor)


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


def _prepare(ctx: Context, request: SearchRequest, namespaces: list[int]) -> Query:
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
    query = Query(
        " AND ".join(parts), names, postings="active" if statuses == [Status.ACTIVE] else "true", terms=[],
        narrowed=len(parts) > 3 or len(params) > 1, languages=languages_of(namespaces),
    )  # fmt: skip
    if request.mode in ("hybrid", "keyword"):
        query.terms = query_terms(request.query, query.languages)[:MAX_TERMS]
    if request.mode in ("hybrid", "semantic"):
        try:
            vector = embed_query(request.query)
        except EmbedderUnavailable:
            # Words are better than nothing, and the answer says so.
            ctx.degraded.append("embedding")
            query.terms = query.terms or query_terms(request.query, query.languages)[:MAX_TERMS]
            query.unjudged = True
            if request.min_similarity is not None:
                ctx.advisories.append("min_similarity: not applied, because no meanings could be compared")
        else:
            query.vector = None if is_zero(vector) else vector
    if query.vector is not None:
        query.weight = 1.0 if not query.terms else get_embedder().weight
    return query


def _run(ctx: Context, query: Query, request: SearchRequest, namespaces: list[int]) -> list[dict[str, Any]]:
    """The rows of the answer. A leg that a short way starves of hits is gone the whole way."""
    params = query.params
    pool = ranking.pool_size(request.top_k)
    params.update(
        namespaces=namespaces, pool=pool, reach=2 * pool, top_k=request.top_k, weight=query.weight,
        digits=ranking.DIGITS, terms=query.terms, k1=ranking.K1, b=ranking.B,
        pin=ranking.PIN, recency=ranking.RECENCY, recency_seconds=ranking.RECENCY_SECONDS,
        min_similarity=None if query.unjudged else request.min_similarity, value_bytes=VALUE_BYTES,
    )  # fmt: skip
    plan = Plan(query.filters, query.postings if query.terms else "", semantic=query.vector is not None)
    if query.vector is not None:
        embedder = get_embedder()
        plan = replace(plan, dim=len(query.vector))
        params.update(
            vector=HalfVector(query.vector).to_text(), embedder=embedder.name, dim=len(query.vector)
        )
    size = _size(namespaces, params.get("embedder", ""))
    if size.stale and plan.semantic:
        ctx.degraded.append("reembed")
    if size.documents > EXACT_LIMIT:
        if plan.postings:
            plan = replace(plan, pruned=_prune(query.terms, namespaces, params))
        if plan.semantic and size.in_graph:
            plan = replace(plan, graph=params["embedder"])
    rows = _fetch(plan, params)
    # Few rows pass the filters, and the short ways gave up before they had found them.
    whole = plan
    if plan.pruned and query.narrowed and not (rows and rows[0]["keyword_found"] >= request.top_k):
        whole = replace(whole, pruned=False)
    if plan.graph and not (rows and _enough(rows[0], params)):
        whole = replace(whole, graph="")
    return rows if whole is plan else _fetch(whole, params)


def _enough(row: dict[str, Any], params: dict[str, Any]) -> bool:
    """Whether the graph gave what there is to give; less than asked may also be many chunks of few texts."""
    if row["semantic_found"] >= params["pool"]:
        return True
    return bool(row["graph_found"] == params["reach"] and row["semantic_found"] >= params["top_k"])


@dataclass(frozen=True)
class _Size:
    """What is searched: active documents, whether some vectors are in the embedder's graph, and whether
    others are another embedder's and `reembed` has not been over them yet.
    """

    documents: int
    in_graph: bool
    stale: bool


def _size(namespaces: list[int], embedder: str) -> _Size:
    with connection.cursor() as cursor:
        # Other names than this one are two ranges, which the index answers without reading the rest.
        cursor.execute(
            """SELECT coalesce(sum(docs), 0),
                 EXISTS (SELECT FROM memories_embedding WHERE in_graph AND namespace_id = ANY(%(ids)s)
                   AND embedder = %(name)s),
                 (EXISTS (SELECT FROM memories_embedding WHERE namespace_id = ANY(%(ids)s)
                     AND in_graph = ANY('{t,f}') AND embedder < %(name)s)
                   OR EXISTS (SELECT FROM memories_embedding WHERE namespace_id = ANY(%(ids)s)
                     AND in_graph = ANY('{t,f}') AND embedder > %(name)s))
                 AND NOT EXISTS (SELECT FROM memories_reembedding WHERE embedder = %(name)s)
               FROM memories_corpusstripe WHERE namespace_id = ANY(%(ids)s)""",
            {"ids": namespaces, "name": embedder},
        )
        documents, in_graph, stale = cursor.fetchone()
    return _Size(int(documents), in_graph, stale)


def _fetch(plan: Plan, params: dict[str, Any]) -> list[dict[str, Any]]:
    if not plan.graph:
        return _rows(statement(plan), params)
    with transaction.atomic():
        with connection.cursor() as cursor:
            # The graph goes on until enough rows pass the filters; the statement puts them in order.
            cursor.execute(
                "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
                "set_config('hnsw.max_scan_tuples', '200000', true), "
                "set_config('hnsw.ef_search', '200', true)"
            )
        return _rows(statement(plan), params)


def _rows(sql: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


# Document frequencies of a large corpus


_counted: dict[tuple[tuple[int, ...], str], tuple[float, int]] = {}
_counted_lock = threading.Lock()
_COUNTED_MAX = 10_000


def _prune(terms: list[str], namespaces: list[int], params: dict[str, Any]) -> bool:
    """Split the terms into rare and common ones; False when all their postings may as well be read."""
    frequencies = _frequencies(terms, namespaces)
    rare: list[str] = []
    room = POSTINGS_READ
    for term in sorted(terms, key=lambda term: (frequencies[term], term)):
        room -= frequencies[term]
        if room < 0:
            break
        rare.append(term)
    common = sorted(set(terms) - set(rare), key=lambda term: (frequencies[term], term))
    if not common:
        return False
    params.update(
        frequencies=[frequencies[term] for term in terms], rare=rare, common=common[:COMMON_READ],
        shortlist=SHORTLIST, newest=NEWEST,
    )  # fmt: skip
    return True


def _frequencies(terms: list[str], namespaces: list[int]) -> dict[str, int]:
    """Active documents with each term: exact up to `COMMON_DF`, above it as counted some minutes ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.term, (SELECT count(*) FROM (SELECT FROM memories_posting p WHERE p.namespace_id = "
            "ANY(%s) AND p.term = t.term AND p.active LIMIT %s) bounded) FROM unnest(%s::text[]) AS t (term)",
            [namespaces, COMMON_DF + 1, terms],
        )
        found = {term: int(count) for term, count in cursor.fetchall()}
    place = tuple(sorted(namespaces))
    now = time.monotonic()
    unknown = []
    for term in [term for term, count in found.items() if count > COMMON_DF]:
        known = _counted.get((place, term))
        if known is not None and now - known[0] < COUNT_SECONDS:
            found[term] = known[1]
        else:
            unknown.append(term)
    if unknown:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT term, count(*) FROM memories_posting WHERE namespace_id = ANY(%s) "
                "AND term = ANY(%s) AND active GROUP BY term",
                [namespaces, unknown],
            )
            counted = {str(term): _two_digits(int(count)) for term, count in cursor.fetchall()}
        with _counted_lock:
            if len(_counted) > _COUNTED_MAX:
                _counted.clear()
            _counted.update({(place, term): (now, count) for term, count in counted.items()})
        found.update(counted)
    return found


def _two_digits(count: int) -> int:
    """Rounded, so that processes which counted at different moments rank alike."""
    step: int = 10 ** max(0, len(str(count)) - 2)
    return (count + step // 2) // step * step


def forget_counts() -> None:
    """Count anew at the next search."""
    with _counted_lock:
        _counted.clear()


def _hit(row: dict[str, Any], request: SearchRequest, query: Query) -> dict[str, Any]:
    hit: dict[str, Any] = {
        "memory_key": row["memory_key"],
        "memory_id": str(row["id"]),
        "namespace": row["namespace"],
    }
    value = None if row["value"] is None else json.loads(row["value"])
    if row["small"]:
        hit["value"] = value
    else:
        text = flatten(value)
        if row["chunk"] is not None and row["chunks"] > 1:
            place = {"start": row["starts_at"], "end": row["ends_at"]}
            hit["chunk"] = {"number": row["chunk"] + 1, "of": row["chunks"], **place}
            text = _part(text, row, query)
        hit["excerpt"] = excerpt(text, request.query, languages=query.languages)
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
            "weight": query.weight,
            "pin": row["pin"],
            "recency": round(row["recency"], 9),
            "coverage": round(_coverage(row), 6),
        }
    return hit


def _part(text: str, row: dict[str, Any], query: Query) -> str:
    """The nearest chunk, unless the query's words all stand elsewhere: then the whole text."""
    nearest = text[row["starts_at"] : row["ends_at"]]
    if row["keyword_score"] > 0 and not set(query.terms) & set(analyze(nearest, query.languages[0])):
        return text
    return nearest


def _coverage(row: dict[str, Any]) -> float:
    """The hit's share of what all terms of the query are worth, in [0, 1)."""
    return float(row["keyword_score"] / row["ideal"]) if row["ideal"] else 0.0
