"""Folding 1k, 100k and 1M runs into a graph of 500 nodes: in the process, and through the database.

In the process: `procedures.folding.fold` over walks that are made beforehand, in the pieces in which evolve
reads them; what all findings on the folded counters cost; and memory, as resident set and as allocations
that Python traces. Times there are of the processor, which folding alone uses. Through the database: the
job that `procedure.evolve` queues, run as a worker runs it, in a database of its own; seconds, and what this
process and its backend used of the processor, which a busy machine does not distort.
"""

import gc
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import ROOT, SEED, print_table
from benchmarks.procedures import NODES, database, fill, graph, walks
from procedures.evidence import dead_ends, fail_prone, linear_path
from procedures.folding import FoldedRun, State, fold
from procedures.graph import read

SERVER = False
SIZES = (1_000, 100_000, 1_000_000)
POOL = 20_000
"""Distinct walks; a longer ledger repeats them with other outcomes and sessions."""
PIECE = 5_000
IN_PROCESS = 50_000
THROUGH_DATABASE = 10_000
LINEAR = 1.5
"""A run of the largest ledger costs at most so many times what a run of the middle one does."""
TRACED = (20_000, 200_000)
GROWTH_MB = 1.0


def run(_client: httpx.Client | None, _data_dir: Path | None) -> dict[str, Any]:
    """Runs a second by size; the database's part in a process of its own, whose settings name it."""
    folded, memory = _in_process()
    print_table(
        f"Folding in the process (processor time): graph of {NODES} nodes, walks of 5 to 20",
        ["runs", "seconds", "runs/s", "resident MB", "findings ms"],
        [list(row.values()) for row in folded],
    )
    print(f"\ntraced while folding, peak MB: {memory}")
    done = subprocess.run([sys.executable, "-m", "benchmarks.evolve"], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"the measuring process ended with {done.returncode}")
    stored: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    print_table(
        "Evolve through the database",
        ["runs", "seconds", "runs/s", "processor s", "again, nothing new, ms"],
        [list(row.values()) for row in stored],
    )
    middle, largest = folded[1], folded[2]
    growth = memory[f"{TRACED[1]} runs"] - memory[f"{TRACED[0]} runs"]
    return {
        "in_process": folded,
        "traced_peak_mb": memory,
        "database": stored,
        "bars": {
            f"{IN_PROCESS:,} runs/s in the process": largest["runs_per_s"] >= IN_PROCESS,
            "linear in the process": middle["runs_per_s"] <= LINEAR * largest["runs_per_s"],
            f"traced memory grows by under {GROWTH_MB:.0f} MB ({growth:.1f})": growth < GROWTH_MB,
            f"{THROUGH_DATABASE:,} runs/s through the database": stored[-1]["runs_per_s"] >= THROUGH_DATABASE,
            "linear through the database (processor)": (
                stored[-1]["processor_s"] / SIZES[2] <= LINEAR * stored[1]["processor_s"] / SIZES[1]
            ),
        },
    }


def _ledger(pool: list[list[str]], runs: int) -> Iterator[list[FoldedRun]]:
    """Pieces of a ledger."""
    rng = random.Random(SEED)
    for start in range(0, runs, PIECE):
        yield [
            FoldedRun(pool[n % len(pool)], rng.random() < 0.8, 1, f"agent{n % 20}", f"s{n // 50}")
            for n in range(start, min(start + PIECE, runs))
        ]


def _in_process() -> tuple[list[dict[str, Any]], dict[str, float]]:
    rng = random.Random(SEED)
    stored = graph(rng)
    made = read(stored)
    pool = [path for path, _ in walks(stored, rng, POOL)]
    rows = []
    for size in SIZES:
        state, seconds = State(), 0.0
        gc.collect()
        for piece in _ledger(pool, size):
            started = time.process_time()
            state = fold(state, piece)
            seconds += time.process_time() - started
        tally = state.revision(1).tally
        if tally.total != size:
            raise RuntimeError(f"{tally.total} of {size} runs were folded")
        started = time.process_time()
        dead = {one.id for one in dead_ends(made, tally, tally, 3)}
        linear_path(made, tally, dead)
        fail_prone(made, tally)
        findings = (time.process_time() - started) * 1000
        rows.append(
            {
                "runs": size,
                "seconds": round(seconds, 3),
                "runs_per_s": round(size / seconds),
                "resident_mb": round(_resident(), 1),
                "findings_ms": round(findings, 1),
            }
        )
    # Tracing slows everything down, so it has a pass of its own.
    memory = {}
    for size in TRACED:
        tracemalloc.start()
        state = State()
        for piece in _ledger(pool, size):
            state = fold(state, piece)
        memory[f"{size} runs"] = round(tracemalloc.get_traced_memory()[1] / 1e6, 2)
        tracemalloc.stop()
    return rows, memory


def _resident() -> float:
    """Resident set of this process in MB (10^6); nan where /proc has none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _used_by(process: int) -> float:
    """Processor seconds of another process so far (here: of our backend); nan where /proc has none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _through_database() -> list[dict[str, Any]]:
    from django.db import connection

    import procedures.tasks  # noqa: F401 - declares what runs the job
    from governance import jobs, pipeline, services
    from governance.models import Namespace, Org, User
    from governance.tenancy import Credentials
    from loomsite.ops import Role, load_ops

    load_ops()
    rng = random.Random(SEED)
    org = Org.objects.create(slug="bench")
    namespace = Namespace.objects.create(org=org, slug="bench")
    person = User.objects.create_user("bench")
    services.member_set_role(namespace=namespace, member=person, role=Role.ADMIN)
    _, token = services.token_create(principal=person, org=org, default_namespace="bench")
    credentials = Credentials(bearer=token)
    made = graph(rng)

    def folded(key: str) -> tuple[int, float, float]:
        """Queue an evolve and run it here as a worker does: (runs folded, seconds, processor seconds)."""
        answer = pipeline.run("procedure.evolve", {"memory_key": key, "wait_s": 0}, credentials)
        job_id = int(answer.body["job_id"] if answer.ok else answer.body["detail"]["job_id"])
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (backend,) = cursor.fetchone()
        started, used = time.perf_counter(), time.process_time() + _used_by(backend)
        state = jobs.run(job_id)
        seconds = time.perf_counter() - started
        processor = time.process_time() + _used_by(backend) - used
        if state != "done":
            raise RuntimeError(f"the job is {state}")
        result = pipeline.run("job.get", {"job_id": str(job_id)}, credentials).body["result"]
        return result["folded_runs"], seconds, processor

    rows = []
    for size in SIZES:
        body = {
            "name": f"Big {size}", "situation": "A graph of 500 nodes", "steps": ["One", "Two"], "graph": made
        }  # fmt: skip
        added = pipeline.run("procedure.add", body, credentials).body
        fill(int(added["memory_id"]), namespace.pk, made, rng, size)
        runs, seconds, processor = folded(added["memory_key"])
        if runs != size:
            raise RuntimeError(f"{runs} of {size} runs were folded")
        _, again, _ = folded(added["memory_key"])
        rows.append(
            {
                "runs": size,
                "seconds": round(seconds, 2),
                "runs_per_s": round(size / seconds),
                "processor_s": round(processor, 2),
                "again_ms": round(again * 1000, 1),
            }
        )
    return rows


if __name__ == "__main__":
    with database():
        measured = _through_database()
    print(json.dumps(measured))
