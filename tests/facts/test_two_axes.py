"""The store against a model that writes out every day at every step: whatever is done, they agree.

Random sequences of remember, correct, retract and share by two users; after each step every user is asked
what is believed now, at the end all of it is asked again for every earlier known time.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facts.selectors import now
from governance.clock import iso
from loomsite.ops import Role
from tests.conftest import Cast, Reply
from tests.facts.naive import DAYS, LAST, SHARED, TODAY, Entry, Line, Naive, Refused, seen_by, span

pytestmark = pytest.mark.django_db

USERS = ("alice", "bob")
KEYS = (("Ada", "employer"), ("Ada", "language"), ("Grace", "employer"))
_number = itertools.count()

# Most steps are about one fact, and most dates lie at or beside a bound of the version that is meant:
# scattered ones would hardly ever meet a neighbour.
a_key = st.sampled_from((KEYS[0], KEYS[0], KEYS[0], KEYS[1], KEYS[1], KEYS[2]))
a_date = st.sampled_from((
    None, None, "first", "after first", "before first", "middle", "last", "after last", "beyond",
    *range(LAST + 1),
))  # fmt: skip
a_start = st.none() | st.integers(0, LAST)
a_length = st.none() | st.integers(1, 4)
a_value = st.sampled_from("ABC")
a_user = st.sampled_from(("alice", "alice", "bob"))
a_pick = st.integers(0, 63)
is_private = st.sampled_from((False, False, True))
remembering = st.tuples(st.just("remember"), a_user, a_key, a_value, a_start, a_length, is_private)
correcting = st.tuples(
    st.just("correct"), a_user, a_pick, a_value, st.sampled_from(("changed", "wrong")), a_date, a_date
)
retracting = st.tuples(st.just("retract"), a_user, a_pick, st.sampled_from(("ended", "wrong")), a_date)
sharing = st.tuples(st.just("share"), a_user, a_pick)
steps = st.lists(
    st.one_of(remembering, remembering, correcting, correcting, correcting, retracting, sharing),
    min_size=6, max_size=18,
)  # fmt: skip


def date(day: int) -> str:
    """The first of January of a year around this one: day TODAY holds the present."""
    return f"{datetime.now(UTC).year - TODAY + day:04d}-01-01"


class Story:
    """One sequence, told to the store and to the model."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.naive = cast, Naive()
        self.space = f"story-{next(_number)}"
        cast.namespace(self.space, mate=Role.WRITER)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.instants: list[str] = []

    def call(self, op: str, user: str, **body: Any) -> Reply:
        """As this user, in the story's namespace; fields that are None are left out."""
        given = {name: value for name, value in body.items() if value is not None}
        return self.cast.run(op, {"namespace": self.space, "user_id": user, **given})

    def picked(self, pick: int, user: str) -> str | None:
        """Some version: more often than not one that is believed now and that the user sees."""
        everything = list(self.naive.owner_of)
        if not everything:
            return None
        here = [
            entry.id
            for line in self.naive.lines
            for entry in line.entries().values()
            if entry.owner in (SHARED, user)
        ]
        pool = here if here and pick % 5 else everything
        return pool[pick // 5 % len(pool)]

    def tell(self, step: tuple[Any, ...]) -> None:
        """One step, to both."""
        getattr(self, f"_{step[0]}")(*step[1:])
        self.naive.note()
        self.instants.append(iso(now()) or "")

    def _expect(self, reply: Reply, refused: Refused | None) -> None:
        assert (reply.code or "done") == (str(refused) if refused else "done"), reply.body

    def day(self, id_: str, said: str | int | None) -> int | None:
        """The day that is meant: a number, or a place by the bounds of the version."""
        if not isinstance(said, str):
            return said
        days = self.naive.lines[self.naive.line_of[id_]].days_of(id_) or [0]
        first, last = days[0], days[-1]
        found = {
            "first": first, "after first": first + 1, "before first": first - 1, "last": last,
            "middle": (first + last) // 2, "after last": last + 1, "beyond": last + 2,
        }[said]  # fmt: skip
        return min(max(found, 0), LAST)

    def _remember(
        self,
        user: str,
        key: tuple[str, str],
        value: str,
        start: int | None,
        length: int | None,
        private: bool,
    ) -> None:
        end = None if length is None else (start or 0) + length
        end = None if end is not None and end > LAST else end
        days = span(start, end)
        refused, plan = None, None
        try:
            plan = self.naive.remember(user, key, value, days, private)
        except Refused as error:
            refused = error
        reply = self.call(
            "fact.remember", user, subject=key[0], attribute=key[1], value=value,
            validFrom=None if start is None else date(start), validTo=None if end is None else date(end),
            cardinality="many" if key[1] == "language" else "one",
            visibility="private" if private else "shared",
        )  # fmt: skip
        self._expect(reply, refused)
        if plan == "unchanged":
            assert reply["unchanged"] is True
        elif isinstance(plan, tuple):
            assert reply["unchanged"] is False
            self.naive.remembered(plan[0], plan[1], days, reply["factId"])

    def _correct(
        self, user: str, pick: int, value: str, kind: str, since: str | int | None, until: str | int | None
    ) -> None:
        id_ = self.picked(pick, user)
        if id_ is None:
            return
        start, end = self.day(id_, since), self.day(id_, until)
        refused, fresh, kept = None, None, []
        try:
            if kind == "changed":
                plan = self.naive.changed(user, id_, value, start, end)
                fresh, kept = plan or (None, [])
            else:
                fresh = self.naive.wrong(user, id_, value, start, end)
        except Refused as error:
            refused = error
        reply = self.call(
            "fact.correct", user, factId=id_, value=value, kind=kind,
            validFrom=None if start is None else date(start), validTo=None if end is None else date(end),
        )  # fmt: skip
        self._expect(reply, refused)
        if refused is None:
            assert reply["unchanged"] is (fresh is None)
        if fresh is not None:
            ids = (reply["factId"], reply["corrected"]["heldAs"])
            self.naive.corrected(id_, value, fresh, kept, ids)

    def _retract(self, user: str, pick: int, kind: str, until: str | int | None) -> None:
        id_ = self.picked(pick, user)
        if id_ is None:
            return
        end = self.day(id_, until)
        refused, kept = None, []
        if kind == "wrong":
            end = None
        try:
            kept = self.naive.retract(user, id_, kind, end)
        except Refused as error:
            refused = error
        reply = self.call(
            "fact.retract", user, factId=id_, kind=kind, reason="so it is",
            validTo=None if end is None else date(end),
        )  # fmt: skip
        self._expect(reply, refused)
        if refused is None:
            self.naive.retracted(id_, kept, reply["heldAs"])

    def _share(self, user: str, pick: int) -> None:
        id_ = self.picked(pick, user)
        if id_ is None:
            return
        refused, moving = None, list[Entry]()
        try:
            moving = self.naive.share(user, id_)
        except Refused as error:
            refused = error
        reply = self.call("fact.share", user, factId=id_)
        self._expect(reply, refused)
        if refused is None:
            self.naive.shared(moving, reply["shared"])

    # Asking

    def compare(self, user: str, lines: list[Line], **body: Any) -> dict[str, Any]:
        """What recall answers is what the model sees, on every day."""
        answer = self.call("fact.recall", user, limit=200, **body).body
        found: dict[int, set[Any]] = {day: set() for day in DAYS}
        for fact in answer["facts"]:
            entry = (
                (fact["subject"], fact["attribute"]), fact["factId"], fact["value"],
                fact["visibility"] == "shared",
            )  # fmt: skip
            for day in DAYS:
                if _holds(fact, day):
                    found[day].add(entry)
        assert found == seen_by(user, lines)
        return answer


def _holds(fact: dict[str, Any], day: int) -> bool:
    """Whether the first moment of a day is in the fact's period; day -1 is the year before all of them."""
    when = date(day)
    return (fact["validFrom"] or "0000") <= when and (fact["validTo"] is None or when < fact["validTo"])


def tell_and_compare(cast: Cast, sequence: list[tuple[Any, ...]], probe: int) -> None:
    """One random sequence, and every question about it."""
    story = Story(cast)
    for step in sequence:
        story.tell(step)
        for user in USERS:
            body = {"known_at": story.instants[-1]}
            story.compare(user, story.naive.lines)
            story.asked.append((user, {**body, "answer": story.compare(user, story.naive.lines, **body)}))
    # Whatever was written later, no earlier answer has moved, not by a byte.
    for user, asked in story.asked:
        again = story.call("fact.recall", user, limit=200, known_at=asked["known_at"]).body
        assert again == asked["answer"]
    # And on single days, at single steps.
    for turn in range(3):
        step, day = (probe + turn) % len(sequence), (probe * 7 + turn) % len(DAYS) - 1
        user = USERS[(probe + turn) % 2]
        page = story.call(
            "fact.recall", user, limit=200, known_at=story.instants[step], valid_at=date(day)
        )["facts"]  # fmt: skip
        expected = {id_ for _, id_, _, _ in seen_by(user, story.naive.steps[step])[day]}
        assert {fact["factId"] for fact in page} == expected


_checked = settings(
    deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None
)  # fmt: skip


@settings(_checked, max_examples=60)
@given(sequence=steps, probe=st.integers(0, 1000))
def test_store_and_model_agree_on_every_day_at_every_known_time(
    cast: Cast, sequence: list[tuple[Any, ...]], probe: int
) -> None:
    tell_and_compare(cast, sequence, probe)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(_checked, max_examples=500)
@given(sequence=steps, probe=st.integers(0, 1000))
def test_store_and_model_agree_over_five_hundred_sequences(
    cast: Cast, sequence: list[tuple[Any, ...]], probe: int
) -> None:
    tell_and_compare(cast, sequence, probe)
