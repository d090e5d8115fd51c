"""A plan of 1,000 and of 10,000 rows: dry run, request, what its page reads, and the apply.

Each size runs in a process of its own on a database of the benchmark's own, through the pipeline and the
services that the doors and the console call. Memory is the peak of that process; the bar compares the growth
from its start at 10,000 rows with a bound. The values hold a few hundred characters.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import print_table
from benchmarks.harness import fill, free_port, running, site, web

SERVER = False
SMALL, LARGE = 1_000, 10_000
BARS = {"dry run": 5.0, "page": 2.0, "apply": 30.0}
GROWTH_MIB = 128.0


def run(_client: None, _data_dir: Path | None) -> dict[str, Any]:
    """Seconds and MiB of every step at both sizes, and whether the bars are met."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        where = stack.enter_context(site())
        port = free_port()
        url = stack.enter_context(running(where, web(port), port))
        fill(url, where, SMALL + LARGE)
        where.environment["BENCH_TOKEN"] = where.token
        for size in (SMALL, LARGE):
            said = where.python("-m", "benchmarks.plan_steps", str(size)).strip().splitlines()[-1]
            found[str(size)] = json.loads(said)["steps"]
    _print(found)
    large = found[str(LARGE)]
    bars = {
        f"{step} of {LARGE:,} rows under {most:g} s ({large[step]['seconds']:.2f})": large[step]["seconds"]
        < most
        for step, most in BARS.items()
    }
    growth = large["apply"]["peak_mib"] - large["start"]["peak_mib"]
    bars[f"memory grows by less than {GROWTH_MIB:g} MiB ({growth:.0f})"] = growth < GROWTH_MIB
    return {"sizes": found, "bars": bars}


def _print(found: dict[str, Any]) -> None:
    rows = [
        [
            f"{int(size):,}",
            name,
            step["seconds"],
            step.get("cpu_seconds", 0.0),
            step.get("database_cpu_seconds", 0.0),
            step["peak_mib"],
        ]
        for size, steps in found.items()
        for name, step in steps.items()
    ]
    print_table("Plans", ["rows", "step", "seconds", "cpu of python", "cpu of database", "peak MiB"], rows)
