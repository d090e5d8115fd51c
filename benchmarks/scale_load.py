"""`python -m benchmarks.scale_load`: many memories at once, by COPY, through the code that a write runs.

Terms, vectors, hashes and JSON are those of `memory.set`; only the pipeline, its audit rows and the row by
row INSERT are left out. Run by `benchmarks.scale` in the environment of a site of its own. Indexes that a
million rows would keep up to date one by one are dropped before and made anew afterwards.

Texts: turns of LoCoMo crossed with each other, if the folder of outside data is named, so that words recur
and vectors lie as those of real talk; else `benchmarks.corpus`. Seeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH = 2_000
TAGS = {"half": 0.5, "tenth": 0.1, "hundredth": 0.01, "thousandth": 0.001}


def texts(data: Path | None, count: int, seed: int) -> Iterator[str]:
    """`count` texts: the first half of one turn and the second half of another, or made-up ones."""
    source = random.Random(seed)
    if data is None:
        from benchmarks.corpus import Corpus

        corpus = Corpus(seed=seed)
        for _ in range(count):
            yield corpus.text()
        return
    from benchmarks.retrieval import turn_text

    conversations = json.loads((data / "locomo_dev.json").read_text())
    turns = [turn_text(turn).split() for one in conversations for turn in one["turns"]]
    turns = [turn for turn in turns if len(turn) > 3]
    for _ in range(count):
        first, second = source.choice(turns), source.choice(turns)
        yield " ".join((*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]))


def tags_of(source: random.Random) -> list[str]:
    """Each tag with its own probability."""
    return [tag for tag, share in TAGS.items() if source.random() < share]


def main() -> None:
    """Load, build the indexes, and print the seconds of each as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_load")
    parser.add_argument("count", type=int)
    parser.add_argument("namespaces", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    import django

    django.setup()
    print(json.dumps(load(arguments.count, arguments.namespaces, arguments.seed)))


def load(count: int, spaces: int, seed: int) -> dict[str, float]:
    """Seconds taken by rows and by indexes."""
    from django.db import connection

    from governance.models import Namespace, Org
    from memories import graph, search
    from memories.embedders import get_embedder

    org = Org.objects.order_by("id").first()
    assert org is not None  # noqa: S101 - the site has an owner
    ids = [
        Namespace.objects.get_or_create(org=org, slug=f"scale-{spaces}-{number}")[0].pk
        for number in range(spaces)
    ]
    data = os.environ.get("LOOM_SCALE_DATA")
    started = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET maintenance_work_mem = '1500MB'")
        definitions = _drop(cursor)
        source = random.Random(seed)
        batch: list[tuple[int, int, str, list[str]]] = []
        first = _first_id(cursor, count)
        for number, text in enumerate(texts(Path(data) if data else None, count, seed)):
            batch.append((first + number, ids[number % spaces], text, tags_of(source)))
            if len(batch) == BATCH:
                _store(cursor, batch)
                batch = []
        if batch:
            _store(cursor, batch)
        if count // spaces > search.EXACT_LIMIT:
            cursor.execute(
                "UPDATE memories_embedding SET in_graph = true WHERE namespace_id = ANY(%s)", [ids]
            )
        rows = time.perf_counter() - started
        started = time.perf_counter()
        for definition in definitions:
            if "hnsw" not in definition:
                cursor.execute(definition)
        plain = time.perf_counter() - started
        started = time.perf_counter()
        for definition in definitions:
            if "hnsw" in definition:
                cursor.execute(definition)
        built = time.perf_counter() - started
        cursor.execute("VACUUM (ANALYZE)")
    assert graph.has_index(get_embedder().name, get_embedder().dim)  # noqa: S101 - or nothing is measured
    return {"rows": rows, "indexes": plain, "graph": built}


def _drop(cursor: Any) -> list[str]:
    """Drop the secondary indexes of the search's tables; their definitions."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('memories_posting', "
        "'memories_embedding') AND indexname NOT LIKE '%%_pkey'"
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _, definition in found]


def _first_id(cursor: Any, count: int) -> int:
    cursor.execute("SELECT setval('loom_node_id', nextval('loom_node_id') + %s) - %s + 1", [count, count])
    return int(cursor.fetchone()[0])


def _store(cursor: Any, batch: list[tuple[int, int, str, list[str]]]) -> None:
    from memories.analysis import search_text, term_frequencies
    from memories.embedders import get_embedder
    from memories.services import STRIPES, content_sha256, embedding_text
    from memories.vectors import Embedded, embed_texts, write_vectors

    keys = {id_: f"note/{id_}" for id_, _, _, _ in batch}
    made = embed_texts([embedding_text(keys[id_], text) for id_, _, text, _ in batch])
    rows, versions, postings, vectors = [], [], [], []
    counted: dict[tuple[int, int], tuple[int, int]] = {}
    for id_, space, text, tags in batch:
        sha = content_sha256(text)
        terms, counts, length = term_frequencies(search_text(keys[id_], text, tags))
        rows.append((id_, space, keys[id_], json.dumps(text), sha, tags, length))
        versions.append((id_, json.dumps(text), sha, tags))
        postings += [(space, id_, t, n, length) for t, n in zip(terms, counts, strict=True)]
        vectors.append(Embedded(id_, space, sha, made[embedding_text(keys[id_], text)]))
        place = (space, id_ % STRIPES)
        docs, total = counted.get(place, (0, 0))
        counted[place] = (docs + 1, total + length)
    with cursor.copy(
        "COPY memories_memory (id, namespace_id, memory_key, value, content_sha256, tags, doc_len, agent, "
        "user_id, session_id, memory_type, metadata, pinned, pinned_by, on_expire, status, source_class, "
        "source_trace, governed, version, lock_mode, lock_reason, locked_by) FROM STDIN"
    ) as copy:
        for row in rows:
            copy.write_row(
                (*row, "-", "-", "-", "semantic", "{}", False, "", "tombstone", "active",
                 "local_tool_output", "", False, 1, "none", "", "")
            )  # fmt: skip
    with cursor.copy(
        "COPY memories_memoryversion (memory_id, value, content_sha256, tags, version, kind, status, "
        "memory_type, metadata, pinned, on_expire, source_class, source_trace, principal, token_prefix, "
        "agent, reason, request_id) FROM STDIN"
    ) as copy:
        for row in versions:
            copy.write_row(
                (*row, 1, "set", "active", "semantic", "{}", False, "tombstone", "local_tool_output", "",
                 "owner", "", "", "", "")
            )  # fmt: skip
    with cursor.copy(
        "COPY memories_posting (namespace_id, memory_id, term, tf, doc_len, active) FROM STDIN"
    ) as copy:
        for posting in postings:
            copy.write_row((*posting, True))
    write_vectors(cursor, get_embedder().name, vectors, replace=False)
    cursor.executemany(
        "INSERT INTO memories_corpusstripe AS s (namespace_id, stripe, docs, terms) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (namespace_id, stripe) DO UPDATE SET docs = s.docs + excluded.docs, "
        "terms = s.terms + excluded.terms",
        [(space, stripe, docs, total) for (space, stripe), (docs, total) in counted.items()],
    )


if __name__ == "__main__":
    main()
