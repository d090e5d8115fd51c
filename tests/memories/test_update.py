"""memory.update: a new value for a memory that exists, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from memories.models import Memory
from tests.conftest import Cast
from tests.memories.helpers import AUDIT, govern, history, nothing_changes, pass_expiry
from tests.memories.test_set import FALSY


def test_an_update_replaces_the_value_and_leaves_the_rest_alone(cast: Cast) -> None:
    cast.run(
        "memory.set",
        {
            "memory_key": "k",
            "value": 1,
            "tags": ["t"],
            "metadata": {"m": 1},
            "ttl_seconds": 60,
            "pinned": True,
        },
    )
    before = cast.run("memory.get", {"memory_key": "k"})
    answer = cast.call("memory.update", {"memory_key": "k", "value": 2, "reason": "it moved"})
    after = cast.run("memory.get", {"memory_key": "k"})
    assert answer.body == {
        "updated": True, "memory_key": "k", "memory_id": before["memory_id"], "version": 2,
        "content_sha256": after["content_sha256"], "noop": False, "dry_run": False,
    }  # fmt: skip
    moved = {name for name in after.body if after[name] != before[name]}
    assert moved == {"value", "version", "version_text", "content_sha256", "updated_at"}
    assert history(cast, "k")[-1]["reason"] == "it moved"


@pytest.mark.parametrize("value", FALSY, ids=repr)
def test_falsy_values_are_stored_as_given(cast: Cast, value: Any) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "before"})
    assert cast.run("memory.update", {"memory_key": "k", "value": value})["updated"] is True
    read = cast.run("memory.get", {"memory_key": "k"})["value"]
    assert read == value and type(read) is type(value)


def test_an_update_without_a_value_is_400_and_null_is_a_value(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    assert cast.call("memory.update", {"memory_key": "k"}).status == 400
    cast.run("memory.update", {"memory_key": "k", "value": None})
    assert cast.run("memory.get", {"memory_key": "k"}).body["value"] is None


def test_the_same_value_is_a_noop(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    with nothing_changes():
        answer = cast.run("memory.update", {"memory_key": "k", "value": 1})
    assert (answer["updated"], answer["noop"], answer["version"]) == (True, True, 1)


@pytest.mark.parametrize("way", ["unknown", "deleted", "expired", "stale", "archived", "redacted"])
def test_what_is_not_there_is_not_updated_and_that_is_no_error(cast: Cast, way: str) -> None:
    if way != "unknown":
        cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 60})
    if way == "deleted":
        cast.run("memory.delete", {"memory_key": "k"})
    elif way == "expired":
        pass_expiry("k")
    elif way != "unknown":
        govern("k", way)
    with nothing_changes():
        answer = cast.call("memory.update", {"memory_key": "k", "value": 2})
    assert (answer["updated"], answer["reason"]) == (False, "not_found")


def test_if_match_guards_against_overwriting_others(cast: Cast) -> None:
    sha = cast.run("memory.set", {"memory_key": "k", "value": 1})["content_sha256"]
    assert cast.run("memory.update", {"memory_key": "k", "value": 2, "if_match_sha256": sha})["version"] == 2
    with nothing_changes():
        refused = cast.run("memory.update", {"memory_key": "k", "value": 3, "if_match_sha256": sha})
        gone = cast.run("memory.update", {"memory_key": "none", "value": 3, "if_match_sha256": sha})
    assert (refused.status, refused.code, refused.detail["current_version"]) == (409, "VERSION_CONFLICT", 2)
    assert gone.code == "VERSION_CONFLICT"


def test_several_writers_without_an_exact_one_are_ambiguous_and_listed(cast: Cast) -> None:
    for agent in ("a", "b"):
        cast.run("memory.set", {"memory_key": "k", "value": agent, "agent": agent})
    with nothing_changes():
        refused = cast.call("memory.update", {"memory_key": "k", "value": "x"})
    assert (refused.status, refused.code) == (409, "AMBIGUOUS_KEY")
    assert [writer["agent"] for writer in refused.detail["writers"]] == ["a", "b"]
    assert cast.run("memory.update", {"memory_key": "k", "value": "x", "agent": "b"})["updated"] is True
    assert list(Memory.objects.order_by("agent").values_list("agent", "value")) == [("a", "a"), ("b", "x")]


def test_the_only_writer_need_not_be_named(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "agent": "a", "session_id": "s"})
    cast.run("memory.update", {"memory_key": "k", "value": 2})
    assert Memory.objects.get().value == 2


def test_a_bound_token_updates_its_own_and_the_shared_and_not_anothers(cast: Cast) -> None:
    bound = cast.token(agent="a")
    cast.run("memory.set", {"memory_key": "b's", "value": 1, "agent": "b"})
    cast.run("memory.set", {"memory_key": "shared", "value": 1})
    assert cast.run("memory.update", {"memory_key": "b's", "value": 2}, by=bound)["updated"] is False
    assert cast.run("memory.update", {"memory_key": "shared", "value": 2}, by=bound)["updated"] is True


def test_a_pinned_value_of_another_is_not_updated(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "pinned": True}, by="owner")
    with nothing_changes():
        refused = cast.call("memory.update", {"memory_key": "k", "value": 2})
    assert (refused.status, refused.code) == (409, "PINNED_CONFLICT")
    assert cast.run("memory.update", {"memory_key": "k", "value": 2}, by="owner")["updated"] is True


def test_another_value_takes_no_trust_over_from_the_old_one(cast: Cast) -> None:
    cast.run(
        "memory.set",
        {"memory_key": "k", "value": 1, "source_class": "user_prompt"},
        by=cast.token(source_class="user_prompt"),
    )
    web = cast.token(source_class="external_content")
    assert cast.run("memory.update", {"memory_key": "k", "value": 1}, by=web)["noop"] is True
    assert cast.run("memory.get", {"memory_key": "k"})["source_class"] == "user_prompt"
    cast.run("memory.update", {"memory_key": "k", "value": 2}, by=web)
    assert [version["source_class"] for version in history(cast, "k")] == ["user_prompt", "external_content"]


def test_a_pin_says_whose_it_is_and_what_the_writer_can_do(cast: Cast) -> None:
    pin = {"memory_key": "k", "value": 1, "pinned": True}
    cast.run("memory.set", {**pin, "agent": "-"})
    mine = cast.call("memory.set", {"memory_key": "k", "value": 2, "agent": "b"})
    assert mine.code == "PINNED_CONFLICT" and "by you" in mine.detail["message"]
    same = cast.call("memory.set", {**pin, "pinned": False}, by="owner")
    assert same.code == "PINNED_CONFLICT" and "memory.unpin" in same.detail["message"]
    assert "another value" not in same.detail["message"]


def test_a_locked_memory_is_not_updated(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "reason": "audit"})
    with nothing_changes(but_for=AUDIT):
        assert cast.call("memory.update", {"memory_key": "k", "value": 2}).status == 423


def test_a_dry_run_changes_nothing(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "old words"})
    with nothing_changes():
        dry = cast.run("memory.update", {"memory_key": "k", "value": "new words", "dry_run": True})
    assert (dry["version"], dry["dry_run"], dry["noop"]) == (2, True, False)
