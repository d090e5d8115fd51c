"""Celery tasks: three lines each that call a service."""

from __future__ import annotations

from celery import shared_task

from governance import jobs, services


@shared_task(name="governance.run_job")  # type: ignore[untyped-decorator]
def run_job(job_id: int) -> None:
    """Run one attempt of a job."""
    jobs.run(job_id)


@shared_task(name="governance.sweep")  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Send lost jobs again and drop stored answers past their time."""
    jobs.sweep()
    services.idempotency_sweep()


@shared_task(name="governance.heartbeat")  # type: ignore[untyped-decorator]
def heartbeat() -> None:
    """Prove that a message goes from beat through the broker to a worker."""
    services.worker_heartbeat()
