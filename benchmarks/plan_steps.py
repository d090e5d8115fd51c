"""One plan from the dry run to the apply, in a process of its own: seconds and peak memory of each step.

`python -m benchmarks.plan_steps ROWS`, in the environment of a benchmark's site; prints one JSON object.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import NAMESPACE


def main() -> None:
    """Delete the first ROWS memories of the benchmark's namespace under governance."""
    import django

    django.setup()
    from django.db import connection

    from governance import pipeline, plan_selectors, plans
    from governance.models import Plan, User
    from governance.tenancy import Credentials
    from loomsite.ops import load_ops

    load_ops()
    rows = int(sys.argv[1])
    by = Credentials(bearer=os.environ["BENCH_TOKEN"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM memories_memory WHERE status = 'active' ORDER BY id LIMIT %s", [rows])
        ids = [str(row[0]) for row in cursor.fetchall()]
    steps: dict[str, Any] = {}

    def backends_cpu() -> float:
        """CPU seconds of this database's backends, where they run on this machine; else nan."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
            pids = [row[0] for row in cursor.fetchall()]
        try:
            stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
        except OSError:
            return float("nan")
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

    def step(name: str, work: Callable[[], Any]) -> Any:
        in_database = backends_cpu()
        started, cpu = time.perf_counter(), time.process_time()
        done = work()
        steps[name] = {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu,
            "database_cpu_seconds": backends_cpu() - in_database,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        return done

    def govern(**more: Any) -> pipeline.Answer:
        body = {"namespace": NAMESPACE, "ids": ids, "action": "delete", **more}
        return pipeline.run("memory.govern", body, by)

    steps["start"] = {"seconds": 0.0, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    dry = step("dry run", lambda: govern(dry_run=True))
    asked = step(
        "ask",
        lambda: govern(
            reason="benchmark", confirm_destructive=True, expected_versions=dry.body["expected_versions"]
        ),
    )
    if asked.status != 202:
        raise RuntimeError(f"memory.govern answered {asked.status}: {str(asked.body)[:300]}")
    plan = Plan.objects.select_related("org", "namespace").get(pk=int(asked.body["plan_id"]))

    def page() -> int:
        moved = plan_selectors.moved_now(plan)
        return len(plan_selectors.plan_targets(plan, limit=50)[0]) + len(moved)

    step("page", page)
    owner = User.objects.filter(is_superuser=True).order_by("pk")[0]
    decision = step("apply", lambda: plans.plan_approve(plan_id=plan.pk, reviewer=owner, digest=plan.digest))
    if decision.state != "applied":
        raise RuntimeError(f"the plan is {decision.state}: {decision.message}")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM memories_memory WHERE id = ANY(%s) AND status = 'deleted' AND governed",
            [[int(id_) for id_ in ids]],
        )
        gone = cursor.fetchone()[0]
    if gone != rows:
        raise RuntimeError(f"{gone} of {rows} memories are deleted")
    print(json.dumps({"rows": rows, "steps": steps}))


if __name__ == "__main__":
    main()
