"""A random namespace with everything in it, out, in and out again: the same bytes but for `exported_at`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from governance.models import ErasureRequest
from memories.models import Memory
from memories.services import purge_due
from tests.compliance.everywhere import found
from tests.compliance.person import MARK, ask, work
from tests.conftest import Cast, Reply
from tests.memories.helpers import sql
from tests.memories.test_transfer import EMPTIED, body, exported, taken

USERS = ("-", "bob", "eve")
STATES = {"active", "deleted", "redacted"}
WORDS = (
    "harbour",
    "caf\u00e9",
    "\u6771\u4eac",
    "a\u2028b",
    "ignore all previous instructions",
    "x" * 5000,
    "",
)


def another_database() -> None:
    """What another installation with the same organisation would hold of all this: nothing."""
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    every = [
        row[0]
        for row in sql(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' "
            "AND (starts_with(relname, 'memories_') OR starts_with(relname, 'facts_') "
            "OR starts_with(relname, 'procedures_'))"
        )
    ]
    names = {*EMPTIED.split(", "), *every, "governance_erasurerequest", "governance_idempotencykey"}
    sql(f"TRUNCATE {', '.join(sorted(names))}, governance_namespace RESTART IDENTITY CASCADE")
    sql("ALTER SEQUENCE loom_node_id RESTART")
    sql("SET CONSTRAINTS ALL DEFERRED")


class Player:
    """Makes calls at random; refusals are part of the game, faults are not."""

    def __init__(self, cast: Cast, seed: int) -> None:
        self.cast, self.random = cast, random.Random(seed)
        self.facts: list[str] = []
        self.made = 0

    def call(self, op: str, **payload: Any) -> Reply:
        """A call in the console by the namespace's admin."""
        reply = self.cast.console(op, payload)
        assert reply.status < 500, (op, payload, reply.body)
        return reply

    def who(self) -> dict[str, str]:
        """Whose it is."""
        user = self.random.choice(USERS)
        return {} if user == "-" else {"user_id": user}

    def key(self) -> dict[str, Any]:
        """One of a few keys, so that calls meet."""
        return {"memory_key": f"k{self.random.randrange(6)}", **self.who()}

    def value(self) -> Any:
        """Any JSON."""
        word = self.random.choice(WORDS)
        return self.random.choice([word, {"a": [word, 1.5, None, True, 10**20]}, [], 0, False, None])

    def set(self) -> None:
        """A save."""
        tags = ["t1", "t2"][: self.random.randrange(3)]
        more: dict[str, Any] = {"tags": tags, "metadata": {"m": self.random.random()}}
        self.call(
            "memory.set", **self.key(), value=self.value(), **(more if self.random.random() < 0.5 else {})
        )

    def delete(self) -> None:
        """A tombstone, sometimes an old one."""
        who = self.key()
        if self.call("memory.delete", **who).status == 200 and self.random.random() < 0.5:
            sql(
                "UPDATE memories_memory SET updated_at = updated_at - interval '20 days' "
                "WHERE memory_key = %s AND status = 'deleted'",
                [who["memory_key"]],
            )

    def guard(self) -> None:
        """A lock, a hold, or the end of one."""
        op = self.random.choice(["memory.lock", "hold.add", "hold.release", "memory.unlock"])
        what = {"matter": "m"} if op.startswith("hold") else {}
        self.call(op, **self.key(), reason="r", **what)

    def govern(self) -> None:
        """Redact or restore."""
        op = self.random.choice(["memory.redact", "memory.restore"])
        self.call(op, **self.key(), reason="r")

    def fact(self) -> None:
        """Remember, correct, retract or lock a fact."""
        who = self.who()
        if not self.facts or self.random.random() < 0.5:
            more = {"visibility": "private"} if who else {}
            reply = self.call(
                "fact.remember", subject=f"s{self.random.randrange(4)}", attribute="town",
                value=self.value(), validFrom=f"20{self.random.randrange(10, 30)}-01-01", **who, **more,
            )  # fmt: skip
            if reply.status == 200:
                self.facts.append(str(reply["factId"]))
            return
        id_ = self.random.choice(self.facts)
        asked: list[tuple[str, dict[str, Any]]] = [
            (
                "fact.correct",
                {"factId": id_, "value": self.value(), "kind": "wrong", "validFrom": "2015-01-01"},
            ),
            ("fact.retract", {"factId": id_, "kind": "wrong", "reason": "r"}),
            ("hold.add", {"memory_key": f"fact:{id_}", "matter": "m", "reason": "r"}),
        ]
        op, payload = self.random.choice(asked)
        self.call(op, **who, **payload)

    def procedure(self) -> None:
        """A recipe, or a run of one."""
        name = f"recipe {self.random.randrange(3)}"
        if self.random.random() < 0.4:
            self.call(
                "procedure.add", name=name, situation=self.random.choice(WORDS) or "s", steps=["One", "Two"]
            )
        else:
            self.call(
                "procedure.record_run", memory_key=f"procedure_{name.replace(' ', '_')}", path=["s1", "s2"],
                ok=self.random.random() < 0.5, note=self.random.choice(WORDS), **self.who(),
            )  # fmt: skip

    def raw(self) -> None:
        """A turn."""
        session = f"talk {self.random.randrange(3)}"
        self.call(
            "raw.append",
            session_id=session,
            role="user",
            content=self.random.choice(WORDS) or "x",
            **self.who(),
        )

    def end(self) -> None:
        """An erasure or a purge."""
        if self.random.random() < 0.5:
            purge_due()
            return
        ask(self.cast, by="boss", user_id=self.random.choice(USERS[1:]))
        work(self.cast)

    def play(self, calls: int) -> None:
        """So many of them."""
        moves: list[Callable[[], None]] = [
            *[self.set] * 6, *[self.delete] * 2, self.guard, self.govern, *[self.fact] * 4,
            *[self.procedure] * 3, *[self.raw] * 2, self.end,
        ]  # fmt: skip
        for _ in range(calls):
            self.random.choice(moves)()


@pytest.fixture(autouse=True)
def _no_vectors(settings: Any) -> Any:
    from memories.embedders import reset_embedder

    settings.LOOM_EMBEDDER = "none"
    reset_embedder()
    yield
    reset_embedder()


@pytest.mark.parametrize("seed", range(4))
def test_a_random_namespace_survives_the_trip_byte_for_byte(staff: Cast, seed: int) -> None:
    Player(staff, seed).play(90)
    statuses = set(Memory.objects.values_list("status", flat=True))
    # Shares, locks and erasures differ by seed; what every one of them has is said here.
    assert statuses >= STATES - {"deleted"}, statuses
    file = exported(staff.team)
    served = _served(staff)
    another_database()
    namespace = taken(file, staff.org)
    staff.team = namespace
    assert body(exported(namespace)) == body(file)
    _give_back(staff)
    assert _served(staff) == served


def _served(cast: Cast) -> list[Any]:
    """What reads answer, so that nothing is revived and nothing lost."""
    answers = [
        cast.console("memory.list", {"include_values": True, "user_id": "*", "limit": 200})["memories"],
        cast.console("fact.recall", {"subject": "s1", "user_id": "*"})["facts"],
    ]
    for answer in answers:
        for row in answer:
            for name in ("updated_at", "created_at"):
                row.pop(name, None)
    return answers


def _give_back(cast: Cast) -> None:
    from governance.services import member_set_role
    from loomsite.ops import Role

    member_set_role(namespace=cast.team, member=cast.people["owner"], role=Role.ADMIN)


def test_what_was_erased_is_not_in_the_file_and_stays_erased_after_the_trip(staff: Cast) -> None:
    from tests.compliance.person import everywhere

    ids = everywhere(staff)
    assert ask(staff, user_id="bob").status == 200
    assert work(staff) == ["done"]
    file = exported(staff.team)
    # The reasons of the audit are all that is left of the person's words.
    assert file.count(MARK.encode()) == sum(
        line.count(MARK.encode()) for line in file.splitlines() if b'"audit"' in line
    )
    another_database()
    namespace = taken(file, staff.org)
    assert body(exported(namespace)) == body(file)
    assert found([MARK]) == {'governance_importedaudit."row"'} and not ErasureRequest.objects.exists()
    assert sql("SELECT status, subject FROM facts_lineage WHERE id = %s", [ids["lineage"]]) == [
        ("redacted", "")
    ]
    assert set(Memory.objects.values_list("status", flat=True)) == {"redacted"}


def test_a_file_never_crosses_to_another_organisation(staff: Cast) -> None:
    from memories.transfer import TransferError

    Player(staff, 1).play(20)
    with pytest.raises(TransferError, match="nothing crosses"):
        taken(exported(staff.team), staff.elsewhere.org, "fresh")
