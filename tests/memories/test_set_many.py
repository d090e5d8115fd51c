"""memory.set_many: each item as memory.set would, all or nothing unless `partial`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from memories.models import Memory, Posting
from tests.conftest import Cast
from tests.memories.helpers import AUDIT, corpus, govern, history, nothing_changes, pass_expiry, sql


def test_every_item_is_answered_in_the_order_it_was_sent(cast: Cast) -> None:
    items = [{"memory_key": key, "value": key} for key in ("c", "a", "b")]
    answer = cast.call("memory.set_many", {"items": items})
    assert [result["memory_key"] for result in answer["results"]] == ["c", "a", "b"]
    assert [result["version"] for result in answer["results"]] == [1, 1, 1]
    assert (answer["stored"], answer["refused"]) == (3, 0)
    assert set(Memory.objects.values_list("memory_key", flat=True)) == {"a", "b", "c"}


def test_an_item_answers_what_memory_set_would(cast: Cast) -> None:
    single = cast.run("memory.set", {"memory_key": "one", "value": 1, "tags": ["t"]})
    (many,) = cast.run("memory.set_many", {"items": [{"memory_key": "two", "value": 2, "tags": ["t"]}]})[
        "results"
    ]
    assert set(many) == set(single.body) - {"dry_run"}


def test_one_refused_item_refuses_the_call_and_nothing_is_stored(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "locked", "value": 1})
    cast.run("memory.lock", {"memory_key": "locked", "reason": "audit"})
    items = [
        {"memory_key": "a", "value": 1},
        {"memory_key": "locked", "value": 2},
        {"memory_key": "z", "value": 3},
    ]
    with nothing_changes(but_for=AUDIT):
        refused = cast.call("memory.set_many", {"items": items})
    assert (refused.status, refused.code, refused.detail["item"]) == (423, "LOCKED", 1)
    assert refused.detail["memory_key"] == "locked"


def test_partial_stores_what_can_be_stored_and_each_item_tells(cast: Cast) -> None:
    for key in ("locked", "governed"):
        cast.run("memory.set", {"memory_key": key, "value": 1})
    cast.run("memory.set", {"memory_key": "pinned", "value": 1, "pinned": True}, by="owner")
    cast.run("memory.lock", {"memory_key": "locked", "reason": "audit"})
    govern("governed", "deleted")
    keys = ["new", "locked", "governed", "pinned", "fact:x", "other"]
    answer = cast.call(
        "memory.set_many", {"items": [{"memory_key": key, "value": 2} for key in keys], "partial": True}
    )
    codes = [result.get("error", {}).get("code") for result in answer["results"]]
    assert codes == [None, "LOCKED", "GOVERNED_KEY", "PINNED_CONFLICT", "MANAGED_KEY", None]
    assert (answer["stored"], answer["refused"]) == (2, 4)
    assert set(Memory.objects.filter(value=2).values_list("memory_key", flat=True)) == {"new", "other"}


def test_a_partial_refusal_of_an_ended_pinned_row_leaves_it_as_it_was(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 60, "agent": "a"})
    cast.run("memory.set", {"memory_key": "k", "value": 0, "pinned": True}, by="owner")
    pass_expiry("k")
    item = {"memory_key": "k", "value": 2}
    with nothing_changes(but_for=AUDIT):
        answer = cast.run("memory.set_many", {"agent": "a", "items": [item, item], "partial": True})
    assert [result["error"]["code"] for result in answer["results"]] == ["PINNED_CONFLICT"] * 2


def test_the_same_key_twice_makes_two_versions_and_the_last_text_is_indexed(cast: Cast) -> None:
    items = [
        {"memory_key": "k", "value": "apples and pears"},
        {"memory_key": "other", "value": "plums"},
        {"memory_key": "k", "value": "quinces"},
        {"memory_key": "k", "value": "quinces", "tags": ["fruit"]},
        {"memory_key": "k", "value": "quinces"},
    ]
    answer = cast.call("memory.set_many", {"items": items})
    assert [result["version"] for result in answer["results"]] == [1, 1, 2, 3, 3]
    assert [result["noop"] for result in answer["results"]] == [False, False, False, False, True]
    assert answer["stored"] == 4
    assert [v["value"] for v in history(cast, "k")] == ["apples and pears", "quinces", "quinces"]
    k = Memory.objects.get(memory_key="k")
    terms = set(Posting.objects.filter(memory=k).values_list("term", flat=True))
    assert "quinc" in terms and "appl" not in terms and "fruit" in terms
    assert corpus(cast.team.pk) == (2, sum(m.doc_len or 0 for m in Memory.objects.all()))
    hits = cast.run("memory.search", {"query": "quinces", "mode": "semantic", "top_k": 1})
    assert hits["results"][0]["memory_key"] == "k"
    ((sha, embedded),) = sql(
        "SELECT m.content_sha256, e.content_sha256 FROM memories_memory m JOIN memories_embedding e "
        "ON e.memory_id = m.id WHERE m.id = %s",
        [k.pk],
    )
    assert sha == embedded


def test_a_key_twice_over_an_existing_and_ended_row_writes_its_end_once(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "one", "ttl_seconds": 60})
    pass_expiry("k")
    cast.run(
        "memory.set_many",
        {"items": [{"memory_key": "k", "value": "one"}, {"memory_key": "k", "value": "two"}]},
    )
    assert [v["kind"] for v in history(cast, "k")] == ["set", "expire", "set", "set"]
    assert set(Posting.objects.values_list("active", flat=True)) == {True}


def test_items_may_each_have_their_own_fields_and_if_match(cast: Cast) -> None:
    sha = cast.run("memory.set", {"memory_key": "a", "value": 1})["content_sha256"]
    items = [
        {"memory_key": "a", "value": 2, "if_match_sha256": sha, "ttl_seconds": 60},
        {"memory_key": "b", "value": 1, "tags": ["t"], "confidence": 0.25},
    ]
    cast.run("memory.set_many", {"items": items})
    assert cast.run("memory.get", {"memory_key": "a"})["expires_at"] is not None
    assert cast.run("memory.get", {"memory_key": "b"})["confidence"] == 0.25
    with nothing_changes():
        refused = cast.run("memory.set_many", {"items": [{"memory_key": "c", "value": 1}, items[0]]})
    assert (refused.code, refused.detail["item"]) == ("VERSION_CONFLICT", 1)


def test_a_dry_run_of_many_changes_nothing(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "a", "value": 1})
    items = [{"memory_key": key, "value": 2} for key in ("a", "b", "a")]
    with nothing_changes():
        dry = cast.run("memory.set_many", {"items": items, "dry_run": True})
    assert [result["version"] for result in dry["results"]] == [2, 1, 2]
    assert dry["dry_run"] is True


@pytest.mark.parametrize(
    "items",
    [[], None, {}, [{"memory_key": "k"}], [{"value": 1}], ["k"], [{"memory_key": "k", "value": 1}] * 501],
)
def test_no_item_a_half_item_and_too_many_items_are_400_and_store_nothing(cast: Cast, items: Any) -> None:
    body = {} if items is None else {"items": items}
    refused = cast.call("memory.set_many", body)
    assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT")
    assert "items" in str(refused.detail["errors"])
    assert not Memory.objects.exists()


def test_one_oversized_value_among_many_is_413(cast: Cast) -> None:
    items = [{"memory_key": "a", "value": 1}, {"memory_key": "b", "value": "x" * 256 * 1024}]
    assert cast.call("memory.set_many", {"items": items}).status == 413
    assert not Memory.objects.exists()


def test_an_advisory_is_given_once_and_not_for_each_item(cast: Cast) -> None:
    items = [{"memory_key": str(n), "value": n, "source_class": "user_prompt"} for n in range(5)]
    assert len(cast.run("memory.set_many", {"items": items})["advisories"]) == 1


def test_five_hundred_items_with_a_repeated_key_are_stored(cast: Cast) -> None:
    items = [{"memory_key": f"k{n % 499}", "value": f"turn {n}"} for n in range(500)]
    started = time.monotonic()
    answer = cast.call("memory.set_many", {"items": items})
    assert answer["stored"] == 500
    assert Memory.objects.count() == 499
    assert time.monotonic() - started < 30  # quadratic work would not end in time
