"""Plans for the tests of the review pages: asked by an agent with a writer's token, through the real op."""

from __future__ import annotations

from typing import Any

from governance import pipeline, services
from governance.models import Plan, User
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from tests.console.conftest import Cast


def agent_token(cast: Cast, who: str = "codex") -> str:
    """A token of that account; `codex` is a service account that writes in acme/deploy and acme/secret."""
    if who not in cast.people:
        cast.people[who] = User.objects.create_user(who, kind=User.Kind.SERVICE)
        for namespace in (cast.deploy, cast.secret):
            services.member_set_role(namespace=namespace, member=cast.people[who], role=Role.WRITER)
    _, text = services.token_create(principal=cast.people[who], org=cast.org, default_namespace="deploy")
    return text


def ask(token: str, op: str, **payload: Any) -> Answer:
    """A call with the token; a refusal is an answer too."""
    return pipeline.run(op, payload, Credentials(bearer=token, door=Door.REST))


def govern(token: str, ids: list[int], action: str = "delete", **more: Any) -> Answer:
    """The real run of a governed action, with the versions of its dry run."""
    given = {"ids": [str(id_) for id_ in ids], "action": action, **more}
    shown = ask(token, "memory.govern", dry_run=True, **given)
    assert shown.ok, shown.body
    versions = shown.body["expected_versions"]
    return ask(
        token, "memory.govern", reason="the freeze is over", confirm_destructive=True,
        expected_versions=versions, **given,
    )  # fmt: skip


def planned(cast: Cast, *keys: str, who: str = "codex", namespace: str = "deploy", **more: Any) -> Plan:
    """A plan of an agent to delete these memories, which are stored first."""
    ids = [cast.remember(key, f"what is known about {key}", namespace=namespace).pk for key in keys]
    return plan_of(govern(agent_token(cast, who), ids, namespace=namespace, **more))


def plan_of(answer: Answer) -> Plan:
    """The plan that a call was answered with."""
    assert answer.status == 202, answer.body
    return Plan.objects.get(pk=answer.body["plan_id"])
