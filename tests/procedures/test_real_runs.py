"""Real runs: 100 airline agent runs and 4,580 helpdesk cases, recorded and counted again by other means."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from procedures.ledger import counted
from tests.conftest import Cast
from tests.memories.helpers import sql
from tests.procedures.helpers import add, locate

PATHS = Path(__file__).parent / "paths"
Runs = list[tuple[int, bool, list[str]]]


def airline() -> Runs:
    """(task, ok, path) of each run."""
    table = json.loads((PATHS / "airline.json").read_text())
    return [(task, bool(ok), [table["names"][i] for i in path]) for task, ok, path in table["runs"]]


def helpdesk() -> list[list[str]]:
    """The path of each case."""
    table = json.loads((PATHS / "helpdesk.json").read_text())
    return [[table["names"][i] for i in path] for count, path in table["variants"] for _ in range(count)]


def pairs(paths: list[list[str]]) -> Counter[tuple[str, str]]:
    """Adjacent pairs, counted by index and not by the code under test."""
    found: Counter[tuple[str, str]] = Counter()
    for path in paths:
        for i in range(1, len(path)):
            found[path[i - 1], path[i]] += 1
    return found


def followed(paths: list[list[str]], least: int) -> dict[str, Any]:
    """A graph of the transitions taken at least so often, reached from where paths begin."""
    common = [pair for pair, count in pairs(paths).items() if count >= least and pair[0] != pair[1]]
    start = Counter(path[0] for path in paths if path).most_common(1)[0][0]
    reached, edges = [start], []
    for node in reached:
        for src, dst in common:
            if src == node:
                edges.append({"src": src, "dst": dst, "kind": "dep"})
                if dst not in reached:
                    reached.append(dst)
    nodes = [{"id": name, "kind": "step", "text": name.replace("_", " "), "tool": name} for name in reached]
    return {"nodes": nodes, "edges": edges}


def report(cast: Cast, key: str, path: list[str], ok: bool) -> None:
    """One run, through the pipeline."""
    reply = cast.run("procedure.record_run", {"memory_key": key, "path": path, "ok": ok})
    assert reply.status == 200, reply.body


def edge_counts(key: str) -> dict[tuple[str, str], tuple[int, int]]:
    """(total, ok) of every transition, as the ledger's counters have it."""
    ((id_,),) = sql("SELECT id FROM memories_memory WHERE memory_key = %s", [key])
    with counted(id_) as counters:
        return {pair: count.total_and_ok for pair, count in counters.tally().edges().items()}


@pytest.fixture
def unlimited(settings: Any) -> None:
    """No rate limit: one token reports thousands of runs."""
    settings.LOOM_RATE_WRITES = None


def test_airline_runs_by_task_and_over_all_tools(cast: Cast, unlimited: None) -> None:
    runs = airline()
    every = [path for _, _, path in runs]
    everything = add(cast, name="Airline tools", graph=followed(every, 1))["memory_key"]
    keys = {}
    for task in sorted({task for task, _, _ in runs}):
        mine = [path for number, _, path in runs if number == task]
        shape = followed(mine, 1)
        if len(shape["nodes"]) > 1:
            keys[task] = add(cast, name=f"Airline task {task}", graph=shape)["memory_key"]
    assert len(keys) == 24, "of 25 tasks; one was tried with a single tool"
    for task, ok, path in runs:
        report(cast, everything, path, ok)
        if task in keys:
            report(cast, keys[task], path, ok)
    won = [path for _, ok, path in runs if ok]
    expected = {pair: (count, pairs(won)[pair]) for pair, count in pairs(every).items()}
    assert edge_counts(everything) == expected
    for task, key in keys.items():
        mine = pairs([path for number, _, path in runs if number == task])
        assert {pair: total for pair, (total, _) in edge_counts(key).items()} == dict(mine)
    reply = locate(cast, key=everything, at="search_direct_flight")
    assert reply["matched"] and reply["run_stats"] == {"total": 100, "ok": len(won)}
    assert reply["hops"][0][0]["total"] > 0 and reply["rendered"].startswith('Procedure "Airline tools"')


def test_helpdesk_counts_equal_an_independent_count_with_self_and_undeclared_transitions(
    cast: Cast, unlimited: None
) -> None:
    # One case in eight here; `make soak` records the whole file where LOOM_DATA names it.
    paths = helpdesk()[::8]
    shape = followed(paths, 30)
    declared = {(edge["src"], edge["dst"]) for edge in shape["edges"]}
    key = add(cast, name="Helpdesk", graph=shape)["memory_key"]
    for number, path in enumerate(paths):
        report(cast, key, path, number % 3 > 0)
    expected = pairs(paths)
    assert any(src == dst for src, dst in expected) and set(expected) - declared
    assert {pair: total for pair, (total, _) in edge_counts(key).items()} == dict(expected)
    won = pairs([path for number, path in enumerate(paths) if number % 3])
    assert {pair: ok for pair, (_, ok) in edge_counts(key).items() if ok} == dict(won)


@pytest.mark.soak
def test_every_helpdesk_case_of_the_original_file(cast: Cast, unlimited: None) -> None:
    folder = os.environ.get("LOOM_DATA")
    if not folder or not (Path(folder) / "helpdesk_runs.jsonl.gz").is_file():
        pytest.skip("needs helpdesk_runs.jsonl.gz: set LOOM_DATA to the folder that holds it")
    with gzip.open(Path(folder) / "helpdesk_runs.jsonl.gz", "rt") as lines:
        paths = [json.loads(line)["path"] for line in lines]
    assert Counter(map(tuple, paths)) == Counter(map(tuple, helpdesk())), "the fixture is the file"
    key = add(cast, name="Helpdesk", graph=followed(paths, 30))["memory_key"]
    for path in paths:
        report(cast, key, path, True)
    assert {pair: total for pair, (total, _) in edge_counts(key).items()} == dict(pairs(paths))


def test_the_page_of_all_airline_tools_opens(cast: Cast, unlimited: None, client: Any) -> None:
    runs = airline()
    key = add(cast, name="Airline tools", graph=followed([path for _, _, path in runs], 2))
    for _, ok, path in runs[:20]:
        report(cast, key["memory_key"], path, ok)
    owner = cast.people["owner"]
    owner.is_staff = owner.is_superuser = True
    owner.save()
    client.force_login(owner, backend="django.contrib.auth.backends.ModelBackend")
    text = client.get(reverse("admin:procedures_procedure_change", args=[key["memory_id"]])).content.decode()
    assert "search_direct_flight" in text and text.count('<g class="node') > 8
