"""A lock that an admin loosens for a while comes back by a job."""

from __future__ import annotations

from typing import Any

import memories.tasks  # noqa: F401 - declares the job, as it does for the worker
from governance import audit, jobs, plans
from governance.models import AuditEvent, Job
from tests.conftest import Cast, Reply
from tests.memories.helpers import sql


def loosened(cast: Cast, **more: Any) -> Reply:
    """The lock of `k`, loosened for an hour by the admin."""
    given = {"memory_key": "k", "reason": "a fix", "relock_seconds": 3600, **more}
    return cast.console("memory.unlock", given)


def locked(cast: Cast, **more: Any) -> None:
    """A memory `k` under a lock."""
    assert cast.run("memory.set", {"memory_key": "k", "value": "v"}).status == 200
    given = {"memory_key": "k", "mode": "read_only", "reason": "a private reason", **more}
    assert cast.run("memory.lock", given).status == 200


def due() -> str:
    """Let the hour pass and run the job."""
    job = Job.objects.get(kind="memory.relock")
    assert jobs.run(job.pk) == "not_mine"
    sql("UPDATE governance_job SET run_after = clock_timestamp() WHERE id = %s", [job.pk])
    state = jobs.run(job.pk)
    job.refresh_from_db()
    assert job.error == ""
    return state


def mode() -> str:
    ((found,),) = sql("SELECT lock_mode FROM memories_memory WHERE memory_key = 'k'")
    return str(found)


def test_the_lock_comes_back_when_its_time_is_up_and_is_audited(cast: Cast) -> None:
    locked(cast)
    assert loosened(cast)["changed"] is True and mode() == "none"
    assert due() == "done" and mode() == "read_only"
    event = AuditEvent.objects.get(op="memory.relock")
    assert (event.target, event.principal, event.outcome) == ("k", "system", "applied")
    assert audit.verify(cast.org.pk, "acme").fault is None
    assert cast.run("memory.set", {"memory_key": "k", "value": "other"}).code == "LOCKED"


def test_the_job_holds_no_stored_text(cast: Cast) -> None:
    locked(cast)
    loosened(cast)
    job = Job.objects.get(kind="memory.relock")
    assert "private" not in str(job.input) and set(job.input) == {"memory_id", "mode", "until", "seconds"}
    assert job.requested_by == "owner"


def test_without_a_time_no_job_is_made(cast: Cast) -> None:
    locked(cast)
    assert loosened(cast, relock_seconds=None)["changed"] is True
    assert not Job.objects.filter(kind="memory.relock").exists()


def test_a_firmer_lock_placed_meanwhile_stays(cast: Cast) -> None:
    locked(cast, mode="no_delete")
    loosened(cast)
    again = {"memory_key": "k", "mode": "read_only", "reason": "mine"}
    assert cast.run("memory.lock", again).status == 200
    assert due() == "done" and mode() == "read_only"
    assert Job.objects.get(kind="memory.relock").result == {"relocked": False, "why": "FORBIDDEN"}


def test_what_is_deleted_by_then_is_left_alone(cast: Cast) -> None:
    locked(cast)
    loosened(cast)
    assert cast.run("memory.delete", {"memory_key": "k", "reason": "old"}).status == 200
    assert due() == "done" and mode() == "none"


def test_a_writer_plans_it_and_the_lock_comes_back_after_the_approval(cast: Cast) -> None:
    locked(cast)
    given = {"memory_key": "k", "reason": "a fix", "relock_seconds": 3600}
    asked = cast.console("memory.unlock", given, by="mate")
    assert asked.status == 202 and not Job.objects.filter(kind="memory.relock").exists()
    decision = plans.plan_approve(
        plan_id=int(asked.body["plan_id"]), reviewer=cast.people["owner"], digest=asked.body["digest"]
    )
    assert decision.state == "applied" and mode() == "none"
    assert due() == "done" and mode() == "read_only"


def test_a_facts_lock_comes_back_too(cast: Cast) -> None:
    given = {"subject": "Ada", "attribute": "employer", "value": "Acme", "validFrom": "2020-01-01"}
    key = f"fact:{cast.run('fact.remember', given)['factId']}"
    assert cast.run("memory.lock", {"memory_key": key, "reason": "agreed", "mode": "no_delete"}).status == 200
    assert loosened(cast, memory_key=key)["changed"] is True
    assert due() == "done"
    assert sql("SELECT lock_mode FROM facts_lineage") == [("no_delete",)]


def test_a_lock_whose_own_end_has_passed_does_not_come_back(cast: Cast) -> None:
    locked(cast, ttl_seconds=1)
    loosened(cast)
    sql("SELECT pg_sleep(1.1)")
    assert due() == "done" and mode() == "none"
