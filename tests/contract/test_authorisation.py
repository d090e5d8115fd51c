"""Every op by every kind of principal, through every kind of token and in the console, at home, in a
namespace of others and in another organisation.

What is expected is said here again, by rules of its own (`by_token`, `in_console`); nothing of it is read
from the registry or from governance.policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone
from guardian.shortcuts import assign_perm

from governance import pipeline
from governance.models import Namespace, Org, Token, User
from governance.services import member_set_role, token_create, token_revoke
from governance.tenancy import Credentials
from loomsite.doors.tools import Access, call_tool
from loomsite.ops import CODES, Door, Role, all_ops, get
from tests.conftest import Cast
from tests.contract.examples import EXAMPLES, body_of, seed

RANK = {"": 0, "viewer": 1, "writer": 2, "reviewer": 3, "admin": 4}
ALL_OPS = sorted({op.name for op in all_ops()} | set(EXAMPLES))
PAST = timedelta(seconds=-1)


@dataclass(frozen=True)
class Principal:
    """A kind of person, and by hand what it is: its role in `team` and `side` of its organisation."""

    name: str
    role: str
    org: str = "acme"
    # Every namespace of its organisation, those that are not there yet included.
    org_admin: bool = False
    platform: bool = False

    def role_at(self, namespace: str) -> str:
        """The role in a namespace of its own organisation that exists."""
        if self.org_admin:
            return "admin"
        return self.role if namespace in ("team", "side") else ""

    def namespaces(self) -> tuple[str, ...]:
        """What exists in its organisation."""
        return ("team", "side", "vault") if self.org == "acme" else ("team",)


PRINCIPALS = [
    Principal("viewer", "viewer"),
    Principal("writer", "writer"),
    Principal("reviewer", "reviewer"),
    Principal("admin", "admin"),
    Principal("member of a group of writers", "writer"),
    Principal("org admin", "admin", org_admin=True),
    Principal("org admin by group", "admin", org_admin=True),
    Principal("superuser", "admin", org_admin=True, platform=True),
    Principal("nobody", ""),
    Principal("stranger", "admin", org="elsewhere"),
]


@dataclass(frozen=True)
class Narrowing:
    """How a token is narrowed; `options` are those of token_create."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    ceiling: str = "writer"
    covers: frozenset[str] | None = None
    makes: bool = False
    bound: str = ""
    alive: bool = True


NARROWINGS = [
    Narrowing("writer"),
    Narrowing("viewer", {"role": Role.VIEWER}, ceiling="viewer"),
    Narrowing("for team", {"namespaces": ["team"]}, covers=frozenset({"team"})),
    Narrowing("for side", {"namespaces": ["side"], "default_namespace": "side"}, covers=frozenset({"side"})),
    Narrowing("for no namespace", {"namespaces": [], "default_namespace": ""}, covers=frozenset()),
    Narrowing("that makes namespaces", {"may_create_namespaces": True}, makes=True),
    Narrowing(
        "of a viewer that makes namespaces", {"role": Role.VIEWER, "may_create_namespaces": True},
        ceiling="viewer",
    ),
    Narrowing("bound to an agent", {"agent": "scout"}, bound="agent"),
    Narrowing("bound to a user", {"user_id": "bob"}, bound="user_id"),
    Narrowing("expired", {"expires_at": PAST}, alive=False),
    Narrowing("revoked", alive=False),
]  # fmt: skip


@dataclass(frozen=True)
class Place:
    """What a call says of its place."""

    name: str
    says: dict[str, str]
    org: str | None = None
    namespace: str | None = None
    other: str = ""


PLACES = [
    Place("no place", {}),
    Place("team", {"namespace": "team"}, namespace="team"),
    Place("team of acme", {"org": "acme", "namespace": "team"}, "acme", "team"),
    Place("a namespace of others", {"namespace": "vault"}, namespace="vault"),
    Place("a namespace that is not there", {"namespace": "nowhere"}, namespace="nowhere"),
    Place("another organisation", {"org": "elsewhere", "namespace": "team"}, "elsewhere", "team"),
    Place("an organisation that is not there", {"org": "none"}, org="none"),
    Place("another agent", {"agent": "other"}, other="agent"),
    Place("another user", {"user_id": "other"}, other="user_id"),
]


def by_token(op: str, who: Principal, how: Narrowing, where: Place) -> int:
    """The status that is right for a call by this principal's token."""
    if not how.alive:
        return 401
    if where.org not in (None, who.org):
        return 404
    ceiling = RANK[how.ceiling]
    default = {"for side": "side", "for no namespace": None}.get(how.name, "team")
    namespace = where.namespace or default
    covered = namespace is not None and (how.covers is None or namespace in how.covers)
    there = namespace in who.namespaces()
    may_make = ceiling >= RANK["writer"] and (how.makes or who.org_admin)
    rank = 0
    if covered and there:
        rank = min(RANK[who.role_at(namespace or "")], ceiling)
    elif covered and (who.org_admin or may_make):
        rank = min(RANK["writer"], ceiling)
    visible_team = who.org == "acme" and who.role and (how.covers is None or "team" in how.covers)
    team_rank = min(RANK[who.role_at("team")], ceiling) if visible_team else 0
    return _status(
        op, who.org, where, namespace, rank, may_make or there, bool(visible_team), how.bound, team_rank
    )


def in_console(op: str, who: Principal, org: str, where: Place) -> int:
    """The status that is right for a call by a page of the console that works in `org`."""
    if where.org not in (None, org):
        return 404
    namespaces = ("team", "side", "vault") if org == "acme" else ("team",)
    all_of_it = who.platform or (who.org == org and who.org_admin)
    namespace, rank = where.namespace, 0
    there = namespace in namespaces
    if namespace is not None and all_of_it:
        rank = RANK["admin"]
    elif namespace is not None and there and who.org == org:
        rank = RANK[who.role_at(namespace)]
    visible_team = org == "acme" and (all_of_it or (who.org == org and who.role))
    team_rank = 0
    if visible_team:
        team_rank = RANK["admin"] if all_of_it else RANK[who.role_at("team")]
    due = _status(op, org, where, namespace, rank, all_of_it or there, bool(visible_team), "", team_rank)
    if EXAMPLES[op].planned and due == 403 and rank >= RANK["writer"]:
        at_home = org == "acme" and namespace == "team" and not where.other
        return 202 if at_home else 404
    return due


def _status(
    op: str,
    org: str,
    where: Place,
    namespace: str | None,
    rank: int,
    may_write_here: bool,
    sees_job: bool,
    bound: str,
    team_rank: int,
) -> int:
    example = EXAMPLES[op]
    if where.namespace is not None and not rank:
        return 404
    if op == "job.get":
        return 200 if sees_job else 404
    if example.by_id:
        # Found where it is, with the role that the caller has there.
        if bound and where.other == bound or not team_rank:
            return 404
        if bound and op.startswith("plan."):
            return 404  # it was asked for without that narrowing, so it may name rows outside of it
        return example.at_home if team_rank >= RANK[example.needs] else 403
    if not example.in_namespace:
        return 200
    if not rank:
        # Without a namespace and without a default the call is at fault; a default that is not there for
        # the caller is not there.
        return 400 if namespace is None else 404
    if example.needs != "viewer" and not may_write_here:
        return 404
    if rank < RANK[example.needs]:
        return 403
    if bound and where.other == bound:
        return 404
    # Where the examples' rows are: elsewhere there is, for one, nothing to restore or to lock.
    if op == "procedure.fork":
        # Its source is in acme's team, wherever the copy goes; whoever reads that reads its job too.
        return 200 if sees_job else 404
    # A procedure belongs to nobody, so that it is at home whoever runs it.
    at_home = (
        org == "acme"
        and namespace == "team"
        and (not where.other or op.startswith("procedure."))
        and not (bound and example.exact)
    )
    return example.at_home if at_home else example.elsewhere


class World:
    """The principals of the table, in the database, around the examples' rows."""

    def __init__(self, cast: Cast) -> None:
        self.ids = seed(cast)
        self.cast = cast
        for slug in ("vault", "side"):
            cast.namespace(slug)
        spaces = {space.slug: space for space in Namespace.objects.filter(org=cast.org)}
        self.people: dict[str, User] = {}
        for number, who in enumerate(PRINCIPALS):
            person = User.objects.create_user(f"principal-{number}", is_superuser=who.platform)
            self.people[who.name] = person
            if who.name in ("viewer", "writer", "reviewer", "admin"):
                for slug in ("team", "side"):
                    member_set_role(namespace=spaces[slug], member=person, role=Role.of(who.role))
            elif who.name == "stranger":
                member_set_role(namespace=cast.elsewhere, member=person, role=Role.ADMIN)
            elif who.name == "org admin":
                assign_perm("admin_org", person, cast.org)
            elif "group" in who.name:
                group = Group.objects.create(name=who.name)
                person.groups.add(group)
                if who.org_admin:
                    assign_perm("admin_org", group, cast.org)
                else:
                    for slug in ("team", "side"):
                        member_set_role(namespace=spaces[slug], member=group, role=Role.of(who.role))
        self.orgs = {"acme": cast.org, "elsewhere": cast.elsewhere.org}

    def token(self, who: Principal, how: Narrowing) -> str:
        """A token of that person, narrowed so."""
        options = {"default_namespace": "team", **how.options}
        if "expires_at" in options:
            options["expires_at"] = timezone.now() + options["expires_at"]
        token, full = token_create(principal=self.people[who.name], org=self.orgs[who.org], **options)
        if how.name == "revoked":
            token_revoke(token=token)
        return full


@pytest.fixture
def world(cast: Cast) -> World:
    """The principals and the examples' rows."""
    return World(cast)


def over_rest(op: str, body: dict[str, Any], credentials: Credentials) -> tuple[int, dict[str, Any]]:
    """The pipeline as POST /v1/<op> calls it."""
    answer = pipeline.run(op, json.loads(json.dumps(body)), credentials)
    return answer.status, answer.body


def over_mcp(
    op: str, body: dict[str, Any], credentials: Credentials, door: Door = Door.MCP
) -> tuple[int, dict[str, Any]]:
    """The tool of the op, as the MCP transports call it."""
    found = get(op)
    assert found is not None
    by = Credentials(bearer=credentials.bearer, door=door, is_local=credentials.is_local)
    result = call_tool(found.tool_name, body, Access(credentials=by))
    structured = result.structured_content or {}
    if not result.is_error:
        return 200, structured
    return CODES[structured["detail"]["code"]].status, structured


def over_stdio(op: str, body: dict[str, Any], credentials: Credentials) -> tuple[int, dict[str, Any]]:
    """The same with the door of standard streams."""
    return over_mcp(op, body, credentials, Door.STDIO)


DOORS = {"rest": over_rest, "mcp": over_mcp, "stdio": over_stdio}
Run = Callable[[str, dict[str, Any], Credentials], tuple[int, dict[str, Any]]]


# Places that tell whatever a narrowing could; the plain token is tried at every place.
TELLING = (
    "no place",
    "team",
    "a namespace of others",
    "a namespace that is not there",
    "another organisation",
)
# Standard streams share every line with MCP over HTTP but the name of the door.
OVER_STDIO = ("writer", "viewer", "for no namespace", "revoked")


def _cells(door: str = "rest") -> Iterator[tuple[Principal, Narrowing, Place]]:
    """Every principal and narrowing, at the places where the narrowing could tell."""
    for who in PRINCIPALS:
        for how in NARROWINGS:
            if door == "stdio" and how.name not in OVER_STDIO:
                continue
            for where in PLACES:
                telling = where.name in TELLING or how.name == "writer" or (how.bound and where.other)
                if where.name == "team" or (how.alive and telling):
                    yield who, how, where


def _wrong(
    run: Run, op: str, body: dict[str, Any], credentials: Credentials, due: int, cell: str
) -> list[str]:
    with transaction.atomic():
        status, answer = run(op, body, credentials)
        transaction.set_rollback(True)
    if due == 202 and run is not over_rest:
        due = 200  # a tool result knows no 202; its `state` says so
    return [] if status == due else [f"{cell}: {status}, not {due}: {answer}"[:400]]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("op", ALL_OPS)
def test_a_token_gets_what_is_due_to_its_principal_and_no_more(world: World, op: str, door: str) -> None:
    wrong, tokens = [], {}
    for who, how, where in _cells(door):
        key = who.name, how.name
        if key not in tokens:
            tokens[key] = world.token(who, how)
        wrong += _wrong(
            DOORS[door],
            op,
            {**body_of(op, world.ids), **where.says},
            Credentials(bearer=tokens[key], door=Door.REST),
            by_token(op, who, how, where),
            f"{who.name}, token {how.name}, {where.name}",
        )
    assert wrong == []


@pytest.mark.parametrize("org", ["acme", "elsewhere"])
@pytest.mark.parametrize("op", ALL_OPS)
def test_the_console_gets_what_is_due_to_the_person(world: World, op: str, org: str) -> None:
    wrong = []
    for who in PRINCIPALS:
        credentials = Credentials(user_id=world.people[who.name].pk, door=Door.CONSOLE, org=org)
        for where in PLACES:
            body = {**body_of(op, world.ids), **where.says}
            due = in_console(op, who, org, where)
            wrong += _wrong(over_rest, op, body, credentials, due, f"{who.name} in {org}, {where.name}")
    assert wrong == []


def test_the_table_has_a_cell_for_every_op_and_no_other() -> None:
    assert [op.name for op in all_ops()] == sorted(EXAMPLES)


def test_what_needs_a_reviewer_or_an_admin_is_403_to_every_token_wherever_it_may_read() -> None:
    above = [op for op, example in EXAMPLES.items() if RANK[example.needs] > RANK["writer"]]
    assert "memory.unlock" in above
    for op in above:
        found = {by_token(op, who, how, where) for who, how, where in _cells()}
        assert 200 not in found and 403 in found


def _other_end(full: str) -> str:
    return full[:-1] + ("A" if full[-1] != "A" else "B")


ODD = {
    "nobody": lambda full: Credentials(),
    "a call from this machine in server mode": lambda full: Credentials(is_local=True),
    "an empty bearer": lambda full: Credentials(bearer=""),
    "a blank bearer": lambda full: Credentials(bearer=" "),
    "a guess": lambda full: Credentials(bearer="loom_aaaaaaaaaaaa_" + "A" * 43),
    "a wrong secret": lambda full: Credentials(bearer=_other_end(full)),
    "a cut token": lambda full: Credentials(bearer=full[:-1]),
    "a token with a line break": lambda full: Credentials(bearer=full + "\n"),
    "a token with more behind it": lambda full: Credentials(bearer=full + "A"),
    "a token in capitals": lambda full: Credentials(bearer=full.upper()),
    "a token of NULs": lambda full: Credentials(bearer="\x00" * 61),
    "the prefix alone": lambda full: Credentials(bearer=full.rsplit("_", 1)[0]),
    "another scheme": lambda full: Credentials(bearer=f"Basic {full}"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_token_is_401_everywhere(cast: Cast, settings: Any, odd: str, door: str) -> None:
    settings.LOOM_SINGLE_USER = False
    credentials = ODD[odd](cast.tokens["mate"])
    ids = seed(cast)
    for op in ALL_OPS:
        status, body = DOORS[door](op, body_of(op, ids), credentials)
        assert (status, body["detail"]["code"]) == (401, "UNAUTHENTICATED"), op


@pytest.mark.parametrize("door", DOORS)
def test_who_loses_the_role_or_the_account_loses_the_token_with_the_next_call(cast: Cast, door: str) -> None:
    credentials, mate = Credentials(bearer=cast.tokens["mate"]), cast.people["mate"]
    body = {"namespace": "team"}
    assert DOORS[door]("memory.list", body, credentials)[0] == 200
    member_set_role(namespace=cast.team, member=mate, role=Role.NONE)
    assert DOORS[door]("memory.list", body, credentials)[0] == 404
    member_set_role(namespace=cast.team, member=mate, role=Role.VIEWER)
    assert DOORS[door]("memory.list", body, credentials)[0] == 200
    assert DOORS[door]("memory.set", {**body, "memory_key": "k", "value": 1}, credentials)[0] == 403
    mate.is_active = False
    mate.save()
    assert DOORS[door]("memory.list", body, credentials)[0] == 401
    mate.is_active = True
    mate.save()
    token_revoke(token=Token.objects.get(prefix=cast.tokens["mate"].split("_")[1]))
    assert DOORS[door]("memory.list", body, credentials)[0] == 401


def test_no_token_carries_more_than_a_writer(cast: Cast) -> None:
    from loomsite.ops import OpError

    for role in (Role.NONE, Role.REVIEWER, Role.ADMIN):
        with pytest.raises(OpError) as refused:
            cast.token("owner", role=role)
        assert refused.value.code == "INVALID_ARGUMENT"


def test_a_token_for_no_namespace_sees_nothing(cast: Cast) -> None:
    seed(cast)
    for person in ("owner", "mate"):
        none = cast.token(person, namespaces=[], default_namespace="", may_create_namespaces=True)
        assert cast.run("namespace.list", {}, by=none)["namespaces"] == []
        assert cast.run("ops.whoami", {}, by=none)["namespaces"] == []
        for op in ("memory.list", "memory.search", "memory.get"):
            body = {"memory_key": "living", "query": "living"}
            assert cast.run(op, body, by=none).status == 400
            for namespace in ("team", "nowhere"):
                assert cast.run(op, {**body, "namespace": namespace}, by=none).status == 404


def test_one_statement_finds_out_who_calls(cast: Cast) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    full = cast.tokens["mate"]
    assert cast.run("ops.whoami", {}, by=full).status == 200
    with CaptureQueriesContext(connection) as queries:
        assert cast.run("ops.whoami", {}, by=full).status == 200
    assert len(queries) == 1
    assert Org.objects.count() == 2
