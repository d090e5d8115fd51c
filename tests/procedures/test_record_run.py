"""procedure.record_run: the ledger only grows, counts everything, and counts a report once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from procedures.graph import read
from procedures.ledger import counted
from tests.conftest import Cast
from tests.memories.helpers import in_threads, nothing_changes, sql
from tests.procedures.helpers import KEY, add, graph, record


def test_a_run_is_counted_in_the_answer(cast: Cast) -> None:
    add(cast)
    first = record(cast, ["s1", "s2", "s3"])
    assert first.body == {
        "memory_key": KEY, "version": 0, "run_stats": {"total": 1, "ok": 1, "unfolded": 1}
    }  # fmt: skip
    second = record(cast, ["s1"], ok=False, note="no rights")
    assert second["run_stats"] == {"total": 2, "ok": 1, "unfolded": 2}
    ((version,),) = sql("SELECT version FROM memories_memory")
    assert version == 1


def test_a_report_sent_again_gets_its_first_answer_whatever_else_it_says(cast: Cast) -> None:
    add(cast)
    first = record(cast, ["s1", "strange"], report_id="r-1")
    record(cast, ["s1"], ok=False)
    with nothing_changes():
        again = record(cast, [], ok=False, note="other", report_id="r-1", revision=77)
    assert again.body == first.body and "strange" in first["advisories"][0]
    add(cast, name="Another")
    assert record(cast, ["s1"], key="procedure_another", report_id="r-1")["run_stats"]["total"] == 1


def test_unknown_ids_are_kept_and_counted_and_a_long_path_is_cut(cast: Cast) -> None:
    add(cast)
    reply = record(cast, ["s1", "detour", "detour", "s2"])
    assert reply["advisories"] == ["path: counted as undeclared: detour"]
    long = record(cast, ["s1", "s2"] * 300)
    assert "500" in long["advisories"][0]
    ((first,), (second,)) = sql("SELECT path FROM procedures_run ORDER BY seq")
    assert first == ["s1", "detour", "detour", "s2"] and len(second) == 500
    ((id_,),) = sql("SELECT memory_id FROM procedures_procedure")
    with counted(id_) as counters:
        tally = counters.tally()
        assert tally.edge("detour", "detour").total == 1
        assert tally.edge("s1", "s2").total == 250 and tally.edge("s2", "s1").total == 249


def test_a_tool_that_one_node_bears_stands_for_its_id(cast: Cast) -> None:
    add(cast, graph=graph("a>b b>c", a="login", b="fetch", c="fetch"))
    record(cast, ["login", "fetch", "c"])
    assert sql("SELECT path FROM procedures_run") == [(["a", "fetch", "c"],)]


def test_an_unknown_revision_is_refused_and_the_one_in_force_is_meant(cast: Cast) -> None:
    add(cast)
    add(cast, steps=["One", "Two"])
    with nothing_changes():
        reply = record(cast, ["s1"], revision=3)
    assert (reply.status, reply.detail["errors"][0]["path"]) == (400, "revision")
    record(cast, ["s1"])
    record(cast, ["s3"], revision=1)
    assert sql("SELECT revision FROM procedures_run ORDER BY seq") == [(2,), (1,)]


def test_the_clock_of_the_caller_is_not_used_and_named(cast: Cast) -> None:
    add(cast)
    assert record(cast, ["s1"], ts="1999-01-01T00:00:00Z")["ignored_args"] == ["ts"]
    assert sql("SELECT at > now() - interval '1 minute' FROM procedures_run") == [(True,)]


def test_what_is_no_procedure_is_not_there(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "note", "value": 1})
    for key in ("note", "procedure_none"):
        assert record(cast, ["s1"], key=key).status == 404
    add(cast)
    body = {"memory_key": KEY, "path": []}
    assert cast.run("procedure.record_run", body, "viewer").status == 403
    assert cast.run("procedure.record_run", body, "stranger").status == 404


def test_a_run_is_audited_with_its_outcome(cast: Cast) -> None:
    add(cast)
    record(cast, ["s1"], ok=False, agent="codex")
    rows = sql("SELECT op, target, agent, detail FROM governance_auditevent ORDER BY seq DESC LIMIT 1")
    op, target, agent, detail = rows[0]
    assert (op, target, agent) == ("procedure.record_run", KEY, "codex") and '"ok": false' in detail


@pytest.mark.django_db(transaction=True)
def test_threads_lose_no_run_and_number_them_without_gaps(cast: Cast) -> None:
    add(cast)

    def work() -> None:
        for i in range(20):
            assert record(cast, ["s1", "s2"], ok=i % 2 == 0, report_id=f"r{i}").status == 200
            assert record(cast, ["s1"]).status == 200

    in_threads(work, work, work)
    # 20 reports, each sent by all three; 60 runs without an id.
    assert sql("SELECT count(*), min(seq), max(seq), count(DISTINCT seq) FROM procedures_run") == [
        (80, 1, 80, 80)
    ]  # fmt: skip
    assert sql("SELECT runs_total, runs_ok FROM procedures_procedure") == [(80, 70)]


WORK = """
import django, sys
django.setup()
from governance import pipeline
from governance.tenancy import Credentials
for i in range(200):
    answer = pipeline.run(
        "procedure.record_run",
        {"memory_key": sys.argv[2], "path": ["s1", "s2"], "ok": i % 4 > 0, "report_id": f"{i % 100}-" + (
            "shared" if i < 100 else sys.argv[3])},
        Credentials(bearer=sys.argv[1]),
    )
    assert answer.ok, answer.body
"""


@pytest.mark.django_db(transaction=True)
def test_two_processes_of_200_reports_lose_nothing_and_count_replays_once(cast: Cast) -> None:
    from django.db import connection

    add(cast)
    options = connection.settings_dict
    url = os.environ["LOOM_DATABASE_URL"].replace("/postgres?", f"/{options['NAME']}?")
    before, _, query = os.environ["LOOM_DATABASE_URL"].partition("?")
    url = before.rsplit("/", 1)[0] + f"/{options['NAME']}" + (f"?{query}" if query else "")
    environment = {
        **os.environ, "LOOM_DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "loomsite.settings.test",
        "LOOM_RATE_WRITES": "off",
    }  # fmt: skip
    root = Path(__file__).resolve().parents[2]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, cast.tokens["mate"], KEY, name], cwd=root, env=environment,
            stderr=subprocess.PIPE, text=True,
        )
        for name in ("one", "other")
    ]  # fmt: skip
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    # 100 reports that both sent, and 100 of each alone.
    assert sql("SELECT count(*), max(seq), count(DISTINCT report_id) FROM procedures_run") == [
        (300, 300, 300)
    ]  # fmt: skip
    assert sql("SELECT runs_total, runs_ok FROM procedures_procedure") == [(300, 225)]


def test_the_stored_graph_reads_back_as_it_was(cast: Cast) -> None:
    import json

    given = graph("a>b b>c c>a", a="login")
    add(cast, graph=given)
    ((stored,),) = sql("SELECT graph FROM procedures_revision")
    assert read(json.loads(stored)).digest == read(given).digest
