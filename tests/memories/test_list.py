"""memory.list: pages of what is served, filtered literally, each id once."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.conftest import Cast
from tests.memories.helpers import govern, nothing_changes, pass_expiry, sql


def keys(cast: Cast, by: str = "mate", **body: Any) -> list[str]:
    return [memory["memory_key"] for memory in cast.run("memory.list", body, by=by)["memories"]]


def put(cast: Cast, *names: str, **more: Any) -> None:
    cast.run("memory.set_many", {"items": [{"memory_key": name, "value": name, **more} for name in names]})


def cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def test_the_newest_change_comes_first(cast: Cast) -> None:
    for name in ("a", "b", "c"):
        put(cast, name)
    cast.run("memory.set", {"memory_key": "a", "value": "again"})
    assert keys(cast) == ["a", "c", "b"]


def test_order_key_is_the_order_of_code_points(cast: Cast) -> None:
    put(cast, "b", "B", "ä", "a", "a/1", "a-1")
    assert keys(cast, order="key") == ["B", "a", "a-1", "a/1", "b", "ä"]


def test_values_are_left_out_unless_asked_for(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": False})
    (without,) = cast.run("memory.list", {})["memories"]
    assert "value" not in without and without["content_sha256"]
    (with_value,) = cast.run("memory.list", {"include_values": True})["memories"]
    assert with_value["value"] is False
    assert {**with_value} == {**without, "value": False}


def test_filters_narrow_together(cast: Cast) -> None:
    put(cast, "deploy/a", tags=["x", "y"], memory_type="note")
    put(cast, "deploy/b", tags=["y"])
    put(cast, "other", tags=["x"], memory_type="note")
    assert keys(cast, prefix="deploy/", order="key") == ["deploy/a", "deploy/b"]
    assert keys(cast, tags_any=["x"], order="key") == ["deploy/a", "other"]
    assert keys(cast, tags_any=["x", "y"], memory_type="note", prefix="d") == ["deploy/a"]
    assert keys(cast, tags_any=["none"]) == []


@pytest.mark.parametrize("pattern", ["100%_", "%", "_", "*", "(x)", "a,b|c", "\\", ".", "[a]"])
def test_a_prefix_and_a_tag_are_literal(cast: Cast, pattern: str) -> None:
    put(cast, f"{pattern}/1", tags=[pattern])
    put(cast, "100x-", "plain", tags=["other"])
    assert keys(cast, prefix=pattern) == [f"{pattern}/1"]
    assert keys(cast, tags_any=[pattern]) == [f"{pattern}/1"]


@pytest.mark.parametrize("order", ["updated", "key"])
def test_every_id_comes_once_while_others_insert(cast: Cast, order: str) -> None:
    names = [f"k{n:02d}" for n in range(25)]
    put(cast, *names)
    seen: list[str] = []
    body: dict[str, Any] = {"order": order, "limit": 4}
    for page in range(20):
        answer = cast.run("memory.list", body)
        seen += [memory["memory_key"] for memory in answer["memories"]]
        put(cast, f"a-new-{page}", f"z-new-{page}")
        if answer["next_cursor"] is None or page == 19:
            break
        body["cursor"] = answer["next_cursor"]
    old = [name for name in seen if "new" not in name]
    assert sorted(old) == names
    assert len(seen) == len(set(seen))


def test_order_key_pages_through_equal_keys_of_several_writers(cast: Cast) -> None:
    for n in range(7):
        cast.run("memory.set", {"memory_key": "same", "value": n, "agent": f"a{n}"})
    put(cast, "a", "z")
    seen: list[str] = []
    body: dict[str, Any] = {"order": "key", "limit": 2}
    while True:
        answer = cast.run("memory.list", body)
        seen += [memory["memory_id"] for memory in answer["memories"]]
        if answer["next_cursor"] is None:
            break
        body["cursor"] = answer["next_cursor"]
    assert len(seen) == len(set(seen)) == 9


def test_rows_of_one_instant_are_paged_once_each(cast: Cast) -> None:
    put(cast, *(f"k{n}" for n in range(9)))
    sql("UPDATE memories_memory SET updated_at = '2026-01-01T00:00:00Z'")
    seen: list[str] = []
    body: dict[str, Any] = {"limit": 2}
    while True:
        answer = cast.run("memory.list", body)
        seen += [memory["memory_id"] for memory in answer["memories"]]
        if answer["next_cursor"] is None:
            break
        body["cursor"] = answer["next_cursor"]
    assert sorted(seen, key=int, reverse=True) == seen
    assert len(seen) == 9


@pytest.mark.parametrize("limit", [0, -1, 201, 10**9, 2**63, "many", 1.5, True])
def test_a_limit_out_of_bounds_is_400_naming_it(cast: Cast, limit: Any) -> None:
    refused = cast.call("memory.list", {"limit": limit})
    assert refused.status == 400
    assert refused.detail["errors"][0]["path"] == "limit"


@pytest.mark.parametrize(
    "made_up",
    [
        "x",
        "é",
        "!!!!",
        "AAAA",
        cursor(),
        cursor("updated", 1, 2),
        cursor("updated", "2026-01-01T00:00:00Z", "2"),
        cursor("updated", "2026-01-01T00:00:00Z", True),
        cursor("updated", "2026-01-01T00:00:00Z", -1),
        cursor("updated", "2026-01-01T00:00:00Z", 2**63),
        cursor("updated", "2026-01-01T00:00:00Z", 1.5),
        cursor("updated", "now", 1),
        cursor("updated", "infinity", 1),
        cursor("updated", "0001-01-01T00:00:00+14:00", 1),
        cursor("updated", "2026-01-01T00:00:00Z", 1, 2),
        cursor("key", "k", 1),
        cursor("elsewhere", "k", 1),
        base64.urlsafe_b64encode(b"[" * 3000).decode(),
        base64.urlsafe_b64encode(b'{"a": 1}').decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        "x" * 4097,
    ],
)
def test_a_made_up_cursor_is_400(cast: Cast, made_up: str) -> None:
    put(cast, "k")
    refused = cast.call("memory.list", {"cursor": made_up})
    assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT")
    assert "cursor" in str(refused.detail)


@pytest.mark.parametrize("first", ["a\u0000b", "\ud83d"])
def test_a_cursor_with_what_no_key_can_hold_is_400(cast: Cast, first: str) -> None:
    put(cast, "k")
    assert cast.call("memory.list", {"order": "key", "cursor": cursor("key", first, 1)}).status == 400


def test_forms_of_a_date_that_only_python_reads_never_raise(cast: Cast) -> None:
    put(cast, "k")
    for first in ("2026-W01-1", "20260101", "2026-01-01", "20260101T101010,5+05"):
        assert cast.call("memory.list", {"cursor": cursor("updated", first, 1)}).status in (200, 400)


def test_a_cursor_of_another_order_is_400_and_says_which(cast: Cast) -> None:
    put(cast, "a", "b")
    made = cast.run("memory.list", {"order": "key", "limit": 1})["next_cursor"]
    refused = cast.run("memory.list", {"order": "updated", "cursor": made})
    assert refused.status == 400
    assert "order=key" in refused.detail["message"]


def test_a_cursor_opens_no_door_to_another_organisation(cast: Cast) -> None:
    put(cast, "a", "b", "c")
    made = cast.run("memory.list", {"order": "key", "limit": 1})["next_cursor"]
    assert keys(cast, by="stranger", order="key", cursor=made) == []


@pytest.mark.parametrize("way", ["deleted", "expired"])
def test_a_tombstone_is_listed_by_name_only_and_only_to_writers(cast: Cast, way: str) -> None:
    put(cast, "k", ttl_seconds=60)
    if way == "deleted":
        cast.run("memory.delete", {"memory_key": "k"})
    else:
        pass_expiry("k")
    assert keys(cast) == []
    (shown,) = cast.run("memory.list", {"status": "deleted"})["memories"]
    assert (shown["memory_key"], shown["status"]) == ("k", "deleted")
    assert cast.run("memory.list", {"status": "deleted"}, by="viewer").status == 403


def test_what_ends_as_stale_is_listed_as_stale_before_the_sweep_came(cast: Cast) -> None:
    put(cast, "k", ttl_seconds=60, on_expire="stale")
    pass_expiry("k")
    assert keys(cast, status="deleted") == []
    (shown,) = cast.run("memory.list", {"status": "stale"}, by="viewer")["memories"]
    assert shown["status"] == "stale"


@pytest.mark.parametrize("status", ["stale", "rejected", "superseded", "archived"])
def test_another_status_is_listed_by_name(cast: Cast, status: str) -> None:
    put(cast, "k", "active")
    govern("k", status)
    assert keys(cast) == ["active"]
    assert keys(cast, status=status) == ["k"]


def test_redacted_rows_are_in_no_list(cast: Cast) -> None:
    put(cast, "k")
    govern("k", "redacted")
    assert keys(cast) == []
    assert cast.run("memory.list", {"status": "redacted"}).status == 400


def test_only_what_the_token_covers_is_listed(cast: Cast) -> None:
    bound = cast.token(agent="a")
    put(cast, "shared")
    cast.run("memory.set", {"memory_key": "own", "value": 1}, by=bound)
    cast.run("memory.set", {"memory_key": "b's", "value": 1, "agent": "b"})
    cast.run("memory.set", {"memory_key": "foreign", "value": 1}, by="stranger")
    assert keys(cast, by=bound, order="key") == ["own", "shared"]
    assert keys(cast, by=bound, agent="a") == ["own"]
    assert keys(cast, by=bound, agent="*", order="key") == ["own", "shared"]
    assert keys(cast, order="key") == ["b's", "own", "shared"]
    assert keys(cast, agent="-") == ["shared"]


def test_a_token_with_no_namespace_at_all_lists_nothing(cast: Cast) -> None:
    put(cast, "k")
    none = cast.token(namespaces=[], default_namespace="")
    for body in ({}, {"namespace": "team"}):
        assert cast.run("memory.list", body, by=none).status in (400, 404)


@pytest.mark.parametrize("body", [{"tags_any": []}, {"agent": ""}, {"user_id": " "}, {"memory_type": ""}])
def test_an_empty_filter_is_400_and_never_everything(cast: Cast, body: dict[str, Any]) -> None:
    put(cast, "k")
    assert cast.call("memory.list", body).status == 400


def test_a_namespace_that_does_not_exist_yet_is_empty(cast: Cast) -> None:
    answer = cast.run("memory.list", {"namespace": "new"}, by="owner")
    assert answer.body == {"memories": [], "next_cursor": None}
    assert cast.run("memory.list", {"namespace": "new", "cursor": "x"}, by="owner").status == 400


def test_a_list_changes_nothing(cast: Cast) -> None:
    put(cast, "k", ttl_seconds=60)
    pass_expiry("k")
    with nothing_changes():
        for status in ("active", "deleted", "stale"):
            cast.run("memory.list", {"status": status, "include_values": True})


def test_a_page_costs_two_statements(cast: Cast, django_assert_num_queries: Any) -> None:
    put(cast, *(f"k{n}" for n in range(30)))
    with django_assert_num_queries(2):
        cast.run("memory.list", {"include_values": True})
