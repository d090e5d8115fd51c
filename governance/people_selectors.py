"""Reads for the console's pages about accounts, groups and organisations. Each list is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import Count, Q, QuerySet

from governance.console import Sight
from governance.console_selectors import all_tokens
from governance.directory import ADMIN, MEMBER, accounts_of, groups_of, orgs_of, orgs_of_group
from governance.models import (
    Namespace,
    NamespaceGroupPermission,
    NamespaceUserPermission,
    Org,
    OrgGroupPermission,
    OrgUserPermission,
    Token,
    User,
)

MOST = 500


def accounts(sight: Sight) -> QuerySet[User]:
    """Every account for a superuser, else those that the reader's organisations know."""
    return User.objects.all() if sight.is_superuser else accounts_of(sight.org_ids)


def groups(sight: Sight) -> QuerySet[Group]:
    """Every group for a superuser, else those that the reader's organisations know; each with `people`."""
    found = Group.objects.all() if sight.is_superuser else groups_of(sight.org_ids)
    return found.annotate(people=Count("user"))


def orgs(sight: Sight) -> QuerySet[Org]:
    """The organisations that the reader administers, each with its number of `spaces`."""
    return sight.orgs().annotate(spaces=Count("namespaces"))


@dataclass(frozen=True)
class Standing:
    """What an account or a group is in an organisation."""

    org: Org
    administers: bool
    belongs: bool


def standings(sight: Sight, member: User | Group) -> list[Standing]:
    """Where the account or group is known, as far as the reader administers."""
    known = orgs_of(member) if isinstance(member, User) else orgs_of_group(member)
    if not sight.is_superuser:
        known = known.filter(pk__in=sight.org_ids)
    held: set[tuple[int, str]] = set()
    of_users, of_groups = OrgUserPermission.objects, OrgGroupPermission.objects
    if isinstance(member, User):
        held |= set(of_users.filter(user=member).values_list("content_object", "permission__codename"))
        through = of_groups.filter(group__in=member.groups.values("pk"))
    else:
        through = of_groups.filter(group=member)
    held |= set(through.values_list("content_object", "permission__codename"))
    return [
        Standing(org, (org.pk, ADMIN) in held, (org.pk, MEMBER) in held)
        for org in known.order_by("slug")[:MOST]
    ]


def roles_of(sight: Sight, member: User | Group) -> list[dict[str, Any]]:
    """Roles of the account (or group) by namespace: `pk`, `org`, `namespace`, `role`, `via` (a group or "").

    As far as the reader administers; at most MOST.
    """
    is_user = isinstance(member, User)
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT n.id, o.slug, n.slug, p.codename, held.via FROM (
                 SELECT x.content_object_id, x.permission_id, '' AS via
                 FROM governance_namespaceuserpermission x WHERE %(is_user)s AND x.user_id = %(member)s
                 UNION ALL
                 SELECT x.content_object_id, x.permission_id, g.name
                 FROM governance_namespacegrouppermission x JOIN auth_group g ON g.id = x.group_id
                 WHERE CASE WHEN %(is_user)s
                   THEN g.id IN (SELECT group_id FROM governance_user_groups WHERE user_id = %(member)s)
                   ELSE g.id = %(member)s END) held
               JOIN auth_permission p ON p.id = held.permission_id
               JOIN governance_namespace n ON n.id = held.content_object_id
               JOIN governance_org o ON o.id = n.org_id
               WHERE %(all)s OR o.id = ANY(%(orgs)s)
               ORDER BY o.slug, n.slug, held.via LIMIT %(most)s""",
            {
                "is_user": is_user, "member": member.pk, "all": sight.is_superuser,
                "orgs": sorted(sight.org_ids), "most": MOST,
            },
        )  # fmt: skip
        names = ("pk", "org", "namespace", "role", "via")
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return rows if is_user else [{**row, "via": ""} for row in rows]


def tokens_of(sight: Sight, account: User) -> QuerySet[Token]:
    """The account's tokens, newest first, as far as the reader administers."""
    rows = all_tokens().filter(principal=account).order_by("-pk")
    return rows if sight.is_superuser else rows.filter(org__in=list(sight.org_ids))


def admins_of(org: Org) -> list[tuple[str, str]]:
    """Who administers the organisation, as (kind, name); superusers do without being listed."""
    held = {"content_object": org, "permission__codename": ADMIN}
    users = OrgUserPermission.objects.filter(**held).order_by("user__username")
    through = OrgGroupPermission.objects.filter(**held).order_by("group__name")
    found = [("user", name) for name in users.values_list("user__username", flat=True)[:MOST]]
    return found + [("group", name) for name in through.values_list("group__name", flat=True)[:MOST]]


def tokens_reaching(namespace: Namespace) -> QuerySet[Token]:
    """Valid tokens that can do something in the namespace, newest first."""
    of_org = {"content_object": namespace.org_id, "permission__codename": ADMIN}
    grouped = Q(pk__in=NamespaceGroupPermission.objects.filter(content_object=namespace).values("group"))
    grouped |= Q(pk__in=OrgGroupPermission.objects.filter(**of_org).values("group"))
    groups = Group.objects.filter(grouped)
    stands = Q(principal__is_superuser=True)
    for users in (
        NamespaceUserPermission.objects.filter(content_object=namespace),
        OrgUserPermission.objects.filter(**of_org),
        User.groups.through.objects.filter(group__in=groups.values("pk")),
    ):
        stands |= Q(principal__in=users.values("user"))
    covers = Q(namespaces=None) | Q(namespaces__contains=[namespace.slug])
    return all_tokens("valid").filter(covers & stands, org=namespace.org_id).order_by("-pk")
