"""What fact.recall and fact.correct cost beside their floor view, and whether hidden facts can be timed.

The floor is that of `benchmarks.ops`: a plain Django view in the same server that replays the statements of
real calls. Every call of fact.correct, by either way, corrects a fact of its own, made for it beforehand with
the same period, so that the recorded dates fit.

The second table asks whether the time of an answer tells a hidden fact from one that does not exist: the same
calls about another user's private facts and about nothing, in random order. `AUC` is the probability that an
answer about a hidden one takes longer (Mann-Whitney U over the number of pairs; 0.5: nothing to learn), with
its 95 % interval under the hypothesis of no difference.
"""

import itertools
import math
import pickle
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.common import SEED, call, percentile, print_table
from benchmarks.corpus import Corpus
from benchmarks.floor import FILE
from benchmarks.harness import NAMESPACE, Site, free_port, running, site, web
from benchmarks.ops import rest_way
from benchmarks.replay import Recorder, Recording, alike
from benchmarks.wire import Wire

SERVER = False
RECORDED, ROUNDS, WARM = 30, 10, 10
BLOCK = {"fact.recall": 24, "fact.correct": 14}
TIMES_FLOOR = {"fact.correct": 2.5}
HIDDEN, CALLS = 100, 1_000
LEARNT = 0.05
DAY = "2010-07-01"


def run(_client: None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds by op and way, what the times of hidden facts tell, and whether the bars are met."""
    with ExitStack() as stack:
        where = stack.enter_context(site())
        port = free_port()
        url = stack.enter_context(running(where, web(port), port))
        with psycopg.connect(where.database_url, autocommit=True) as link:
            link.execute("SELECT setval('loom_node_id', 10000)")
        facts = _facts(url, where, RECORDED + 2 * (WARM + ROUNDS * BLOCK["fact.correct"]))
        print(where.python("-m", "benchmarks.fact_ops", where.token, *facts[:RECORDED]), end="")
        left = iter(facts[RECORDED:])
        found = {op: _measured(op, where, url, left) for op in BLOCK}
        hidden = _hidden(url, where)
    _print(found, hidden)
    bars = {}
    for op, times in TIMES_FLOOR.items():
        ratio = found[op]["rest"]["p50_ms"] / found[op]["floor"]["p50_ms"]
        bars[f"{op}: median at one client <= {times} x floor view ({ratio:.2f})"] = ratio <= times
    worst = max(abs(one["auc"] - 0.5) for one in hidden.values())
    bars[f"no time of an answer tells more than chance: |AUC - 0.5| <= {LEARNT} ({worst:.3f})"] = (
        worst <= LEARNT
    )
    return {"ops": found, "hidden": hidden, "bars": bars}


def _facts(url: str, where: Site, count: int) -> list[str]:
    corpus, ids = Corpus(), []
    with httpx.Client(base_url=url, headers=where.headers, timeout=60) as client:
        for number in range(count):
            made = call(
                client, "fact.remember", namespace=NAMESPACE, subject=f"person {number}",
                attribute="employer", value=corpus.text(2, 6), validFrom="2010-01-01",
            )  # fmt: skip
            ids.append(str(made["factId"]))
    return ids


def _payloads(op: str, left: Iterator[str], seed: int) -> Iterator[dict[str, Any]]:
    corpus = Corpus(seed=seed)
    for number in itertools.count(seed):
        if op == "fact.recall":
            yield {"namespace": NAMESPACE, "subject": f"person {number * 7_919 % 300}"}
        else:
            value = corpus.text(2, 6)
            yield {"namespace": NAMESPACE, "factId": next(left), "value": value, "validFrom": DAY}


def _measured(op: str, where: Site, url: str, left: Iterator[str]) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        ways = {
            "floor": stack.enter_context(rest_way(url, where, f"/v1/bench/floor/{op}")),
            "rest": stack.enter_context(rest_way(url, where, f"/v1/{op}")),
        }
        inputs = {way: _payloads(op, left, seed) for seed, way in enumerate(ways, start=2)}
        for way, send in ways.items():
            for _ in range(WARM):
                if not send(next(inputs[way])):
                    raise _failed(op, way, where)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS):
            for way in (list(ways), list(ways)[::-1])[number % 2]:
                for _ in range(BLOCK[op]):
                    payload = next(inputs[way])
                    started = time.perf_counter()
                    if not ways[way](payload):
                        raise _failed(op, way, where)
                    times[way].append((time.perf_counter() - started) * 1000)
    return {
        way: {"p50_ms": percentile(taken, 50), "p95_ms": percentile(taken, 95), "calls": len(taken)}
        for way, taken in times.items()
    }


def _failed(op: str, way: str, where: Site) -> RuntimeError:
    log = next(where.home.glob("server-*.log")).read_text(errors="replace")
    return RuntimeError(f"{op} over {way} fails: {log[-1500:]}")


# Hidden facts


def _hidden(url: str, where: Site) -> dict[str, dict[str, float]]:
    """By call: medians about hidden and about missing facts, and the AUC with its interval."""
    ids = []
    with httpx.Client(base_url=url, headers=where.headers, timeout=60) as client:
        for number in range(HIDDEN):
            made = call(
                client, "fact.remember", namespace=NAMESPACE, subject=f"hidden {number}", attribute="town",
                value=f"Oslo {number}", visibility="private", user_id="mallory",
            )  # fmt: skip
            ids.append(int(made["factId"]))
    rng, wire = random.Random(SEED), Wire(url)
    asked = {
        "fact.recall by subject": ("fact.recall", lambda i, there: {"subject": _subject(i, there)}),
        "fact.recall by query": (
            "fact.recall",
            lambda i, there: {"query": f"{'town' if there else 'crow'} {_subject(i, there)}"},
        ),
        "fact.history by factId": ("fact.history", lambda i, there: {"factId": _id(ids[i], there)}),
        "fact.correct": (
            "fact.correct",
            lambda i, there: {"factId": _id(ids[i], there), "value": "x", "kind": "wrong"},
        ),
        "fact.remember, dry run": (
            "fact.remember",
            lambda i, there: {
                "subject": _subject(i, there), "attribute": "town", "value": "x", "dry_run": True,
                "visibility": "private",
            },
        ),
    }  # fmt: skip
    found = {}
    try:
        for name, (op, body) in asked.items():
            times: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * CALLS + 100):
                there = rng.random() < 0.5
                payload = {"namespace": NAMESPACE, "user_id": "alice", **body(rng.randrange(HIDDEN), there)}
                request = wire.request(f"/v1/{op}", payload, where.headers)
                started = time.perf_counter()
                wire.exchange(request)
                taken = (time.perf_counter() - started) * 1000
                if number >= 100:
                    times[there].append(taken)
            found[name] = _told(times)
    finally:
        wire.close()
    return found


def _subject(number: int, there: bool) -> str:
    return f"{'hidden' if there else 'absent'} {number}"


def _id(number: int, there: bool) -> str:
    return str(number if there else number + 50_000_000)


def _told(times: dict[bool, list[float]]) -> dict[str, float]:
    first, second = times[True], times[False]
    merged = sorted([(taken, True) for taken in first] + [(taken, False) for taken in second])
    above = sum(rank for rank, (_, there) in enumerate(merged, 1) if there)
    n, m = len(first), len(second)
    auc = (above - n * (n + 1) / 2) / (n * m)
    error = 1.96 * math.sqrt((n + m + 1) / (12 * n * m))
    return {
        "hidden_ms": percentile(first, 50), "missing_ms": percentile(second, 50), "calls": n + m, "auc": auc,
        "noise": error,
    }  # fmt: skip


def _print(found: dict[str, dict[str, dict[str, float]]], hidden: dict[str, dict[str, float]]) -> None:
    rows = []
    for op, ways in found.items():
        for way, one in ways.items():
            ratio = f"{one['p50_ms'] / ways['floor']['p50_ms']:.2f} x floor" if way == "rest" else ""
            rows.append([f"{op} {way}", one["p50_ms"], one["p95_ms"], one["calls"], ratio])
    print_table("Facts, one client", ["", "p50 ms", "p95 ms", "calls", "ratio"], rows)
    print_table(
        "Hidden or missing: what the time tells",
        ["call", "hidden p50", "missing p50", "calls", "AUC", "noise +-"],
        [
            [name, one["hidden_ms"], one["missing_ms"], one["calls"], one["auc"], one["noise"]]
            for name, one in hidden.items()
        ],
    )


def record() -> None:
    """Record real calls, in a process of its own under `benchmarks.settings`."""
    import django

    django.setup()
    from django.conf import settings
    from django.db import connection

    from governance import pipeline
    from governance.tenancy import Credentials

    token, facts = sys.argv[1], sys.argv[2:]

    def recorded(op: str, payload: dict[str, Any]) -> Recording:
        recorder = Recorder(connection)
        with connection.execute_wrapper(recorder):
            answer = pipeline.run(op, payload, Credentials(bearer=token))
        if not answer.ok:
            raise SystemExit(f"{op} answered {answer.status}: {answer.body}")
        return recorder.recording(op, payload, answer.body)

    with connection.cursor() as cursor:
        # A parameter must not look like an id and like the audit's number; replays break its chain anyway.
        cursor.execute("UPDATE governance_audithead SET seq = seq + 1000000")
    left = iter(facts)
    inputs = {op: _payloads(op, left, 1) for op in BLOCK}
    calls = {op: alike([recorded(op, next(inputs[op])) for _ in range(RECORDED)]) for op in BLOCK}
    with (Path(settings.LOOM_HOME) / FILE).open("wb") as file:
        pickle.dump(calls, file)
    for op, kept in calls.items():
        print(f"{op}: {len(kept)} of {RECORDED} calls recorded, {len(kept[0].statements)} statements")


if __name__ == "__main__":
    record()
