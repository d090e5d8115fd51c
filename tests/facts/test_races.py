"""Two at once: one wins, the other is told."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from django.db import transaction

from tests.conftest import Cast
from tests.facts.facts import correct, remember
from tests.memories.helpers import in_threads, sql

pytestmark = pytest.mark.django_db(transaction=True)


def race(cast: Cast, number: int) -> None:
    """Two corrections of one version, at the same moment."""
    made = remember(cast, "Acme", subject=f"s{number}", validFrom="2020-01-01")
    replies = in_threads(
        partial(correct, cast, made["factId"], "Bolt", validFrom="2022-01-01"),
        partial(correct, cast, made["factId"], "Cargo", kind="wrong"),
    )
    assert sorted(reply.status for reply in replies) == [200, 409], [reply.body for reply in replies]
    (lost,) = [reply for reply in replies if reply.status == 409]
    (won,) = [reply for reply in replies if reply.status == 200]
    assert lost.code == "SUPERSEDED" and won["factId"] in lost.detail["factIds"]
    believed = sql(
        "SELECT count(*), count(DISTINCT lower(known)) FROM facts_version WHERE lineage_id = %s "
        "AND upper_inf(known)",
        [made["lineageId"]],
    )
    assert believed == [(2 if won["kind"] == "changed" else 1, 1)]


def test_of_two_corrections_at_once_one_wins_and_the_other_is_told(cast: Cast) -> None:
    for number in range(10):
        race(cast, number)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_of_two_corrections_at_once_one_wins_a_thousand_times(cast: Cast) -> None:
    for number in range(1000):
        race(cast, number)


def test_of_two_first_memories_at_once_one_is_stored_and_the_other_meets_it(cast: Cast) -> None:
    for number in range(10):
        replies = in_threads(
            *(partial(remember, cast, value, subject=f"s{number}") for value in ("Acme", "Bolt"))
        )
        assert sorted(reply.status for reply in replies) == [200, 409], [reply.body for reply in replies]


def test_corrections_that_move_values_between_two_facts_never_lock_each_other_out(cast: Cast) -> None:
    for number in range(5):
        a, b = f"a{number}", f"b{number}"
        one = remember(cast, "A", subject=a, validFrom="2020-01-01", validTo="2021-01-01")["factId"]
        two = remember(cast, "B", subject=b, validFrom="2022-01-01", validTo="2023-01-01")["factId"]
        replies = in_threads(
            partial(correct, cast, one, "A", kind="wrong", subject=b),
            partial(correct, cast, two, "B", kind="wrong", subject=a),
        )
        assert [reply.status for reply in replies] == [200, 200], [reply.body for reply in replies]


def test_a_transaction_that_began_earlier_and_finishes_later_is_known_later(cast: Cast) -> None:
    made = remember(cast, "Acme", validFrom="2020-01-01", validTo="2025-01-01")
    began, finished = threading.Event(), threading.Event()

    def slow() -> str:
        with transaction.atomic():
            sql("SELECT now()")
            began.set()
            assert finished.wait(30)
            return str(remember(cast, "Later", validFrom="2030-01-01", validTo="2031-01-01")["factId"])

    def quick() -> str:
        assert began.wait(30)
        fact_id = str(remember(cast, "Before", validTo="2020-01-01")["factId"])
        finished.set()
        return fact_id

    slow_id, quick_id = in_threads(slow, quick)
    order = [str(row[0]) for row in sql("SELECT id FROM facts_version ORDER BY lower(known)")]
    assert order == [made["factId"], quick_id, slow_id]


def test_sharing_beside_a_first_shared_memory_is_done_or_told_what_stands_there(cast: Cast) -> None:
    for number in range(15):
        mine = {"subject": f"t{number}", "validFrom": "2020-01-01"}
        made = remember(cast, "Acme", visibility="private", user_id="u1", **mine)
        replies = in_threads(
            partial(cast.run, "fact.share", {"factId": made["factId"], "user_id": "u1"}),
            partial(remember, cast, "Bolt", **mine),
        )
        assert sorted(reply.status for reply in replies) == [200, 409], [reply.body for reply in replies]
