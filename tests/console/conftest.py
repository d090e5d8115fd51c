"""The cast of the console's tests: an organisation with a person for every role, and a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from guardian.shortcuts import assign_perm

from facts.models import Lineage
from governance import pipeline, services
from governance.models import Namespace, Org, User
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from memories.embedders import reset_embedder
from memories.models import Memory
from procedures.models import Procedure

PASSWORD = "a long console password"


@dataclass
class Cast:
    """Who takes part, and shorthands for what they do."""

    org: Org
    deploy: Namespace
    secret: Namespace
    foreign: Namespace
    people: dict[str, User]

    def call(self, op: str, by: str = "owner", namespace: str = "deploy", **payload: Any) -> Answer:
        """An op run as that person, refusals included."""
        credentials = Credentials(door=Door.CONSOLE, user_id=self.people[by].pk, org=self.org.slug)
        return pipeline.run(op, {"namespace": namespace, **payload}, credentials)

    def remember(self, key: str, value: Any = "a value", namespace: str = "deploy", **more: Any) -> Memory:
        """A memory stored by the real op."""
        answer = self.call("memory.set", namespace=namespace, memory_key=key, value=value, **more)
        assert answer.ok, answer.body
        return Memory.objects.get(pk=answer.body["memory_id"])

    def recipe(self, namespace: str = "deploy", **more: Any) -> Procedure:
        """A procedure stored by the real op."""
        given = {"name": "Roll back", "situation": "Errors rise", "steps": ["Stop", "Go back"], **more}
        answer = self.call("procedure.add", namespace=namespace, **given)
        assert answer.ok, answer.body
        return Procedure.objects.get(pk=answer.body["memory_id"])

    def fact(self, namespace: str = "deploy") -> Lineage:
        """A fact stored by the real op."""
        given = {"subject": "Ada", "attribute": "employer", "value": "Acme", "validFrom": "2020-01-01"}
        answer = self.call("fact.remember", namespace=namespace, **given)
        assert answer.ok, answer.body
        return Lineage.objects.get(pk=answer.body["lineageId"])

    def lock(self, memory: Memory, mode: str = "read_only", **more: Any) -> None:
        """A lock put on by the real op."""
        answer = self.call("memory.lock", memory_key=memory.memory_key, mode=mode, reason="agreed", **more)
        assert answer.ok, answer.body

    def client(self, name: str) -> Client:
        """A browser in which that person has logged in."""
        client = Client()
        client.force_login(self.people[name], backend="django.contrib.auth.backends.ModelBackend")
        return client


def build_cast() -> Cast:
    """The cast, in the database."""
    org, other = Org.objects.create(slug="acme"), Org.objects.create(slug="globex")
    deploy = Namespace.objects.create(org=org, slug="deploy")
    secret = Namespace.objects.create(org=org, slug="secret")
    foreign = Namespace.objects.create(org=other, slug="deploy")
    people = {"owner": User.objects.create_superuser("owner", password=PASSWORD)}
    for name in ("org_admin", "admin", "reviewer", "writer", "viewer", "nobody", "stranger"):
        people[name] = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    assign_perm("admin_org", people["org_admin"], org)
    for name in ("admin", "reviewer", "writer", "viewer"):
        services.member_set_role(namespace=deploy, member=people[name], role=Role.of(name))
    services.member_set_role(namespace=foreign, member=people["stranger"], role=Role.ADMIN)
    return Cast(org, deploy, secret, foreign, people)


@pytest.fixture(autouse=True)
def _no_embedder(settings: Any) -> Iterator[None]:
    """Pages do not depend on vectors. The process keeps its embedder, so it must forget this one too."""
    settings.LOOM_EMBEDDER = "none"
    reset_embedder()
    yield
    reset_embedder()


@pytest.fixture
def cast(db: None) -> Cast:
    """The cast."""
    return build_cast()
