"""The console's pages about procedures."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from procedures.models import Procedure
from tests.console.conftest import Cast, build_cast
from tests.console.test_csp import faults_of
from tests.procedures.evolving import evolve_by_itself
from tests.procedures.helpers import KEY, RECIPE, graph


@pytest.fixture
def console(db: None) -> Cast:
    """The console's cast with one procedure in `deploy`."""
    cast = build_cast()
    hostile = graph("look>fix fix>check check>look", fix="edit")
    hostile["nodes"][2]["text"] = "<script>alert(1)</script>"
    assert cast.call("procedure.add", **{**RECIPE, "graph": hostile}).ok
    for ok in (True, True, False):
        note = "" if ok else "it <b>broke</b>"
        body = {"memory_key": KEY, "path": ["look", "fix", "check", "odd"], "ok": ok, "note": note}
        assert cast.call("procedure.record_run", **body).ok
    evolve_by_itself()
    return cast


def page(cast: Cast, who: str = "viewer", query: str = "") -> Any:
    """The procedure's page."""
    url = reverse("admin:procedures_procedure_change", args=[Procedure.objects.get().pk])
    return cast.client(who).get(url + query)


def test_the_list_shows_status_runs_and_rate(console: Cast) -> None:
    text = console.client("viewer").get(reverse("admin:procedures_procedure_changelist")).content.decode()
    assert RECIPE["name"] in text and "exercised" in text and "67 %" in text
    none = console.client("nobody").get(reverse("admin:procedures_procedure_changelist")).content.decode()
    assert RECIPE["name"] not in none
    empty = console.client("viewer").get(reverse("admin:procedures_procedure_changelist") + "?q=zzz")
    assert "No procedure matches" in empty.content.decode()


def test_the_page_draws_the_graph_and_says_the_same_in_tables(console: Cast) -> None:
    response = page(console)
    text = response.content.decode()
    assert response.status_code == 200 and faults_of(response) == []
    assert text.count('<g class="node') == 3 and text.count('<path class="edge') == 3
    assert "<script>alert(1)" not in text and "<b>broke" not in text
    assert "3 traversals, 2 in runs that succeeded" in text
    assert "check → odd" in text and "not declared" in text
    widths = re.findall(r'stroke-width="([\d.]+)"[^>]*><title>(\w+ to \w+)', text)
    assert {pair: float(width) > 1.5 for width, pair in widths} == {
        "look to fix": True, "fix to check": True, "check to look": False
    }  # fmt: skip


def test_runs_are_filtered_by_outcome(console: Cast) -> None:
    every, failed = page(console).content.decode(), page(console, query="?runs=failed").content.decode()
    assert every.count("<strong>Run ") == 3 and failed.count("<strong>Run ") == 1
    assert "broke" in failed


def test_the_page_is_not_there_for_those_without_a_role(console: Cast) -> None:
    assert {who: page(console, who).status_code for who in ("nobody", "stranger", "writer", "owner")} == {
        "nobody": 404, "stranger": 404, "writer": 200, "owner": 200
    }  # fmt: skip


def test_a_list_of_many_takes_no_more_queries(console: Cast) -> None:
    client, url = console.client("viewer"), reverse("admin:procedures_procedure_changelist")
    client.get(url)
    with CaptureQueriesContext(
        connection,
    ) as one:
        client.get(url)
    for i in range(12):
        assert console.call("procedure.add", **{**RECIPE, "name": f"more {i}"}).ok
    with CaptureQueriesContext(connection) as many:
        client.get(url)
    assert len(many) == len(one) <= 15


def test_a_person_sees_a_preview_and_then_stores(console: Cast) -> None:
    client, url = console.client("writer"), reverse("admin:procedures_procedure_new")
    body = {
        "namespace": "acme/deploy", "name": "By hand", "situation": "When written by a person",
        "steps": "First\n\nSecond\n", "graph": "",
    }  # fmt: skip
    shown = client.post(url, {**body, "preview": "1"})
    assert shown.status_code == 200 and shown.content.decode().count('<g class="node') == 2
    assert Procedure.objects.count() == 1
    stored = client.post(url, {**body, "store": "1"})
    assert stored.status_code == 302
    made = Procedure.objects.latest("pk")
    assert made.authored and made.memory.value["steps"] == ["First", "Second"]
    refused = console.client("viewer").post(url, {**body, "name": "Not mine", "store": "1"})
    assert refused.status_code == 403 and Procedure.objects.count() == 2


def test_every_fault_of_a_graph_is_shown_beside_the_field(console: Cast) -> None:
    url = reverse("admin:procedures_procedure_new")
    wrong = json.dumps(
        {"nodes": [{"id": "a", "kind": "x", "text": "t"}], "edges": [{"src": "a", "dst": "b"}]}
    )
    body = {"namespace": "acme/deploy", "name": "n", "situation": "s", "graph": wrong, "preview": "1"}
    reply = console.client("writer").post(url, body)
    text = reply.content.decode()
    assert reply.status_code == 400
    for place in ("nodes.0.kind", "edges.0.dst", "edges.0.kind"):
        assert place in text
    for other in ("[1]", "{", '"x"'):
        assert console.client("writer").post(url, {**body, "graph": other}).status_code == 400


def test_a_graph_of_500_nodes_is_whole_on_the_page(console: Cast) -> None:
    edges = " ".join(f"n{i // 3}>n{i}" for i in range(1, 500))
    big = {**RECIPE, "name": "Big", "graph": graph(edges)}
    made = console.call("procedure.add", **big)
    assert made.ok, made.body
    url = reverse("admin:procedures_procedure_change", args=[made.body["memory_id"]])
    text = console.client("viewer").get(url).content.decode()
    assert text.count('<g class="node') == 500 and text.count('<path class="edge') == 499
