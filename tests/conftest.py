"""Fixtures every test may use. The database server itself is started by tests/plugin.py."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from pytest_django import DjangoDbBlocker

from governance import pipeline
from governance.models import Namespace, Org, User
from governance.services import member_set_role, token_create
from governance.tenancy import Credentials
from loomsite.ops import Door, Role

pytest_plugins = ["tests.worker_fixtures"]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Let this process TRUNCATE: the triggers refuse it elsewhere, transactional tests clean up with it.

    An option of the connection and not of the database: only a superuser may store a setting that no
    extension has declared. Processes that a test starts do not get it, so they run under the rules of
    production.
    """
    options = connection.settings_dict["OPTIONS"]
    options["options"] = f"{options.get('options', '')} -c loom.allow_truncate=on".strip()


@dataclass(frozen=True)
class Reply:
    """An answer, from whichever door."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def detail(self) -> dict[str, Any]:
        """The error object of a refusal."""
        detail: dict[str, Any] = self.body["detail"]
        return detail

    @property
    def code(self) -> str:
        """The error's code; "" for an answer."""
        return str(self.body["detail"]["code"]) if "detail" in self.body else ""

    def __getitem__(self, name: str) -> Any:
        assert self.status == 200, self.body
        return self.body[name]


@dataclass
class Cast:
    """The fixed cast: people of `acme` around its namespace `team`, and a stranger of another organisation.

    `owner` is the namespace's admin and may create others, `mate` writes, `viewer` reads; `stranger` is the
    admin of a namespace of the same name in `elsewhere`. Each name in `tokens` is a token of that person.
    """

    org: Org
    team: Namespace
    elsewhere: Namespace
    people: dict[str, User]
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, person: str = "mate", **narrowing: Any) -> str:
        """Another token of that person, narrowed as said."""
        org = self.elsewhere.org if person == "stranger" else self.org
        options: dict[str, Any] = {"default_namespace": "team", **narrowing}
        return token_create(principal=self.people[person], org=org, **options)[1]

    def namespace(self, slug: str, **roles: Role) -> Namespace:
        """Another namespace of `acme`, with roles by person."""
        made = Namespace.objects.create(org=self.org, slug=slug)
        for person, role in roles.items():
            member_set_role(namespace=made, member=self.people[person], role=role)
        return made

    def call(self, op: str, body: dict[str, Any] | bytes, by: str = "mate", **headers: str) -> Reply:
        """POST /v1/<op> by a person of the cast or by a full token; `headers` as META names."""
        raw = body if isinstance(body, bytes) else json.dumps(body)
        response = Client().post(
            f"/v1/{op}",
            data=raw,
            content_type="application/json",
            HTTP_AUTHORIZATION=f"Bearer {self.tokens.get(by, by)}",
            **headers,
        )
        return Reply(response.status_code, json.loads(response.content), dict(response.items()))

    def run(self, op: str, body: dict[str, Any], by: str = "mate", **options: Any) -> Reply:
        """The same call straight through the pipeline."""
        credentials = Credentials(bearer=self.tokens.get(by, by))
        answer = pipeline.run(op, body, credentials, **options)
        return Reply(answer.status, json.loads(json.dumps(answer.body)), answer.headers)

    def console(self, op: str, body: dict[str, Any], by: str = "owner") -> Reply:
        """The call as a page of the console makes it, in a logged-in session of `by`."""
        person = self.people[by]
        credentials = Credentials(user_id=person.pk, door=Door.CONSOLE, org=self.org.slug)
        answer = pipeline.run(op, {"namespace": "team", **body}, credentials)
        return Reply(answer.status, json.loads(json.dumps(answer.body)), answer.headers)


@contextlib.contextmanager
def taken_back(blocker: DjangoDbBlocker) -> Iterator[None]:
    """What is done inside lasts for as long: a fixture of a class or a file builds its rows once in it.

    Each test that asks for `db` has a savepoint of its own within.
    """
    with blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture
def cast(db: None) -> Cast:
    """The cast, each with a token. Mark the test `django_db(transaction=True)` to let threads see it."""
    return build_cast()


def build_cast() -> Cast:
    """The cast, in the database."""
    acme, other = Org.objects.create(slug="acme"), Org.objects.create(slug="elsewhere")
    team = Namespace.objects.create(org=acme, slug="team")
    elsewhere = Namespace.objects.create(org=other, slug="team")
    people = {name: User.objects.create_user(name) for name in ("owner", "mate", "viewer", "stranger")}
    made = Cast(acme, team, elsewhere, people)
    for name, namespace, role in (
        ("owner", team, Role.ADMIN),
        ("mate", team, Role.WRITER),
        ("viewer", team, Role.VIEWER),
        ("stranger", elsewhere, Role.ADMIN),
    ):
        member_set_role(namespace=namespace, member=people[name], role=role)
        made.tokens[name] = made.token(name, may_create_namespaces=name == "owner")
    return made
