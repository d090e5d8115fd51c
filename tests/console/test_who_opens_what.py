"""Every page of the console by every kind of reader, cell by cell. A new page without a row fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import URLPattern, URLResolver, reverse

from facts.console_actions import ACTIONS as FACT_ACTIONS
from governance import administration, services
from governance.models import AuditEvent, ErasureRequest, ImportedAudit, Job
from loomsite.ops import Role
from memories.console_actions import ACTIONS
from memories.models import RawSession
from tests.console.conftest import Cast, build_cast
from tests.console.plans import planned

EVERYBODY = ("owner", "org_admin", "admin", "reviewer", "writer", "viewer", "nobody", "stranger")
MEMBERS = ("owner", "org_admin", "admin", "reviewer", "writer", "viewer")
AUDITORS = ("owner", "org_admin", "admin", "reviewer")
ADMINS = ("owner", "org_admin")
SUPERUSER = ("owner",)
FOREIGN = ("owner", "stranger")


class Things:
    """One of each kind in namespace acme/deploy, in acme/secret, and in another organisation."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.memory = cast.remember("plan/alpha")
        self.secret_memory = cast.remember("plan/omega", namespace="secret")
        self.event = AuditEvent.objects.get(target="plan/alpha")
        for namespace in ("deploy", "secret"):
            said = cast.call(
                "raw.append", namespace=namespace, session_id="talk", role="user", content="hello"
            )
            assert said.ok, said.body
        self.talk = RawSession.objects.get(namespace=cast.deploy)
        self.secret_talk = RawSession.objects.get(namespace=cast.secret)
        self.fact = cast.fact("deploy")
        self.secret_fact = cast.fact("secret")
        self.procedure = cast.recipe("deploy")
        self.secret_procedure = cast.recipe("secret")
        self.job = Job.objects.create(org=cast.org, namespace=cast.deploy, kind="embedding.fill")
        self.secret_job = Job.objects.create(org=cast.org, namespace=cast.secret, kind="embedding.fill")
        self.erasure = ErasureRequest.objects.create(
            org=cast.org, namespace=cast.deploy, user_id="bob", reason="asked", requested_by="owner",
            state="parked",
        )  # fmt: skip
        self.imported = ImportedAudit.objects.create(
            namespace=cast.deploy, row='{"seq": 1, "at": "2026-01-01T00:00:00Z", "op": "memory.set"}'
        )
        self.token, _ = services.token_create(principal=cast.people["writer"], org=cast.org)
        self.foreign_token, _ = services.token_create(principal=cast.people["stranger"], org=cast.foreign.org)
        self.group, _ = administration.group_create(org=cast.org, name="operators")
        self.foreign_group = Group.objects.create(name="others")
        services.member_set_role(namespace=cast.foreign, member=self.foreign_group, role=Role.VIEWER)
        self.plan = planned(cast, "tmp/1")
        self.secret_plan = planned(cast, "tmp/1", namespace="secret")
        self.foreign_event = AuditEvent.objects.create(
            org=cast.foreign.org, seq=999, at=self.event.at, namespace="deploy", principal="stranger",
            door="rest", op="memory.set", target="theirs", outcome="applied", detail={}, prev_hash=b"",
            hash=b"",
        )  # fmt: skip


@dataclass(frozen=True)
class Page:
    """Who gets 200 for it; everybody else gets `refused`."""

    name: str
    opens: tuple[str, ...]
    args: Callable[[Things], list[Any]] = lambda things: []
    refused: int = 404
    method: str = "get"
    status: int = 200


def _pk(attribute: str) -> Callable[[Things], list[Any]]:
    def args(things: Things) -> list[Any]:
        found: Any = things
        for part in attribute.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        return [found.pk]

    return args


def _and(args: Callable[[Things], list[Any]], *more: Any) -> Callable[[Things], list[Any]]:
    return lambda things: [*args(things), *more]


PAGES = [
    Page("index", EVERYBODY),
    Page("app_list", EVERYBODY, lambda things: ["memories"], status=302),
    Page("password_change", EVERYBODY),
    Page("password_change_done", EVERYBODY),
    Page("memories_memory_changelist", EVERYBODY),
    Page("memories_memory_locks", EVERYBODY),
    Page("memories_memory_holds", EVERYBODY),
    Page("memories_memory_held", EVERYBODY),
    Page("memories_memory_bulk", (), refused=405),
    Page("memories_rawsession_changelist", EVERYBODY),
    Page("memories_rawsession_change", MEMBERS, _pk("talk")),
    Page("memories_rawsession_change", ADMINS, _pk("secret_talk")),
    Page("memories_rawsession_turn", MEMBERS, _and(_pk("talk"), 1)),
    Page("memories_rawsession_turn", ADMINS, _and(_pk("secret_talk"), 1)),
    Page("memories_memory_change", MEMBERS, _pk("memory")),
    Page("memories_memory_change", ADMINS, _pk("secret_memory")),
    Page("memories_memory_version", MEMBERS, _and(_pk("memory"), 1)),
    Page("memories_memory_version", ADMINS, _and(_pk("secret_memory"), 1)),
    *(Page("memories_memory_act", MEMBERS, _and(_pk("memory"), act)) for act in ACTIONS),
    Page("memories_memory_act", ADMINS, _and(_pk("secret_memory"), "lock")),
    Page("governance_plan_changelist", EVERYBODY),
    Page("governance_plan_change", MEMBERS, _pk("plan")),
    Page("governance_plan_change", ADMINS, _pk("secret_plan")),
    Page("governance_plan_refresh", (), _pk("plan"), refused=405),
    Page("governance_plan_decide", (), refused=405),
    Page("facts_lineage_changelist", EVERYBODY),
    *(Page("facts_lineage_act", MEMBERS, _and(_pk("fact"), act)) for act in FACT_ACTIONS),
    Page("facts_lineage_change", MEMBERS, _pk("fact")),
    Page("facts_lineage_change", ADMINS, _pk("secret_fact")),
    Page("facts_lineage_correct", MEMBERS, lambda things: [things.fact.pk, things.fact.versions.get().pk]),
    Page("procedures_procedure_changelist", EVERYBODY),
    Page("procedures_procedure_new", EVERYBODY),
    Page("procedures_procedure_change", MEMBERS, _pk("procedure")),
    Page("procedures_procedure_change", ADMINS, _pk("secret_procedure")),
    *(
        Page(f"procedures_procedure_{name}", who, _pk(what))
        for name in ("revisions", "settings", "evolve_state")
        for who, what in ((MEMBERS, "procedure"), (ADMINS, "secret_procedure"))
    ),
    Page("procedures_procedure_evolve", (), _pk("procedure"), refused=405),
    Page("governance_auditevent_changelist", EVERYBODY),
    Page("governance_auditevent_change", AUDITORS, _pk("event")),
    Page("governance_auditevent_change", FOREIGN, _pk("foreign_event")),
    Page("governance_auditevent_verify", (), refused=405),
    Page("governance_erasurerequest_changelist", EVERYBODY),
    Page("governance_erasurerequest_new", (*ADMINS, "admin", "stranger"), refused=403),
    Page("governance_erasurerequest_change", (*ADMINS, "admin"), _pk("erasure")),
    Page("governance_importedaudit_changelist", EVERYBODY),
    Page("governance_importedaudit_change", AUDITORS, _pk("imported")),
    Page("governance_namespace_changelist", EVERYBODY),
    Page("governance_namespace_new", ADMINS, refused=403),
    Page("governance_namespace_change", MEMBERS, _pk("cast.deploy")),
    Page("governance_namespace_change", ADMINS, _pk("cast.secret")),
    Page("governance_namespace_change", FOREIGN, _pk("cast.foreign")),
    Page("governance_namespace_policy", MEMBERS, _pk("cast.deploy")),
    Page("governance_namespace_policy", ADMINS, _pk("cast.secret")),
    Page("governance_namespace_policy", FOREIGN, _pk("cast.foreign")),
    Page("governance_token_changelist", ADMINS, refused=403),
    Page("governance_token_new", ADMINS, refused=403),
    Page("governance_token_revoke", ADMINS, _pk("token"), refused=403, status=405),
    Page("governance_token_change", ADMINS, _pk("token"), refused=403),
    Page("governance_token_change", SUPERUSER, _pk("foreign_token"), refused=403),
    Page("governance_org_changelist", ADMINS, refused=403),
    Page("governance_org_new", SUPERUSER, refused=403),
    Page("governance_org_change", ADMINS, _pk("cast.org"), refused=403),
    Page("governance_org_change", SUPERUSER, _pk("cast.foreign.org"), refused=403),
    Page("governance_user_changelist", ADMINS, refused=403),
    Page("governance_user_new", SUPERUSER, refused=403),
    Page("governance_user_change", ADMINS, _pk("cast.people.writer"), refused=403),
    Page("governance_user_change", SUPERUSER, _pk("cast.people.stranger"), refused=403),
    Page("governance_user_reset", SUPERUSER, _pk("cast.people.writer"), refused=403),
    *(
        Page("governance_user_act", SUPERUSER, _and(_pk("cast.people.writer"), change), refused=403)
        for change in ("standing", "group", "superuser", "deactivate")
    ),
    Page("auth_group_changelist", ADMINS, refused=403),
    Page("auth_group_change", ADMINS, _pk("group"), refused=403),
    Page("auth_group_change", SUPERUSER, _pk("foreign_group"), refused=403),
    # Serves suggestions for forms of Django's own, and there are none.
    Page("autocomplete", (), refused=403),
    Page("governance_job_changelist", EVERYBODY),
    Page("governance_job_change", MEMBERS, _pk("job")),
    Page("governance_job_change", ADMINS, _pk("secret_job")),
]  # fmt: skip
# What an org admin, who may open the page, gets for a row of another organisation.
NOT_THERE = {
    "governance_token_change",
    "governance_org_change",
    "governance_user_change",
    "auth_group_change",
}
# Pages for anybody, and addresses that are no page.
NO_PAGE = {"login", "logout", "jsi18n", "view_on_site", None}


@pytest.fixture
def things(db: None) -> Things:
    """The cast and its things."""
    return Things(build_cast())


def _names(patterns: list[Any]) -> set[str | None]:
    found: set[str | None] = set()
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            found |= _names(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            found.add(pattern.name)
    return found


def test_every_page_has_a_row() -> None:
    assert _names(admin.site.get_urls()) - NO_PAGE == {page.name for page in PAGES}


def test_each_page_opens_for_exactly_those_whom_it_is_for(things: Things) -> None:
    clients = {who: things.cast.client(who) for who in EVERYBODY}
    wrong = []
    for page in PAGES:
        path = reverse(f"admin:{page.name}", args=page.args(things))
        for who in EVERYBODY:
            due = page.status if who in page.opens else page.refused
            if who == "org_admin" and who not in page.opens and page.name in NOT_THERE:
                due = 404
            status = clients[who].get(path).status_code
            if status != due:
                wrong.append(f"{path} as {who}: {status}, not {due}")
        gone = Client().get(path)
        if (gone.status_code, gone.headers.get("Location", "").split("?")[0]) != (
            302,
            reverse("admin:login"),
        ):
            wrong.append(f"{path} without a login: {gone.status_code}")
    assert wrong == []


def test_a_row_of_others_and_one_that_is_not_there_are_the_same_page(things: Things) -> None:
    clients = {who: things.cast.client(who) for who in EVERYBODY}
    wrong = []
    for page in PAGES:
        args = page.args(things)
        if not args or not isinstance(args[0], int) or page.status == 405:
            continue
        absent = reverse(f"admin:{page.name}", args=[10**9, *args[1:]])
        path = reverse(f"admin:{page.name}", args=args)
        for who, client in clients.items():
            foreign, nothing = client.get(path), client.get(absent)
            if foreign.status_code == 404:
                same = foreign.content.replace(path.encode(), b"") == nothing.content.replace(
                    absent.encode(), b""
                )
                if nothing.status_code != 404 or not same:
                    wrong.append(f"{path} as {who}")
    assert wrong == []


def test_nothing_of_a_page_changes_by_reading_it(things: Things) -> None:
    before = AuditEvent.objects.count()
    client = things.cast.client("owner")
    for page in PAGES:
        client.get(reverse(f"admin:{page.name}", args=page.args(things)))
    assert AuditEvent.objects.count() == before
    things.token.refresh_from_db()
    assert things.token.revoked_at is None
