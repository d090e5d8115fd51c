"""The HNSW graph of an embedder's vectors, which is filled behind the writes.

A write stores its vectors outside the graph: to thread one into a graph of a million costs more than all the
rest of the write. A namespace small enough for the exact scan never needs a graph; of a larger one the worker
moves vectors in (`graft`), and until then a search scans them beside the graph. So no search misses what was
just written, and the graph holds nothing of the many small namespaces.

HNSW: Malkov & Yashunin 2018, "Efficient and robust approximate nearest neighbor search using Hierarchical
Navigable Small World graphs", as pgvector has it.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from django.db import connection, transaction

from memories.embedders import EmbedderUnavailable, get_embedder
from memories.search import EXACT_LIMIT
from memories.search_sql import literal

MAX_DIM = 4_000
"""The longest halfvec that pgvector indexes; longer vectors are scanned."""

BATCH = 500
DEFAULT = "wordllama-l2-supercat-256-centred-30"


def index_name(embedder: str, dim: int) -> str:
    """What the graph of this embedder is called."""
    if embedder == DEFAULT:
        return "embedding_wordllama"
    return f"embedding_{hashlib.sha256(f'{embedder}/{dim}'.encode()).hexdigest()[:12]}"


def has_index(embedder: str, dim: int) -> bool:
    """Whether the graph is there and whole."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(%s)",
            [index_name(embedder, dim)],
        )
        row = cursor.fetchone()
    return bool(row and row[0])


def make_index(embedder: str, dim: int) -> bool:
    """Build the graph without stopping writes; False when it is there, or when vectors are too long for one.

    Must not be called within a transaction. What an interrupted build left behind is built anew.
    """
    if not 0 < dim <= MAX_DIM or has_index(embedder, dim):
        return False
    name = index_name(embedder, dim)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [name])
        if not cursor.fetchone()[0]:
            return False
        try:
            # A build may take longer than any statement of a request may.
            cursor.execute("SET statement_timeout = 0")
            cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            cursor.execute(
                f"CREATE INDEX CONCURRENTLY {name} ON memories_embedding "
                f"USING hnsw ((vector::halfvec({int(dim)})) halfvec_cosine_ops) "
                f"WHERE in_graph AND dim = {int(dim)} AND embedder = {literal(embedder).replace('%%', '%')}"
            )
        finally:
            cursor.execute("RESET statement_timeout")
            cursor.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])
    return True


def drop_indexes_but(embedder: str, dim: int) -> None:
    """Drop the graphs of other embedders; the default's stays, for migrations know it by name."""
    kept = [index_name(embedder, dim), index_name(DEFAULT, 256)]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = 'memories_embedding'::regclass "
            "AND a.amname = 'hnsw' AND c.relname <> ALL(%s)",
            [kept],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP INDEX CONCURRENTLY "{name}"')


def build_and_graft(seconds: float) -> int:
    """What the worker does now and then: a graph for the serving embedder, once one is needed, and `graft`.

    Must not be called within a transaction.
    """
    try:
        embedder, dim = get_embedder().name, get_embedder().dim
    except EmbedderUnavailable:
        return 0
    if large_namespaces() and not has_index(embedder, dim):
        # Rows first: one build over all of them is many times faster than threading each in.
        moved = graft(seconds, embedder, dim)
        if moved == 0:
            make_index(embedder, dim)
        return moved
    return graft(seconds, embedder, dim)


def graft(seconds: float, embedder: str = "", dim: int = 0) -> int:
    """Move vectors of large namespaces into the graph, for at most about so many seconds; how many.

    Without a name: those of the embedder that serves. Safe beside itself and beside writes.
    """
    if not embedder:
        try:
            embedder, dim = get_embedder().name, get_embedder().dim
        except EmbedderUnavailable:
            return 0
    if not 0 < dim <= MAX_DIM:
        return 0
    until = time.monotonic() + seconds
    moved = 0
    for namespace in large_namespaces():
        while time.monotonic() < until:
            with transaction.atomic(), connection.cursor() as cursor:
                count = _move(cursor, namespace, embedder, dim)
            moved += count
            if count == 0:
                break
    return moved


def large_namespaces() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT namespace_id FROM memories_corpusstripe GROUP BY namespace_id HAVING sum(docs) > %s "
            "ORDER BY namespace_id",
            [EXACT_LIMIT],
        )
        return [row[0] for row in cursor.fetchall()]


def _move(cursor: Any, namespace: int, embedder: str, dim: int) -> int:
    cursor.execute(
        """UPDATE memories_embedding e SET in_graph = true FROM (
             SELECT memory_id, chunk FROM memories_embedding
             WHERE namespace_id = %s AND NOT in_graph AND embedder = %s AND dim = %s
             LIMIT %s FOR UPDATE SKIP LOCKED) tail
           WHERE e.memory_id = tail.memory_id AND e.embedder = %s AND e.chunk = tail.chunk""",
        [namespace, embedder, dim, BATCH, embedder],
    )
    return int(cursor.rowcount)
