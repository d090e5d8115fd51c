"""Job handlers: a few lines that call a service."""

from __future__ import annotations

from typing import Any

from facts import embedding_fill, index
from governance.jobs import JobRun, job


@job(index.FILL_JOB)
def fill(run: JobRun) -> dict[str, Any]:
    """Embed what could not be embedded when it was written."""
    return embedding_fill.embedding_fill(run)
