"""Tokens: made, shown once, used, revoked at once."""

from __future__ import annotations

import re

from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from governance import pipeline
from governance.models import AuditEvent, Token
from governance.tenancy import Credentials
from loomsite.ops import Door
from tests.console.conftest import PASSWORD, Cast

TEXT = re.compile(r"loom_[a-z0-9]{12}_[A-Za-z0-9_-]{43}")


def form_of(client: Client, cast: Cast, **changes: object) -> dict[str, object]:
    """A filled form with the one-time id of the page."""
    page = client.get(reverse("admin:governance_token_new"))
    return {
        "form": page.context["form_id"], "label": "build box", "org": cast.org.pk, "principal": "writer",
        "role": "writer", "namespaces": "deploy", "default_namespace": "deploy",
        "source_class": "local_tool_output", "acts_for": "agent", "password": PASSWORD, **changes,
    }  # fmt: skip


def test_a_token_is_shown_once_works_and_is_kept_nowhere(cast: Cast) -> None:
    client, url = cast.client("org_admin"), reverse("admin:governance_token_new")
    data = form_of(client, cast)
    page = client.post(url, data)
    found = TEXT.search(page.content.decode())
    assert found is not None
    assert "no-store" in page.headers["Cache-Control"]
    text = found[0]
    answer = pipeline.run("ops.whoami", {}, Credentials(bearer=text, door=Door.REST))
    assert (answer.status, answer.body["principal"], answer.body["namespace"]) == (200, "writer", "deploy")
    secret = text.rsplit("_", 1)[1]
    for path in (reverse("admin:governance_token_changelist"), url):
        assert secret not in client.get(path).content.decode()
    assert all(secret not in str(session.get_decoded()) for session in Session.objects.all())
    assert not any(secret in str(event.detail) for event in AuditEvent.objects.all())
    event = AuditEvent.objects.get(op="token.create")
    assert (event.principal, event.door, event.target) == (
        "org_admin",
        "console",
        f"token:{Token.objects.get().prefix}",
    )


def test_a_reload_makes_no_second_token(cast: Cast) -> None:
    client, url = cast.client("owner"), reverse("admin:governance_token_new")
    data = form_of(client, cast)
    client.post(url, data)
    again = client.post(url, data, follow=True)
    assert "That form was sent before" in again.content.decode()
    assert Token.objects.count() == 1


def test_a_form_with_an_error_can_be_sent_again(cast: Cast) -> None:
    client, url = cast.client("owner"), reverse("admin:governance_token_new")
    page = client.post(url, form_of(client, cast, default_namespace="elsewhere"))
    assert "Must be one of the namespaces above" in page.content.decode()
    page = client.post(url, form_of(client, cast, form=page.context["form_id"]))
    assert TEXT.search(page.content.decode())


def test_an_organisation_admin_makes_tokens_for_its_own_members_only(cast: Cast) -> None:
    client, url = cast.client("org_admin"), reverse("admin:governance_token_new")
    for changes in ({"principal": "stranger"}, {"org": cast.foreign.org.pk}, {"role": "admin"}):
        page = client.post(url, form_of(client, cast, **changes))
        assert page.context["form"].errors
    assert not Token.objects.exists()


def test_revoking_counts_from_the_next_call_on(cast: Cast) -> None:
    client = cast.client("owner")
    page = client.post(reverse("admin:governance_token_new"), form_of(client, cast))
    text = TEXT.search(page.content.decode())
    assert text is not None
    token = Token.objects.get()
    url = reverse("admin:governance_token_revoke", args=[token.pk])
    assert client.get(url).status_code == 405
    assert "refused from its next call on" in client.post(url, follow=True).content.decode()
    assert pipeline.run("ops.whoami", {}, Credentials(bearer=text[0], door=Door.REST)).status == 401
    assert "revoked already" in client.post(url, follow=True).content.decode()
    assert AuditEvent.objects.filter(op="token.revoke").count() == 1
