"""memory.get: one memory by its key; what is not there is no error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Cast
from tests.memories.helpers import end_lock, govern, nothing_changes, pass_expiry, sql


def test_a_memory_is_read_with_all_that_belongs_to_it(cast: Cast) -> None:
    stored = cast.run(
        "memory.set",
        {
            "memory_key": "k",
            "value": {"a": 1},
            "tags": ["t"],
            "metadata": {"m": 1},
            "confidence": 0.5,
            "agent": "a",
        },
    )
    answer = cast.call("memory.get", {"memory_key": "k"}, by="viewer")
    assert answer["found"] is True and answer["unchanged"] is False
    expected = {
        "memory_key": "k", "memory_id": stored["memory_id"], "value": {"a": 1}, "memory_type": "semantic",
        "version": 1, "version_text": "1", "content_sha256": stored["content_sha256"], "status": "active",
        "tags": ["t"], "metadata": {"m": 1}, "confidence": 0.5, "pinned": False, "expires_at": None,
        "agent": "a", "user_id": "-", "session_id": "-", "source_class": "local_tool_output", "lock": None,
    }  # fmt: skip
    assert {name: answer[name] for name in expected} == expected
    assert answer["created_at"].endswith("Z") and answer["updated_at"].endswith("Z")


def test_a_read_changes_nothing(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 60})
    pass_expiry("k")
    with nothing_changes():
        cast.run("memory.get", {"memory_key": "k"})
        cast.run("memory.get", {"memory_key": "none"})


@pytest.mark.parametrize(
    "way", ["unknown", "deleted", "expired", "redacted", "rejected", "archived", "stale"]
)
def test_what_is_not_served_is_not_found(cast: Cast, way: str) -> None:
    if way != "unknown":
        cast.run("memory.set", {"memory_key": "k", "value": "secret", "ttl_seconds": 60})
    if way == "deleted":
        cast.run("memory.delete", {"memory_key": "k"})
    elif way == "expired":
        pass_expiry("k")
    elif way != "unknown":
        govern("k", way)
    answer = cast.call("memory.get", {"memory_key": "k"})
    assert answer.status == 200
    assert answer["found"] is False
    assert "secret" not in str(answer.body)


def test_a_namespace_that_does_not_exist_holds_nothing(cast: Cast) -> None:
    assert cast.call("memory.get", {"memory_key": "k", "namespace": "new"}, by="owner")["found"] is False


def test_another_organisation_sees_nothing_of_a_namespace_of_the_same_name(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    assert cast.run("memory.get", {"memory_key": "k", "namespace": "team"}, by="stranger")["found"] is False


def test_if_version_spares_the_value_when_nothing_moved(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    same = cast.run("memory.get", {"memory_key": "k", "if_version": 1})
    assert same["unchanged"] is True and "value" not in same.body
    cast.run("memory.set", {"memory_key": "k", "value": 2})
    moved = cast.run("memory.get", {"memory_key": "k", "if_version": 1})
    assert (moved["unchanged"], moved["value"]) == (False, 2)


@pytest.mark.parametrize("wrong", [-1, 2.5, True, "x"])
def test_an_if_version_that_is_no_version_is_400(cast: Cast, wrong: Any) -> None:
    assert cast.call("memory.get", {"memory_key": "k", "if_version": wrong}).status == 400


def test_fields_limit_the_answer(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    answer = cast.run("memory.get", {"memory_key": "k", "fields": ["version", "tags"]})
    assert answer.body == {"found": True, "unchanged": False, "version": 1, "tags": []}


@pytest.mark.parametrize("fields", [[], ["vlaue"], ["value", "secret_sha256"], ["x"] * 33])
def test_no_field_and_an_unknown_field_are_400(cast: Cast, fields: list[str]) -> None:
    assert cast.call("memory.get", {"memory_key": "k", "fields": fields}).status == 400


def test_the_past_is_read_as_of_an_instant(cast: Cast) -> None:
    before = datetime.now(UTC) - timedelta(days=1)
    moments = []
    for value in ("one", "two"):
        cast.run("memory.set", {"memory_key": "k", "value": value})
        moments.append(cast.run("memory.get", {"memory_key": "k"})["updated_at"])
    cast.run("memory.delete", {"memory_key": "k"})
    ((deleted,),) = sql("SELECT at FROM memories_memoryversion WHERE version = 3")
    assert cast.run("memory.get", {"memory_key": "k", "as_of": before.isoformat()})["found"] is False
    for moment, value, version in zip(moments, ("one", "two"), (1, 2), strict=True):
        answer = cast.run("memory.get", {"memory_key": "k", "as_of": moment})
        assert (answer["value"], answer["version"]) == (value, version)
    assert cast.run("memory.get", {"memory_key": "k", "as_of": deleted.isoformat()})["found"] is False
    assert cast.run("memory.get", {"memory_key": "k"})["found"] is False


def test_as_of_knows_the_expiry_that_held_then(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 3600})
    now = datetime.now(UTC)
    for hours, found in ((0.5, True), (1.5, False)):
        moment = (now + timedelta(hours=hours)).isoformat()
        assert cast.run("memory.get", {"memory_key": "k", "as_of": moment})["found"] is found


def test_as_of_knows_that_a_lock_defers_an_expiry(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 1})
    cast.run("memory.lock", {"memory_key": "k", "mode": "no_delete", "reason": "audit"})
    sql("SELECT pg_sleep(1.1)")
    ((moment,),) = sql("SELECT clock_timestamp()")
    for as_of in ({}, {"as_of": moment.isoformat()}):
        assert cast.run("memory.get", {"memory_key": "k", **as_of})["found"] is True


def test_as_of_never_shows_what_was_redacted_since(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "secret"})
    moment = cast.run("memory.get", {"memory_key": "k"})["updated_at"]
    govern("k", "redacted")
    answer = cast.run("memory.get", {"memory_key": "k", "as_of": moment})
    assert answer["found"] is False


def test_as_of_is_an_instant_whatever_the_zone_it_is_written_in(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    moment = datetime.fromisoformat(cast.run("memory.get", {"memory_key": "k"})["updated_at"])
    for offset in (timedelta(hours=5, minutes=30), timedelta(hours=-8)):
        local = (moment.astimezone(UTC) + offset).replace(tzinfo=None).isoformat()
        sign = "+" if offset > timedelta(0) else "-"
        hours, minutes = divmod(abs(int(offset.total_seconds())) // 60, 60)
        written = f"{local}{sign}{hours:02d}:{minutes:02d}"
        assert cast.run("memory.get", {"memory_key": "k", "as_of": written})["found"] is True


@pytest.mark.parametrize(
    "wrong",
    [
        "2026-01-31T09:00:00",
        "yesterday",
        "2026-01-31",
        1700000000,
        "0001-01-01T00:00:00Z",
        "9999-12-31T00:00:00Z",
        "2026-02-30T00:00:00Z",
    ],
)
def test_an_instant_without_a_zone_or_out_of_range_is_400(cast: Cast, wrong: Any) -> None:
    refused = cast.call("memory.get", {"memory_key": "k", "as_of": wrong})
    assert refused.status == 400
    assert refused.detail["errors"][0]["path"] == "as_of"


def test_an_unnamed_identity_means_the_exact_none_else_the_only_one_else_409(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "a's", "agent": "a"})
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == "a's"
    cast.run("memory.set", {"memory_key": "k", "value": "b's", "agent": "b"})
    refused = cast.call("memory.get", {"memory_key": "k"})
    assert (refused.status, refused.code) == (409, "AMBIGUOUS_KEY")
    assert [writer["agent"] for writer in refused.detail["writers"]] == ["a", "b"]
    assert cast.run("memory.get", {"memory_key": "k", "agent": "b"})["value"] == "b's"
    cast.run("memory.set", {"memory_key": "k", "value": "shared"})
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == "shared"


def test_a_named_identity_is_that_value_and_no_other(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "shared"})
    assert cast.run("memory.get", {"memory_key": "k", "agent": "a"})["found"] is False
    assert cast.run("memory.get", {"memory_key": "k", "agent": "-"})["value"] == "shared"
    assert cast.run("memory.get", {"memory_key": "k", "agent": "*"})["value"] == "shared"


def test_a_bound_token_sees_its_own_and_the_shared_and_nothing_else(cast: Cast) -> None:
    bound = cast.token(agent="a", user_id="u")
    cast.run("memory.set", {"memory_key": "shared", "value": 1})
    cast.run("memory.set", {"memory_key": "own", "value": 1}, by=bound)
    cast.run("memory.set", {"memory_key": "b's", "value": 1, "agent": "b"})
    cast.run("memory.set", {"memory_key": "v's", "value": 1, "agent": "a", "user_id": "v"})
    for key, found in (("shared", True), ("own", True), ("b's", False), ("v's", False)):
        assert cast.run("memory.get", {"memory_key": key}, by=bound)["found"] is found, key
        assert cast.run("memory.get", {"memory_key": key, "agent": "*"}, by=bound)["found"] is found, key
    assert cast.run("memory.get", {"memory_key": "b's", "agent": "b"}, by=bound).status == 404


def test_a_lock_in_force_is_shown_and_one_that_has_ended_is_not(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "mode": "no_delete", "reason": "audit", "ttl_seconds": 60})
    lock = cast.run("memory.get", {"memory_key": "k"})["lock"]
    assert (lock["mode"], lock["reason"], lock["holds"]) == ("no_delete", "audit", 0)
    assert lock["until"] is not None
    end_lock("k")
    assert cast.run("memory.get", {"memory_key": "k"})["lock"] is None


@pytest.mark.parametrize(
    "key",
    [
        "100%_",
        "a,b|c",
        "*",
        "(x)",
        "a/../b",
        "a/b&c=d:%*",
        "'; DROP TABLE x; --",
        "ключ",
        "🦊",
        "ﷺ",
        "İstanbul",
    ],
)
def test_a_key_is_served_exactly_and_is_no_pattern(cast: Cast, key: str) -> None:
    cast.run("memory.set", {"memory_key": key, "value": 1})
    cast.run("memory.set", {"memory_key": "100abc", "value": 2})
    assert cast.run("memory.get", {"memory_key": key})["memory_key"] == key
    assert cast.run("memory.get", {"memory_key": key + "x"})["found"] is False


def test_one_read_costs_two_statements(cast: Cast, django_assert_num_queries: Any) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    with django_assert_num_queries(2):
        cast.run("memory.get", {"memory_key": "k"})


def test_the_exact_row_is_found_among_more_writers_than_are_looked_at(cast: Cast) -> None:
    for n in range(55):
        cast.run("memory.set", {"memory_key": "k", "value": n, "agent": f"a{n}"})
    assert cast.run("memory.get", {"memory_key": "k"}).code == "AMBIGUOUS_KEY"
    refused = cast.run("memory.update", {"memory_key": "k", "value": "x"})
    assert refused.code == "AMBIGUOUS_KEY" and len(refused.detail["writers"]) == 50
    cast.run("memory.set", {"memory_key": "k", "value": "mine"})
    read = cast.run("memory.get", {"memory_key": "k"})
    assert read["value"] == "mine"
    assert cast.run("memory.get", {"memory_key": "k", "as_of": read["updated_at"]})["value"] == "mine"
    assert cast.run("memory.history", {"memory_key": "k"})["memory_id"] == read["memory_id"]
    assert cast.run("memory.update", {"memory_key": "k", "value": "x"})["memory_id"] == read["memory_id"]
