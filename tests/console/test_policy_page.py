"""The policy of a namespace on its page: shown to its members, set by its admins, audited."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from governance.models import AuditEvent, Policy
from governance.review import TABLE, rules_of
from tests.console.conftest import PASSWORD, Cast
from tests.console.plans import agent_token, ask


def url(cast: Cast) -> str:
    return reverse("admin:governance_namespace_policy", args=[cast.deploy.pk])


def send(client: Client, cast: Cast, **changes: Any) -> Any:
    """The page's form as it stands, with some fields changed."""
    rules = rules_of(cast.deploy.pk)
    data = {
        **{f"level-{action}": rules.level(action) for action in TABLE},
        "approvals": rules.approvals, "plan_hours": rules.plan_hours, "apply_at_once": rules.apply_at_once,
        "reason": "the rules here", "password": "", "version": rules.version, **changes,
    }  # fmt: skip
    return client.post(url(cast), data)


def test_an_admin_sets_it_and_the_next_call_is_judged_by_it(cast: Cast) -> None:
    cast.remember("tmp/1")
    token = agent_token(cast)
    changes = {"level-memory.delete": "review", "approvals": 2, "plan_hours": 24}
    assert send(cast.client("admin"), cast, **changes).status_code == 302
    rules = rules_of(cast.deploy.pk)
    assert (rules.level("memory.delete"), rules.approvals, rules.plan_hours) == ("review", 2, 24)
    assert ask(token, "memory.delete", memory_key="tmp/1", reason="old").status == 202
    event = AuditEvent.objects.get(op="policy.set")
    assert (event.principal, event.reason) == ("admin", "the rules here")
    assert event.detail["after"]["rows"] == {"memory.delete": "review"}
    html = cast.client("viewer").get(url(cast)).content.decode()
    assert "Version 1" in html and "not the default" in html and "<select" not in html


def test_the_namespaces_page_leads_to_it(cast: Cast) -> None:
    page = cast.client("viewer").get(reverse("admin:governance_namespace_change", args=[cast.deploy.pk]))
    assert url(cast) in page.content.decode()


@pytest.mark.parametrize("who", ["reviewer", "writer", "viewer"])
def test_only_an_admin_of_the_namespace_sets_it(cast: Cast, who: str) -> None:
    assert send(cast.client(who), cast, approvals=2).status_code == 403
    assert not Policy.objects.exists()


@pytest.mark.parametrize("action", [row.action for row in TABLE.values() if row.starred])
def test_a_starred_row_is_not_made_looser(cast: Cast, action: str) -> None:
    client = cast.client("admin")
    assert f'name="level-{action}"' in client.get(url(cast)).content.decode()
    response = send(client, cast, **{f"level-{action}": "direct"}, password=PASSWORD)
    assert response.status_code == 400 and not Policy.objects.exists()
    assert send(client, cast, **{f"level-{action}": "review_always"}).status_code == 302


LOOSER: list[dict[str, Any]] = [
    {"level-govern.delete": "direct"}, {"plan_hours": 100}, {"apply_at_once": 26},
]  # fmt: skip


@pytest.mark.parametrize("changes", LOOSER)
def test_making_it_looser_takes_the_password(cast: Cast, changes: dict[str, Any]) -> None:
    client = cast.client("admin")
    assert send(client, cast, **changes).status_code == 400
    assert send(client, cast, **changes, password="wrong").status_code == 400
    assert not Policy.objects.exists()
    assert send(client, cast, **changes, password=PASSWORD).status_code == 302


BAD: list[dict[str, Any]] = [
    {"approvals": 0}, {"approvals": 11}, {"plan_hours": 0}, {"apply_at_once": -1}, {"apply_at_once": "x"},
    {"reason": " "}, {"level-memory.delete": "never"}, {"approvals": ""},
]  # fmt: skip


@pytest.mark.parametrize("changes", BAD)
def test_what_is_out_of_bounds_is_refused_beside_its_field(cast: Cast, changes: dict[str, Any]) -> None:
    response = send(cast.client("admin"), cast, **changes, password=PASSWORD)
    assert response.status_code == 400 and not Policy.objects.exists()
    assert list(response.context["form"].errors) == list(changes)


@pytest.mark.parametrize("version", ["7", "", "x"])
def test_a_policy_that_was_changed_meanwhile_is_not_overwritten(cast: Cast, version: str) -> None:
    response = send(cast.client("admin"), cast, approvals=2, version=version)
    assert response.status_code == 409 and rules_of(cast.deploy.pk).version == 0
