"""Procedures out to a file and in again: revisions, the ledger, and nothing revived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from governance.models import Job, Namespace
from governance.services import member_set_role
from loomsite.ops import Role
from memories import transfer
from memories.embedders import reset_embedder
from procedures import ledger
from tests.conftest import Cast
from tests.memories import test_transfer as memories
from tests.memories.helpers import nothing_changes, sql, tables
from tests.memories.test_transfer import BAD, _changed, body, exported, taken
from tests.procedures.evolving import evolve
from tests.procedures.helpers import KEY, RECIPE, graph

KEYS = (KEY, "procedure_copy", "procedure_kinds", "procedure_東京")


@pytest.fixture(autouse=True)
def _no_embedder(settings: Any) -> Iterator[None]:
    """Vectors are no part of the file; the jobs that make them have a test of their own."""
    settings.LOOM_EMBEDDER = "none"
    reset_embedder()
    yield
    reset_embedder()
    ledger.forget()


def another_database() -> None:
    """What another installation with the same organisation would hold of all this: nothing."""
    memories.another_database()
    ledger.forget()


def rich(cast: Cast) -> None:
    """Several revisions, forks, every kind of run, folded and redacted ones."""

    def call(op: str, **payload: Any) -> dict[str, Any]:
        reply = cast.console(op, payload)
        assert reply.status == 200, reply.body
        return reply.body

    def run(key: str, path: list[str], ok: bool = True, **more: Any) -> None:
        call("procedure.record_run", memory_key=key, path=path, ok=ok, **more)

    call("procedure.add", **RECIPE)
    call("procedure.add", **{**RECIPE, "graph": graph("a>b b>c a>c", a="kubectl", b="grep")})
    call("procedure.add", **{**RECIPE, "name": "東京", "situation": "天気", "metadata": {"m": 0.1}})
    kinds = {
        "nodes": [
            {"id": "m", "kind": "memory", "memory_key": "rules"},
            {"id": "d", "kind": "decision", "text": "which?"},
            {"id": "s", "kind": "step", "text": "do"},
        ],
        "edges": [
            {"src": "m", "dst": "d", "kind": "dataflow"},
            {"src": "d", "dst": "s", "kind": "branch", "condition": "if so"},
        ],
    }
    call("procedure.add", **{**RECIPE, "name": "Kinds", "graph": kinds})
    for number in range(3):
        run(KEY, ["a", "b", "c"], report_id=f"r-{number}", duration_ms=5, tokens=7, steps_taken=3)
        run("procedure_東京", ["s1", "strange"], ok=False, note="no rights 天気")
    run(KEY, ["a", "c"], ok=False, note=BAD, agent="codex")
    run(KEY, ["s1"], revision=1)
    call("procedure.fork", memory_key=KEY, from_namespace="team", new_name="Copy", reason="another")
    for name in ("Secret", "Gone"):
        call("procedure.add", **{**RECIPE, "name": name})
        run(f"procedure_{name.lower()}", ["s1"], note="swordfish", report_id="r")
    call("memory.redact", memory_key="procedure_secret", reason="leaked")
    call("memory.delete", memory_key="procedure_gone", reason="over")
    # What evolve leaves: a rejected, a withdrawn and a pending revision, a dead end, unfolded runs.
    evolve(cast, KEY, by="owner")
    revise = {"memory_key": "procedure_kinds", "graph": graph("m>d d>s s>t"), "reason": "one more"}
    for _ in range(10):
        run("procedure_kinds", ["m", "d", "s"], duration_ms=3)
    for _ in range(2):
        call("procedure.revise", **revise)
        for _ in range(9):
            run("procedure_kinds", ["m", "d", "strange"], ok=False)
        assert evolve(cast, "procedure_kinds", by="owner")["gate"] == "revert"
        revise["force"] = True
    call("procedure.revise", **revise)
    call("procedure.revise", **{**revise, "graph": graph("m>d d>s")})
    run("procedure_kinds", ["m"], ok=False)
    sql("UPDATE procedures_procedure SET evolve_settings = '{\"min_runs\": 4}' WHERE runs_total > 9")


@pytest.fixture
def filled(cast: Cast) -> Cast:
    """The cast with a rich namespace."""
    rich(cast)
    return cast


def again(cast: Cast, file: bytes) -> Namespace:
    """The namespace of the file in another database, with its admin."""
    another_database()
    namespace = taken(file, cast.org)
    member_set_role(namespace=namespace, member=cast.people["owner"], role=Role.ADMIN)
    return namespace


def test_the_export_of_the_import_is_the_file_byte_for_byte(filled: Cast) -> None:
    file = exported(filled.team)
    for _ in range(2):
        namespace = again(filled, file)
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        assert body(exported(namespace)) == body(file)
    assert b"swordfish" in file and sql(
        "SELECT u.note, u.path, u.report_id FROM procedures_run u JOIN memories_memory m "
        "ON m.id = u.procedure_id WHERE m.status = 'redacted'"
    ) == [("", [], "r")]


def test_procedures_are_located_listed_and_reported_to_as_before(filled: Cast) -> None:
    def answers() -> list[Any]:
        replies = [filled.console("procedure.locate", {"memory_key": key}) for key in KEYS]
        replies += [
            filled.console("procedure.locate", {"memory_key": KEY, "path": ["a"]}),
            filled.console("procedure.list", {}),
        ]
        assert {reply.status for reply in replies} == {200}, [reply.body for reply in replies]
        return [reply.body for reply in replies]

    report = {"memory_key": KEY, "path": [], "ok": False, "report_id": "r-1"}
    before, first = answers(), filled.console("procedure.record_run", report).body
    again(filled, exported(filled.team))
    assert answers() == before
    with nothing_changes():
        assert filled.console("procedure.record_run", report).body == first
    for key in ("procedure_secret", "procedure_gone"):
        assert filled.console("procedure.locate", {"memory_key": key}).status == 404
    more = filled.console("procedure.record_run", {"memory_key": KEY, "path": ["a"], "ok": True})
    assert more["run_stats"]["total"] == 6 and more["run_stats"]["unfolded"] == 1


def test_situation_vectors_are_made_by_jobs(filled: Cast, settings: Any) -> None:
    file = exported(filled.team)
    another_database()
    settings.LOOM_EMBEDDER = "wordllama"
    reset_embedder()
    taken(file, filled.org)
    asked = {job.input["procedure_id"] for job in Job.objects.filter(kind="procedure.embed")}
    assert asked == {
        id_
        for (id_,) in sql(
            "SELECT p.memory_id FROM procedures_procedure p JOIN memories_memory m ON m.id = p.memory_id "
            "WHERE m.status <> 'redacted'"
        )
    }


DAMAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown name": ("procedures", {"nice": 1}, "is damaged: nice"),
    "a procedure of nothing": ("procedures", {"memory_id": "99999999"}, "is no procedure of the file"),
    "a wrong count": ("procedures", {"runs_total": 77}, "not those of the file's runs"),
    "an unknown revision in force": ("procedures", {"revision": 77}, "not those of the file's runs"),
    "a revision of nothing": ("procedure_revisions", {"procedure_id": "1"}, "which the file lacks"),
    "an unknown state": ("procedure_revisions", {"state": "lost"}, "is damaged: state"),
    "a changed graph": ("procedure_revisions", {"graph": graph("x>y")}, "digest is not that of the graph"),
    "no graph": ("procedure_revisions", {"graph": {"nodes": [], "edges": []}}, "graph.nodes"),
    "broken counters": ("procedure_revisions", {"counters": {"nodes": [1]}}, "is damaged: counters.nodes"),
    "folded runs that are not": ("procedures", {"runs_folded": 1}, "not those of the file's runs"),
    "a pending revision of nothing": ("procedures", {"prior_revision": 1}, "not those of the file's runs"),
    "broken evidence": ("procedures", {"evidence": {"retention": 1}}, "is damaged: evidence.retention"),
    "a broken verdict": ("procedure_revisions", {"verdict": {"verdict": "accept"}}, "is damaged: verdict"),
    "a broken baseline": ("procedure_revisions", {"baseline": {"total": 1}}, "is damaged: baseline"),
    "a run of nothing": ("procedure_runs", {"procedure_id": "1"}, "which the file lacks"),
    "a run of no revision": ("procedure_runs", {"revision": 77}, "a run of revision 77"),
    "a run out of order": ("procedure_runs", {"seq": 7}, "run 7 follows run 0"),
    "a report without an answer": ("procedure_runs", {"answer": None}, "and only then"),
}


def test_damage_is_named_and_nothing_is_taken(filled: Cast) -> None:
    file = exported(filled.team)
    another_database()
    before = tables()
    for what, (name, changes, told) in DAMAGES.items():
        with pytest.raises(transfer.TransferError) as refusal, transaction.atomic():
            taken(_changed(file, name, **changes), filled.org)
        assert told in str(refusal.value), f"{what}: {refusal.value}"
        assert tables() == before, what


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"path":[],"ok":true,"note":""', b'"path":["s1"],"ok":true,"note":""', "has no path, note"),
        (b'"graph":{"edges":[],"nodes":[]}', b'"graph":{"edges":[],"nodes":[1]}', "has no graph"),
    ],
)
def test_nothing_redacted_comes_back_by_a_file(filled: Cast, old: bytes, new: bytes, told: str) -> None:
    file = exported(filled.team)
    assert file.count(old) == 1
    another_database()
    with pytest.raises(transfer.TransferError, match=told), transaction.atomic():
        taken(file.replace(old, new), filled.org)


def test_ids_that_are_taken_are_named_and_not_given_anew(filled: Cast) -> None:
    file = exported(filled.team)
    ((first,),) = sql("SELECT min(memory_id) FROM procedures_procedure")
    with nothing_changes(), pytest.raises(transfer.TransferError, match=f"taken in this database: {first}"):
        with transaction.atomic():
            taken(file, filled.org, "copy")
