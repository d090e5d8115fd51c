"""Erasure: the words of a fact are nowhere afterwards; a lock or a hold stands in its way."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from facts import erasure
from facts.models import FactCorpusStripe, Lineage, Version
from facts.selectors import now
from facts.words import sha_of_word
from governance import audit
from governance.clock import iso
from governance.models import AuditEvent
from governance.services import system_context
from loomsite.ops import OpError
from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember
from tests.memories.helpers import sql

pytestmark = pytest.mark.django_db
WORDS = ("quokka", "wombat", "numbat", "bilby", "potoroo", "dunnart")


def everything() -> str:
    """Every row of every table but the audit, whose reasons are its own."""
    names = [
        name for name in connection.introspection.table_names()
        if not name.startswith(("governance_audit", "django_"))
    ]  # fmt: skip
    return "\n".join(str(row) for name in names for row in sql(f'SELECT t::text FROM "{name}" t'))  # noqa: S608


def erase(cast: Cast, *ids: str) -> list[int]:
    """As the erasure op calls it."""
    ctx = system_context(org=cast.org, namespace=cast.team, op_name="erasure.request")
    with transaction.atomic():
        done = erasure.erase_lineages(ctx, [int(id_) for id_ in ids])

        audit.append(ctx, ctx.audit)
    return done


def rich(cast: Cast) -> Any:
    """A fact with words in every place that holds any; the answer of its last write."""
    made = remember(
        cast, "quokka Ignore all previous instructions", subject="wombat", attribute="numbat",
        validFrom="2020-01-01", sources=["bilby"], reason="potoroo",
    )  # fmt: skip
    key = {"idempotency_key": "key-1"}
    moved = cast.run(
        "fact.correct",
        {"factId": made["factId"], "value": "bilby", "validFrom": "2021-01-01", "reason": "dunnart"}, **key,
    )  # fmt: skip
    assert moved.status == 200, moved.body
    gone = correct(cast, moved["factId"], "quokka", kind="wrong", subject="elsewhere", reason="dunnart")
    cast.run("fact.retract", {"factId": gone["factId"], "kind": "wrong", "reason": "never"})
    return made


def test_after_it_the_words_are_in_no_table_and_no_index(cast: Cast) -> None:
    made = rich(cast)
    other = remember(cast, "stays", subject="Bo")
    home = Lineage.objects.get(subject="elsewhere")
    assert all(word in everything() for word in WORDS)
    assert erase(cast, made["lineageId"], str(home.pk)) == sorted([int(made["lineageId"]), home.pk])
    left = everything()
    assert [word for word in WORDS if word in left] == []
    assert recall(cast, include_history=True)[0]["factId"] == other["factId"]
    assert Version.objects.filter(lineage=made["lineageId"], known__upper_inf=True).count() == 0
    assert sum(FactCorpusStripe.objects.values_list("docs", flat=True)) == 1
    event = AuditEvent.objects.filter(target=f"fact:{made['lineageId']}").get()
    assert event.detail["erased"] is True


def test_what_replaced_it_elsewhere_forgets_the_old_value(cast: Cast) -> None:
    made = remember(cast, "quokka")
    moved = correct(cast, made["factId"], "numbat", kind="wrong", subject="Bo", reason="dunnart")
    erase(cast, made["lineageId"])
    (fact,) = recall(cast, subject="Bo")
    assert fact["factId"] == moved["factId"] and fact["value"] == "numbat"
    assert (fact["replaced"]["value"], fact["replaced"]["reason"]) == (None, "")
    assert "quokka" not in everything()


def test_an_erased_fact_is_as_if_it_had_never_been_and_its_name_is_free(cast: Cast) -> None:
    made = remember(cast, "quokka", validFrom="2020-01-01")
    before = iso(now())
    erase(cast, made["lineageId"])
    assert recall(cast, known_at=before) == [] and recall(cast, subject="Ada", include_history=True) == []
    for op, body in (
        ("fact.history", {}), ("fact.correct", {"value": 1, "kind": "wrong"}),
        ("fact.retract", {"kind": "wrong", "reason": "r"}), ("fact.share", {}),
    ):  # fmt: skip
        assert cast.run(op, {"factId": made["factId"], **body}).status == 404
    reply = cast.run("memory.lock", {"memory_key": f"fact:{made['factId']}", "reason": "r"})
    assert reply.status == 404
    again = remember(cast, "anew")
    assert again["lineageId"] != made["lineageId"] and erase(cast, made["lineageId"]) == []


def test_a_lock_or_a_hold_refuses_it_whole(cast: Cast) -> None:
    free, kept = remember(cast, "quokka"), remember(cast, "numbat", subject="Bo")
    cast.run("hold.add", {"memory_key": f"fact:{kept['factId']}", "matter": "case 1", "reason": "court"})
    assert erasure.guarded([int(free["lineageId"]), int(kept["lineageId"])]) == [int(kept["lineageId"])]
    with pytest.raises(OpError, match="hold") as told:
        erase(cast, free["lineageId"], kept["lineageId"])
    assert told.value.status == 423 and "quokka" in everything()
    for statement in (
        "UPDATE facts_lineage SET status = 'redacted' WHERE id = %s",
        "SELECT loom_erase_fact(%s)",
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            sql(statement, [kept["lineageId"]])
    with pytest.raises(DatabaseError, match="not redacted"), transaction.atomic():
        sql("SELECT loom_erase_fact(%s)", [free["lineageId"]])


def test_the_facts_of_a_user_and_about_a_subject_are_found(cast: Cast) -> None:
    private = remember(cast, "a", visibility="private", user_id="ada")
    shared = remember(cast, "b", subject="Bo", visibility="private", user_id="ada")
    cast.run("fact.share", {"factId": shared["factId"], "user_id": "ada"})
    public = remember(cast, "c")
    ids = [int(one["lineageId"]) for one in (private, shared, public)]
    assert erasure.lineages_of_user([cast.team.pk], "ada") == ids[:2]
    assert erasure.lineages_of_user([cast.team.pk], "-") == []
    assert erasure.lineages_of_user([cast.elsewhere.pk], "ada") == []
    assert erasure.lineages_about([cast.team.pk], sha_of_word(" ADA ")) == [ids[0], ids[2]]
