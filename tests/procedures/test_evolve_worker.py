"""procedure.evolve with real workers on a real broker: every run is folded exactly once, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from governance import jobs
from governance.models import Job
from governance.selectors import worker_seen
from procedures import services
from tests.conftest import Cast
from tests.governance.workers import done, lose_everything, until
from tests.procedures.evolving import assert_each_run_is_folded_once, ledger
from tests.procedures.helpers import KEY, add, record

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]
BODY = {"memory_key": KEY, "wait_s": 25}


@pytest.fixture
def at_work(cast: Cast, worker: Path) -> None:
    """The worker has been heard from since the tables were emptied."""
    until(lambda: bool(worker_seen()["alive"]), "the worker beats")


def test_the_call_waits_for_the_worker_and_has_the_whole_answer(cast: Cast, at_work: None) -> None:
    add(cast)
    for outcome in (True, False, True):
        record(cast, ["s1", "s2", "s3"], outcome)
    reply = cast.call("procedure.evolve", BODY, HTTP_IDEMPOTENCY_KEY="k")
    assert (reply["state"], reply["folded_runs"], reply["gate"]) == ("done", 3, "none")
    again = cast.call("procedure.evolve", BODY, HTTP_IDEMPOTENCY_KEY="k")
    assert again.body == reply.body and Job.objects.filter(kind="procedure.evolve").count() == 1
    assert cast.call("job.get", {"job_id": reply["job_id"]})["result"] == reply.body
    assert_each_run_is_folded_once(3)


def test_a_message_that_is_delivered_again_folds_nothing_again(cast: Cast, at_work: None) -> None:
    add(cast)
    ledger(500)
    job_id = int(cast.call("procedure.evolve", BODY)["job_id"])
    assert jobs.send(job_id) and jobs.send(job_id)
    assert cast.call("procedure.evolve", BODY)["folded_runs"] == 0
    assert_each_run_is_folded_once(500)


def test_what_the_queue_lost_is_found_again_by_the_procedure_itself(
    cast: Cast,
    at_work: None,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
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
