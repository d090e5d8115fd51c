"""raw.*: an archive that only grows, read in order, searched by its own words, seen by whom it concerns."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from governance.models import AuditEvent
from loomsite.ops import Role
from memories.models import RawPosting, RawSession, RawTurn
from memories.selectors import encode_cursor
from tests.conftest import Cast, Reply
from tests.memories.helpers import in_threads, nothing_changes, sql


def say(cast: Cast, content: str, session: str = "s", by: str = "mate", **more: Any) -> Reply:
    body = {"session_id": session, "role": "user", "content": content, **more}
    return cast.run("raw.append", body, by=by)


def test_turns_are_numbered_and_read_in_the_order_in_which_they_were_said(cast: Cast) -> None:
    said = [say(cast, f"turn {n}", role=role) for n, role in enumerate(["user", "assistant", "tool"])]
    assert [reply["seq"] for reply in said] == [1, 2, 3]
    turns = cast.run("raw.get", {"session_id": "s"})["turns"]
    assert [(turn["seq"], turn["role"], turn["content"]) for turn in turns] == [
        (1, "user", "turn 0"), (2, "assistant", "turn 1"), (3, "tool", "turn 2"),
    ]  # fmt: skip
    assert {turn["by"] for turn in turns} == {"mate"}
    assert [turn["turn_id"] for turn in turns] == [reply["turn_id"] for reply in said]
    assert cast.run("raw.get", {"session_id": "none"})["found"] is False


def test_a_turn_keeps_its_words_its_time_and_its_source(cast: Cast) -> None:
    text = 'Straße "x"\n\t\u202e e\u0301 😀' + " z" * 3000
    say(cast, text, occurred_at="2026-01-31T23:30:00-08:00", source_class="user_prompt")
    (turn,) = cast.run("raw.get", {"session_id": "s"})["turns"]
    assert turn["content"] == 'Straße "x"\n\t\u202e é 😀' + " z" * 3000
    assert turn["occurred_at"] == "2026-02-01T07:30:00Z"
    assert turn["source_class"] == "local_tool_output"  # the token's ceiling
    (hit,) = cast.run("raw.search", {"query": "Straße"})["results"]
    assert "content" not in hit and "Straße" in hit["excerpt"] and len(hit["excerpt"]) < 2048


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_id": "*"}, {"session_id": "-"}, {"session_id": " "}, {"role": ""}, {"content": ""},
        {"occurred_at": "2026-01-31T09:00:00"}, {"source_class": "gossip"}, {"content": None},
        {"session_id": "s\x00"},
    ],
)  # fmt: skip
def test_a_malformed_turn_is_400_and_not_kept(cast: Cast, wrong: dict[str, Any]) -> None:
    body = {"session_id": "s", "role": "user", "content": "x", **wrong}
    assert cast.call("raw.append", body).status == 400
    assert RawTurn.objects.count() == 0


def test_an_append_is_audited_without_its_text_and_replayed_by_its_key(cast: Cast) -> None:
    body = {"session_id": "s", "role": "user", "content": "zebra"}
    first = cast.run("raw.append", body, idempotency_key="k")
    assert cast.run("raw.append", body, idempotency_key="k").body == first.body
    event = AuditEvent.objects.get(op="raw.append")
    assert event.target == "raw:s#1" and "zebra" not in json.dumps(event.detail)
    assert RawTurn.objects.count() == 1


def test_the_archive_is_append_only_in_the_database_too(cast: Cast) -> None:
    say(cast, "x")
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("SET LOCAL loom.allow_truncate = off")
    for statement in (
        "UPDATE memories_rawturn SET content = 'forged'",
        "UPDATE memories_rawturn SET created_at = now() - interval '1 day'",
        "DELETE FROM memories_rawturn",
        "TRUNCATE memories_rawturn CASCADE",
        "DELETE FROM memories_rawsession",
        "TRUNCATE memories_rawsession CASCADE",
    ):
        with nothing_changes(), pytest.raises(DatabaseError) as refused, transaction.atomic():
            sql(statement)
        assert getattr(refused.value.__cause__, "sqlstate", "") == "LM001", statement


def test_nothing_that_governance_can_do_moves_the_archive(cast: Cast) -> None:
    for n in range(5):
        say(cast, f"about k {n}")
    ids = [cast.run("memory.set", {"memory_key": key, "value": "about k"})["memory_id"] for key in "kl"]
    checksum = "SELECT count(*), md5(string_agg(t::text, '|' ORDER BY id)) FROM memories_rawturn t"
    before = sql(checksum)
    for action in ("stale", "archive", "delete", "redact"):
        expected = cast.run("memory.govern", {"ids": ids, "action": action, "dry_run": True})
        body = {
            "ids": ids, "action": action, "reason": "r", "confirm_destructive": True,
            "expected_versions": expected["expected_versions"],
        }  # fmt: skip
        assert cast.console("memory.govern", body).status == 200, action
    body = {"filter": {"key_prefix": "k"}, "reason": "r", "dry_run": False}
    assert cast.console("memory.clear", body).status == 200
    assert sql(checksum) == before
    assert RawPosting.objects.count() > 0


def test_concurrent_appends_lose_nothing_and_no_number_twice(transactional_db: None, cast: Cast) -> None:
    def some(writer: int) -> list[int]:
        return [say(cast, f"{writer}/{n}", agent="a")["seq"] for n in range(10)]

    numbers = [seq for part in in_threads(*(partial(some, w) for w in range(6))) for seq in part]
    assert sorted(numbers) == list(range(1, 61))
    turns = cast.run("raw.get", {"session_id": "s", "limit": 200})["turns"]
    assert [turn["seq"] for turn in turns] == list(range(1, 61))
    assert {turn["content"] for turn in turns} == {f"{w}/{n}" for w in range(6) for n in range(10)}
    assert RawSession.objects.get().turns == 60


def test_pages_show_each_turn_and_each_session_once(cast: Cast) -> None:
    for n in range(7):
        say(cast, f"t{n}", "long")
        say(cast, "x", f"s{n}")
    for op, body, name in (
        ("raw.get", {"session_id": "long"}, "turns"),
        ("raw.list_sessions", {}, "sessions"),
    ):
        seen, cursor = [], None
        while True:
            page = cast.run(op, {**body, "limit": 3, **({"cursor": cursor} if cursor else {})})
            seen += [row.get("content", row["session_id"]) for row in page[name]]
            if not (cursor := page["next_cursor"]):
                break
        assert len(seen) == len(set(seen)) == (7 if op == "raw.get" else 8)
    first = cast.run("raw.list_sessions", {"limit": 1})["sessions"][0]
    assert (first["session_id"], first["turns"]) == ("s6", 1)


CURSORS = [
    "x", "!!!", encode_cursor(), encode_cursor("yesterday", 1), encode_cursor("2026-01-01", -1),
    encode_cursor("infinity", 1), encode_cursor("2026-01-01T00:00:00Z", 2**70), encode_cursor(True),
    encode_cursor([1]), encode_cursor({"a": 1}, 2), encode_cursor("a\x00", 1), encode_cursor(1.5),
    encode_cursor("0001-01-01T00:00:00+23:59", 1), encode_cursor(-1),
]  # fmt: skip


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("op", ["raw.get", "raw.list_sessions", "lock.list"])
def test_a_tampered_cursor_is_400(cast: Cast, op: str, cursor: str) -> None:
    say(cast, "x")
    body = {"session_id": "s"} if op == "raw.get" else {}
    maker = cast.token("owner", default_namespace="not there yet", may_create_namespaces=True)
    for by in ("mate", maker):
        reply = cast.run(op, {**body, "cursor": cursor}, by=by)
        assert (reply.status, reply.code) == (400, "INVALID_ARGUMENT"), reply.body


def test_a_search_ranks_by_words_and_looks_into_one_session_or_any(cast: Cast) -> None:
    say(cast, "the zebra eats grass", "a")
    say(cast, "zebra zebra zebra", "b")
    say(cast, "nothing of the kind", "b")
    hits = cast.run("raw.search", {"query": "zebra"})["results"]
    assert [(hit["session_id"], hit["seq"]) for hit in hits] == [("b", 1), ("a", 1)]
    assert hits[0]["score"] > hits[1]["score"] > 0
    only = cast.run("raw.search", {"query": "zebra", "session_id": "a"})["results"]
    assert [hit["content"] for hit in only] == ["the zebra eats grass"]
    assert cast.run("raw.search", {"query": "giraffe"})["results"] == []
    assert cast.run("raw.search", {"query": " "}).status == 400
    assert len(cast.run("raw.search", {"query": "zebra", "top_k": 1})["results"]) == 1


@pytest.mark.parametrize("query", ["' OR 1=1 --", "%", "a:*&|!()", "\\", "日本", "😀", "the", "x" * 1000])
def test_any_query_is_plain_text(cast: Cast, query: str) -> None:
    say(cast, "zebra")
    assert cast.run("raw.search", {"query": query})["results"] == []


def test_scores_know_nothing_of_other_namespaces_and_tenants(cast: Cast) -> None:
    for n in range(10):
        say(cast, f"note {n} on {'gibbon' if n % 5 == 0 else 'ordinary'} habits")
    before = cast.run("raw.search", {"query": "gibbon habits"}).body
    cast.namespace("side", mate=Role.WRITER)
    for _ in range(30):
        say(cast, "gibbon gibbon habits", namespace="side")
        say(cast, "gibbon gibbon habits", by="stranger")
    assert cast.run("raw.search", {"query": "gibbon habits"}).body == before


def test_a_bound_token_sees_its_own_turns_and_those_of_nobody(cast: Cast) -> None:
    say(cast, "zebra of bob", user_id="bob")
    say(cast, "zebra of eve", user_id="eve")
    say(cast, "zebra of nobody")
    bob = cast.token(user_id="bob")
    for op, body, name in (
        ("raw.get", {"session_id": "s"}, "turns"),
        ("raw.search", {"query": "zebra"}, "results"),
    ):
        seen = {row["content"] for row in cast.run(op, body, by=bob)[name]}
        assert seen == {"zebra of bob", "zebra of nobody"}
        assert cast.run(op, {**body, "user_id": "eve"}, by=bob).status == 404
        assert len(cast.run(op, body)[name]) == 3
        assert [row["user_id"] for row in cast.run(op, {**body, "user_id": "eve"})[name]] == ["eve"]
    assert {row["user_id"] for row in cast.run("raw.list_sessions", {}, by=bob)["sessions"]} == {"bob", "-"}
    assert say(cast, "mine", by=bob)["seq"] == 2


def test_an_offset_that_the_database_cannot_read_is_an_instant_all_the_same(cast: Cast) -> None:
    turn = {"session_id": "s", "role": "user", "content": "hello", "occurred_at": "0850-09-07T00:17:44-16:27"}
    assert cast.run("raw.append", turn).status == 200
    (kept,) = cast.run("raw.get", {"session_id": "s"})["turns"]
    assert kept["occurred_at"] == "0850-09-07T16:44:44Z"
