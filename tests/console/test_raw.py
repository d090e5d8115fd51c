"""The raw archive's pages: conversations, turns, search; nothing on them changes anything."""

from __future__ import annotations

import pytest
from django.urls import reverse

from memories.models import RawSession, RawTurn
from tests.console.conftest import Cast

LIST = "admin:memories_rawsession_changelist"


def say(cast: Cast, session: str, content: str, namespace: str = "deploy", **more: str) -> RawSession:
    """One turn, by the real op."""
    answer = cast.call(
        "raw.append", namespace=namespace, session_id=session, role="user", content=content, **more
    )
    assert answer.ok, answer.body
    return RawSession.objects.latest("last_at")


def test_conversations_are_listed_where_the_reader_has_a_role(cast: Cast) -> None:
    say(cast, "monday", "hello")
    say(cast, "monday", "hello again")
    say(cast, "whisper", "psst", namespace="secret")
    viewer = cast.client("viewer").get(reverse(LIST)).content.decode()
    assert "monday" in viewer and ">2<" in viewer and "whisper" not in viewer
    assert "whisper" in cast.client("owner").get(reverse(LIST), {"namespace": "secret"}).content.decode()
    assert "monday" not in cast.client("owner").get(reverse(LIST), {"namespace": "secret"}).content.decode()


def test_turns_are_paged_in_order(cast: Cast) -> None:
    for number in range(1, 36):
        session = say(cast, "long", f"turn number {number}")
    url = reverse("admin:memories_rawsession_change", args=[session.pk])
    first = cast.client("viewer").get(url)
    assert [turn.seq for turn in first.context["page"].rows] == list(range(1, 31))
    second = cast.client("viewer").get(url, {"after": first.context["page"].after})
    assert [turn.seq for turn in second.context["page"].rows] == list(range(31, 36))


def test_a_long_turn_is_cut_in_the_list_and_whole_on_its_page(cast: Cast) -> None:
    session = say(cast, "long", "a" * 5_000 + "THE END")
    listed = cast.client("viewer").get(reverse("admin:memories_rawsession_change", args=[session.pk]))
    assert "THE END" not in listed.content.decode() and "The whole turn" in listed.content.decode()
    whole = cast.client("viewer").get(reverse("admin:memories_rawsession_turn", args=[session.pk, 1]))
    assert "THE END" in whole.content.decode()
    assert (
        cast.client("viewer").get(reverse("admin:memories_rawsession_turn", args=[session.pk, 2])).status_code
        == 404
    )


def test_words_are_found_in_the_only_namespace_of_the_reader(cast: Cast) -> None:
    session = say(cast, "monday", "the deploy window is Tuesday", agent="codex")
    say(cast, "tuesday", "nothing of note")
    shown = cast.client("viewer").get(reverse(LIST), {"q": "window"}).content.decode()
    assert "the deploy window is Tuesday" in shown and "nothing of note" not in shown
    assert reverse("admin:memories_rawsession_turn", args=[session.pk, 1]) in shown
    assert (
        "No turn has these words" in cast.client("viewer").get(reverse(LIST), {"q": "zebra"}).content.decode()
    )


def test_a_reader_of_several_names_one_to_search(cast: Cast) -> None:
    say(cast, "monday", "the deploy window")
    client = cast.client("org_admin")
    assert "Name one namespace" in client.get(reverse(LIST), {"q": "window"}).content.decode()
    found = client.get(reverse(LIST), {"q": "window", "namespace": "acme/deploy"}).content.decode()
    assert "the deploy window" in found
    ambiguous = cast.client("owner").get(reverse(LIST), {"q": "window", "namespace": "deploy"})
    assert "Name one namespace" in ambiguous.content.decode()


def test_a_namespace_that_the_reader_does_not_see_is_not_searched(cast: Cast) -> None:
    say(cast, "whisper", "psst", namespace="secret")
    shown = cast.client("viewer").get(reverse(LIST), {"q": "psst", "namespace": "acme/secret"})
    assert "whisper" not in shown.content.decode() and "Name one namespace" in shown.content.decode()


@pytest.mark.parametrize("words", ["\x00", "' OR 1=1 --", '"', "a:*", "日本"])
def test_any_words_are_only_words(cast: Cast, words: str) -> None:
    say(cast, "monday", "日本語 text")
    assert cast.client("viewer").get(reverse(LIST), {"q": words}).status_code == 200


def test_markup_in_a_turn_is_text_and_pages_take_no_post(cast: Cast) -> None:
    session = say(cast, "<b>s</b>", "<script>alert(1)</script> window")
    pages = [
        reverse(LIST),
        f"{reverse(LIST)}?q=window",
        reverse("admin:memories_rawsession_change", args=[session.pk]),
        reverse("admin:memories_rawsession_turn", args=[session.pk, 1]),
    ]
    before = list(RawTurn.objects.values())
    for url in pages:
        shown = cast.client("viewer").get(url).content.decode()
        assert "<script>alert" not in shown and "<b>s" not in shown
        cast.client("owner").post(url, {"content": "other"})
    assert list(RawTurn.objects.values()) == before
