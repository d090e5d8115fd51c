"""Starts real Celery workers on a real broker, and watches what their jobs do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.db import connection

from governance.models import Job
from governance.services import job_create, system_context
from loomsite.celery import app
from tests.conftest import Cast

ROOT = Path(__file__).resolve().parent.parent.parent
# The variable that holds each broker's address; the embedded one is always there.
BROKER_URLS = {
    "embedded": "LOOM_BROKER_URL",
    "redis": "LOOM_TEST_REDIS_URL",
    "rabbitmq": "LOOM_TEST_AMQP_URL",
}
BROKERS = [name for name, variable in BROKER_URLS.items() if name == "embedded" or os.environ.get(variable)]
STALE_S = 2


def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for something that another process does; bounded."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if true():
            return
        waiting.wait(0.05)
    raise AssertionError(f"never happened: {what}")


def lose_everything() -> None:
    """What a broker without a disk does when it dies."""
    with app.connection_for_write() as queue:
        channel = queue.default_channel
        if queue.transport.driver_type == "amqp":
            app.amqp.queues[app.conf.task_default_queue](channel).declare()
            channel.queue_purge(app.conf.task_default_queue)
        else:
            channel.client.flushdb()  # type: ignore[attr-defined]


@contextlib.contextmanager
def a_worker(broker: str, name: str, log: Path, concurrency: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process group of its own, ready to work; ended with all of its children."""
    database = os.environ["LOOM_DATABASE_URL"]
    mark = "&" if "?" in database else "?"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "loomsite.settings.test",
        "LOOM_DATABASE_URL": f"{database}{mark}dbname={connection.settings_dict['NAME']}",
        "LOOM_BROKER_URL": broker,
        "LOOM_JOB_STALE_S": str(STALE_S),
        "LOOM_WORKER_NAME": name,
    }
    command = [
        sys.executable, "-m", "celery", "-A", "loomsite", "worker", "-n", f"{name}@here", "-I",
        "tests.governance.worker_jobs", "--concurrency", str(concurrency), "--loglevel", "INFO",
        "--without-gossip", "--without-mingle",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        until(lambda: b" ready." in log.read_bytes() or process.poll() is not None, "the worker starts")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for the worker and its children; nobody says goodbye."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


class Notes:
    """What the handlers of a test noted, and the file that lets them go on."""

    def __init__(self, folder: Path) -> None:
        self.path, self.go = folder / "notes", folder / "go"

    @property
    def lines(self) -> list[tuple[str, int, int]]:
        """(word, attempt, process) each."""
        if not self.path.exists():
            return []
        return [
            (word, int(attempt), int(pid))
            for word, attempt, pid in (line.split() for line in self.path.read_text().splitlines())
        ]

    def has(self, word: str, times: int = 1) -> bool:
        """True once the word was noted so often."""
        return sum(noted == word for noted, _, _ in self.lines) >= times

    def input(self, **more: Any) -> dict[str, Any]:
        """The input of a job that notes here."""
        return {"notes": str(self.path), "go": str(self.go), **more}


def create(cast: Cast, kind: str, given: dict[str, Any]) -> int:
    """A job, sent after its commit like any other."""
    ctx = system_context(org=cast.org, namespace=cast.team, op_name="test")
    return job_create(ctx=ctx, kind=kind, input=given)


def state(job_id: int) -> str:
    return Job.objects.get(pk=job_id).state


def done(job_id: int) -> Job:
    until(lambda: state(job_id) in ("done", "failed"), f"job {job_id} ends")
    job = Job.objects.get(pk=job_id)
    assert job.state == "done", job.error
    return job
