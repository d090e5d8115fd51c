"""A real Celery worker on a real broker: what is sent runs, and runs once.

On the embedded Valkey, and on the servers that LOOM_TEST_REDIS_URL and LOOM_TEST_AMQP_URL name where
these are set.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from pytest_django import Settings

from governance import jobs
from governance.models import WorkerBeat
from governance.selectors import worker_seen
from loomsite.celery import app
from tests.conftest import Cast
from tests.governance.workers import Notes, create, done, lose_everything, state, until

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]


def test_a_job_that_is_sent_runs(cast: Cast, worker: Path, notes: Notes) -> None:
    notes.go.touch()
    job = done(create(cast, "test.wait", notes.input()))
    assert (job.attempts, job.result, job.progress) == (1, {"attempt": 1}, 1.0)
    assert [word for word, _, _ in notes.lines] == ["began", "ended"]


def test_a_job_that_is_delivered_three_times_runs_once(cast: Cast, worker: Path, notes: Notes) -> None:
    job_id = create(cast, "test.wait", notes.input())
    until(lambda: notes.has("began"), "the job begins")
    assert jobs.send(job_id) and jobs.send(job_id)
    # The other child takes both deliveries while the first still works; what follows them shows that.
    behind = Notes(notes.path.parent / "behind")
    behind.path.parent.mkdir()
    behind.go.touch()
    done(create(cast, "test.wait", behind.input()))
    notes.go.touch()
    done(job_id)
    assert [(word, attempt) for word, attempt, _ in notes.lines] == [("began", 1), ("ended", 1)]


def test_a_failed_attempt_is_tried_again_by_the_queue(cast: Cast, worker: Path, notes: Notes) -> None:
    job = done(create(cast, "test.fail", notes.input(until=2)))
    assert job.attempts == 2 and job.error == ""


def test_what_the_queue_lost_is_found_by_the_sweep(
    cast: Cast, worker: Path, notes: Notes, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes.go.touch()
    with monkeypatch.context() as lossy:
        lossy.setattr(jobs, "send", lambda job_id, delay_s=0.0: True)
        job_id = create(cast, "test.wait", notes.input())
    lose_everything()
    assert state(job_id) == "queued" and notes.lines == []
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_job SET enqueued_at = clock_timestamp() - interval '1 hour', "
                       "run_after = clock_timestamp() - interval '1 hour'")  # fmt: skip
    assert jobs.sweep() == [job_id]
    done(job_id)
    assert notes.has("ended")


def test_children_share_no_connection_and_have_no_pool(cast: Cast, worker: Path, notes: Notes) -> None:
    ids = [create(cast, "test.connection", notes.input()) for _ in range(2)]
    until(lambda: notes.has("began", times=2), "both run at once")
    notes.go.touch()
    results = [done(job_id).result for job_id in ids]
    assert all(result is not None and result["pooled"] is False for result in results)
    assert len({result["pid"] for result in results if result}) == 2
    assert len({result["process"] for result in results if result}) == 2


def test_the_worker_beats_while_all_its_children_are_busy(cast: Cast, worker: Path, notes: Notes) -> None:
    ids = [create(cast, "test.wait", notes.input()) for _ in range(2)]
    until(lambda: notes.has("began", times=2), "both children are busy")
    WorkerBeat.objects.all().delete()
    until(WorkerBeat.objects.exists, "the main process beats")
    assert worker_seen()["alive"] is True
    notes.go.touch()
    for job_id in ids:
        done(job_id)


def test_the_periodic_tasks_run_in_a_worker(cast: Cast, worker: Path, settings: Settings) -> None:
    WorkerBeat.objects.all().delete()
    names = [entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()]
    for name in names:
        app.send_task(name, retry=False)
    for name in names:
        until(
            lambda name=name: any(name in line and "succeeded" in line for line in _log(worker)),  # type: ignore[misc]
            f"{name} succeeds",
        )


def _log(worker: Path) -> list[str]:
    return worker.read_text().splitlines()
