"""Celery tasks and job handlers: a few lines that call a service."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from facts import embedding_fill, index, screening
from governance.jobs import JobRun, job


@shared_task(name="facts.rescan")
def rescan() -> None:
    """Screen again what an older catalogue of patterns screened."""
    screening.rescan()


@job(index.FILL_JOB)
def fill(run: JobRun) -> dict[str, Any]:
    """Embed what could not be embedded when it was written."""
    return embedding_fill.embedding_fill(run)
