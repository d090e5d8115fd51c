"""The floor view runs what the op runs: the recorded statements, with what must differ made anew."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings

from benchmarks import floor
from benchmarks.replay import Recorder, Recording, alike
from facts.models import FactEmbedding, FactPosting, Lineage, Version
from governance import pipeline
from governance.models import AuditEvent
from governance.tenancy import Credentials
from memories.models import Embedding, Memory, MemoryVersion, Posting
from tests.conftest import Cast

OPS = ("memory.get", "memory.search", "memory.set")


def recorded(token: str, op: str, payload: dict[str, Any]) -> Recording:
    recorder = Recorder(connection)
    with connection.execute_wrapper(recorder):
        answer = pipeline.run(op, payload, Credentials(bearer=token))
    assert answer.ok, answer.body
    return recorder.recording(op, payload, answer.body)


@pytest.fixture
def served(transactional_db: None, cast: Cast, tmp_path: Path) -> Any:
    """A client of the benchmark's addresses, and the recordings behind the floor view."""
    token = cast.token("mate")
    recorded(token, "memory.set", {"memory_key": "first", "value": "makes the audit's head"})
    with connection.cursor() as cursor:
        # As after the thousands of rows of a benchmark: neither number is small, and they are far apart.
        cursor.execute("UPDATE governance_audithead SET seq = 20000")
        cursor.execute("SELECT setval('loom_node_id', nextval('loom_node_id') + 100000)")
    recordings = {
        "memory.set": [recorded(token, "memory.set", {"memory_key": "one", "value": "a kayak in red"})],
        "memory.get": [recorded(token, "memory.get", {"memory_key": "one"})],
        "memory.search": [recorded(token, "memory.search", {"query": "kayak"})],
    }
    (tmp_path / floor.FILE).write_bytes(pickle.dumps(recordings))
    floor.recordings.cache_clear()
    with override_settings(ROOT_URLCONF="benchmarks.urls", LOOM_HOME=tmp_path):
        yield Client(), recordings


def post(client: Client, op: str, payload: dict[str, Any]) -> Any:
    answer = client.post(f"/v1/bench/floor/{op}", json.dumps(payload), content_type="application/json")
    assert answer.status_code == 200, answer.content
    return answer.json()


@pytest.mark.parametrize("op", OPS)
def test_the_floor_runs_the_very_statements_of_the_op(served: Any, op: str) -> None:
    client, recordings = served
    recorder = Recorder(connection)
    with connection.execute_wrapper(recorder):
        body = post(client, op, {"memory_key": "fresh", "query": "kayak"})
    ran = [(statement.sql, statement.in_transaction) for statement, _ in recorder.noted]
    assert ran == [(s.sql, s.in_transaction) for s in recordings[op][0].statements]
    assert body == recordings[op][0].body


def test_a_write_stands_in_a_transaction_and_a_read_does_not(served: Any) -> None:
    _, recordings = served
    assert not any(s.in_transaction for op in OPS[:2] for s in recordings[op][0].statements)
    first, *others = recordings["memory.set"][0].statements
    assert not first.in_transaction
    assert all(s.in_transaction for s in others)


def test_each_replay_of_a_set_writes_a_memory_of_its_own_with_all_that_belongs_to_it(served: Any) -> None:
    client, _ = served
    events = AuditEvent.objects.count()
    last = AuditEvent.objects.order_by("-seq").values_list("seq", flat=True)[0]
    for key in ("fresh/1", "fresh/2", "fresh/3"):
        post(client, "memory.set", {"memory_key": key, "value": "x"})
    made = Memory.objects.filter(memory_key__startswith="fresh/")
    assert made.count() == 3
    for memory in made:
        assert MemoryVersion.objects.filter(memory=memory).count() == 1
        assert Embedding.objects.filter(memory=memory).count() == 1
        assert Posting.objects.filter(memory=memory).count() == memory_terms()
    assert AuditEvent.objects.count() == events + 3
    assert AuditEvent.objects.filter(seq__gt=last).count() == 3


def test_each_replay_of_a_correction_corrects_a_fact_of_its_own(served: Any, cast: Cast) -> None:
    client, recordings = served
    token = cast.token("mate")

    def fact(subject: str) -> str:
        body = {"subject": subject, "attribute": "town", "value": "Oslo", "validFrom": "2010-01-01"}
        answer = pipeline.run("fact.remember", body, Credentials(bearer=token))
        return str(answer.body["factId"])

    payload = {"factId": fact("Ada"), "value": "Bergen", "validFrom": "2015-01-01"}
    recordings["fact.correct"] = [recorded(token, "fact.correct", payload)]
    (Path(settings.LOOM_HOME) / floor.FILE).write_bytes(pickle.dumps(recordings))
    floor.recordings.cache_clear()
    for subject in ("Bo", "Cy"):
        before = AuditEvent.objects.count()
        post(client, "fact.correct", {**payload, "factId": fact(subject)})
        line = Lineage.objects.get(subject=subject)
        believed = Version.objects.filter(lineage=line, known__upper_inf=True)
        assert sorted(believed.values_list("value", flat=True)) == ["Bergen", "Oslo"]
        assert FactPosting.objects.filter(version__lineage=line).values("version").distinct().count() == 3
        assert FactEmbedding.objects.filter(version__lineage=line).count() == 3
        assert AuditEvent.objects.count() == before + 2, "its own, and the one of remembering it"


def memory_terms() -> int:
    return Posting.objects.filter(memory__memory_key="one").count()


def test_recordings_with_another_list_of_statements_are_left_out(served: Any) -> None:
    _, recordings = served
    get, search = recordings["memory.get"][0], recordings["memory.search"][0]
    assert alike([get, search, get]) == [get, get]


def test_production_has_no_floor_view(client: Client, db: None) -> None:
    assert client.post("/v1/bench/floor/memory.get", "{}", content_type="application/json").status_code == 404
