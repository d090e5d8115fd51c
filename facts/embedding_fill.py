"""The job that embeds fact versions whose embedding failed when they were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction
from pgvector import HalfVector

from facts import index, selectors
from governance.jobs import JobRun
from governance.models import Namespace
from governance.services import job_create, system_context
from memories.embedders import Embedder, EmbedderUnavailable, get_embedder, is_zero
from memories.reembed import count

AGAIN_AFTER_S = 300.0


def embedding_fill(run: JobRun) -> dict[str, Any]:
    """Embed the job's versions; safe to run again, for a version never changes its text.

    Raises EmbedderUnavailable when the embedder is still down; the job is then tried again later, and its
    last attempt leaves a job to go on.
    """
    try:
        return _fill([int(id_) for id_ in run.input["version_ids"]])
    except EmbedderUnavailable:
        if run.attempt >= run.max_attempts:
            namespace = Namespace.objects.select_related("org").get(pk=run.namespace_id or 0)
            ctx = system_context(org=namespace.org, namespace=namespace, op_name=index.FILL_JOB)
            with transaction.atomic():
                job_create(ctx=ctx, kind=index.FILL_JOB, input=run.input, delay_s=AGAIN_AFTER_S)
        raise


def _fill(ids: Sequence[int]) -> dict[str, Any]:
    return {"filled": embed_versions(ids, get_embedder()), "asked": len(ids)}


def embed_versions(ids: Sequence[int], embedder: Embedder) -> int:
    """Embed those of these versions that have no vector of this embedder; how many were stored.

    Raises EmbedderUnavailable.
    """
    filled = 0
    facts = selectors.fetch(
        "v.id = ANY(%s) AND l.status = 'active' AND NOT EXISTS (SELECT FROM facts_factembedding e "
        "WHERE e.version_id = v.id AND e.embedder = %s)",
        [list(ids), embedder.name],
    )
    texts = [index.text_of(fact.subject, fact.attribute, fact.value) for fact in facts]
    vectors: Sequence[Any] = list(embedder.embed(texts)) if texts else []
    with connection.cursor() as cursor:
        for fact, vector in zip(facts, vectors, strict=True):
            if is_zero(vector):
                continue
            cursor.execute(
                "INSERT INTO facts_factembedding (version_id, namespace_id, embedder, dim, vector) "
                "SELECT v.id, v.namespace_id, %s, %s, %s::halfvec FROM facts_version v "
                # An erasure that came between the look and the store is waited for, and then seen.
                "JOIN facts_lineage l ON l.id = v.lineage_id WHERE v.id = %s AND l.status = 'active' "
                "FOR SHARE OF l "
                "ON CONFLICT DO NOTHING",
                [embedder.name, len(vector), HalfVector(vector).to_text(), fact.id],
            )
            filled += 1
    return filled


class FactVectors:
    """The vectors of fact versions, for `memories.reembed`."""

    name = "facts"
    # What was erased has no words to embed.
    _LACKING = """FROM facts_version v JOIN facts_lineage l ON l.id = v.lineage_id
      WHERE l.status = 'active' AND NOT EXISTS (
        SELECT FROM facts_factembedding e WHERE e.version_id = v.id AND e.embedder = %s)"""

    def left(self, embedder: str) -> int:
        """See `Source.left`."""
        return count(f"SELECT count(*) {self._LACKING}", [embedder])

    def step(self, embedder: Embedder, after: int, limit: int) -> tuple[int | None, int]:
        """See `Source.step`."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT v.id {self._LACKING} AND v.id > %s ORDER BY v.id LIMIT %s",  # noqa: S608
                [embedder.name, after, limit],
            )
            ids = [row[0] for row in cursor.fetchall()]
        return (ids[-1], embed_versions(ids, embedder)) if ids else (None, 0)

    def prune(self, embedder: str, limit: int) -> int:
        """See `Source.prune`."""
        return count(
            """WITH gone AS (DELETE FROM facts_factembedding e USING (
                 SELECT version_id, embedder FROM facts_factembedding o WHERE embedder <> %s
                   AND EXISTS (SELECT FROM facts_factembedding c WHERE c.version_id = o.version_id
                               AND c.embedder = %s) LIMIT %s) o
               WHERE (e.version_id, e.embedder) = (o.version_id, o.embedder) RETURNING 1)
               SELECT count(*) FROM gone""",
            [embedder, embedder, limit],
        )
