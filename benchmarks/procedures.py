"""Procedures at size: a graph of 500 nodes with 100,000 runs in a database of its own.

Measured through the pipeline in this process: `procedure.locate` (median, p95), the first call of a process
(which counts the whole ledger once), `procedure.record_run`, and the console page of the procedure. The runs
are random walks, seeded, and are put into the ledger in bulk; what is measured is not.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import ROOT, SEED, percentile, print_table

SERVER = False
NODES = 500
RUNS = 100_000
CALLS = 400
LOCATE_MS = 20.0
PAGE_MS = 1000.0
BATCH = 5_000


def run(_client: httpx.Client | None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds by call. In a process of its own, whose settings name the database made for it."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.procedures"], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"the measuring process ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print_table(
        f"Procedures: {NODES} nodes, {result['edges']} edges, {RUNS:,} runs; milliseconds in the process",
        ["call", "calls", "median", "p95"],
        [[name, *row.values()] for name, row in result["milliseconds"].items()],
    )
    return result


@contextlib.contextmanager
def database() -> Iterator[None]:
    """A migrated database for this process only, gone afterwards."""
    from loomsite.embedded import postgres
    from loomsite.embedded.home import Home

    with tempfile.TemporaryDirectory(prefix="loom-bench-") as folder, contextlib.ExitStack() as stack:
        os.environ.update(
            LOOM_HOME=folder, DJANGO_SETTINGS_MODULE="loomsite.settings", LOOM_SINGLE_USER="0",
            LOOM_RATE_READS="off", LOOM_RATE_WRITES="off",
        )  # fmt: skip
        home = Home(Path(folder))
        home.prepare()
        sockets = home.make_socket_dir()
        stack.callback(home.remove_socket_dir, sockets)
        database = postgres.Postgres(home, sockets, {"fsync": "off", "synchronous_commit": "off"})
        database.prepare()
        server = database.spawn()
        stack.callback(postgres.stop, server, database.death_signal, 30.0)
        postgres.wait_ready(database, server)
        database.provision()
        os.environ["LOOM_DATABASE_URL"] = database.url()
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        stack.callback(connections.close_all)
        yield


def graph(rng: random.Random) -> dict[str, Any]:
    """A tree of 500 nodes with cross and back edges."""
    nodes = [
        {"id": f"n{i}", "kind": "step", "text": f"Do step {i}", "tool": f"tool{i}"} for i in range(NODES)
    ]
    pairs = {(f"n{(i - 1) // 3}", f"n{i}") for i in range(1, NODES)}
    while len(pairs) < 2 * NODES:
        src, dst = rng.randrange(NODES), rng.randrange(1, NODES)
        if src != dst:
            pairs.add((f"n{src}", f"n{dst}"))
    return {"nodes": nodes, "edges": [{"src": a, "dst": b, "kind": "dep"} for a, b in sorted(pairs)]}


def walks(made: dict[str, Any], rng: random.Random, runs: int) -> Iterator[tuple[list[str], bool]]:
    """Random walks of 5 to 20 nodes with their outcomes."""
    following: dict[str, list[str]] = {}
    for edge in made["edges"]:
        following.setdefault(edge["src"], []).append(edge["dst"])
    for _ in range(runs):
        path = ["n0"]
        for _ in range(rng.randint(4, 19)):
            path.append(rng.choice(following.get(path[-1], ["n0"])))
        yield path, rng.random() < 0.8


def fill(procedure_id: int, namespace_id: int, made: dict[str, Any], rng: random.Random, runs: int) -> None:
    """A ledger of so many walks, put in by bulk."""
    from django.db import connection

    rows, won = [], 0
    with connection.cursor() as cursor:
        for seq, (path, ok) in enumerate(walks(made, rng, runs), 1):
            won += ok
            note = "" if ok else f"run {seq} stopped here"
            rows.append((procedure_id, namespace_id, seq, json.dumps(path), ok, note, f"agent{seq % 20}"))
            if len(rows) == BATCH or seq == runs:
                cursor.execute(
                    "INSERT INTO procedures_run (procedure_id, namespace_id, seq, revision, principal, "
                    "token_prefix, agent, user_id, session_id, path, ok, note, note_held, duration_ms, "
                    "tokens) "
                    "SELECT p, n, s, 1, 'bench', '', a, '-', '-', "
                    "ARRAY(SELECT jsonb_array_elements_text(w::jsonb)), o, t, false, 0, 0 "
                    "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bool[], "
                    "%s::text[], %s::text[]) AS r (p, n, s, w, o, t, a)",
                    [list(column) for column in zip(*rows, strict=True)],
                )
                rows = []
        cursor.execute(
            "UPDATE procedures_procedure SET runs_total = %s, runs_ok = %s, last_run_at = now() "
            "WHERE memory_id = %s",
            [runs, won, procedure_id],
        )
        cursor.execute("ANALYZE procedures_run")


def _measured() -> dict[str, Any]:
    from django.test import Client
    from django.urls import reverse

    from governance import pipeline, services
    from governance.models import Namespace, Org, User
    from governance.tenancy import Credentials
    from loomsite.ops import Role, load_ops

    load_ops()
    rng = random.Random(SEED)  # noqa: S311 - no secret
    org = Org.objects.create(slug="bench")
    namespace = Namespace.objects.create(org=org, slug="bench")
    person = User.objects.create_superuser("bench")
    services.member_set_role(namespace=namespace, member=person, role=Role.ADMIN)
    _, token = services.token_create(principal=person, org=org, default_namespace="bench")

    def call(op: str, **body: Any) -> dict[str, Any]:
        answer = pipeline.run(op, body, Credentials(bearer=token))
        if not answer.ok:
            raise RuntimeError(f"{op} answered {answer.status}: {answer.body}")
        return answer.body

    made = graph(rng)
    added = call(
        "procedure.add", name="Big", situation="A graph of 500 nodes", steps=["One", "Two"], graph=made
    )
    key = added["memory_key"]
    fill(int(added["memory_id"]), namespace.pk, made, rng, RUNS)
    first = _times(lambda: call("procedure.locate", memory_key=key, at="n0"), 1)
    places = [f"n{rng.randrange(NODES)}" for _ in range(CALLS)]
    taken = iter(places)
    located = _times(lambda: call("procedure.locate", memory_key=key, at=next(taken), agent="agent3"), CALLS)
    recorded = _times(
        lambda: call("procedure.record_run", memory_key=key, path=["n0", "n1", "n4"], ok=True), CALLS
    )
    fresh = iter(places)

    def mixed() -> None:
        call("procedure.record_run", memory_key=key, path=["n0", "n2"], ok=False, note="no")
        started = time.perf_counter()
        call("procedure.locate", memory_key=key, at=next(fresh), hops=5, max_notes=50)
        behind.append((time.perf_counter() - started) * 1000)

    behind: list[float] = []
    _times(mixed, CALLS)
    matched = _times(lambda: call("procedure.match", situation="a graph with many nodes"), 50)
    browser = Client(HTTP_HOST="127.0.0.1")
    browser.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    url = reverse("admin:procedures_procedure_change", args=[added["memory_id"]])
    pages = _times(lambda: _opened(browser, url), 10)
    rows = [
        ["locate, first call of a process", 1, *_figures(first)],
        ["locate", CALLS, *_figures(located)],
        ["locate after a new run, 5 hops, 50 notes", CALLS, *_figures(behind)],
        ["record_run", CALLS, *_figures(recorded)],
        ["match", 50, *_figures(matched)],
        ["console page", 10, *_figures(pages)],
    ]
    p95, page = percentile(located, 95), percentile(pages, 50)
    worst = percentile(behind, 95)
    return {
        "edges": len(made["edges"]),
        "milliseconds": {
            str(name): {"calls": calls, "median": median, "p95": most} for name, calls, median, most in rows
        },
        "bars": {
            f"locate p95 under {LOCATE_MS:.0f} ms ({p95:.1f})": p95 < LOCATE_MS,
            f"locate p95 beside new runs under {LOCATE_MS:.0f} ms ({worst:.1f})": worst < LOCATE_MS,
            f"the page of {NODES} nodes in the median under {PAGE_MS:.0f} ms ({page:.0f})": page < PAGE_MS,
        },
    }


def _opened(browser: Any, url: str) -> None:
    response = browser.get(url)
    if response.status_code != 200:
        raise RuntimeError(f"{url} answered {response.status_code}")


def _times(work: Callable[[], Any], calls: int) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def _figures(taken: list[float]) -> list[float]:
    return [percentile(taken, 50), percentile(taken, 95)]


if __name__ == "__main__":
    with database():
        measured = _measured()
    print(json.dumps(measured))
