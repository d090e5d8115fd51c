"""Jobs without a worker: the row's states, who owns it, and a broker that is down."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from pytest_django import Settings

from governance import jobs
from governance.models import Job, WorkerBeat
from governance.services import job_create, system_context, worker_forget, worker_heartbeat
from loomsite import celery as worker
from memories import services as memories
from memories import vectors
from memories.embedders import EmbedderUnavailable
from tests.conftest import Cast
from tests.governance.brokers import use_broker
from tests.governance.conftest import at_once

real_commits = pytest.mark.django_db(transaction=True)
SENT: list[tuple[int, float]] = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids that would have gone to the queue; nothing is really sent."""
    ids: list[int] = []
    monkeypatch.setattr(jobs, "send", lambda job_id, delay_s=0.0: ids.append(job_id))
    return ids


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A kind of job that notes its attempts, and fails where `input.fails` says so."""
    attempts: list[int] = []

    def handler(run: jobs.JobRun) -> dict[str, Any]:
        attempts.append(run.attempt)
        if run.attempt <= run.input.get("fails", 0):
            raise RuntimeError(f"attempt {run.attempt} fails")
        return {"attempt": run.attempt}

    monkeypatch.setitem(jobs._HANDLERS, "test.note", handler)
    yield attempts


def make(cast: Cast, **fields: Any) -> Job:
    given: dict[str, Any] = {"kind": "test.note", "org": cast.org, "namespace": cast.team, **fields}
    return Job.objects.create(**given)


def silent(job: Job, seconds: float) -> None:
    """The job's worker was last heard from so long ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_job SET state = 'running', attempts = attempts + 1, lease = %s, "
            "heartbeat_at = clock_timestamp() - make_interval(secs => %s) WHERE id = %s",
            [uuid.uuid4(), seconds, job.pk],
        )


# One attempt


def test_a_job_runs_and_keeps_its_result(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast)
    assert jobs.run(job.pk) == "done"
    job.refresh_from_db()
    assert (job.state, job.result, job.progress, job.attempts) == ("done", {"attempt": 1}, 1.0, 1)
    assert job.finished_at is not None and job.lease is None
    assert cast.run("job.get", {"job_id": str(job.pk)})["result"] == {"attempt": 1}


def test_a_redelivered_job_does_not_run_again(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast)
    assert [jobs.run(job.pk) for _ in range(3)] == ["done", "not_mine", "not_mine"]
    assert ran == [1]


@real_commits
def test_of_many_deliveries_at_once_one_runs(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast)
    assert sorted(at_once(6, lambda i: jobs.run(job.pk))) == ["done"] + ["not_mine"] * 5
    assert ran == [1]


def test_a_job_that_is_not_there_is_nobodys(db: None) -> None:
    assert jobs.run(999_999_999) == "not_mine"


def test_a_failed_attempt_waits_and_is_tried_again(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast, input={"fails": 1})
    assert jobs.run(job.pk) == "queued"
    job.refresh_from_db()
    assert job.error == "RuntimeError: attempt 1 fails" and job.finished_at is None
    assert sent == [job.pk]
    assert jobs.run(job.pk) == "not_mine"  # its pause is not over
    _due(job)
    assert jobs.run(job.pk) == "done"
    assert ran == [1, 2]
    job.refresh_from_db()
    assert job.error == ""


def _due(job: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_job SET run_after = clock_timestamp() WHERE id = %s", [job.pk])


def test_a_job_that_always_fails_ends_as_failed_with_its_error(
    cast: Cast, ran: list[int], sent: list[int]
) -> None:
    job = make(cast, input={"fails": 99}, max_attempts=3)
    states = []
    for _ in range(4):
        states.append(jobs.run(job.pk))
        if states[-1] == "queued":
            _due(job)
    assert states == ["queued", "queued", "failed", "not_mine"]
    assert ran == [1, 2, 3]
    found = cast.run("job.get", {"job_id": str(job.pk)})
    assert (found["state"], found["error"]) == ("failed", "RuntimeError: attempt 3 fails")


def test_a_job_of_an_unknown_kind_fails_at_once(cast: Cast, sent: list[int]) -> None:
    job = make(cast, kind="no.such.kind")
    assert jobs.run(job.pk) == "failed"
    job.refresh_from_db()
    assert "no.such.kind" in job.error


# Silent workers


def test_a_job_of_a_living_worker_is_left_alone(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast)
    silent(job, 5)
    assert jobs.run(job.pk) == "not_mine" and jobs.sweep() == []
    assert ran == []


def test_the_job_of_a_silent_worker_is_taken_over(
    cast: Cast, ran: list[int], sent: list[int], settings: Settings
) -> None:
    job = make(cast)
    silent(job, settings.LOOM_JOB_STALE_S + 1)
    assert jobs.sweep() == [job.pk] == sent
    assert jobs.run(job.pk) == "done"
    assert ran == [2]


def test_a_job_whose_workers_all_died_ends_as_failed(cast: Cast, ran: list[int], sent: list[int]) -> None:
    job = make(cast, max_attempts=2)
    for _ in range(2):
        silent(job, 10_000)
    assert jobs.run(job.pk) == "failed"
    assert ran == []
    job.refresh_from_db()
    assert "died" in job.error and job.finished_at is not None


def test_a_worker_that_was_given_up_can_neither_beat_nor_finish(
    cast: Cast, ran: list[int], sent: list[int], settings: Settings
) -> None:
    job = make(cast)
    lost = jobs.claim(job.pk)
    assert lost is not None and lost.progress(0.3) is True
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_job SET heartbeat_at = clock_timestamp() - make_interval(secs => %s)",
            [settings.LOOM_JOB_STALE_S + 1],
        )
    assert jobs.run(job.pk) == "done"
    assert lost.progress(0.5) is False
    assert jobs._finish(lost, "failed", None, "late", 0.0) == "not_mine"
    job.refresh_from_db()
    assert (job.state, job.result, job.error) == ("done", {"attempt": 2}, "")


@real_commits
def test_a_job_beats_while_one_step_of_it_takes_long(
    cast: Cast, sent: list[int], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOOM_JOB_STALE_S = 0.4
    waiting = threading.Event()

    def handler(run: jobs.JobRun) -> dict[str, Any]:
        first = Job.objects.get(pk=run.id).heartbeat_at
        assert first is not None
        for _ in range(400):
            beat = Job.objects.get(pk=run.id).heartbeat_at
            if beat is not None and beat > first:
                return {"beaten": True}
            waiting.wait(0.02)
        return {"beaten": False}

    monkeypatch.setitem(jobs._HANDLERS, "test.note", handler)
    job = make(cast)
    assert jobs.run(job.pk) == "done"
    job.refresh_from_db()
    assert job.result == {"beaten": True}


def test_a_beat_that_the_database_refuses_does_not_end_the_beats(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = jobs.claim(make(cast).pk)
    assert run is not None

    class Broken:
        def cursor(self) -> None:
            raise OperationalError("the server restarts")

        def close(self) -> None:
            pass

    monkeypatch.setattr(jobs, "connection", Broken())
    jobs._beat(run)
    assert "could not beat" in caplog.text


# The sweep


def test_the_sweep_sends_what_the_queue_lost_and_nothing_else(
    cast: Cast, sent: list[int], settings: Settings
) -> None:
    lost, fresh, later, done = (make(cast) for _ in range(4))
    with connection.cursor() as cursor:
        ago = [settings.LOOM_SWEEP_S + 1]
        for job in (lost, done):
            cursor.execute(
                "UPDATE governance_job SET enqueued_at = clock_timestamp() - make_interval(secs => %s), "
                "run_after = clock_timestamp() - make_interval(secs => %s) WHERE id = %s",
                [*ago, *ago, job.pk],
            )
        cursor.execute("UPDATE governance_job SET enqueued_at = clock_timestamp() WHERE id = %s", [fresh.pk])
        cursor.execute(
            "UPDATE governance_job SET run_after = clock_timestamp() + interval '1 hour' WHERE id = %s",
            [later.pk],
        )
        cursor.execute("UPDATE governance_job SET state = 'done' WHERE id = %s", [done.pk])
    assert jobs.sweep() == [lost.pk] == sent
    assert jobs.sweep() == []  # it was sent a moment ago


@real_commits
def test_two_sweeps_at_once_send_each_job_once(cast: Cast, sent: list[int], settings: Settings) -> None:
    made = [make(cast).pk for _ in range(40)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_job SET run_after = clock_timestamp() - interval '1 hour'")
    found = at_once(4, lambda i: jobs.sweep())
    assert sorted(job_id for ids in found for job_id in ids) == made == sorted(sent)


def test_beats_of_workers_long_gone_are_dropped(db: None) -> None:
    worker_heartbeat()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO governance_workerbeat VALUES ('old', clock_timestamp() - interval '25 hours')"
        )
    assert worker_forget() == 1
    assert WorkerBeat.objects.count() == 1


# Sending


@real_commits
def test_a_job_is_sent_after_the_commit_and_never_for_what_rolled_back(cast: Cast, sent: list[int]) -> None:
    ctx = system_context(org=cast.org, namespace=cast.team, op_name="test")
    with transaction.atomic():
        job_id = job_create(ctx=ctx, kind="test.note", input={"a": 1})
        assert sent == []
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        job_create(ctx=ctx, kind="test.note", input={})
        raise ZeroDivisionError
    assert sent == [job_id]
    assert Job.objects.get().input == {"a": 1}


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_broker_rests_until", 0.0)


@pytest.fixture
def dead_broker(rested: None) -> Iterator[None]:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with use_broker(f"redis://127.0.0.1:{port}/0"):
        yield


@pytest.fixture
def mute_broker(rested: None) -> Iterator[None]:
    """An address where connections are taken and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with use_broker(f"redis://127.0.0.1:{listener.getsockname()[1]}/0"):
            yield


@pytest.mark.parametrize("broker", ["dead_broker", "mute_broker"])
def test_a_send_without_a_broker_fails_fast_and_leaves_the_job_to_the_sweep(
    broker: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    request.getfixturevalue(broker)
    began = time.monotonic()
    assert jobs.send(1) is False
    assert time.monotonic() - began < 1.5  # 0.3 s, and a busy machine's share; a socket's timeout is 3 s
    assert "stays for the sweep" in caplog.text
    # The broker is left alone for a while: the next caller does not wait at all.
    caplog.clear()
    assert jobs.send(2) is False
    assert caplog.records == []


@real_commits
def test_a_write_whose_embedding_failed_is_answered_though_the_broker_is_down(
    cast: Cast, dead_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        name = "down"

        def embed(self, texts: list[str]) -> Any:
            raise EmbedderUnavailable("down")

    monkeypatch.setattr(vectors, "get_embedder", Down)
    reply = cast.call("memory.set", {"memory_key": "k", "value": "a text"})
    assert reply["degraded"] == ["embedding"]
    job = Job.objects.get()
    assert (job.state, job.kind) == ("queued", memories.FILL_JOB)
    assert job.input == {"memory_ids": [int(reply["memory_id"])]}
    assert cast.call("memory.get", {"memory_key": "k"})["value"] == "a text"


# What the worker's process sets up


def test_the_worker_tries_once_to_send_and_runs_what_it_took(db: None) -> None:
    options = worker.app.conf.broker_transport_options
    assert options["max_retries"] == 0
    assert worker.app.conf.task_acks_late is True and worker.app.conf.worker_prefetch_multiplier == 1
    for name, task in worker.app.tasks.items():
        if name.startswith(("governance.", "memories.")):
            assert task.ignore_result is True, name


def test_every_periodic_task_exists(settings: Settings) -> None:
    worker.app.loader.import_default_modules()
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert entry["task"] in worker.app.tasks


def test_a_worker_beats_from_its_main_process_at_most_every_five_seconds(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    now = [100.0]
    monkeypatch.setattr("governance.services.worker_heartbeat", lambda: beats.append(now[0]))
    monkeypatch.setattr("django.db.connection.close", lambda: None)
    monkeypatch.setattr(worker, "_beaten_at", float("-inf"))
    monkeypatch.setattr("loomsite.celery.time.monotonic", lambda: now[0])
    for _ in range(12):
        worker._beat()
        now[0] += 1
    assert beats == [100.0, 105.0, 110.0]


def test_a_job_shows_nothing_of_its_input(cast: Cast) -> None:
    job = make(cast, input={"memory_ids": [1]})
    reply = cast.run("job.get", {"job_id": str(job.pk)})
    assert "memory_ids" not in json.dumps(reply.body)
