"""fact.share and fact.retract; and that hidden versions cannot be told apart from none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Cast, Reply
from tests.facts.facts import correct, recall, remember, timeline

pytestmark = pytest.mark.django_db

ALICE: dict[str, Any] = {"user_id": "alice"}
BOB: dict[str, Any] = {"user_id": "bob"}


def share(cast: Cast, fact_id: str, **who: Any) -> Reply:
    """Share it as that user."""
    return cast.run("fact.share", {"factId": fact_id, **who})


def retract(cast: Cast, fact_id: str, **fields: Any) -> Reply:
    """Retract it."""
    return cast.run("fact.retract", {"factId": fact_id, "reason": "so it is", **fields})


def test_sharing_shows_now_and_later_and_leaves_the_past_with_its_owner(cast: Cast) -> None:
    private = {"visibility": "private", **ALICE}
    remember(cast, "Old", validTo="2020-01-01", **private)
    current = remember(cast, "Acme", validFrom="2020-01-01", validTo="2090-01-01", **private)
    remember(cast, "Later", validFrom="2090-01-01", **private)
    reply = share(cast, current["factId"], **ALICE)
    assert reply["lineageId"] == current["lineageId"] and reply["visibility"] == "shared"
    assert [value for value, *_ in timeline(cast, **BOB)] == ["Acme", "Later"]
    assert [value for value, *_ in timeline(cast, **ALICE)] == ["Old", "Acme", "Later"]
    assert all(fact["replaced"] is None for fact in recall(cast, **BOB))
    history = cast.run("fact.history", {"subject": "Ada", "attribute": "employer", **BOB})
    assert [v["value"] for v in history["versions"]] == ["Acme", "Later"]
    assert history["lineages"][0]["version"] is None
    assert [v["madeFrom"] for v in history["versions"]] == [None, None]


def test_sharing_again_changes_nothing(cast: Cast) -> None:
    made = remember(cast, visibility="private", **ALICE)
    shared = share(cast, made["factId"], **ALICE)
    assert share(cast, shared["factId"], **ALICE)["changed"] is False
    assert share(cast, made["factId"], **ALICE).code == "SUPERSEDED"


def test_a_shared_fact_in_the_way_is_named(cast: Cast) -> None:
    there = remember(cast, "Acme")["factId"]
    made = remember(cast, "Bolt", visibility="private", **ALICE)
    reply = share(cast, made["factId"], **ALICE)
    assert (reply.status, reply.code, reply.detail["factId"]) == (409, "FACT_CONFLICT", there)


def test_what_is_over_is_not_shared(cast: Cast) -> None:
    made = remember(cast, validTo="2020-01-01", visibility="private", **ALICE)
    assert share(cast, made["factId"], **ALICE).code == "INVALID_TRANSITION"


def test_a_private_source_does_not_go_along(cast: Cast) -> None:
    memory = cast.run("memory.set", {"memory_key": "k", "value": "v", **ALICE})["memory_id"]
    sources = [f"node:{memory}", "doc"]
    made = remember(cast, visibility="private", sources=sources, **ALICE)
    assert share(cast, made["factId"], **ALICE)["sources"] == ["doc"]


def hiding(cast: Cast, *periods: tuple[str | None, str | None]) -> Reply:
    """A shared fact with older private versions of Alice over these periods."""
    for start, end in periods:
        given = {"validFrom": start, "validTo": end}
        said = {name: date for name, date in given.items() if date}
        assert remember(cast, f"hidden {start}", visibility="private", **said, **ALICE).status == 200
    made = remember(cast, "Acme", validFrom="2020-01-01", visibility="private", **ALICE)
    return share(cast, made["factId"], **ALICE)


def test_a_fact_with_hidden_versions_is_corrected_by_its_first_owner_only(cast: Cast) -> None:
    fact = hiding(cast)
    reply = correct(cast, fact["factId"], "Bolt", kind="wrong", **BOB)
    assert (reply.status, reply.code) == (409, "NOT_CORRECTABLE")
    assert "remember a new fact instead" in reply.detail["message"]
    assert correct(cast, fact["factId"], "Bolt", kind="wrong", **ALICE).status == 200


def test_one_who_may_not_correct_is_told_to_keep_it_private_or_ask(cast: Cast) -> None:
    hiding(cast)
    reply = remember(cast, "Bolt", validFrom="2021-01-01", **BOB)
    assert reply.code == "FACT_CONFLICT" and "visibility private" in reply.detail["message"]
    assert "memory_correct" not in reply.detail["message"]
    assert remember(cast, "Bolt", validFrom="2021-01-01", visibility="private", **BOB).status == 200


def test_nothing_that_bob_can_ask_depends_on_where_the_hidden_versions_lie(cast: Cast) -> None:
    layouts: list[list[tuple[str | None, str | None]]] = [
        [],
        [(None, "2010-01-01")],
        [("2015-01-01", "2016-01-01"), ("2018-01-01", "2020-01-01")],
    ]
    answers = []
    for number, layout in enumerate(layouts):
        space = cast.namespace(f"space-{number}")
        from governance.services import member_set_role
        from loomsite.ops import Role

        member_set_role(namespace=space, member=cast.people["mate"], role=Role.WRITER)
        here = {"namespace": space.slug}
        for start, end in layout:
            said = {name: day for name, day in (("validFrom", start), ("validTo", end)) if day}
            remember(cast, f"hidden {start}", visibility="private", **said, **ALICE, **here)
        made = remember(
            cast, "Acme", validFrom="2020-01-01", visibility="private", sources=["d"], **ALICE, **here
        )
        fact_id = share(cast, made["factId"], **ALICE)["factId"]
        told: list[Any] = []
        for day in ("2009-01-01", "2015-06-01", "2017-01-01", "2019-06-01", "2021-01-01"):
            end = f"{int(day[:4])}-07-02"
            told += [
                remember(cast, "X", validFrom=day, validTo=end, **BOB, **here),
                correct(cast, fact_id, "X", validFrom=day, **BOB),
                correct(cast, fact_id, "X", kind="wrong", validFrom=day, **BOB),
                retract(cast, fact_id, validTo=day, **BOB),
                cast.run("fact.recall", {"valid_at": day, **BOB, **here}),
                cast.run("fact.recall", {"query": "hidden Acme X", "valid_at": day, **BOB, **here}),
            ]
        told.append(cast.run("fact.history", {"factId": fact_id, **BOB}))
        told.append(remember(cast, "Acme", validFrom="2020-01-01", sources=["d"], **BOB, **here))
        answers.append([_without_ids(reply) for reply in told])
    assert answers[0] == answers[1] == answers[2]


def _without_ids(reply: Reply) -> tuple[int, Any]:
    """The answer without what names or dates this very story."""
    named = {
        "factId", "lineageId", "knownFrom", "knownTo", "request_id", "known_at", "at", "facts_ids", "message"
    }  # fmt: skip

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: walk(item) for name, item in node.items() if name not in named}
        return [walk(item) for item in node] if isinstance(node, list) else node

    message = str(reply.body.get("detail", {}).get("message", ""))
    return reply.status, (walk(reply.body), "".join(c for c in message if not c.isdigit()))


# Retract


def test_what_ended_holds_up_to_that_day_and_then_is_unknown(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    reply = retract(cast, made["factId"], kind="ended", validTo="2023-01-01")
    assert timeline(cast) == [("Acme", "2020-01-01", "2023-01-01")]
    assert recall(cast, valid_at="2023-01-01") == []
    assert reply["heldAs"] == reply["factId"] and reply["state"] == "ended"


def test_what_was_never_so_is_no_longer_believed_and_stays_in_the_history(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    assert retract(cast, made["factId"], kind="wrong")["state"] == "superseded"
    assert recall(cast) == []
    assert [fact["value"] for fact in recall(cast, include_history=True)] == ["Acme"]
    (version,) = cast.run("fact.history", {"factId": made["factId"]})["versions"]
    assert (version["retracted"]["reason"], version["retracted"]["by"]) == ("so it is", "mate")
    assert version["retracted"]["at"] == version["knownTo"]
    assert remember(cast, "Bolt", validFrom="2020-01-01").status == 200


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"kind": "ended"}, "validTo"),
        ({"kind": "ended", "validTo": "2020-01-01"}, "validTo"),
        ({"kind": "ended", "validTo": "2019-01-01"}, "validTo"),
        ({"kind": "ended", "validTo": "2025-01-01"}, "validTo"),
        ({"kind": "ended", "validTo": "2026-01-01"}, "validTo"),
        ({"kind": "wrong", "validTo": "2023-01-01"}, "validTo"),
        ({"kind": "wrong", "reason": "  "}, "reason"),
    ],
)
def test_a_retraction_that_says_nothing_sensible_is_refused(
    cast: Cast, fields: dict[str, str], path: str
) -> None:
    made = remember(cast, validFrom="2020-01-01", validTo="2025-01-01")
    reply = retract(cast, made["factId"], **fields)
    assert (reply.status, reply.detail["errors"][0]["path"]) == (400, path)
    assert timeline(cast) == [("Acme", "2020-01-01", "2025-01-01")]
