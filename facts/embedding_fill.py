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
from memories.embedders import EmbedderUnavailable, get_embedder, is_zero

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
    embedder, filled = get_embedder(), 0
    facts = selectors.fetch(
        "v.id = ANY(%s) AND l.status = 'active' AND NOT EXISTS "
        "(SELECT FROM facts_factembedding e WHERE e.version_id = v.id)",
        [list(ids)],
    )
    texts = [index.text_of(fact.subject, fact.attribute, fact.value) for fact in facts]
    vectors: Sequence[Any] = list(embedder.embed(texts)) if texts else []
    with connection.cursor() as cursor:
        for fact, vector in zip(facts, vectors, strict=True):
            if is_zero(vector):
                continue
            cursor.execute(
                "INSERT INTO facts_factembedding (version_id, namespace_id, embedder, dim, vector) "
                "SELECT v.id, v.namespace_id, %s, %s, %s::halfvec FROM facts_version v WHERE v.id = %s "
                "ON CONFLICT DO NOTHING",
                [embedder.name, len(vector), HalfVector(vector).to_text(), fact.id],
            )
            filled += 1
    return {"filled": filled, "asked": len(ids)}
