"""Organisations, namespaces, accounts, roles and tokens from the command line of the server."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command

from governance import pipeline
from governance.models import AuditEvent, Namespace, Org, Token, User
from governance.tenancy import Credentials

TOKEN = re.compile(r"loom_[a-z0-9]{12}_[A-Za-z0-9_-]{43}")
pytestmark = pytest.mark.django_db


def run(name: str, *arguments: Any, **options: Any) -> str:
    """What the command prints."""
    out = StringIO()
    call_command(name, *arguments, stdout=out, **options)
    return out.getvalue()


def whoami(token: str, **body: str) -> tuple[int, dict[str, Any]]:
    answer = pipeline.run("ops.whoami", dict(body), Credentials(bearer=token))
    return answer.status, answer.body


def audited() -> list[tuple[str, str, str]]:
    return list(AuditEvent.objects.order_by("seq").values_list("op", "target", "principal"))


@pytest.fixture
def acme() -> Org:
    run("org_create", "acme")
    return Org.objects.get(slug="acme")


@pytest.fixture
def deploy(acme: Org) -> Namespace:
    run("namespace_create", "acme:deploy")
    return Namespace.objects.get(slug="deploy")


def test_a_headless_installation_from_nothing_to_a_working_and_then_a_dead_token() -> None:
    assert run("org_create", "acme") == "organisation acme: made\n"
    assert run("org_create", "acme") == "organisation acme: was there already\n"
    assert run("namespace_create", "acme:deploy") == "namespace acme/deploy: made\n"
    assert run("namespace_create", "acme:deploy") == "namespace acme/deploy: was there already\n"
    assert run("account_create", "ci", "--service", "--org", "acme") == "service account ci: made\n"
    assert run("member_set", "acme:deploy", "--user", "ci", "--role", "writer") == (
        "ci on acme/deploy: writer\n"
    )
    assert run("member_list", "acme:deploy").split() == ["writer", "service", "ci"]
    token = run("token_create", "ci", "--org", "acme", "--namespace", "deploy").strip()
    assert TOKEN.fullmatch(token)
    status, body = whoami(token)
    assert (status, body["namespace"], body["role"], body["acts_for"]) == (200, "deploy", "writer", "agent")
    prefix = token.split("_")[1]
    listed = run("token_list", "--org", "acme")
    assert listed.startswith(f"{prefix}  valid  acme  ci  writer  namespaces: deploy  last used: 2")
    assert token.rsplit("_", 1)[1] not in listed
    assert run("token_revoke", token) == f"token {prefix}: revoked\n"
    assert whoami(token)[0] == 401
    assert run("token_revoke", prefix) == f"token {prefix}: was revoked already\n"
    assert run("token_list") == ""
    assert "revoked" in run("token_list", "--all")
    assert audited() == [
        ("org.create", "org:acme", "operator"),
        ("namespace.create", "namespace:deploy", "operator"),
        ("account.create", "user:ci", "operator"),
        ("member.set_role", "user:ci", "operator"),
        ("token.create", f"token:{prefix}", "operator"),
        ("token.revoke", f"token:{prefix}", "operator"),
    ]
    assert set(AuditEvent.objects.values_list("door", flat=True)) == {"system"}


def test_a_person_gets_a_password_that_is_printed_once_or_the_one_that_is_given(
    acme: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run("account_create", "ann", "--org", "acme", "--email", "ann@example.org")
    made = re.search(r"password \(shown once\): (\S+)", said)
    ann = User.objects.get(username="ann")
    assert made and ann.check_password(made[1]) and ann.is_staff and not ann.is_superuser
    monkeypatch.setenv("LOOM_NEW_PASSWORD", "a long enough password")
    assert run("account_create", "ben", "--org", "acme") == "person ben: made\n"
    assert User.objects.get(username="ben").check_password("a long enough password")
    monkeypatch.setenv("LOOM_NEW_PASSWORD", "short")
    with pytest.raises(CommandError, match="at least 10 characters"):
        run("account_create", "cid", "--org", "acme")
    assert not User.objects.filter(username="cid").exists()
    assert "a long enough password" not in str(list(AuditEvent.objects.values_list("detail", flat=True)))


def test_a_group_gives_its_role_to_who_is_in_it_and_takes_it_back(deploy: Namespace) -> None:
    run("account_create", "bot", "--service", "--org", "acme")
    run("group_set", "robots", "--org", "acme", "--add", "bot")
    run("member_set", "acme:deploy", "--group", "robots", "--role", "viewer")
    token = run("token_create", "bot", "--org", "acme", "--default-namespace", "deploy").strip()
    assert whoami(token)[1]["role"] == "viewer"
    assert run("group_set", "robots", "--org", "acme", "--remove", "bot") == (
        "group robots: 0 added, 1 removed\n"
    )
    assert whoami(token, namespace="deploy")[0] == 404


def test_an_org_admin_reaches_every_namespace_until_that_is_taken_away(deploy: Namespace) -> None:
    run("account_create", "ann", "--org", "acme")
    token = run("token_create", "ann", "--org", "acme").strip()
    assert whoami(token, namespace="deploy")[0] == 404
    assert run("org_admin", "acme", "--user", "ann") == "ann administers acme\n"
    assert whoami(token, namespace="deploy")[1]["role"] == "writer"
    assert run("org_admin", "acme", "--user", "ann", "--remove") == "ann no longer administers acme\n"
    assert whoami(token, namespace="deploy")[0] == 404


def test_a_deactivated_account_is_refused_at_once(deploy: Namespace) -> None:
    run("account_create", "bot", "--service", "--org", "acme")
    token = run("token_create", "bot", "--org", "acme").strip()
    assert whoami(token)[0] == 200
    assert run("account_set", "bot", "--deactivate") == "account bot: changed\n"
    assert whoami(token)[0] == 401
    assert run("account_set", "bot", "--deactivate") == "account bot: was like that already\n"
    assert "owner inactive" in run("token_list", "--all")
    assert run("account_set", "bot", "--reactivate") == "account bot: changed\n"
    assert whoami(token)[0] == 200


def test_superusers_come_and_go_but_the_last_one_stays(acme: Org) -> None:
    for name in ("ann", "ben"):
        run("account_create", name, "--org", "acme")
        run("account_set", name, "--superuser")
    run("account_set", "ann", "--no-superuser")
    for change in ("--no-superuser", "--deactivate"):
        with pytest.raises(CommandError, match="the last superuser"):
            run("account_set", "ben", change)
    assert User.objects.get(username="ben").is_superuser and User.objects.get(username="ben").is_active


def test_an_account_joins_and_leaves_an_organisation(acme: Org) -> None:
    run("org_create", "globex")
    run("account_create", "ann", "--org", "acme")
    run("account_set", "ann", "--join", "globex")
    from governance.directory import accounts_of

    globex = Org.objects.get(slug="globex")
    assert [account.username for account in accounts_of([globex.pk])] == ["ann"]
    run("account_set", "ann", "--leave", "globex")
    assert not accounts_of([globex.pk]).exists()


def test_a_token_is_narrowed_as_asked(deploy: Namespace) -> None:
    run("account_create", "bot", "--service", "--org", "acme")
    run("member_set", "acme:deploy", "--user", "bot", "--role", "writer")
    text = run(
        "token_create", "bot", "--org", "acme", "--no-namespaces", "--role", "viewer", "--agent", "scout",
        "--user-id", "u1", "--acts-for", "person", "--source-class", "external_content",
        "--expires-in-days", "7", "--label", "a label", "--may-create-namespaces",
    ).strip()  # fmt: skip
    token = Token.objects.get(prefix=text.split("_")[1])
    assert (token.namespaces, token.role, token.agent, token.user_id, token.acts_for, token.source_class) == (
        [], "viewer", "scout", "u1", "person", "external_content",
    )  # fmt: skip
    assert token.expires_at is not None and (token.expires_at - token.created_at).days in (6, 7)
    assert token.label == "a label" and token.may_create_namespaces
    assert "namespaces: none" in run("token_list")
    assert whoami(text, namespace="deploy")[0] == 404


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["org_create", ""], "blank"),
        (["org_create", "a/b"], "must not hold"),
        (["org_create", "a:b"], "must not hold"),
        (["org_create", "a\x00b"], "control characters"),
        (["org_create", "x" * 129], "128 characters"),
        (["namespace_create", "deploy"], "ORG:NAMESPACE"),
        (["namespace_create", "acme:"], "ORG:NAMESPACE"),
        (["namespace_create", "none:deploy"], "there are: acme"),
        (["namespace_create", "acme:-"], "means none"),
        (["namespace_create", "acme:*"], "means any"),
        (["namespace_create", "acme: "], "blank"),
        (["namespace_create", "acme:a\nb"], "line breaks"),
        (["account_create", " ", "--org", "acme"], "blank"),
        (["account_create", "a b", "--org", "acme"], "valid username"),
        (["account_create", "Operator", "--org", "acme"], "the server itself"),
        (["account_create", "BOT", "--org", "acme"], "exists already"),
        (["account_create", "x" * 151, "--org", "acme"], "128 characters"),
        (["account_create", "ann", "--org", "acme", "--email", "no"], "valid email"),
        (["account_set", "nobody", "--deactivate"], "No account 'nobody'"),
        (["account_set", "bot", "--superuser"], "never logs in"),
        (["org_admin", "acme", "--user", "bot"], "never logs in"),
        (["org_admin", "acme", "--group", "none"], "No group 'none'"),
        (["group_set", " ", "--org", "acme"], "blank"),
        (["member_set", "acme:none", "--user", "bot", "--role", "viewer"], "No namespace 'none'"),
        (["member_list", "acme:none"], "No namespace 'none'"),
        (["token_create", "bot", "--org", "acme", "--expires-in-days", "0"], "1 to 3650"),
        (["token_create", "bot", "--org", "acme", "--agent", " "], "blank"),
        (["token_create", "bot", "--org", "acme", "--user-id", "*"], "means any"),
        (["token_create", "bot", "--org", "acme", "--namespace", ""], "blank"),
        (["token_create", "bot", "--org", "acme", "--namespace", "a", "--default-namespace", "b"], "among"),
        (["token_list", "--org", "none"], "No organisation 'none'"),
        (["token_revoke", "loom_aaaaaaaaaaaa_" + "S" * 43], "No token 'aaaaaaaaaaaa'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    acme: Org, command: list[str], why: str
) -> None:
    run("account_create", "bot", "--service", "--org", "acme")
    before = [model.objects.count() for model in (Org, Namespace, User, Group, Token, AuditEvent)]  # type: ignore[attr-defined]
    with pytest.raises(CommandError, match=re.escape(why)) as refused:
        run(*command)
    assert "\n" not in str(refused.value) and "S" * 43 not in str(refused.value)
    assert [model.objects.count() for model in (Org, Namespace, User, Group, Token, AuditEvent)] == before  # type: ignore[attr-defined]


def test_names_are_kept_in_nfc_and_may_hold_what_the_ops_allow(acme: Org) -> None:
    run("namespace_create", "acme:cafe\u0301")
    run("namespace_create", "acme:a/b&c=d:%*")
    assert sorted(Namespace.objects.values_list("slug", flat=True)) == ["a/b&c=d:%*", "caf\u00e9"]
