"""Workers that start late, die or are doubled: every run is folded exactly once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from governance import jobs
from governance.models import WorkerBeat
from procedures import services
from tests.conftest import Cast
from tests.governance.workers import STALE_S, a_worker, done, kill, lose_everything, until
from tests.memories.helpers import sql
from tests.procedures.evolving import assert_each_run_is_folded_once, folded, ledger
from tests.procedures.helpers import KEY, add

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]
BODY = {"memory_key": KEY, "wait_s": 25}


def test_a_worker_that_starts_late_folds_what_waits(cast: Cast, broker: str, tmp_path: Path) -> None:
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
    settings: Settings,
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
    soak_seconds: float,
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
