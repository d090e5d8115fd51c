"""Celery tasks: three lines each that call a service.

`expires` keeps what beat sends while no worker listens from piling up. A job's limit is for a handler
that hangs: its attempt fails and is tried again.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from governance import audit, erasure, jobs, plans, services
from governance.jobs import JobRun, job

JOB_LIMIT_S = 3600


@shared_task(name="governance.run_job", soft_time_limit=JOB_LIMIT_S, time_limit=JOB_LIMIT_S + 60)
def run_job(job_id: int) -> None:
    """Run one attempt of a job."""
    jobs.run(job_id)


@shared_task(name="governance.sweep", expires=60, soft_time_limit=120, time_limit=150)
def sweep() -> None:
    """Send lost jobs again, drop what is past its time, and note the audit's heads."""
    jobs.sweep()
    jobs.forget_finished()
    services.idempotency_sweep()
    services.worker_forget()
    audit.keep_heads()


@shared_task(name="governance.expire_plans", expires=60, soft_time_limit=120, time_limit=150)
def expire_plans() -> None:
    """Close what nobody decided in time."""
    plans.plans_expire()


@shared_task(name="governance.heartbeat", expires=10, soft_time_limit=30, time_limit=40)
def heartbeat() -> None:
    """Prove that a message goes from beat through the broker to a worker."""
    services.worker_heartbeat()


@job(erasure.JOB)
def erase(run: JobRun) -> dict[str, Any]:
    """Erase what a request asks for."""
    return erasure.erasure_run(run)
