"""What the tests of evolve share: an evolve in this process, as a worker runs it."""

from __future__ import annotations

import json
from typing import Any

import procedures.tasks  # noqa: F401 - declares the handler
from governance import jobs
from procedures import services
from procedures.folding import RevisionState
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


def ledger(count: int) -> None:
    """So many further runs of the one procedure, stored at once; every seventh failed."""
    sql(
        """INSERT INTO procedures_run (procedure_id, namespace_id, seq, revision, principal, token_prefix,
             agent, user_id, session_id, path, ok, note, note_held, duration_ms, tokens, at)
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
