"""The job that embeds memories whose embedding failed when they were written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction

from governance.jobs import JobRun, NotNow
from memories.embedders import Embedder, EmbedderUnavailable, get_embedder
from memories.services import embedding_text
from memories.vectors import Embedded, embed_texts, write_vectors

BATCH = 64
AGAIN_AFTER_S = 30.0


def embedding_fill(run: JobRun) -> dict[str, Any]:
    """Embed the job's memories in batches; what has changed or gone meanwhile is left alone.

    While the embedder is down the job waits, however long the outage lasts: no memory stays without a vector
    for it. Safe to run again: a row whose content moved was embedded by that write, or has a job of its own.
    """
    try:
        return _fill(run)
    except EmbedderUnavailable as error:
        raise NotNow(f"EmbedderUnavailable: {error}", AGAIN_AFTER_S) from error


def _fill(run: JobRun) -> dict[str, Any]:
    ids = [int(id_) for id_ in run.input["memory_ids"]]
    filled = 0
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        filled += embed_memories(batch, get_embedder())
        run.progress(min(1.0, (start + len(batch)) / len(ids)))
    return {"filled": filled, "asked": len(ids)}


def embed_memories(ids: Sequence[int], embedder: Embedder) -> int:
    """Embed those of these memories that have no vector of their present content; how many were stored.

    Raises EmbedderUnavailable.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, m.namespace_id, m.memory_key, m.value, m.content_sha256 FROM memories_memory m "
            "WHERE m.id = ANY(%s) AND m.status <> 'redacted' AND NOT EXISTS (SELECT FROM "
            "memories_embedding e WHERE e.memory_id = m.id AND e.embedder = %s "
            "AND e.content_sha256 = m.content_sha256) "
            "ORDER BY m.id",
            [list(ids), embedder.name],
        )
        rows = cursor.fetchall()
    if not rows:
        return 0
    texts = [embedding_text(key, json.loads(value)) for _, _, key, value, _ in rows]
    made = embed_texts(texts, embedder)
    with transaction.atomic(), connection.cursor() as cursor:
        # Rows are locked against a write that would make the vector stale between look and store.
        cursor.execute(
            "SELECT id, content_sha256 FROM memories_memory WHERE id = ANY(%s) AND status <> 'redacted' "
            "ORDER BY id FOR SHARE",
            [[row[0] for row in rows]],
        )
        present = dict(cursor.fetchall())
        fresh = [
            Embedded(id_, namespace_id, sha, made[text])
            for (id_, namespace_id, _, _, sha), text in zip(rows, texts, strict=True)
            if present.get(id_) == sha and made[text]
        ]
        write_vectors(cursor, embedder.name, fresh)
    return len(fresh)
