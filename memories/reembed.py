"""Embedding everything anew for another embedder, while the old vectors serve.

Each app that keeps vectors registers a `Source`. What is done is seen from the vectors themselves, so that a
run which was stopped goes on where it ended, and two at once do no harm. Vectors of the old embedder stay
until `prune`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from django.db import connection

from memories import embedding_fill, graph
from memories.embedders import Embedder

BATCH = 128
# Writes go on meanwhile; a pass looks for what came during the one before, and so many are enough.
PASSES = 5


class Source(Protocol):
    """Vectors of one kind."""

    @property
    def name(self) -> str:
        """What is embedded, in the plural."""

    def left(self, embedder: str) -> int:
        """How many rows have no vector of this embedder, those included that have nothing to embed."""

    def step(self, embedder: Embedder, after: int, limit: int) -> tuple[int | None, int]:
        """Embed up to `limit` rows that lack a vector and have an id above `after`.

        (The last id looked at, None at the end; rows stored.) Raises EmbedderUnavailable.
        """

    def prune(self, embedder: str, limit: int) -> int:
        """Delete up to about `limit` vectors of other embedders where this one has its own; how many."""


SOURCES: list[Source] = []


def register(source: Source) -> None:
    """Let `reembed` know a kind of vectors."""
    if not any(known.name == source.name for known in SOURCES):
        SOURCES.append(source)


Report = Callable[[str, int, int], None]
"""Called with the kind, the rows looked at so far and those there were to look at."""


def reembed(embedder: Embedder, report: Report) -> dict[str, int]:
    """Vectors of this embedder for every row that lacks one, and its graph; rows stored by kind.

    Raises EmbedderUnavailable; what was stored until then stays. Not to be called within a transaction.
    """
    with connection.cursor() as cursor:
        # What serves until now is whole; without this note its searches would miss nothing and say that they
        # do, as soon as vectors of the new one stand beside its own.
        cursor.execute(
            """INSERT INTO memories_reembedding (embedder) WITH RECURSIVE name (name) AS (
                 SELECT min(embedder) FROM memories_embedding UNION ALL
                 SELECT (SELECT min(embedder) FROM memories_embedding WHERE embedder > name.name) FROM name
                 WHERE name.name IS NOT NULL)
               SELECT name FROM name WHERE name IS NOT NULL AND name <> %s ON CONFLICT DO NOTHING""",
            [embedder.name],
        )
    stored = {source.name: _over(source, embedder, report) for source in SOURCES}
    # Before a graph is there, moving rows to it costs next to nothing, and it is then built at once.
    while graph.graft(3600.0, embedder.name, embedder.dim):
        pass
    if graph.large_namespaces():
        graph.make_index(embedder.name, embedder.dim)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO memories_reembedding (embedder) VALUES (%s) ON CONFLICT (embedder) "
            "DO UPDATE SET finished_at = clock_timestamp()",
            [embedder.name],
        )
    return stored


def _over(source: Source, embedder: Embedder, report: Report) -> int:
    stored = 0
    for _ in range(PASSES):
        total, seen, made = source.left(embedder.name), 0, 0
        after: int | None = 0
        while after is not None:
            report(source.name, min(seen, total), total)
            after, count = source.step(embedder, after, BATCH)
            seen += BATCH
            made += count
        report(source.name, total, total)
        stored += made
        if made == 0:
            break
    return stored


def prune(embedder: Embedder, limit: int = 2_000) -> dict[str, int]:
    """Delete what other embedders left where this one has its vectors, and their graphs; rows by kind."""
    gone = {source.name: 0 for source in SOURCES}
    for source in SOURCES:
        while count := source.prune(embedder.name, limit):
            gone[source.name] += count
    graph.drop_indexes_but(embedder.name, embedder.dim)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM memories_reembedding WHERE embedder <> %s", [embedder.name])
    return gone


def missing(embedder: str) -> dict[str, int]:
    """Rows by kind that have no vector of this embedder, those included that have nothing to embed."""
    return {source.name: source.left(embedder) for source in SOURCES}


class _Memories:
    name = "memories"
    _LACKING = """FROM memories_memory m WHERE m.status <> 'redacted' AND m.value IS NOT NULL
      AND NOT EXISTS (SELECT FROM memories_embedding e WHERE e.memory_id = m.id AND e.embedder = %s
                      AND e.content_sha256 = m.content_sha256)"""

    def left(self, embedder: str) -> int:
        return count(f"SELECT count(*) {self._LACKING}", [embedder])

    def step(self, embedder: Embedder, after: int, limit: int) -> tuple[int | None, int]:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT m.id {self._LACKING} AND m.id > %s ORDER BY m.id LIMIT %s",  # noqa: S608
                [embedder.name, after, limit],
            )
            ids = [row[0] for row in cursor.fetchall()]
        if not ids:
            return None, 0
        return ids[-1], embedding_fill.embed_memories(ids, embedder)

    def prune(self, embedder: str, limit: int) -> int:
        return count(
            """WITH gone AS (DELETE FROM memories_embedding e USING (
                 SELECT memory_id, embedder, chunk FROM memories_embedding o WHERE embedder <> %s
                   AND EXISTS (SELECT FROM memories_embedding c WHERE c.memory_id = o.memory_id
                               AND c.embedder = %s) LIMIT %s) o
               WHERE (e.memory_id, e.embedder, e.chunk) = (o.memory_id, o.embedder, o.chunk) RETURNING 1)
               SELECT count(*) FROM gone""",
            [embedder, embedder, limit],
        )


def count(sql: str, params: list[Any]) -> int:
    """The number that a statement answers."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.fetchone()[0])


register(_Memories())
