"""Job handlers: a few lines that call a service."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from governance.jobs import JobRun, job
from procedures import services


@job(services.EMBED_JOB)
def embed(run: JobRun) -> dict[str, Any]:
    """Embed a situation that could not be embedded when it was written."""
    with transaction.atomic():
        return {"filled": services.situation_fill(int(run.input["procedure_id"]))}
