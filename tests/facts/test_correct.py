"""fact.correct: every rule of `changed` and `wrong`, around every bound."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember, timeline

pytestmark = pytest.mark.django_db

START, END = "2024-01-01", "2025-01-01"


def acme(cast: Cast, start: str | None = START, end: str | None = END) -> str:
    """A version of that period."""
    given = {"validFrom": start, "validTo": end}
    return str(remember(cast, "Acme", **{name: date for name, date in given.items() if date})["factId"])


# changed


def test_the_shortest_call_is_taught_to_name_the_day(cast: Cast) -> None:
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Bolt")
    assert (reply.status, reply.code) == (400, "VALID_FROM_REQUIRED")
    message = reply.detail["message"]
    assert message.startswith("validFrom") and fact_id in message and "wrong" in message
    assert reply.detail["errors"][0]["path"] == "validFrom"


@pytest.mark.parametrize(
    ("start", "end", "day", "until", "expected"),
    [
        (START, END, "2024-07-01", None, [("Acme", START, "2024-07-01"), ("Bolt", "2024-07-01", END)]),
        (START, END, "2024-01-02", None, [("Acme", START, "2024-01-02"), ("Bolt", "2024-01-02", END)]),
        (START, END, "2024-12-31", None, [("Acme", START, "2024-12-31"), ("Bolt", "2024-12-31", END)]),
        (START, None, "2030-01-01", None, [("Acme", START, "2030-01-01"), ("Bolt", "2030-01-01", None)]),
        (None, END, "0001-01-01", None, [("Acme", None, "0001-01-01"), ("Bolt", "0001-01-01", END)]),
        (None, None, "9999-12-31", None, [("Acme", None, "9999-12-31"), ("Bolt", "9999-12-31", None)]),
        # The rest is a gap: the old value does not come back by itself.
        (START, END, "2024-07-01", "2024-08-01",
         [("Acme", START, "2024-07-01"), ("Bolt", "2024-07-01", "2024-08-01")]),
        (START, None, "2024-07-01", "2024-08-01",
         [("Acme", START, "2024-07-01"), ("Bolt", "2024-07-01", "2024-08-01")]),
        (START, END, "2024-07-01", END, [("Acme", START, "2024-07-01"), ("Bolt", "2024-07-01", END)]),
        (START, END, "2024-07-01", "2030-01-01",
         [("Acme", START, "2024-07-01"), ("Bolt", "2024-07-01", END)]),
    ],
)  # fmt: skip
def test_what_changed_on_a_day_inside_splits_the_period_there(
    cast: Cast, start: str | None, end: str | None, day: str, until: str | None, expected: list[Any]
) -> None:
    fact_id = acme(cast, start, end)
    given = {"validTo": until} if until else {}
    reply = correct(cast, fact_id, "Bolt", validFrom=day, reason="moved", **given)
    assert timeline(cast) == expected
    assert (reply["value"], reply["kind"], reply["unchanged"]) == ("Bolt", "changed", False)
    assert (reply["corrected"]["factId"], reply["corrected"]["validTo"]) == (fact_id, day)
    held_as = reply["corrected"]["heldAs"]
    assert [f["value"] for f in recall(cast, subject="Ada") if f["factId"] == held_as] == ["Acme"]
    replaced = reply["replaced"]
    assert (replaced["value"], replaced["kind"], replaced["reason"]) == ("Acme", "changed", "moved")
    assert replaced["at"] == reply["knownFrom"]


def test_a_validto_beyond_the_version_is_cut_and_said(cast: Cast) -> None:
    reply = correct(cast, acme(cast), "Bolt", validFrom="2024-07-01", validTo="2030-01-01")
    assert reply["validTo"] == END and reply["advisories"][0].startswith("validTo")


@pytest.mark.parametrize(
    ("day", "until", "path", "hint"),
    [
        (START, None, "validFrom", "kind=wrong"),
        ("2024-01-01T00:00:00Z", None, "validFrom", "kind=wrong"),
        ("2023-12-31", None, "validFrom", "no version holds at 2023-12-31"),
        ("0001-01-01", None, "validFrom", "no version holds at 0001-01-01"),
        (END, None, "validFrom", "already ended"),
        ("2025-01-02", None, "validFrom", "remember a new fact"),
        ("9999-12-31", None, "validFrom", "remember a new fact"),
        ("2024-07-01", "2024-07-01", "validTo", "not after"),
        ("2024-07-01", "2024-06-01", "validTo", "not after"),
    ],
)
def test_a_day_that_does_not_fit_is_told_the_way_out(
    cast: Cast, day: str, until: str | None, path: str, hint: str
) -> None:
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Bolt", validFrom=day, **({"validTo": until} if until else {}))
    assert reply.status == 400 and hint in reply.detail["message"]
    assert reply.detail["errors"][0]["path"] == path
    assert timeline(cast) == [("Acme", START, END)]


def test_a_day_before_the_version_names_the_one_that_holds_then(cast: Cast) -> None:
    earlier = remember(cast, "Old", validFrom="2023-01-01", validTo=START)["factId"]
    reply = correct(cast, acme(cast), "Bolt", validFrom="2023-06-01")
    assert reply.status == 400 and earlier in reply.detail["message"]
    assert reply.detail["facts"][0]["factId"] == earlier


def test_an_instant_on_the_day_of_the_start_is_inside(cast: Cast) -> None:
    correct(cast, acme(cast), "Bolt", validFrom="2024-01-01T00:00:00.000001Z")
    assert timeline(cast) == [
        ("Acme", START, "2024-01-01T00:00:00.000001Z"), ("Bolt", "2024-01-01T00:00:00.000001Z", END),
    ]  # fmt: skip


# wrong


def test_what_was_never_right_is_superseded_and_the_new_value_takes_its_period(cast: Cast) -> None:
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Bolt", kind="wrong", reason="misread")
    assert timeline(cast) == [("Bolt", START, END)]
    assert reply["corrected"]["state"] == "superseded" and reply["corrected"]["heldAs"] is None
    assert reply["corrected"]["knownTo"] == reply["knownFrom"]
    assert [f["state"] for f in recall(cast, subject="Ada", include_history=True)] == ["ended", "superseded"]


@pytest.mark.parametrize(
    ("start", "end", "given", "expected"),
    [
        (START, END, {"validFrom": "2023-01-01"}, ("Bolt", "2023-01-01", END)),
        (START, END, {"validFrom": "2024-03-01"}, ("Bolt", "2024-03-01", END)),
        (START, END, {"validTo": "2024-03-01"}, ("Bolt", START, "2024-03-01")),
        (START, END, {"validTo": "2030-03-01"}, ("Bolt", START, "2030-03-01")),
        (START, END, {"validFrom": "1990-01-01", "validTo": "1991-01-01"},
         ("Bolt", "1990-01-01", "1991-01-01")),
        (None, END, {"validFrom": "2020-01-01"}, ("Bolt", "2020-01-01", END)),
        (START, None, {"validTo": "2020-01-01", "validFrom": "2019-01-01"},
         ("Bolt", "2019-01-01", "2020-01-01")),
        (None, None, {"validTo": "0001-01-01"}, ("Bolt", None, "0001-01-01")),
        (START, END, {"validFrom": START, "validTo": END}, ("Bolt", START, END)),
    ],
)  # fmt: skip
def test_a_passed_date_replaces_a_free_bound(
    cast: Cast, start: str | None, end: str | None, given: dict[str, str], expected: tuple[Any, ...]
) -> None:
    reply = correct(cast, acme(cast, start, end), "Bolt", kind="wrong", **given)
    assert timeline(cast) == [expected] and reply["kept_dates"] == []


def test_a_bound_that_a_neighbour_shares_stays_and_is_listed(cast: Cast) -> None:
    remember(cast, "Before", validFrom="2023-01-01", validTo=START)
    remember(cast, "After", validFrom=END)
    given = {"validFrom": "2024-02-01", "validTo": "2024-11-01"}
    reply = correct(cast, acme(cast), "Bolt", kind="wrong", **given)
    assert reply["kept_dates"] == ["validFrom", "validTo"]
    assert timeline(cast)[1] == ("Bolt", START, END)


def test_a_passed_date_may_not_cross_a_neighbour(cast: Cast) -> None:
    remember(cast, "Before", validFrom="2022-01-01", validTo="2023-01-01")
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Bolt", kind="wrong", validFrom="2022-12-31")
    assert reply.status == 400 and "neighbour" in reply.detail["message"]
    assert reply.detail["errors"][0]["path"] == "validFrom"
    assert correct(cast, fact_id, "Bolt", kind="wrong", validFrom="2023-01-01").status == 200


def test_an_inverted_correction_is_refused(cast: Cast) -> None:
    reply = correct(cast, acme(cast), "Bolt", kind="wrong", validFrom="2025-06-01")
    assert reply.status == 400 and reply.detail["errors"][0]["path"] == "validFrom"
    assert timeline(cast) == [("Acme", START, END)]


# Both kinds


def test_another_subject_moves_the_value_there(cast: Cast) -> None:
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Acme", kind="wrong", subject="Grace")
    assert timeline(cast) == []
    assert timeline(cast, subject="grace") == [("Acme", START, END)]
    assert reply["subject"] == "Grace" and reply["corrected"]["subject"] == "Ada"
    again = correct(cast, fact_id, "Acme", kind="wrong")
    assert again.detail["factIds"] == [reply["factId"]]


def test_changed_under_another_attribute_ends_the_one_and_opens_the_other(cast: Cast) -> None:
    correct(cast, acme(cast), "Bolt", validFrom="2024-07-01", attribute="client")
    assert timeline(cast, attribute="employer") == [("Acme", START, "2024-07-01")]
    assert timeline(cast, attribute="client") == [("Bolt", "2024-07-01", END)]


def test_an_overlap_in_the_other_lineage_is_a_conflict(cast: Cast) -> None:
    there = remember(cast, "Zed", subject="Grace")["factId"]
    reply = correct(cast, acme(cast), "Acme", kind="wrong", subject="Grace")
    assert (reply.status, reply.code) == (409, "FACT_CONFLICT")
    assert reply.detail["facts"][0]["factId"] == there
    assert timeline(cast) == [("Acme", START, END)]


def test_a_spelling_of_the_same_subject_is_the_same_lineage(cast: Cast) -> None:
    reply = correct(cast, acme(cast), "Bolt", kind="wrong", subject=" ADA ", attribute="Employer")
    assert reply["subject"] == "Ada" and timeline(cast) == [("Bolt", START, END)]


def test_a_superseded_version_names_what_holds_now(cast: Cast) -> None:
    fact_id = acme(cast)
    done = correct(cast, fact_id, "Bolt", validFrom="2024-07-01")
    reply = correct(cast, fact_id, "Cargo", kind="wrong")
    assert (reply.status, reply.code) == (409, "SUPERSEDED")
    assert reply.detail["factIds"] == [done["corrected"]["heldAs"], done["factId"]]
    assert all(id_ in reply.detail["message"] for id_ in reply.detail["factIds"])


def test_the_same_value_dates_and_sources_are_unchanged(cast: Cast) -> None:
    fact_id = acme(cast)
    for given in ({}, {"validFrom": START}, {"validTo": END}, {"sources": []}):
        reply = correct(cast, fact_id, "Acme", kind="wrong", **given)
        assert (reply["unchanged"], reply["factId"]) == (True, fact_id)
    assert len(recall(cast, include_history=True)) == 1
    assert correct(cast, fact_id, "Acme", kind="wrong", sources=["doc"])["unchanged"] is False


def test_an_expected_version_that_has_moved_is_a_conflict(cast: Cast) -> None:
    fact_id = acme(cast)
    version = cast.run("fact.history", {"factId": fact_id})["lineages"][0]["version"]
    remember(cast, "Later", validFrom="2026-01-01")
    reply = correct(cast, fact_id, "Bolt", kind="wrong", expected_version=version)
    assert (reply.status, reply.code, reply.detail["current"]) == (409, "VERSION_CONFLICT", version + 1)
    done = correct(cast, fact_id, "Bolt", kind="wrong", expected_version=version + 1)
    assert done["version"] == version + 2


def test_a_container_is_accepted_and_not_needed(cast: Cast) -> None:
    reply = correct(cast, acme(cast), "Bolt", kind="wrong", containerId="anything")
    assert reply["ignored_args"] == ["containerId"] and timeline(cast) == [("Bolt", START, END)]


def test_a_fact_is_found_in_every_namespace_of_the_caller_and_audited_there(cast: Cast) -> None:
    from governance.models import AuditEvent
    from loomsite.ops import Role

    cast.namespace("side", mate=Role.WRITER, viewer=Role.VIEWER)
    made = remember(cast, namespace="side")
    reply = correct(cast, made["factId"], "Bolt", kind="wrong")
    assert reply["value"] == "Bolt"
    assert AuditEvent.objects.latest("seq").namespace == "side"
    assert correct(cast, reply["factId"], "X", by="viewer", kind="wrong").status == 403


def test_an_id_that_one_cannot_see_is_one_that_is_not_there(cast: Cast) -> None:
    from loomsite.ops import Role

    cast.namespace("vault", owner=Role.ADMIN)
    hidden = [
        remember(cast, visibility="private", user_id="ada")["factId"],
        remember(cast, by="owner", namespace="vault")["factId"],
        remember(cast, by="stranger")["factId"],
        str(2**62),
    ]
    for op, more in (
        ("fact.correct", {"value": "x", "kind": "wrong"}), ("fact.share", {}), ("fact.history", {}),
        ("fact.retract", {"kind": "wrong", "reason": "r"}),
    ):  # fmt: skip
        bodies = []
        for fact_id in hidden:
            reply = cast.run(op, {"factId": fact_id, "user_id": "bob", **more}, request_id="r")
            bodies.append((reply.status, reply.body))
        assert bodies == [bodies[0]] * len(hidden) and bodies[0][0] == 404


def test_a_dry_run_tells_and_leaves_nothing(cast: Cast) -> None:
    fact_id = acme(cast)
    reply = correct(cast, fact_id, "Bolt", validFrom="2024-07-01", dry_run=True)
    assert (reply["value"], reply["corrected"]["validTo"]) == ("Bolt", "2024-07-01")
    assert timeline(cast) == [("Acme", START, END)]
