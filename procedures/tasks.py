"""Job handlers and periodic tasks: a few lines that call a service."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.db import transaction

from governance.jobs import JobRun, job
from procedures import evolving, services


@job(services.EMBED_JOB)
def embed(run: JobRun) -> dict[str, Any]:
    """Embed a situation that could not be embedded when it was written."""
    with transaction.atomic():
        return {"filled": services.situation_fill(int(run.input["procedure_id"]))}


@job(services.EVOLVE_JOB)
def evolve(run: JobRun) -> dict[str, Any]:
    """Fold a procedure's runs and act on them, for whoever asked."""
    request = evolving.Request(
        int(run.input["procedure_id"]), run.input.get("given", {}), bool(run.input.get("dry_run"))
    )
    return {**evolving.evolve(evolving.context_of(run), request, run), "job_id": str(run.id)}


@shared_task(name="procedures.evolve_due", expires=60, soft_time_limit=120, time_limit=150)
def evolve_due() -> None:
    """Queue an evolve for procedures whose runs have paused."""
    services.evolve_due()
