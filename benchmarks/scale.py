"""How the search and the writes bear size: the same questions of 10,000, 100,000 and 1,000,000 memories.

For each size, in one namespace and in 1,000 of equal size: search latency over REST at one client (hybrid),
recall@10 of the semantic leg under filters of a half to a thousandth of the rows beside an exact scan of the
same vectors, bytes on disk and seconds to build. Once, beside the largest corpus of one namespace: single
writes from 8 clients, and memory.set_many.

LOOM_SCALE=10000,100000 chooses the sizes (default: 10,000 and 100,000; a million takes half an hour),
LOOM_SCALE_SPACES=1,1000 the numbers of namespaces. Each corpus has a database of its own, dropped afterwards.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.common import SEED, call, percentile, print_table
from benchmarks.corpus import Corpus
from benchmarks.harness import Site, free_port, running, site, web
from benchmarks.ops import crowd_of
from benchmarks.scale_load import TAGS

SERVER = False
SIZES = "10000,100000"
SPACES = "1,1000"
QUERIES = 300
WARM = 40
FILTERED = 25
TOP_K = 10
CLIENTS = 8
WRITES = 60
BATCH = 500
BATCHES = 12
LATENCY_TIMES = 3.0
RECALL = 0.95
SINGLE = 200.0
MANY = 2_000.0


def run(_client: None, data_dir: Path | None) -> dict[str, Any]:
    """Figures by corpus, and whether the bars are met."""
    sizes = [int(size) for size in os.environ.get("LOOM_SCALE", SIZES).split(",")]
    spaces = [int(count) for count in os.environ.get("LOOM_SCALE_SPACES", SPACES).split(",")]
    queries = _queries(data_dir)
    found: dict[str, dict[str, Any]] = {}
    for count in spaces:
        for size in sizes:
            writes = count == 1 and size == max(sizes)
            found[f"{size}/{count}"] = _measure(size, count, queries, data_dir, writes)
            _print_one(size, count, found[f"{size}/{count}"])
    _print(found)
    return {"corpora": found, "data": bool(data_dir), "bars": _bars(found, sizes, spaces)}


def _queries(data_dir: Path | None) -> list[str]:
    """Questions of the dev conversations, or made-up ones, in a seeded order."""
    if data_dir is not None and (data_dir / "locomo_dev.json").is_file():
        conversations = json.loads((data_dir / "locomo_dev.json").read_text())
        asked = [q["question"] for one in conversations for q in one["questions"] if q["category"] != 5]
        random.Random(SEED).shuffle(asked)
        return asked[: QUERIES + WARM]
    corpus = Corpus(seed=SEED + 1)
    return [corpus.query() for _ in range(QUERIES + WARM)]


def _measure(
    size: int, spaces: int, queries: list[str], data_dir: Path | None, writes: bool
) -> dict[str, Any]:
    with site() as where:
        if data_dir is not None and (data_dir / "locomo_dev.json").is_file():
            where.environment["LOOM_SCALE_DATA"] = str(data_dir.resolve())
        loaded = where.python("-m", "benchmarks.scale_load", str(size), str(spaces))
        seconds = json.loads(loaded.strip().splitlines()[-1])
        port = free_port()
        with (
            running(where, web(port), port) as url,
            httpx.Client(base_url=url, headers=where.headers, timeout=120) as client,
            psycopg.connect(where.database_url, autocommit=True) as database,
        ):
            result: dict[str, Any] = {"size": size, "namespaces": spaces, "build_seconds": seconds}
            result |= _disk(database, size)
            result["latency"] = _latency(client, spaces, queries)
            result["recall"] = _recall(client, database, spaces, queries)
            if writes:
                result |= _writes(url, where)
    return result


def _namespace(spaces: int, number: int) -> str:
    return f"scale-{spaces}-{number % spaces}"


def _latency(client: httpx.Client, spaces: int, queries: list[str]) -> dict[str, float]:
    times = []
    for number, query in enumerate(queries):
        started = time.perf_counter()
        call(client, "memory.search", query=query, namespace=_namespace(spaces, number * 7))
        if number >= WARM:
            times.append((time.perf_counter() - started) * 1000)
    return {"p50_ms": percentile(times, 50), "p95_ms": percentile(times, 95)}


def _recall(
    client: httpx.Client, database: psycopg.Connection[Any], spaces: int, queries: list[str]
) -> dict[str, float]:
    """Mean share of the exact ten nearest that the search gives, by filter."""
    from memories.embedders import WordLlamaEmbedder

    embedder = WordLlamaEmbedder()
    shares: dict[str, list[float]] = {}
    # With an exact scan the planner must not take the graph for it.
    database.execute("SET enable_indexscan = off")
    for number, query in enumerate(queries[:FILTERED]):
        namespace = _namespace(spaces, number * 7)
        vector = "[" + ",".join(str(float(x)) for x in embedder.embed_query(query)) + "]"
        for tag in (None, *TAGS):
            exact = {
                str(row[0])
                for row in database.execute(
                    "SELECT m.id FROM memories_memory m JOIN memories_embedding e ON e.memory_id = m.id "
                    "JOIN governance_namespace n ON n.id = m.namespace_id WHERE n.slug = %s "
                    "AND (%s::varchar IS NULL OR m.tags && ARRAY[%s::varchar]) "
                    "ORDER BY e.vector <=> %s::halfvec, m.id LIMIT %s",
                    [namespace, tag, tag, vector, TOP_K],
                )
            }
            more = {} if tag is None else {"tags": [tag]}
            answer = call(
                client,
                "memory.search",
                query=query,
                namespace=namespace,
                mode="semantic",
                top_k=TOP_K,
                **more,
            )
            hits = {row["memory_id"] for row in answer["results"]}
            if exact:
                shares.setdefault(tag or "all", []).append(len(hits & exact) / len(exact))
    return {name: sum(values) / len(values) for name, values in shares.items()}


def _disk(database: psycopg.Connection[Any], size: int) -> dict[str, Any]:
    row = database.execute(
        "SELECT pg_total_relation_size('memories_memory') "
        "+ pg_total_relation_size('memories_memoryversion'), "
        "pg_total_relation_size('memories_posting'), pg_total_relation_size('memories_embedding')"
    ).fetchone()
    assert row is not None  # noqa: S101 - one row by construction
    rows, postings, vectors = (int(value) / size for value in row)
    return {
        "bytes_per_memory": {"rows": rows, "postings": postings, "vectors": vectors},
        "bytes_in_all": rows + postings + vectors,
    }


def _writes(url: str, where: Site) -> dict[str, float]:
    """Writes a second into the large namespace: one by one from 8 clients, and by set_many from one."""
    namespace = _namespace(1, 0)
    taken, times, failed = crowd_of(url, where, namespace, CLIENTS, WRITES)
    if failed:
        raise RuntimeError(f"{failed} writes failed")
    corpus = Corpus(seed=SEED + 2)
    batches = [
        [{"memory_key": f"batch/{b}/{i}", "value": corpus.text()} for i in range(BATCH)]
        for b in range(BATCHES)
    ]
    with httpx.Client(base_url=url, headers=where.headers, timeout=120) as client:
        call(client, "memory.set_many", namespace=namespace, items=batches[0])
        started = time.perf_counter()
        for items in batches[1:]:
            call(client, "memory.set_many", namespace=namespace, items=items)
        many = (BATCHES - 1) * BATCH / (time.perf_counter() - started)
    return {
        "writes_per_second": len(times) / taken,
        "write_p95_ms": percentile(times, 95),
        "set_many_per_second": many,
    }


def _print_one(size: int, spaces: int, result: dict[str, Any]) -> None:
    latency, built = result["latency"], sum(result["build_seconds"].values())
    print(
        f"{size:,} in {spaces:,}: p50 {latency['p50_ms']:.1f} ms, p95 {latency['p95_ms']:.1f} ms, "
        f"recall {min(result['recall'].values()):.3f} at least, built in {built:.0f} s", flush=True,
    )  # fmt: skip


def _print(found: dict[str, dict[str, Any]]) -> None:
    print_table(
        "Scale: hybrid search, one client",
        ["memories", "namespaces", "p50 ms", "p95 ms", *("all", *TAGS), "B/memory", "build s"],
        [
            [
                f"{one['size']:,}", one["namespaces"], one["latency"]["p50_ms"], one["latency"]["p95_ms"],
                *(one["recall"].get(name, "") for name in ("all", *TAGS)),
                one["bytes_in_all"], sum(one["build_seconds"].values()),
            ]
            for one in found.values()
        ],
    )  # fmt: skip
    for one in found.values():
        if "writes_per_second" in one:
            print(
                f"beside {one['size']:,}: {one['writes_per_second']:.0f} single writes/s from {CLIENTS} "
                f"clients, {one['set_many_per_second']:.0f}/s by set_many"
            )


def _bars(found: dict[str, dict[str, Any]], sizes: list[int], spaces: list[int]) -> dict[str, bool]:
    bars: dict[str, bool] = {}
    for count in spaces:
        small, large = found[f"{min(sizes)}/{count}"], found[f"{max(sizes)}/{count}"]
        times = large["latency"]["p95_ms"] / small["latency"]["p95_ms"]
        name = (
            f"{count} namespaces: p95 at {max(sizes):,} <= {LATENCY_TIMES} x at {min(sizes):,} ({times:.2f})"
        )
        bars[name] = times <= LATENCY_TIMES
    worst = min(min(one["recall"].values()) for one in found.values())
    bars[f"filtered recall@{TOP_K} >= {RECALL} ({worst:.3f})"] = worst >= RECALL
    for one in found.values():
        if "writes_per_second" in one:
            single, many = one["writes_per_second"], one["set_many_per_second"]
            bars[f"single writes >= {SINGLE:.0f}/s from {CLIENTS} clients ({single:.0f})"] = single >= SINGLE
            bars[f"set_many >= {MANY:.0f}/s ({many:.0f})"] = many >= MANY
    return bars
