"""procedure.evolve with real workers on a real broker: every run is folded exactly once, whatever dies."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from governance import jobs
from governance.models import Job, WorkerBeat
from procedures import services
from procedures.folding import RevisionState
from tests.conftest import Cast
from tests.governance.conftest import broker, worker  # noqa: F401 - fixtures
from tests.governance.workers import STALE_S, a_worker, done, kill, lose_everything, until
from tests.memories.helpers import sql
from tests.procedures.helpers import KEY, add, record

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]
BODY = {"memory_key": KEY, "wait_s": 25}


def ledger(count: int) -> None:
    """So many further runs of the one procedure, stored at once; every seventh failed."""
    sql(
        """INSERT INTO procedures_run (procedure_id, namespace_id, seq, revision, principal, token_prefix, agent,
             user_id, session_id, path, ok, note, note_held, duration_ms, tokens, at)
           SELECT p.memory_id, p.namespace_id, p.runs_total + g, p.revision, 'mate', '', '-', '-',
             's' || g %% 3, '{s1,s2,s3}', g %% 7 <> 0, '', false, 0, 0, clock_timestamp()
           FROM procedures_procedure p, generate_series(1, %s) g""",
        [count],
    )
    sql(
        "UPDATE procedures_procedure p SET last_run_at = clock_timestamp(), "
        "runs_total = (SELECT count(*) FROM procedures_run), "
        "runs_ok = (SELECT count(*) FROM procedures_run WHERE ok)"
    )


def folded() -> int:
    ((count,),) = sql("SELECT runs_folded FROM procedures_procedure")
    return int(count)


def assert_each_run_is_folded_once(total: int) -> None:
    """Marks, the procedure's count and the counters agree, and hold every run."""
    assert folded() == total
    assert sql("SELECT count(*), count(folded_at) FROM procedures_run") == [(total, total)]
    ((ok,),) = sql("SELECT count(*) FROM procedures_run WHERE ok")
    states = [RevisionState.read(json.loads(c)) for (c,) in sql("SELECT counters FROM procedures_revision")]
    assert sum(state.tally.total for state in states) == total
    assert sum(state.tally.ok for state in states) == ok
    ((visits,),) = sql("SELECT count(*) FROM procedures_run, unnest(path) AS step WHERE step = 's2'")
    assert sum(state.tally.node("s2").total for state in states) == visits


def test_the_call_waits_for_the_worker_and_has_the_whole_answer(cast: Cast, worker: Path) -> None:  # noqa: F811
    add(cast)
    for outcome in (True, False, True):
        record(cast, ["s1", "s2", "s3"], outcome)
    reply = cast.call("procedure.evolve", BODY, HTTP_IDEMPOTENCY_KEY="k")
    assert (reply["state"], reply["folded_runs"], reply["gate"]) == ("done", 3, "none")
    again = cast.call("procedure.evolve", BODY, HTTP_IDEMPOTENCY_KEY="k")
    assert again.body == reply.body and Job.objects.filter(kind="procedure.evolve").count() == 1
    assert cast.call("job.get", {"job_id": reply["job_id"]})["result"] == reply.body
    assert_each_run_is_folded_once(3)


def test_a_message_that_is_delivered_again_folds_nothing_again(cast: Cast, worker: Path) -> None:  # noqa: F811
    add(cast)
    ledger(500)
    job_id = int(cast.call("procedure.evolve", BODY)["job_id"])
    assert jobs.send(job_id) and jobs.send(job_id)
    assert cast.call("procedure.evolve", BODY)["folded_runs"] == 0
    assert_each_run_is_folded_once(500)


def test_what_the_queue_lost_is_found_again_by_the_procedure_itself(
    cast: Cast,
    worker: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    settings.LOOM_EVOLVE_QUIET_S = 0
    add(cast)
    ledger(40)
    with monkeypatch.context() as lossy:
        lossy.setattr(jobs, "send", lambda job_id, delay_s=0.0: True)
        (job_id,) = services.evolve_due()
    lose_everything()
    # The job's row is lost too: what is unfolded is known all the same.
    Job.objects.filter(pk=job_id).delete()
    (again,) = services.evolve_due()
    done(again)
    assert_each_run_is_folded_once(40)


def test_a_worker_that_starts_late_folds_what_waits(cast: Cast, broker: str, tmp_path: Path) -> None:  # noqa: F811
    add(cast)
    ledger(60)
    WorkerBeat.objects.all().delete()
    reply = cast.call("procedure.evolve", BODY)
    assert (reply.status, reply.code) == (503, "NO_WORKER")
    with a_worker(broker, "late", tmp_path / "log"):
        done(int(reply.detail["job_id"]))
    assert_each_run_is_folded_once(60)


def test_a_killed_worker_leaves_whole_pieces_and_another_goes_on(
    cast: Cast,
    broker: str,
    tmp_path: Path,
    settings: Settings,  # noqa: F811
) -> None:
    settings.LOOM_JOB_STALE_S = STALE_S
    add(cast)
    total = 60_000
    ledger(total)
    with a_worker(broker, "first", tmp_path / "first") as first:
        job_id = int(cast.call("procedure.evolve", {**BODY, "wait_s": 0}).body["job_id"])
        until(lambda: folded() > 0, "the first piece is folded")
        kill(first)
    at_death = folded()
    assert 0 < at_death < total, "the kill came between"
    assert sql("SELECT count(folded_at) FROM procedures_run") == [(at_death,)]
    with a_worker(broker, "second", tmp_path / "second"):
        until(lambda: bool(jobs.sweep()), "the silent job is found", 30)
        job = done(job_id)
    assert job.attempts == 2 and job.result is not None and job.result["folded_runs"] == total
    assert_each_run_is_folded_once(total)


@pytest.mark.soak
def test_two_workers_kills_redeliveries_and_losses_fold_every_run_once(
    cast: Cast,
    broker: str,
    tmp_path: Path,
    settings: Settings,
    soak_seconds: float,  # noqa: F811
) -> None:
    settings.LOOM_JOB_STALE_S, settings.LOOM_EVOLVE_QUIET_S, settings.LOOM_SWEEP_S = STALE_S, 0, 1
    add(cast)
    stop = threading.Event()
    threading.Timer(soak_seconds, stop.set).start()

    def churn() -> Iterator[int]:
        for round_ in itertools.count():
            if stop.is_set():
                return
            yield round_

    for round_ in churn():
        with (
            a_worker(broker, f"a{round_}", tmp_path / "a") as one,
            a_worker(broker, f"b{round_}", tmp_path / "b"),
        ):
            ledger(30_000)
            ids = [int(_queued(cast)) for _ in range(3)]
            for job_id in ids:
                jobs.send(job_id)
            services.evolve_due()
            if round_ % 3 == 1:
                lose_everything()
            if round_ % 2:
                kill(one)
            until(lambda: _swept() and folded() == 30_000 * (round_ + 1), "all is folded", 120)  # noqa: B023
        assert_each_run_is_folded_once(30_000 * (round_ + 1))


def _queued(cast: Cast) -> Any:
    reply = cast.call("procedure.evolve", {**BODY, "wait_s": 0})
    return reply.detail["job_id"] if "detail" in reply.body else reply.body["job_id"]


def _swept() -> bool:
    jobs.sweep()
    return True
