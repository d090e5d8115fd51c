"""People, groups, organisations, roles and tokens in the console, and the password check."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from governance import administration, pipeline, services, throttle
from governance.console import sight_of
from governance.models import AuditEvent, Namespace, Org, Token, User
from governance.people_selectors import tokens_reaching
from governance.tenancy import Credentials
from loomsite.ops import OpError, Role
from tests.console.conftest import PASSWORD, Cast

SECRET = re.compile(r'<code id="(?:token|password)-text"[^>]*>([^<]+)</code>')


def url(name: str, *args: Any) -> str:
    return reverse(f"admin:{name}", args=args)


def act(cast: Cast, change: str, account: User, who: str = "owner", **data: Any) -> Any:
    """A change on an account's page, by default with the right password."""
    path = url("governance_user_act", account.pk, change)
    return cast.client(who).post(path, {"password": PASSWORD, **data})


def login(name: str, password: str) -> Client | None:
    client = Client()
    answer = client.post(url("login"), {"username": name, "password": password})
    return client if answer.status_code == 302 else None


def test_a_superuser_makes_a_person_who_logs_in_with_the_password_shown_once(cast: Cast) -> None:
    page = cast.client("owner").post(
        url("governance_user_new"),
        {"kind": "person", "name": "ann", "email": "ann@example.org", "org": cast.org.pk},
    )
    shown = SECRET.search(page.content.decode())
    assert shown and "no-store" in page.headers["Cache-Control"]
    ann = User.objects.get(username="ann")
    assert login("ann", shown[1]) is not None
    assert shown[1] not in cast.client("owner").get(url("governance_user_change", ann.pk)).content.decode()
    event = AuditEvent.objects.get(op="account.create")
    assert (event.org, event.principal, event.door, event.target) == (
        cast.org,
        "owner",
        "console",
        "user:ann",
    )
    assert shown[1] not in str(event.detail)
    assert ann in cast.client("org_admin").get(url("governance_user_changelist")).context["page"].rows


def test_a_service_account_has_no_password_and_never_logs_in(cast: Cast) -> None:
    client = cast.client("owner")
    data = {"kind": "service", "name": "bot", "org": cast.org.pk}
    page = client.post(url("governance_user_new"), data)
    assert "it has no password" in page.content.decode()
    bot = User.objects.get(username="bot")
    assert not bot.has_usable_password() and not bot.is_staff
    assert client.get(url("governance_user_reset", bot.pk)).status_code == 404
    for change in ("superuser", "standing"):
        extra = {"org": cast.org.pk, "standing": "admin"} if change == "standing" else {}
        refused = act(cast, change, bot, **extra)
        assert refused.status_code == 400 and "never logs in" in refused.content.decode()
    again = client.post(url("governance_user_new"), {**data, "name": "BOT"})
    assert again.status_code == 400 and "exists already" in again.content.decode()


def test_deactivating_ends_login_sessions_and_tokens_at_once(cast: Cast) -> None:
    writer = cast.people["writer"]
    _, full = services.token_create(principal=writer, org=cast.org, default_namespace="deploy")
    session = login("writer", PASSWORD)
    assert session is not None and session.get(url("index")).status_code == 200
    assert act(cast, "deactivate", writer).status_code == 302
    assert session.get(url("index")).status_code == 302
    assert login("writer", PASSWORD) is None
    assert pipeline.run("ops.whoami", {}, Credentials(bearer=full)).status == 401
    assert act(cast, "reactivate", writer).status_code == 302
    assert login("writer", PASSWORD) is not None
    assert pipeline.run("ops.whoami", {}, Credentials(bearer=full)).status == 200
    events = AuditEvent.objects.filter(op="account.set_active").order_by("seq")
    assert [event.detail for event in events] == [{"active": False}, {"active": True}]


def test_nobody_locks_himself_out_and_the_last_superuser_stays(cast: Cast) -> None:
    owner = cast.people["owner"]
    for change in ("deactivate", "no-superuser"):
        refused = act(cast, change, owner)
        assert refused.status_code == 400 and "is your own" in refused.content.decode()
    assert act(cast, "superuser", cast.people["admin"]).status_code == 302
    assert act(cast, "no-superuser", owner, who="admin").status_code == 302
    with pytest.raises(OpError, match="the last superuser"):
        administration.account_set_active(account=cast.people["admin"], is_active=False)


@pytest.mark.parametrize(
    "change", ["standing", "group", "superuser", "no-superuser", "deactivate", "reactivate"]
)
def test_every_change_of_an_account_asks_for_the_readers_password(cast: Cast, change: str) -> None:
    account = cast.people["writer"]
    data = {"org": cast.org.pk, "standing": "admin", "name": "ops", "membership": "in"}
    before = AuditEvent.objects.count()
    for wrong in ("", "not it"):
        refused = act(cast, change, account, **{**data, "password": wrong})
        assert refused.status_code == 400
    account.refresh_from_db()
    assert AuditEvent.objects.count() == before
    assert account.is_active and not account.is_superuser and not account.groups.exists()
    assert not sight_of(account).administers


@pytest.mark.parametrize("who", ["org_admin", "admin", "reviewer", "viewer", "stranger"])
def test_accounts_are_changed_by_superusers_only(cast: Cast, who: str) -> None:
    account = cast.people["writer"]
    for change in ("standing", "group", "superuser", "deactivate"):
        assert act(cast, change, account, who=who, org=cast.org.pk, standing="admin").status_code == 403
    path = url("governance_user_reset", account.pk)
    assert cast.client(who).post(path, {"password": PASSWORD}).status_code == 403
    person = cast.people[who]
    for refused in (
        lambda: administration.org_create(by=person, slug="new"),
        lambda: administration.org_admin_set(by=person, org=cast.org, member=account, is_admin=True),
        lambda: administration.org_member_set(by=person, org=cast.org, member=account, is_member=True),
        lambda: administration.account_create(by=person, org=cast.org, name="x"),
        lambda: administration.account_set_active(by=person, account=account, is_active=False),
        lambda: administration.account_set_superuser(by=person, account=account, is_superuser=True),
        lambda: administration.account_reset_password(by=person, account=account),
        lambda: administration.group_create(by=person, org=cast.org, name="g"),
        lambda: administration.group_member_set(
            by=person, group=Group(name="g"), account=account, is_member=True
        ),
    ):
        with pytest.raises(OpError) as error:
            refused()
        assert error.value.code == "FORBIDDEN"
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("who", ["admin", "reviewer", "viewer", "stranger"])
def test_namespaces_and_tokens_are_made_by_admins_of_the_organisation_only(cast: Cast, who: str) -> None:
    person = cast.people[who]
    token, _ = services.token_create(principal=cast.people["writer"], org=cast.org)
    for refused in (
        lambda: administration.namespace_create(by=person, org=cast.org, slug="new"),
        lambda: administration.token_issue(by=person, org=cast.org, principal=person),
        lambda: administration.token_withdraw(by=person, token=token),
    ):
        with pytest.raises(OpError) as error:
            refused()
        assert error.value.code == "FORBIDDEN"
    with pytest.raises(OpError) as error:
        administration.role_give(
            by=person, namespace=cast.secret, member=cast.people["writer"], role=Role.VIEWER
        )
    assert error.value.code == "FORBIDDEN"


def test_giving_the_role_admin_takes_the_password_and_lesser_roles_do_not(cast: Cast) -> None:
    path = url("governance_namespace_change", cast.deploy.pk)
    data = {"kind": "user", "name": "viewer", "role": "admin"}
    client, viewer = cast.client("admin"), cast.people["viewer"]
    assert "password is needed" in client.post(path, data).content.decode()
    assert sight_of(viewer).role_in(cast.deploy) == Role.VIEWER
    assert client.post(path, {**data, "role": "reviewer"}).status_code == 302
    assert sight_of(viewer).role_in(cast.deploy) == Role.REVIEWER
    assert client.post(path, {**data, "password": PASSWORD}).status_code == 302
    assert sight_of(viewer).role_in(cast.deploy) == Role.ADMIN


@pytest.mark.parametrize(
    ("changes", "is_risky"),
    [
        ({}, False),
        ({"principal": "bot"}, False),
        ({"principal": "writer"}, True),
        ({"acts_for": "person"}, True),
        ({"may_create_namespaces": "on"}, True),
    ],
)
def test_a_token_that_could_do_more_than_its_maker_s_own_agents_takes_the_password(
    cast: Cast, changes: dict[str, str], is_risky: bool
) -> None:
    administration.account_create(org=cast.org, name="bot", service=True)
    client = cast.client("org_admin")
    data = {
        "label": "x", "org": cast.org.pk, "principal": "org_admin", "role": "writer", "namespaces": "",
        "default_namespace": "", "source_class": "local_tool_output", "acts_for": "agent", **changes,
    }  # fmt: skip

    def send(**more: str) -> Any:
        form_id = client.get(url("governance_token_new")).context["form_id"]
        return client.post(url("governance_token_new"), {**data, "form": form_id, **more})

    first = send()
    assert bool(SECRET.search(first.content.decode())) is not is_risky
    assert Token.objects.count() == (0 if is_risky else 1)
    assert SECRET.search(send(password=PASSWORD).content.decode())


def test_a_token_for_a_superuser_is_made_by_a_superuser(cast: Cast) -> None:
    services.member_set_role(namespace=cast.deploy, member=cast.people["owner"], role=Role.WRITER)
    with pytest.raises(OpError, match="speaks for a superuser"):
        administration.token_issue(by=cast.people["org_admin"], org=cast.org, principal=cast.people["owner"])


def test_one_namespace_a_line_and_names_may_hold_spaces_and_commas(cast: Cast) -> None:
    client = cast.client("org_admin")
    form_id = client.get(url("governance_token_new")).context["form_id"]
    client.post(
        url("governance_token_new"),
        {
            "form": form_id, "label": "x", "org": cast.org.pk, "principal": "org_admin", "role": "viewer",
            "namespaces": "a b\r\n c,d \r\n\r\na b", "default_namespace": "",
            "source_class": "local_tool_output", "acts_for": "agent",
        },
    )  # fmt: skip
    assert Token.objects.get().namespaces == ["a b", "c,d"]


def test_a_namespace_is_made_and_its_name_keeps_the_rule_of_every_identity(cast: Cast) -> None:
    client, path = cast.client("org_admin"), url("governance_namespace_new")
    for bad in ("-", "*", "a\x01b"):
        page = client.post(path, {"org": cast.org.pk, "name": bad})
        assert page.status_code == 400 and page.context["form"].errors, bad
    assert client.post(path, {"org": cast.foreign.org.pk, "name": "x"}).status_code == 400
    assert client.post(path, {"org": cast.org.pk, "name": "a/b&c=d:%*"}).status_code == 302
    made = Namespace.objects.get(slug="a/b&c=d:%*")
    assert made.org == cast.org
    memory = cast.remember("odd", namespace="a/b&c=d:%*")
    page = client.get(reverse("admin:memories_memory_changelist"), {"namespace": "acme/a/b&c=d:%*"})
    assert [row.pk for row in page.context["page"].rows] == [memory.pk]


def test_an_organisation_is_made_by_a_superuser(cast: Cast) -> None:
    path = url("governance_org_new")
    assert cast.client("owner").post(path, {"name": "a:b"}).status_code == 400
    assert cast.client("owner").post(path, {"name": "initech"}).status_code == 302
    org = Org.objects.get(slug="initech")
    assert AuditEvent.objects.get(org=org).op == "org.create"
    assert cast.client("org_admin").get(url("governance_org_change", org.pk)).status_code == 404


def test_groups_give_and_take_roles(cast: Cast) -> None:
    nobody = cast.people["nobody"]
    data = {"name": "operators", "org": cast.org.pk, "membership": "in"}
    assert act(cast, "group", nobody, **data).status_code == 302
    group = Group.objects.get(name="operators")
    path = url("governance_namespace_change", cast.deploy.pk)
    role = {"kind": "group", "name": "operators", "role": "writer"}
    assert cast.client("admin").post(path, role).status_code == 302
    assert sight_of(nobody).role_in(cast.deploy) == Role.WRITER
    page = cast.client("owner").get(url("auth_group_change", group.pk)).content.decode()
    assert "nobody" in page and "acme" in page and "writer" in page
    assert act(cast, "group", nobody, **{**data, "membership": "out"}).status_code == 302
    assert sight_of(nobody).role_in(cast.deploy) == Role.NONE


def test_an_org_admin_sees_of_an_account_what_concerns_its_own_organisation(cast: Cast) -> None:
    writer = cast.people["writer"]
    services.member_set_role(namespace=cast.foreign, member=writer, role=Role.ADMIN)
    services.token_create(principal=writer, org=cast.foreign.org, label="a foreign token")
    services.token_create(principal=writer, org=cast.org, label="our token")
    page = cast.client("org_admin").get(url("governance_user_change", writer.pk)).content.decode()
    assert "acme" in page and "our token" in page
    assert "globex" not in page and "a foreign token" not in page
    both = cast.client("owner").get(url("governance_user_change", writer.pk)).content.decode()
    assert "globex" in both and "a foreign token" in both
    stranger = cast.people["stranger"]
    assert cast.client("org_admin").get(url("governance_user_change", stranger.pk)).status_code == 404
    assert "stranger" not in cast.client("org_admin").get(url("governance_user_changelist")).content.decode()


def test_the_namespace_s_page_lists_exactly_the_tokens_that_reach_it(cast: Cast) -> None:
    group = Group.objects.create(name="operators")
    cast.people["nobody"].groups.add(group)
    services.member_set_role(namespace=cast.deploy, member=group, role=Role.VIEWER)
    gone = User.objects.create_user("gone", is_active=False)
    services.member_set_role(namespace=cast.deploy, member=gone, role=Role.VIEWER)
    reaching = []
    for name, narrowing, reaches in (
        ("writer", {}, True),
        ("writer", {"namespaces": ["deploy"]}, True),
        ("writer", {"namespaces": ["secret"]}, False),
        ("writer", {"namespaces": []}, False),
        ("nobody", {}, True),
        ("org_admin", {}, True),
        ("owner", {}, True),
        ("stranger", {}, False),
        ("gone", {}, False),
    ):
        principal = gone if name == "gone" else cast.people[name]
        token, full = services.token_create(principal=principal, org=cast.org, **narrowing)  # type: ignore[arg-type]
        # The list and the pipeline agree.
        answer = pipeline.run("memory.list", {"namespace": "deploy"}, Credentials(bearer=full))
        assert (answer.status == 200) is reaches, (name, narrowing)
        if reaches:
            reaching.append(token.prefix)
    services.token_create(principal=cast.people["owner"], org=cast.foreign.org)
    assert sorted(token.prefix for token in tokens_reaching(cast.deploy)) == sorted(reaching)
    path = url("governance_namespace_change", cast.deploy.pk)
    for who, sees in (("admin", True), ("org_admin", True), ("reviewer", False), ("viewer", False)):
        html = cast.client(who).get(path).content.decode()
        assert [prefix in html for prefix in reaching] == [sees] * len(reaching), who


def test_last_use_of_a_token_is_shown(cast: Cast) -> None:
    token, full = services.token_create(principal=cast.people["writer"], org=cast.org, label="codex")
    path = url("governance_token_change", token.pk)
    assert "<dt>Last used</dt><dd>never</dd>" in cast.client("owner").get(path).content.decode()
    assert pipeline.run("ops.whoami", {}, Credentials(bearer=full)).ok
    assert "<dt>Last used</dt><dd><time" in cast.client("owner").get(path).content.decode()


def test_a_changed_password_ends_every_other_session(cast: Cast) -> None:
    here, there = login("writer", PASSWORD), login("writer", PASSWORD)
    assert here is not None and there is not None
    data = {"old_password": PASSWORD, "new_password1": "another long password"}
    answer = here.post(url("password_change"), {**data, "new_password2": "another long password"})
    assert answer.status_code == 302
    assert here.get(url("index")).status_code == 200
    assert there.get(url("index")).status_code == 302
    assert login("writer", PASSWORD) is None and login("writer", "another long password") is not None


def test_guesses_at_the_old_password_are_throttled(cast: Cast) -> None:
    client = cast.client("writer")
    new = {"new_password1": "another long password", "new_password2": "another long password"}
    for _ in range(throttle.ATTEMPTS):
        page = client.post(url("password_change"), {"old_password": "no", **new})
        assert "Too many" not in page.content.decode()
    blocked = client.post(url("password_change"), {"old_password": PASSWORD, **new})
    assert "Too many wrong passwords" in blocked.content.decode()
    assert cast.people["writer"].check_password(PASSWORD)


def test_a_reset_password_is_shown_once_and_ends_sessions(cast: Cast) -> None:
    writer, session = cast.people["writer"], login("writer", PASSWORD)
    assert session is not None
    path = url("governance_user_reset", writer.pk)
    assert cast.client("owner").post(path, {"password": "wrong"}).status_code == 400
    page = cast.client("owner").post(path, {"password": PASSWORD})
    shown = SECRET.search(page.content.decode())
    assert shown
    assert session.get(url("index")).status_code == 302
    assert login("writer", PASSWORD) is None and login("writer", shown[1]) is not None


def test_names_are_shown_as_text(cast: Cast) -> None:
    nasty = "<script>alert(1)</script>"
    administration.namespace_create(org=cast.org, slug=nasty)
    administration.group_create(org=cast.org, name=nasty)
    services.token_create(principal=cast.people["writer"], org=cast.org, label=nasty, namespaces=[nasty])
    space = Namespace.objects.get(slug=nasty)
    services.member_set_role(namespace=space, member=cast.people["writer"], role=Role.WRITER)
    client = cast.client("owner")
    for path in (
        url("governance_namespace_changelist"), url("governance_namespace_change", space.pk),
        url("auth_group_changelist"), url("auth_group_change", Group.objects.get(name=nasty).pk),
        url("governance_user_change", cast.people["writer"].pk), url("governance_token_changelist"),
        url("governance_org_change", cast.org.pk),
    ):  # fmt: skip
        html = client.get(path).content.decode()
        assert "<script>alert" not in html, path
        assert "&lt;script&gt;" in html, path


def test_a_hundred_namespaces_of_twenty_members_take_no_page_more_than_fifteen_queries(cast: Cast) -> None:
    people = [
        User(username=f"member-{n:04d}", password="!", is_staff=True)  # noqa: S106 - no password at all
        for n in range(200)
    ]
    User.objects.bulk_create(people)
    spaces = Namespace.objects.bulk_create(Namespace(org=cast.org, slug=f"space-{n:03d}") for n in range(100))
    groups = [administration.group_create(org=cast.org, name=f"group-{n}")[0] for n in range(20)]
    for group in groups:
        group.user_set.set(people[:20])
    from django.contrib.auth.models import Permission

    from governance.models import NamespaceGroupPermission, NamespaceUserPermission

    writer = Permission.objects.get(content_type__app_label="governance", codename="writer")
    NamespaceUserPermission.objects.bulk_create(
        NamespaceUserPermission(content_object=space, user=people[(i * 7 + j) % 200], permission=writer)
        for i, space in enumerate(spaces)
        for j in range(20)
    )
    NamespaceGroupPermission.objects.bulk_create(
        NamespaceGroupPermission(content_object=space, group=groups[i % 20], permission=writer)
        for i, space in enumerate(spaces)
    )
    for person in people[:60]:
        services.token_create(principal=person, org=cast.org, label="theirs")
    member, token = people[0], Token.objects.latest("pk")
    pages = [
        url("index"), url("governance_namespace_changelist"),
        url("governance_namespace_change", spaces[0].pk),
        url("governance_namespace_new"), url("governance_user_changelist"),
        url("governance_user_change", member.pk), url("auth_group_changelist"),
        url("auth_group_change", groups[0].pk), url("governance_org_changelist"),
        url("governance_org_change", cast.org.pk), url("governance_token_changelist"),
        url("governance_token_change", token.pk), url("governance_token_new"),
        url("governance_user_new"), url("governance_user_act", member.pk, "standing"),
    ]  # fmt: skip
    for client in (cast.client("owner"), cast.client("org_admin")):
        for path in pages:
            with CaptureQueriesContext(connection) as queries:
                answer = client.get(path)
            assert answer.status_code in (200, 403), path
            assert len(queries) <= 15, (path, len(queries))
    for who in (member, cast.people["viewer"]):
        client = Client()
        client.force_login(who, backend="django.contrib.auth.backends.ModelBackend")
        for path in pages[:3]:
            with CaptureQueriesContext(connection) as queries:
                client.get(path)
            assert len(queries) <= 15, (path, len(queries))


def test_a_change_of_ones_own_password_is_audited(cast: Cast) -> None:
    administration.org_member_set(org=cast.org, member=cast.people["writer"], is_member=True)
    client = cast.client("writer")
    new = {"new_password1": "another long password", "new_password2": "another long password"}
    before = AuditEvent.objects.count()
    assert client.post(url("password_change"), {"old_password": "no", **new}).status_code == 200
    assert AuditEvent.objects.count() == before
    assert client.post(url("password_change"), {"old_password": PASSWORD, **new}).status_code == 302
    event = AuditEvent.objects.latest("id")
    assert (event.op, event.target, event.principal) == ("account.change_password", "user:writer", "writer")
    assert event.door == "console" and "another long password" not in json.dumps(event.detail)
