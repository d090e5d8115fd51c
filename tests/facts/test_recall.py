"""fact.recall and fact.history: both axes, words, pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from facts.selectors import now
from governance.clock import iso
from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember, timeline

pytestmark = pytest.mark.django_db


def test_what_was_true_and_what_was_believed_are_asked_apart(cast: Cast) -> None:
    made = remember(cast, "Acme", validFrom="2020-01-01")
    before = iso(now())
    correct(cast, made["factId"], "Bolt", validFrom="2023-01-01", reason="found a contract")
    assert timeline(cast, valid_at="2024-01-01") == [("Bolt", "2023-01-01", None)]
    assert timeline(cast, valid_at="2022-01-01") == [("Acme", "2020-01-01", "2023-01-01")]
    assert timeline(cast, valid_at="2024-01-01", known_at=before) == [("Acme", "2020-01-01", None)]
    assert timeline(cast, as_of=before) == [("Acme", "2020-01-01", None)]


def test_as_of_stands_alone(cast: Cast) -> None:
    for other in ("valid_at", "known_at"):
        reply = cast.run("fact.recall", {"as_of": "2024-01-01", other: "2024-01-01"})
        assert (reply.status, reply.detail["errors"][0]["path"]) == (400, "as_of")


def test_what_was_known_earlier_shows_no_end_of_belief_that_came_later(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    before = iso(now())
    first = cast.run("fact.recall", {"known_at": before}).body
    correct(cast, made["factId"], "Bolt", kind="wrong")
    assert cast.run("fact.recall", {"known_at": before}).body == first
    assert first["facts"][0]["knownTo"] is None and first["known_at"] == before
    with_history = recall(cast, known_at=before, include_history=True)
    assert [fact["value"] for fact in with_history] == ["Acme"]


def test_states_speak_of_the_time_that_was_asked(cast: Cast) -> None:
    today = now().date()
    remember(cast, "A", validTo=str(today - timedelta(days=10)))
    remember(cast, "B", validFrom=str(today - timedelta(days=5)), validTo=str(today + timedelta(days=5)))
    remember(cast, "C", validFrom=str(today + timedelta(days=5)))
    assert {fact["value"]: fact["state"] for fact in recall(cast)} == {
        "A": "ended", "B": "current", "C": "future",
    }  # fmt: skip


def test_re_employment_is_three_versions_each_on_its_days(cast: Cast) -> None:
    remember(cast, "A", validFrom="2024-01-01", validTo="2025-01-01")
    remember(cast, "B", validFrom="2025-01-01", validTo="2026-01-01")
    remember(cast, "A", validFrom="2026-01-01")
    for day, value in (("2024-02-29", "A"), ("2025-12-31", "B"), ("2026-01-01", "A"), ("9999-12-31", "A")):
        assert [fact["value"] for fact in recall(cast, subject="Ada", valid_at=day)] == [value]
    assert recall(cast, valid_at="2023-12-31T23:59:59.999999Z") == []


def test_without_a_filter_the_newest_come_first(cast: Cast) -> None:
    for name in ("one", "two", "three"):
        remember(cast, name, subject=name)
    assert [fact["value"] for fact in recall(cast)] == ["three", "two", "one"]


def test_pages_show_every_fact_once_while_facts_are_written_and_corrected(cast: Cast) -> None:
    ids = [remember(cast, i, subject=f"s{i}")["factId"] for i in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        reply = cast.run("fact.recall", {"limit": 2, **({"cursor": cursor} if cursor else {})})
        seen += [fact["factId"] for fact in reply["facts"]]
        remember(cast, "new", subject=f"new {len(seen)}")
        correct(cast, ids[0], "corrected meanwhile", kind="wrong")
        cursor = reply["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]


def test_pages_of_a_query_keep_their_places_while_facts_are_written(cast: Cast) -> None:
    for i in range(7):
        remember(cast, f"likes tea number {i}", subject=f"s{i}")
    first = cast.run("fact.recall", {"query": "who likes tea", "limit": 3})
    whole = [fact["factId"] for fact in recall(cast, query="who likes tea")]
    for i in range(5):
        remember(cast, "tea tea tea likes tea", subject=f"t{i}")
    seen = [fact["factId"] for fact in first["facts"]]
    cursor = first["next_cursor"]
    while cursor is not None:
        reply = cast.run("fact.recall", {"query": "who likes tea", "limit": 3, "cursor": cursor})
        seen += [fact["factId"] for fact in reply["facts"]]
        cursor = reply["next_cursor"]
    assert seen == whole and len(set(seen)) == 7


@pytest.mark.parametrize("cursor", ["x", "bm9uc2Vuc2U", "WyJ4IiwgInkiLCAxXQ", "W10"])
def test_a_cursor_that_no_answer_gave_is_refused(cast: Cast, cursor: str) -> None:
    for more in ({}, {"query": "tea"}):
        reply = cast.run("fact.recall", {"cursor": cursor, **more})
        assert (reply.status, reply.code) == (400, "INVALID_ARGUMENT")


def test_words_and_meaning_find_the_fact_and_filters_hold(cast: Cast) -> None:
    remember(cast, "Paris", subject="Grace", attribute="lives in")
    old = remember(cast, "Rome", attribute="lives in", validFrom="2020-01-01")
    correct(cast, old["factId"], "Berlin", kind="wrong")
    assert [fact["value"] for fact in recall(cast, query="Paris")][0] == "Paris"
    assert [fact["value"] for fact in recall(cast, query="lives in", subject="ada")] == ["Berlin"]
    assert "Rome" not in [fact["value"] for fact in recall(cast, query="Rome")]
    assert "Rome" in [fact["value"] for fact in recall(cast, query="Rome", include_history=True)]
    assert [fact["value"] for fact in recall(cast, query="lives", valid_at="2019-01-01")] == ["Paris"]


def test_a_private_fact_moves_no_rank_of_others_and_is_never_found(cast: Cast) -> None:
    for i in range(4):
        remember(cast, f"drinks {'tea ' * i}", subject=f"s{i}")
    asked = {"query": "tea drinks", "user_id": "bob"}
    before = recall(cast, **asked)
    for i in range(6):
        remember(cast, "tea tea", subject=f"p{i}", visibility="private", user_id="ada")
    assert recall(cast, **asked) == before


def test_the_pack_has_a_section_of_what_is_so_now(cast: Cast) -> None:
    remember(cast, "Acme", validTo="2020-01-01")
    made = remember(cast, "Bolt", validFrom="2020-01-01")
    pack = cast.run("context.pack", {"query": "Ada's employer"})
    assert f'- "Ada employer: Bolt" ["fact:{made["factId"]}"]' in pack["text"]
    assert "Acme" not in pack["text"]


def test_history_tells_every_version_oldest_known_first_with_who_and_why(cast: Cast) -> None:
    made = remember(cast, "Acme", validFrom="2020-01-01", reason="said so")
    done = correct(cast, made["factId"], "Bolt", validFrom="2023-01-01", reason="contract", sources=["doc-7"])
    history = cast.run("fact.history", {"factId": done["factId"]})
    assert [(v["value"], v["kind"], v["reason"]) for v in history["versions"]] == [
        ("Acme", "remember", "said so"), ("Acme", "clip", "contract"), ("Bolt", "changed", "contract"),
    ]  # fmt: skip
    assert [v["madeFrom"] for v in history["versions"]] == [None, made["factId"], made["factId"]]
    assert history["versions"][2]["sources"] == ["doc-7"] and history["versions"][2]["by"] == "mate"
    by_name = cast.run("fact.history", {"subject": " ada", "attribute": "EMPLOYER"})
    assert by_name["versions"] == history["versions"]


def test_history_comes_in_pages(cast: Cast) -> None:
    fact_id = remember(cast, 0)["factId"]
    for i in range(1, 6):
        fact_id = correct(cast, fact_id, i, kind="wrong")["factId"]
    seen: list[Any] = []
    cursor: str | None = None
    while True:
        more = {"cursor": cursor} if cursor else {}
        reply = cast.run("fact.history", {"factId": fact_id, "limit": 4, **more})
        seen += [version["value"] for version in reply["versions"]]
        cursor = reply["next_cursor"]
        if cursor is None:
            break
    assert seen == list(range(6))


def test_the_history_of_nothing_is_not_found_and_needs_a_name(cast: Cast) -> None:
    assert cast.run("fact.history", {"subject": "x", "attribute": "y"})["found"] is False
    assert cast.run("fact.history", {"subject": "x"}).status == 400


def test_a_cursor_belongs_to_its_question(cast: Cast) -> None:
    for number in range(3):
        remember(cast, "tea", subject=f"c{number}")
    for ask in ({}, {"query": "tea"}):
        cursor = cast.run("fact.recall", {"limit": 1, **ask})["next_cursor"]
        assert cast.run("fact.recall", {"limit": 1, "cursor": cursor, **ask}).status == 200
        for more in ({"subject": "c1"}, {"known_at": "2020-01-01"}):
            assert cast.run("fact.recall", {"cursor": cursor, **ask, **more}).status == 400


def test_history_by_id_answers_any_users_past_where_recall_does(cast: Cast) -> None:
    made = remember(cast, visibility="private", user_id="ada")
    asked = {"factId": made["factId"], "user_id": "*"}
    assert len(cast.run("fact.history", asked)["versions"]) == 1
    assert cast.run("fact.history", {"factId": made["factId"]}).status == 404


@pytest.mark.parametrize(("body", "field"), [
    ({}, "factId"), ({"subject": "Ada"}, "attribute"), ({"factId": "1", "subject": "Ada"}, "subject"),
])  # fmt: skip
def test_a_history_that_names_nothing_whole_names_the_field(
    cast: Cast, body: dict[str, str], field: str
) -> None:
    reply = cast.run("fact.history", body)
    assert reply.status == 400 and reply.detail["errors"][0]["path"] == field


def test_two_spellings_with_two_values_are_refused(cast: Cast) -> None:
    reply = remember(cast, validFrom="2024-01-01", valid_from="2025-01-01")
    assert reply.status == 400 and "valid_from" in reply.detail["message"]


def test_facts_leave_the_pack_to_memories_and_unrelated_ones_stay_out(cast: Cast) -> None:
    for number in range(20):
        remember(cast, number, subject=f"falsy a{number}", attribute="quux")
        cast.run("memory.set", {"memory_key": f"d{number}", "value": f"deploy {number} goes by the script"})
    pack = cast.run("context.pack", {"query": "deploy", "token_budget": 200})
    by = {section["section"]: len(section["items"]) for section in pack["sections"]}
    assert by["Memories"] >= 3 and by.get("Facts", 0) == 0
    remember(cast, "deploy by hand", subject="script")
    by = {s["section"]: len(s["items"]) for s in
          cast.run("context.pack", {"query": "deploy", "token_budget": 200})["sections"]}  # fmt: skip
    assert by["Facts"] == 1, "a share is theirs however many memories there are"
