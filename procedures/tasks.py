"""Job handlers and periodic tasks: a few lines that call a service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery import shared_task
from django.db import transaction

from governance.jobs import JobRun, job
from governance.models import Namespace
from governance.services import system_context
from loomsite.ops import Context, not_found
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
    return {**evolving.evolve(_context(run), request, run), "job_id": str(run.id)}


def _context(run: JobRun) -> Context:
    """The context of whoever queued the job."""
    namespace = Namespace.objects.select_related("org").filter(pk=run.namespace_id or 0).first()
    if namespace is None:
        raise not_found("the job's namespace is not there any more")
    asked = run.input
    ctx = system_context(
        org=namespace.org,
        namespace=namespace,
        op_name=services.EVOLVE_JOB,
        principal=asked.get("principal", "system"),
    )
    ctx.caller = replace(ctx.caller, token_prefix=asked.get("token_prefix", ""))
    ctx.agent, ctx.user_id = asked.get("agent"), asked.get("user_id")
    ctx.session_id, ctx.run_id = asked.get("session_id"), asked.get("run_id", "")
    ctx.reason = asked.get("reason", "")
    ctx.request_id = asked.get("request_id") or ctx.request_id
    return ctx


@shared_task(name="procedures.evolve_due", expires=60, soft_time_limit=120, time_limit=150)
def evolve_due() -> None:
    """Queue an evolve for procedures whose runs have paused."""
    services.evolve_due()
