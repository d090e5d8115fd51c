"""Every op by every kind of caller, at home, in a namespace of others and in another organisation.

What is expected is said here again, by a rule of its own (`expected`); nothing of it is read from the
registry or from governance.policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from governance import pipeline
from governance.models import Token
from governance.services import member_set_role, token_revoke
from governance.tenancy import Credentials
from loomsite.doors.tools import Access, call_tool
from loomsite.ops import Door, Role, all_ops, get
from tests.conftest import Cast
from tests.contract.examples import EXAMPLES, body_of, seed

RANK = {"": 0, "viewer": 1, "writer": 2, "admin": 4}


@dataclass(frozen=True)
class Who:
    """A kind of caller, and by hand what it may in namespace `team` of `acme`."""

    name: str
    credentials: Callable[[Cast], Credentials]
    let_in: bool = True
    org: str = "acme"
    role: str = ""
    """The role in `team` of its own organisation; "" is none, and then the namespace is not there for it."""
    makes_namespaces: bool = False
    bound: bool = False


def _token(person: str, **narrowing: Any) -> Callable[[Cast], Credentials]:
    return lambda cast: Credentials(bearer=cast.token(person, **narrowing))


def _broken(change: Callable[[Cast, str], str]) -> Callable[[Cast], Credentials]:
    return lambda cast: Credentials(bearer=change(cast, cast.token("mate")))


def _other_end(cast: Cast, full: str) -> str:
    return full[:-1] + ("A" if full[-1] != "A" else "B")


_makers = _token("owner", may_create_namespaces=True)


def _revoked(cast: Cast, full: str) -> str:
    token_revoke(token=Token.objects.get(prefix=full.split("_")[1]))
    return full


def _inactive(cast: Cast, full: str) -> str:
    cast.people["mate"].is_active = False
    cast.people["mate"].save()
    return full


def _org_admin(cast: Cast) -> Credentials:
    from guardian.shortcuts import assign_perm

    assign_perm("admin_org", cast.people["owner"], cast.org)
    return Credentials(bearer=cast.token("owner"))


def _without_role(cast: Cast) -> Credentials:
    full = cast.token("mate")
    member_set_role(namespace=cast.team, member=cast.people["mate"], role=Role.NONE)
    return Credentials(bearer=full)


PAST = timezone.now() - timedelta(seconds=1)
CALLERS = [
    Who("nobody", lambda cast: Credentials(), let_in=False),
    Who("an empty bearer", lambda cast: Credentials(bearer=""), let_in=False),
    Who("a guess", lambda cast: Credentials(bearer="loom_aaaaaaaaaaaa_" + "A" * 43), let_in=False),
    Who("a wrong secret", _broken(_other_end), let_in=False),
    Who("a cut token", _broken(lambda cast, full: full[:-1]), let_in=False),
    Who("a token with more behind it", _broken(lambda cast, full: full + "\n"), let_in=False),
    Who("an expired token", _token("mate", expires_at=PAST), let_in=False),
    Who("a revoked token", _broken(_revoked), let_in=False),
    Who("a token of somebody who left", _broken(_inactive), let_in=False),
    Who("a viewer", _token("viewer"), role="viewer"),
    Who("a viewer's token with the role of a writer", _token("viewer", role=Role.WRITER), role="viewer"),
    Who("a writer", _token("mate"), role="writer"),
    Who("a writer's token with the role of a viewer", _token("mate", role=Role.VIEWER), role="viewer"),
    Who("a writer who lost the role", _without_role),
    Who("an admin's token", _token("owner"), role="writer"),
    Who("an admin's viewer token", _token("owner", role=Role.VIEWER), role="viewer"),
    Who("a maker of namespaces", _makers, role="writer", makes_namespaces=True),
    Who("a token for team only", _token("mate", namespaces=["team"]), role="writer"),
    Who(
        "a token for another namespace",
        _token("owner", namespaces=["side"], default_namespace="side"),
    ),
    Who("a token for no namespace", _token("owner", namespaces=[], default_namespace="")),
    Who("a token bound to an agent", _token("mate", agent="scout"), role="writer", bound=True),
    Who("a token bound to a user", _token("mate", user_id="bob"), role="writer", bound=True),
    Who("a stranger", _token("stranger"), org="elsewhere", role="writer"),
    Who("an org admin", _org_admin, role="writer", makes_namespaces=True),
]  # fmt: skip


@dataclass(frozen=True)
class Where:
    """What a call says of its place."""

    name: str
    says: dict[str, str]
    org: str | None = None
    namespace: str | None = None
    others: bool = False


PLACES = [
    Where("no place", {}),
    Where("team", {"namespace": "team"}, namespace="team"),
    Where("team of acme", {"org": "acme", "namespace": "team"}, org="acme", namespace="team"),
    Where("a namespace of others", {"namespace": "vault"}, namespace="vault"),
    Where("a namespace that is not there", {"namespace": "nowhere"}, namespace="nowhere"),
    Where("another organisation", {"org": "elsewhere", "namespace": "team"}, "elsewhere", "team"),
    Where("an organisation that is not there", {"org": "none"}, org="none"),
    Where("another agent", {"agent": "other"}, others=True),
    Where("another user", {"user_id": "other"}, others=True),
]  # fmt: skip
ADMIN_OF_ALL = "an org admin"


def expected(op: str, who: Who, where: Where) -> set[int]:
    """The statuses that are right for this cell."""
    example = EXAMPLES[op]
    if not who.let_in:
        return {401}
    if where.org is not None and where.org != who.org:
        return {404}
    role = who.role
    if where.namespace == "vault":
        role = "writer" if who.name == ADMIN_OF_ALL else ""
    absent = where.namespace == "nowhere" or (where.namespace == "vault" and who.org != "acme")
    if absent:
        role = "writer" if who.makes_namespaces else ""
    if where.namespace is not None and not role:
        return {404}
    if op == "job.get":
        return {200} if who.org == "acme" and who.role else {404}
    if not example.in_namespace:
        return {200}
    if not role:
        # No namespace was named, and there is none to fall back on: without a default that is a fault of
        # the call; a default that is not there for the caller is not there.
        return {400} if who.name == "a token for no namespace" else _side(op, who)
    if RANK[role] < RANK[example.needs]:
        return {403}
    if who.bound and where.others:
        mine = {"a token bound to an agent": "another user", "a token bound to a user": "another agent"}
        if where.name != mine[who.name]:
            return {404}
    # Where the examples' rows are: nothing to restore, unlock or lock is 404, everything else answers.
    at_home = who.org == "acme" and where.namespace in (None, "team") and not where.others
    keyed = op in ("memory.restore", "memory.lock")
    return {404} if keyed and not at_home else {200}


def _side(op: str, who: Who) -> set[int]:
    """The token whose default is `side`: a writer there, where none of the examples' rows are."""
    if who.name != "a token for another namespace":
        return {404}
    if EXAMPLES[op].needs == "admin":
        return {403}
    return {404} if op in ("memory.restore", "memory.lock") else {200}


def over_rest(op: str, body: dict[str, Any], credentials: Credentials) -> tuple[int, dict[str, Any]]:
    """The pipeline as POST /v1/<op> calls it."""
    answer = pipeline.run(op, json.loads(json.dumps(body)), credentials)
    return answer.status, answer.body


def over_mcp(op: str, body: dict[str, Any], credentials: Credentials) -> tuple[int, dict[str, Any]]:
    """The tool of the op, as both MCP transports call it."""
    found = get(op)
    assert found is not None
    door = Credentials(bearer=credentials.bearer, door=Door.MCP, is_local=credentials.is_local)
    result = call_tool(found.tool_name, body, Access(credentials=door))
    structured = result.structured_content or {}
    if not result.is_error:
        return 200, structured
    from loomsite.ops import CODES

    return CODES[structured["detail"]["code"]].status, structured


DOORS = {"rest": over_rest, "mcp": over_mcp}


def _cells(cast: Cast) -> Iterator[tuple[Who, Where, Credentials]]:
    for who in CALLERS:
        with transaction.atomic():
            credentials = who.credentials(cast)
            for where in PLACES:
                yield who, where, credentials
            transaction.set_rollback(True)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("op", sorted({op.name for op in all_ops()} | set(EXAMPLES)))
def test_every_caller_gets_what_is_due_at_every_place(cast: Cast, op: str, door: str) -> None:
    ids = seed(cast)
    cast.namespace("vault")
    cast.namespace("side", owner=Role.WRITER)
    wrong = []
    for who, where, credentials in _cells(cast):
        with transaction.atomic():
            status, body = DOORS[door](op, {**body_of(op, ids), **where.says}, credentials)
            transaction.set_rollback(True)
        if status not in expected(op, who, where):
            wrong.append(
                f"{who.name} at {where.name}: {status}, not {expected(op, who, where)}: {body}"[:400]
            )
    assert wrong == []


@pytest.mark.parametrize("op", sorted(EXAMPLES))
def test_what_is_foreign_and_what_is_absent_look_the_same(cast: Cast, op: str) -> None:
    ids = seed(cast)
    cast.namespace("vault")
    credentials = Credentials(bearer=cast.tokens["mate"])

    def answer(**says: str) -> Any:
        body = {**body_of(op, ids), **says}
        answered = pipeline.run(op, body, credentials, request_id="same")
        return answered.status, answered.body, answered.headers

    assert answer(namespace="vault") == answer(namespace="nowhere")
    assert answer(org="elsewhere") == answer(org="none")
    assert answer(org="elsewhere", namespace="vault") == answer(org="none", namespace="nowhere")


def test_a_job_of_others_and_one_that_is_not_there_look_the_same(cast: Cast) -> None:
    job = seed(cast)["<job>"]
    stranger = Credentials(bearer=cast.tokens["stranger"])
    foreign = pipeline.run("job.get", {"job_id": job}, stranger, request_id="same")
    absent = pipeline.run("job.get", {"job_id": "999999999"}, stranger, request_id="same")
    assert (foreign.status, foreign.body) == (absent.status, absent.body) == (404, absent.body)


def test_no_token_carries_more_than_a_writer(cast: Cast) -> None:
    from loomsite.ops import OpError

    for role in (Role.REVIEWER, Role.ADMIN):
        with pytest.raises(OpError) as refused:
            cast.token("owner", role=role)
        assert refused.value.code == "INVALID_ARGUMENT"
