"""Who sees what: the same rule on list, page, versions, locks, audit, jobs and tokens."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from guardian.shortcuts import assign_perm

from governance import services, tenancy
from governance.console import sight_of
from governance.models import Job, Namespace
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from tests.console.conftest import Cast

LISTS = (
    "admin:index",
    "admin:memories_memory_changelist",
    "admin:memories_memory_locks",
    "admin:governance_auditevent_changelist",
    "admin:governance_namespace_changelist",
    "admin:governance_job_changelist",
)
EVERYBODY = ("owner", "org_admin", "admin", "reviewer", "writer", "viewer", "nobody", "stranger")


@pytest.mark.parametrize("name", LISTS)
def test_a_page_asks_for_a_login(client: Client, db: None, name: str) -> None:
    response = client.get(reverse(name))
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/console/login/?next=")


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("who", EVERYBODY)
def test_every_list_opens_for_everybody_who_logged_in(cast: Cast, who: str, name: str) -> None:
    assert cast.client(who).get(reverse(name)).status_code == 200


@pytest.mark.parametrize("who", EVERYBODY)
def test_the_console_sees_what_the_ops_see(cast: Cast, who: str) -> None:
    user = cast.people[who]
    for org in ("acme", "globex"):
        standing = tenancy.standing(Credentials(door=Door.CONSOLE, user_id=user.pk, org=org), None, None)
        by_ops = {row["id"]: row["role"] for row in tenancy.visible_namespaces(standing.caller)}
        sight = sight_of(user)
        by_console = {
            namespace.pk: sight.role_in(namespace).label
            for namespace in sight.namespaces().filter(org__slug=org)
        }
        assert by_console == by_ops


def test_a_role_held_through_a_group_counts(cast: Cast) -> None:
    group = Group.objects.create(name="operators")
    cast.people["nobody"].groups.add(group)
    services.member_set_role(namespace=cast.secret, member=group, role=Role.REVIEWER)
    sight = sight_of(cast.people["nobody"])
    assert [(space, sight.role_in(space)) for space in sight.namespaces()] == [(cast.secret, Role.REVIEWER)]
    assign_perm("admin_org", group, cast.org)
    assert sight_of(cast.people["nobody"]).role_in(cast.deploy) == Role.ADMIN


@pytest.mark.parametrize(
    ("who", "sees"),
    [("owner", True), ("org_admin", True), ("viewer", True), ("nobody", False), ("stranger", False)],
)
def test_list_page_versions_and_locks_agree(cast: Cast, who: str, sees: bool) -> None:
    memory = cast.remember("plan/alpha")
    cast.lock(memory)
    client = cast.client(who)
    for name in ("admin:memories_memory_changelist", "admin:memories_memory_locks"):
        assert ("plan/alpha" in client.get(reverse(name)).content.decode()) is sees
    wanted = 200 if sees else 404
    assert client.get(reverse("admin:memories_memory_change", args=[memory.pk])).status_code == wanted
    assert client.get(reverse("admin:memories_memory_version", args=[memory.pk, 1])).status_code == wanted
    assert client.get(reverse("admin:memories_memory_act", args=[memory.pk, "lock"])).status_code == wanted


def test_a_viewer_of_one_namespace_sees_nothing_of_another(cast: Cast) -> None:
    memory = cast.remember("plan/omega", namespace="secret")
    client = cast.client("viewer")
    page = client.get(reverse("admin:memories_memory_changelist"), {"namespace": "acme/secret", "q": "omega"})
    assert "plan/omega" not in page.content.decode()
    assert client.get(reverse("admin:memories_memory_change", args=[memory.pk])).status_code == 404
    assert client.get(reverse("admin:governance_namespace_change", args=[cast.secret.pk])).status_code == 404


def test_the_audit_is_for_reviewers_and_admins(cast: Cast) -> None:
    cast.remember("plan/alpha")
    cast.remember("plan/omega", namespace="secret")
    url = reverse("admin:governance_auditevent_changelist")
    seen = {
        who: [
            key for key in ("plan/alpha", "plan/omega") if key in cast.client(who).get(url).content.decode()
        ]
        for who in EVERYBODY
    }
    both, one = ["plan/alpha", "plan/omega"], ["plan/alpha"]
    assert seen == {
        "owner": both, "org_admin": both, "admin": one, "reviewer": one,
        "writer": [], "viewer": [], "nobody": [], "stranger": [],
    }  # fmt: skip
    assert cast.client("stranger").get(url, {"org": "acme"}).status_code == 404


def test_jobs_follow_their_namespace(cast: Cast) -> None:
    job = Job.objects.create(org=cast.org, namespace=cast.secret, kind="embedding.fill", state="failed")
    url = reverse("admin:governance_job_change", args=[job.pk])
    assert [cast.client(who).get(url).status_code for who in ("org_admin", "admin", "stranger")] == [
        200,
        404,
        404,
    ]


@pytest.mark.parametrize("name", ["admin:governance_token_changelist", "admin:governance_token_new"])
def test_tokens_are_for_superusers_and_organisation_admins(cast: Cast, name: str) -> None:
    found = {who: cast.client(who).get(reverse(name)).status_code for who in EVERYBODY}
    assert {who for who, status in found.items() if status == 200} == {"owner", "org_admin"}
    assert set(found.values()) == {200, 403}


def test_an_organisation_admin_sees_no_token_of_another_organisation(cast: Cast) -> None:
    token, _ = services.token_create(principal=cast.people["stranger"], org=cast.foreign.org, label="theirs")
    client = cast.client("org_admin")
    assert "theirs" not in client.get(reverse("admin:governance_token_changelist")).content.decode()
    assert client.get(reverse("admin:governance_token_change", args=[token.pk])).status_code == 404
    assert client.post(reverse("admin:governance_token_revoke", args=[token.pk])).status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None


PEOPLE = (
    "admin:governance_user_changelist",
    "admin:auth_group_changelist",
    "admin:governance_org_changelist",
    "admin:governance_namespace_new",
)
MAKING = ("admin:governance_user_new", "admin:governance_org_new")


@pytest.mark.parametrize("name", [*PEOPLE, *MAKING])
def test_people_are_seen_by_admins_and_made_by_superusers(cast: Cast, name: str) -> None:
    found = {who for who in EVERYBODY if cast.client(who).get(reverse(name)).status_code == 200}
    assert found == ({"owner", "org_admin"} if name in PEOPLE else {"owner"})


def test_nothing_governed_has_a_form_of_djangos_own(cast: Cast) -> None:
    memory = cast.remember("plan/alpha")
    client = cast.client("owner")
    base = reverse("admin:memories_memory_changelist")
    for path in (f"{base}add/", f"{base}{memory.pk}/delete/x/", f"{base}{memory.pk}/history/"):
        assert client.get(path).status_code == 404
    answer = client.post(
        base, {"action": "delete_selected", "_selected_action": str(memory.pk), "post": "yes"}
    )
    assert answer.status_code == 200
    memory.refresh_from_db()
    assert memory.status == "active"


def test_many_pages_of_namespaces(cast: Cast) -> None:
    Namespace.objects.bulk_create(Namespace(org=cast.org, slug=f"space-{n:03d}") for n in range(120))
    client, url, seen = cast.client("org_admin"), reverse("admin:governance_namespace_changelist"), []
    after = ""
    for _ in range(5):
        page = client.get(url, {"after": after}).context["page"]
        seen += [namespace.slug for namespace in page.rows]
        if page.after is None:
            break
        after = page.after
    assert seen == sorted([f"space-{n:03d}" for n in range(120)] + ["deploy", "secret"])
