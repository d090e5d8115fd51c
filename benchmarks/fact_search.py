"""fact.recall by query: the way by index against the exact one, in time and in what they find.

50,000 facts of one namespace (one in fifty private to one of forty users, half of the periods over), filled
in steps, in a database of this benchmark's own. At each size the ways rank the same questions, with and
without filters, in this process; measured is `facts.search.ranked`, which finds and orders, without the
pipeline around it. `served` is the way that the size of the eligible set chooses. recall@10 is the share of
the first ten that the statement finds by the graph among those that it finds when every vector is compared:
of the hybrid as it is served, and of the meaning alone.

The sizes show where `EXACT_LIMIT` belongs.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import ROOT, SEED, percentile, print_table
from benchmarks.corpus import Corpus

SERVER = False
SIZES = (10_000, 50_000)
QUESTIONS = 25
BATCH = 2_500
RECALL = 0.95
ATTRIBUTES = (
    "employer town language team role hobby car office project diet birthday manager desk phone".split()
)
USERS = 40


def run(_client: httpx.Client | None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds and recall@10 by size, filter and way, and whether the bar is met at the largest size."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.fact_search"], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"the measuring process ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = [
        [f"{int(size):,}", name, *(one[part] for part in PARTS)]
        for size, found in result["sizes"].items()
        for name, one in found.items()
    ]
    print_table("Facts found by a query, milliseconds in the process", ["facts", "filter", *PARTS], rows)
    worst = min(
        one[part]
        for one in result["sizes"][str(SIZES[-1])].values()
        if one["served by index"]
        for part in ("hybrid recall@10", "graph recall@10")
    )
    bar = f"recall@10 at {SIZES[-1]:,} facts >= {RECALL} wherever the index serves ({worst:.3f})"
    return {**result, "bars": {bar: worst >= RECALL}}


PARTS = (
    "served by index",
    "exact p50",
    "index p50",
    "served p50",
    "served p95",
    "hybrid recall@10",
    "graph recall@10",
)


def main() -> None:
    """Fill, measure, and print the figures as one line of JSON."""
    from benchmarks.procedures import _database

    with _database():
        from django.db import connection

        from governance.models import Namespace, Org
        from governance.services import system_context

        org = Org.objects.create(slug="bench")
        namespace = Namespace.objects.create(org=org, slug="bench")
        ctx = system_context(org=org, namespace=namespace, op_name="fact.recall")
        corpus, rng, have, found = Corpus(), random.Random(SEED), 0, {}
        for size in SIZES:
            started = time.perf_counter()
            while have < size:
                _fill(namespace.pk, have, min(BATCH, size - have), corpus, rng)
                have += BATCH
            with connection.cursor() as cursor:
                cursor.execute("VACUUM (ANALYZE)")
            print(f"filled to {size:,} in {time.perf_counter() - started:.0f} s", file=sys.stderr)
            found[str(size)] = _measured(ctx, corpus)
            print(json.dumps(found[str(size)]), file=sys.stderr, flush=True)
    print(json.dumps({"sizes": found}))


def _fill(namespace: int, first: int, count: int, corpus: Corpus, rng: random.Random) -> None:
    """Facts with their postings, vectors and statistics, by SQL; the row triggers are off meanwhile."""
    from django.db import connection
    from pgvector import HalfVector

    from facts import index
    from memories.analysis import term_frequencies
    from memories.embedders import get_embedder

    embedder = get_embedder()
    rows, postings, counted, texts = [], [], Counter[str](), []
    for number in range(first, first + count):
        subject, attribute = f"person {number}", ATTRIBUTES[number % len(ATTRIBUTES)]
        owner = f"user {number % USERS}" if number % 50 == 0 else "-"
        value = corpus.text(4, 14)
        text = index.text_of(subject, attribute, value)
        terms, counts, length = term_frequencies(text)
        ids = 10_000_000 + 2 * number, 10_000_001 + 2 * number
        # Half of the periods are over.
        rows.append((*ids, owner, subject, attribute, json.dumps(value), rng.random() < 0.5))
        postings += [(ids[1], term, tf, length, owner) for term, tf in zip(terms, counts, strict=True)]
        counted[owner] += 1
        texts.append(text)
    vectors = [HalfVector(vector).to_text() for vector in embedder.embed(texts)]
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("ALTER TABLE facts_version DISABLE TRIGGER USER")
        columns = [list(column) for column in zip(*rows, strict=True)]
        cursor.execute(_LINEAGES, [namespace, *columns])
        cursor.execute(_VERSIONS, [namespace, *columns])
        cursor.execute(
            "INSERT INTO facts_factposting (namespace_id, version_id, term, tf, doc_len, owner) "
            "SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::text[])",
            [namespace, *(list(column) for column in zip(*postings, strict=True))],
        )
        cursor.execute(
            "INSERT INTO facts_factembedding (version_id, namespace_id, embedder, dim, vector) "
            "SELECT u.id, %s, %s, %s, u.vector::halfvec FROM unnest(%s::bigint[], %s::text[]) "
            "AS u (id, vector)",
            [namespace, embedder.name, embedder.dim, [row[1] for row in rows], vectors],
        )
        index.count(cursor, namespace, counted)
        cursor.execute("ALTER TABLE facts_version ENABLE TRIGGER USER")
        cursor.execute("RESET statement_timeout")


_ROWS = """FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::jsonb[],
  %s::bool[]) AS u (line, version, owner, subject, attribute, value, is_over)"""
_LINEAGES = f"""INSERT INTO facts_lineage (id, namespace_id, owner, subject, attribute, subject_sha256,
  attribute_sha256, cardinality, status, version, lock_mode, lock_reason, locked_by)
SELECT u.line, %s, u.owner, u.subject, u.attribute, sha256(convert_to(u.subject, 'UTF8')),
  sha256(convert_to(u.attribute, 'UTF8')), 'one', 'active', 1, 'none', '', '' {_ROWS}"""  # noqa: S608
_VERSIONS = f"""INSERT INTO facts_version (id, lineage_id, namespace_id, owner, value, value_sha256,
  value_key, valid, known, from_is_date, to_is_date, kind, sources, source_class, principal, token_prefix,
  agent, reason, request_id)
SELECT u.version, u.line, %s, u.owner, u.value, sha256(convert_to(u.value::text, 'UTF8')), '',
  tstzrange('2010-01-01Z', CASE WHEN u.is_over THEN timestamptz '2020-01-01Z' END),
  tstzrange(timestamptz '2020-01-01Z' + u.version * interval '1 second', NULL), true, true, 'remember', '[]',
  'local_tool_output', 'owner', '', '', '', '' {_ROWS}"""  # noqa: S608


def _measured(ctx: Any, corpus: Corpus) -> dict[str, dict[str, float]]:
    from django.db import transaction

    from facts import search, selectors
    from facts.selectors import Question
    from memories.analysis import query_terms

    now = selectors.now()
    asked = [corpus.query() for _ in range(QUESTIONS)]
    filters = {
        "none": Question(),
        "valid now": Question(valid_at=now),
        "of one user": Question(user="user 7"),
        "one attribute": Question(attribute=ATTRIBUTES[3]),
    }
    by_index = search._BY_INDEX
    # The same statement, which then cannot take the graph: the cast is not the one of the index.
    compared = by_index.replace(f"(e.vector::halfvec({search.INDEXED_DIM})) <=>", "e.vector <=>")
    assert compared != by_index
    found = {}
    for name, question in filters.items():
        times: dict[str, list[float]] = {"exact": [], "index": [], "served": []}
        same = {"hybrid": 0.0, "graph": 0.0}

        def tens(text: str, way: str, question: Any = question, times: Any = times) -> list[int]:
            search._BY_INDEX = compared if way == "compared" else by_index
            exact = {"exact": True, "served": None}.get(way, False)
            started = time.perf_counter()
            with transaction.atomic():
                ids: list[int] = search.ranked(ctx, question, text, exact)
            if way in times:
                times[way].append((time.perf_counter() - started) * 1000)
            return ids[:10]

        for text in asked:
            for way in ("exact", "served"):
                tens(text, way)
            both = tens(text, "index"), tens(text, "compared")
            same["hybrid"] += len(set(both[0]) & set(both[1])) / max(1, len(both[1]))
        search.query_terms = lambda text: []
        for text in asked:
            found_by, right = tens(text, "graph"), tens(text, "compared")
            same["graph"] += len(set(found_by) & set(right)) / max(1, len(right))
        search.query_terms = query_terms
        search._BY_INDEX = by_index
        found[name] = {
            "served by index": float(search._is_large(search._parts(ctx, question))),
            "exact p50": percentile(times["exact"], 50), "index p50": percentile(times["index"], 50),
            "served p50": percentile(times["served"], 50), "served p95": percentile(times["served"], 95),
            "hybrid recall@10": same["hybrid"] / len(asked), "graph recall@10": same["graph"] / len(asked),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    main()
