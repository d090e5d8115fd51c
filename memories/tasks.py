"""Celery tasks and job handlers: a few lines that call a service."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from governance.jobs import JobRun, job
from memories import embedding_fill, graph, relock, screening, services


@shared_task(name="memories.expire_due")
def expire_due() -> None:
    """Apply what has fallen due."""
    services.expire_due()


@shared_task(name="memories.purge_due", soft_time_limit=600, time_limit=660)
def purge_due() -> None:
    """Blank old tombstones."""
    services.purge_due()


@shared_task(name="memories.rescan")
def rescan() -> None:
    """Screen again what an older catalogue of patterns screened."""
    screening.rescan()


@shared_task(name="memories.graft")
def graft() -> None:
    """Move what was written to large namespaces into the vector graph."""
    graph.build_and_graft(seconds=5.0)


@job(services.FILL_JOB)
def fill(run: JobRun) -> dict[str, Any]:
    """Embed what could not be embedded when it was written."""
    return embedding_fill.embedding_fill(run)


@job(relock.RELOCK_JOB)
def lock_again(run: JobRun) -> dict[str, Any]:
    """Lock again what was loosened for a while."""
    return relock.relock(run)
