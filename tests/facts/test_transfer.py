"""Facts out to a file and in again: both axes of time, locks, holds and what was screened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from facts.models import FactFlag, Lineage, Version
from governance.models import Job, Namespace
from governance.services import member_set_role
from loomsite.ops import Role
from memories import transfer
from memories.embedders import reset_embedder
from tests.conftest import Cast
from tests.memories import test_transfer as memories
from tests.memories.helpers import sql, tables
from tests.memories.test_transfer import BAD, _changed, body, exported, taken

pytestmark = pytest.mark.django_db
ALICE: dict[str, Any] = {"user_id": "alice"}
EVERYBODY: dict[str, Any] = {"user_id": "*", "limit": 100}


@pytest.fixture(autouse=True)
def _no_embedder(settings: Any) -> Iterator[None]:
    """Vectors are no part of the file; the job that makes them has a test of its own."""
    settings.LOOM_EMBEDDER = "none"
    reset_embedder()
    yield
    reset_embedder()


def another_database() -> None:
    """What another installation with the same organisation would hold of all this: nothing."""
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql(
        "TRUNCATE facts_lineage, facts_version, facts_retraction, facts_factflag, facts_factposting, "
        "facts_factembedding, facts_factcorpusstripe CASCADE"
    )
    memories.another_database()


def rich(cast: Cast) -> None:
    """Every kind of version, lock and flag there is."""

    def call(op: str, **payload: Any) -> dict[str, Any]:
        reply = cast.console(op, payload)
        assert reply.status == 200, reply.body
        return reply.body

    def remember(subject: str, value: Any, **more: Any) -> str:
        fields = {"subject": subject, "attribute": "employer", "value": value, **more}
        return str(call("fact.remember", **fields)["factId"])

    source = call("memory.set", memory_key="source", value="a letter")["memory_id"]
    ada = remember("Ada", "Acme", validFrom="2020-01-01", confidence=0.3, sources=[f"node:{source}"])
    call("fact.correct", factId=ada, value="Bolt", validFrom="2022-03-04T05:06:07.000008Z", reason="moved")
    remember("Ada", "Acme", validFrom="2010-01-01", validTo="2012-01-01")
    remember("Ada", "Acme", validFrom="2010-01-01", validTo="2012-01-01", sources=["https://a.example"])
    wrong = remember("Grace", {"b": [1, 1.5, None, 1e16], "a": "東京の天気"})
    moved = call("fact.correct", factId=wrong, value="Navy", kind="wrong", subject="Hopper", reason="typo")
    call("fact.retract", factId=moved["factId"], kind="ended", validTo="1986-08-14", reason="left")
    call("fact.retract", factId=remember("Never", "x"), kind="wrong", reason="was never so")
    remember("Many", "a", attribute="language", cardinality="many")
    remember("Many", "b", attribute="language", validFrom="2021-01-01")
    for start, end in ((None, "2020-01-01"), ("2020-01-01", None)):
        remember("Mine", f"from {start}", visibility="private", validFrom=start, validTo=end, **ALICE)
    remember("Secret", "alone", visibility="private", **ALICE)
    mine = call("fact.recall", subject="Mine", **ALICE)["facts"]
    call("fact.share", factId=mine[0]["factId"], **ALICE)
    call("memory.lock", memory_key=f"fact:{remember('Locked', 1)}", mode="read_only", reason="agreed")
    until = f"fact:{remember('Until', 1)}"
    call("memory.lock", memory_key=until, mode="no_delete", reason="a year", ttl_seconds=10**7)
    held = f"fact:{remember('Held', 1)}"
    for matter in ("case 1", "case 2"):
        call("hold.add", memory_key=held, matter=matter, reason="court")
    call("hold.release", memory_key=held, matter="case 1", reason="settled")
    remember("Flagged", BAD)
    read = remember("Read", BAD)
    FactFlag.objects.filter(version=read).update(
        acknowledged_by="owner", acknowledged_at="2026-01-01T00:00:00Z", acknowledge_reason="harmless"
    )
    erase(cast, *(remember(subject, "a secret", validFrom="2020-01-01") for subject in ("Gone", "Gone too")))


def erase(cast: Cast, *fact_ids: str) -> None:
    """As the erasure of facts leaves them; it is governance's, with tests of its own."""
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    for table in ("facts_lineage", "facts_version"):
        sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    for id_ in Version.objects.filter(pk__in=fact_ids).values_list("lineage_id", flat=True):
        sql("DELETE FROM facts_factposting WHERE version_id IN "
            "(SELECT id FROM facts_version WHERE lineage_id = %s)", [id_])  # fmt: skip
        sql("UPDATE facts_version SET value = 'null', sources = '[]' WHERE lineage_id = %s", [id_])
        sql(
            "UPDATE facts_lineage SET subject = '', attribute = '', status = 'redacted', "
            "subject_sha256 = sha256(convert_to('erased ' || id, 'UTF8')), "
            "attribute_sha256 = sha256(convert_to('erased ' || id, 'UTF8')) WHERE id = %s",
            [id_],
        )
        sql("UPDATE facts_factcorpusstripe SET docs = docs - 1 WHERE owner = '-'")
    for table in ("facts_lineage", "facts_version"):
        sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@pytest.fixture
def filled(cast: Cast) -> Cast:
    """The cast with a rich namespace."""
    rich(cast)
    return cast


def derived(namespace: Namespace) -> list[Any]:
    """What is computed from the rows."""
    return [
        sql(
            "SELECT version_id, term, tf, doc_len, owner FROM facts_factposting WHERE namespace_id = %s "
            "ORDER BY 1, 2",
            [namespace.pk],
        ),
        sql(
            "SELECT owner, sum(docs) FROM facts_factcorpusstripe WHERE namespace_id = %s "
            "GROUP BY owner ORDER BY 1",
            [namespace.pk],
        ),
        sql(
            "SELECT id, subject_sha256, attribute_sha256, holds FROM facts_lineage WHERE namespace_id = %s "
            "ORDER BY 1",
            [namespace.pk],
        ),
        sql("SELECT id, value_key FROM facts_version WHERE namespace_id = %s ORDER BY 1", [namespace.pk]),
    ]


def again(cast: Cast, file: bytes) -> Namespace:
    """The namespace of the file in another database, with its admin."""
    another_database()
    namespace = taken(file, cast.org)
    member_set_role(namespace=namespace, member=cast.people["owner"], role=Role.ADMIN)
    return namespace


def test_the_export_of_the_import_is_the_file_byte_for_byte(filled: Cast) -> None:
    kinds = {kind for (kind,) in sql("SELECT DISTINCT kind FROM facts_version")}
    assert kinds == {"remember", "merge", "changed", "wrong", "clip", "ended", "share"}
    file, computed = exported(filled.team), derived(filled.team)
    for _ in range(2):
        namespace = again(filled, file)
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        assert body(exported(namespace)) == body(file)
        assert derived(namespace) == computed


def test_recall_answers_as_before_now_and_for_every_past_moment(filled: Cast) -> None:
    moments = [at.isoformat() for (at,) in sql("SELECT DISTINCT lower(known) FROM facts_version ORDER BY 1")]
    assert len(moments) > 15
    questions: list[dict[str, Any]] = [
        {}, ALICE, EVERYBODY, {"valid_at": "2021-01-01"}, {"query": "Acme"},
        {"query": "previous instructions"},
    ]  # fmt: skip
    questions += [{**EVERYBODY, "known_at": at} for at in moments]

    def answers() -> list[Any]:
        replies = [filled.console("fact.recall", question) for question in questions]
        assert {reply.status for reply in replies} == {200}, replies
        histories = [
            filled.console("fact.history", {"subject": subject, "attribute": "employer", **ALICE}).body
            for subject in ("Ada", "Grace", "Never", "Mine", "Read")
        ]
        return [[reply["facts"] for reply in replies], histories]

    before = answers()
    assert before[0][0] and before[0][6] != before[0][-1]
    again(filled, exported(filled.team))
    assert answers() == before


def test_locks_and_holds_stand_and_ids_go_on(filled: Cast) -> None:
    again(filled, exported(filled.team))

    def of(subject: str) -> str:
        return str(filled.console("fact.recall", {"subject": subject})["facts"][0]["factId"])

    for subject in ("Locked", "Until", "Held"):
        reply = filled.console("fact.retract", {"factId": of(subject), "kind": "wrong", "reason": "r"})
        assert (reply.status, reply.code) == (423, "LOCKED"), subject
    locks = filled.console("lock.list", {})["locks"]
    assert len(locks) == 3 and [len(lock["holds"]) for lock in locks].count(1) == 1
    made = filled.console("fact.remember", {"subject": "New", "attribute": "a", "value": 1})["factId"]
    assert [(int(made),)] == sql("SELECT max(id) FROM facts_version")


def test_vectors_are_made_by_a_job(filled: Cast, settings: Any) -> None:
    file = exported(filled.team)
    another_database()
    settings.LOOM_EMBEDDER = "wordllama"
    reset_embedder()
    taken(file, filled.org)
    job = Job.objects.get(kind="fact.embed")
    assert [(id_,) for id_ in job.input["version_ids"]] == sql(
        "SELECT v.id FROM facts_version v JOIN facts_lineage l ON l.id = v.lineage_id "
        "WHERE l.status = 'active' ORDER BY v.id"
    )


DAMAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown name": ("facts", {"nice": 1}, "is damaged: nice"),
    "an unknown cardinality": ("facts", {"cardinality": "few"}, "is damaged: cardinality"),
    "a clock that goes back": ("facts", {"last_known_at": "2020-01-01T00:00:00Z"}, "is younger than"),
    "a lineage of nothing": ("fact_versions", {"lineage_id": "99999999"}, "which the file does not hold"),
    "a later origin": ("fact_versions", {"made_from": "99999999"}, "made from an earlier one"),
    "an origin of nothing": ("fact_versions", {"made_from": "1"}, "does not hold before it"),
    "a period backwards": ("fact_versions", {"valid_to": "1900-01-01T00:00:00Z"}, "ends after it starts"),
    "an overlap": (
        "fact_versions",
        {"known_to": None, "valid_from": None, "valid_to": None},
        "fact_versions) cannot be stored",
    ),
    "a confidence that is no share": ("fact_versions", {"confidence": 2}, "is damaged: confidence"),
    "a lock of nothing": ("fact_locks", {"lineage_id": "1"}, "a lock of fact 1"),
    "a lock out of order": ("fact_locks", {"lineage_id": "99999999"}, "locks come once each"),
    "a lock without a reason": (
        "fact_locks",
        {"lock": {"mode": "no_delete", "reason": "", "until": None, "locked_by": "", "locked_at": None}},
        "fact_locks) cannot be stored",
    ),
}  # fmt: skip


def test_damage_is_named_with_its_line_and_nothing_is_taken(filled: Cast) -> None:
    file = exported(filled.team)
    another_database()
    before = tables()
    for what, (name, changes, told) in DAMAGES.items():
        spoiled = _changed(file, name, **changes)
        with pytest.raises(transfer.TransferError) as refusal, transaction.atomic():
            taken(spoiled, filled.org)
        assert told in str(refusal.value) and "line" in str(refusal.value), f"{what}: {refusal.value}"
        assert tables() == before, what


def test_ids_that_are_taken_are_named_and_not_given_anew(filled: Cast) -> None:
    lines = exported(filled.team).splitlines(keepends=True)
    counts = dict.fromkeys(transfer.sections(), 0)
    only = [line for line in lines[1:] if json.loads(line)["section"].startswith("fact")]
    for line in only:
        counts[json.loads(line)["section"]] += 1
    file = b"".join([lines[0], *only, transfer.line_of({"section": "end", "counts": counts})])
    first = Lineage.objects.order_by("pk").values_list("pk", flat=True)[0]
    before = tables()
    with (
        pytest.raises(transfer.TransferError, match=f"fact ids are taken in this database: {first}"),
        transaction.atomic(),
    ):
        taken(file, filled.org, "copy")
    assert tables() == before


def test_a_place_with_facts_is_refused(cast: Cast) -> None:
    file = exported(cast.team)
    cast.console("fact.remember", {"subject": "Ada", "attribute": "employer", "value": 1})
    with pytest.raises(transfer.TransferError, match="it has facts"), transaction.atomic():
        taken(file, cast.org)
