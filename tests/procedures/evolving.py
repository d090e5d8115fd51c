"""What the tests of evolve share: an evolve in this process, as a worker runs it."""

from __future__ import annotations

from typing import Any

import procedures.tasks  # noqa: F401 - declares the handler
from governance import jobs
from procedures import services
from tests.conftest import Cast, Reply
from tests.memories.helpers import sql
from tests.procedures.helpers import KEY, record


def evolve(cast: Cast, key: str = KEY, by: str = "mate", **more: Any) -> dict[str, Any]:
    """Queue an evolve by its op and run the job here; the job's result."""
    reply = cast.run("procedure.evolve", {"memory_key": key, "wait_s": 0, **more}, by)
    job_id = int(reply.detail["job_id"] if reply.status == 503 else reply.body["job_id"])
    assert jobs.run(job_id) == "done", jobs.look(job_id)
    result = cast.run("job.get", {"job_id": str(job_id)}, by)["result"]
    assert isinstance(result, dict)
    return result


def evolve_by_itself() -> list[int]:
    """The runs of every procedure have paused for long: the server's own evolve, run here; its jobs."""
    sql("UPDATE procedures_procedure SET last_run_at = last_run_at - interval '1 day'")
    made = services.evolve_due()
    assert [jobs.run(job_id) for job_id in made] == ["done"] * len(made)
    return made


def revise(cast: Cast, graph: dict[str, Any], by: str = "mate", **more: Any) -> Reply:
    """procedure.revise of the usual procedure."""
    return cast.run("procedure.revise", {"memory_key": KEY, "graph": graph, **more}, by)


def runs(cast: Cast, outcomes: str, path: str = "s1 s2 s3", **more: Any) -> None:
    """Record runs: `+` succeeded, `-` failed. Sessions take turns, unless one is named."""
    for place, outcome in enumerate(outcomes):
        session = more.get("session_id", f"session {place % 2}")
        reply = record(cast, path.split(), outcome == "+", **{**more, "session_id": session})
        assert reply.status == 200, reply.body
