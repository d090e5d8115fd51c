"""Workers that die in the middle of a job. A module of its own: no other worker may take what they left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pytest_django import Settings

from governance import jobs
from tests.conftest import Cast
from tests.governance.workers import (
    STALE_S,
    Notes,
    a_worker,
    create,
    done,
    kill,
    lose_everything,
    state,
    until,
)

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]


def test_a_worker_that_is_killed_in_the_middle_of_a_job_is_taken_over(
    cast: Cast, broker: str, notes: Notes, settings: Settings, tmp_path: Path
) -> None:
    settings.LOOM_JOB_STALE_S = STALE_S
    with a_worker(broker, "first", tmp_path / "first.log", concurrency=1) as first:
        job_id = create(cast, "test.wait", notes.input())
        until(lambda: notes.has("began"), "the job begins")
        kill(first)
    assert state(job_id) == "running"
    lose_everything()  # nor does the queue know of it any more
    with a_worker(broker, "second", tmp_path / "second.log", concurrency=1):
        notes.go.touch()
        until(lambda: jobs.sweep() == [job_id], "the sweep finds the silent job")
        job = done(job_id)
    assert job.attempts == 2 and job.result == {"attempt": 2}
    assert [(word, attempt) for word, attempt, _ in notes.lines] == [("began", 1), ("began", 2), ("ended", 2)]


def test_a_child_that_is_killed_in_the_middle_of_a_job_costs_an_attempt(
    cast: Cast, broker: str, notes: Notes, settings: Settings, tmp_path: Path
) -> None:
    settings.LOOM_JOB_STALE_S = STALE_S
    with a_worker(broker, "third", tmp_path / "third.log", concurrency=1) as process:
        job_id = create(cast, "test.wait", notes.input())
        until(lambda: notes.has("began"), "the job begins")
        child = notes.lines[0][2]
        assert child != process.pid
        os.kill(child, signal.SIGKILL)
        notes.go.touch()
        until(lambda: job_id in jobs.sweep() or state(job_id) == "done", "the sweep finds the silent job")
        assert done(job_id).attempts == 2
        assert process.poll() is None
