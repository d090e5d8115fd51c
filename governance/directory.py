"""Which accounts and groups an organisation knows.

Accounts are shared by the whole server, and their names are nobody else's business: whoever administers
an organisation finds the accounts that belong to it (guardian's `view_org`), administer it, or hold a role
in it, by themselves or through a group. An account that is elsewhere looks like one that does not exist.
"""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import Q, QuerySet

from governance.models import (
    NamespaceGroupPermission,
    NamespaceUserPermission,
    Org,
    OrgGroupPermission,
    OrgUserPermission,
    Token,
    User,
)
from loomsite.ops import Role

MEMBER = "view_org"
ADMIN = "admin_org"


def groups_of(org_ids: Collection[int]) -> QuerySet[Group]:
    """Groups that belong to, administer, or hold a role in any of these organisations."""
    of_org = OrgGroupPermission.objects.filter(content_object__in=org_ids)
    of_space = NamespaceGroupPermission.objects.filter(content_object__org__in=org_ids)
    found = Group.objects.filter(Q(pk__in=of_org.values("group")) | Q(pk__in=of_space.values("group")))
    return found.order_by("name")


def accounts_of(org_ids: Collection[int]) -> QuerySet[User]:
    """Accounts that belong to, administer, or hold a role in any of these organisations."""
    of_org = OrgUserPermission.objects.filter(content_object__in=org_ids)
    of_space = NamespaceUserPermission.objects.filter(content_object__org__in=org_ids)
    grouped = User.groups.through.objects.filter(group__in=groups_of(org_ids).values("pk"))
    found = User.objects.filter(
        Q(pk__in=of_org.values("user")) | Q(pk__in=of_space.values("user")) | Q(pk__in=grouped.values("user"))
    )
    return found.order_by("username")


def orgs_of(account: User) -> QuerySet[Org]:
    """The organisations in which the account is known, or for which it has a token, oldest first."""
    groups = account.groups.values("pk")
    return Org.objects.filter(
        Q(pk__in=OrgUserPermission.objects.filter(user=account).values("content_object"))
        | Q(pk__in=OrgGroupPermission.objects.filter(group__in=groups).values("content_object"))
        | Q(pk__in=NamespaceUserPermission.objects.filter(user=account).values("content_object__org"))
        | Q(pk__in=NamespaceGroupPermission.objects.filter(group__in=groups).values("content_object__org"))
        | Q(pk__in=Token.objects.filter(principal=account).values("org"))
    ).order_by("pk")


def orgs_of_group(group: Group) -> QuerySet[Org]:
    """The organisations in which the group is known, oldest first."""
    return Org.objects.filter(
        Q(pk__in=OrgGroupPermission.objects.filter(group=group).values("content_object"))
        | Q(pk__in=NamespaceGroupPermission.objects.filter(group=group).values("content_object__org"))
    ).order_by("pk")


def several_may_write(namespace_id: int) -> bool:
    """Whether more than one active account may write in the namespace, whatever its tokens narrow it to."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT count(*) FROM (
                 SELECT FROM governance_user u, governance_namespace n
                 WHERE n.id = %s AND u.is_active
                   AND (u.is_superuser OR loom_role(u.id, n.id) >= %s OR loom_org_admin(u.id, n.org_id))
                 LIMIT 2) writers""",
            [namespace_id, int(Role.WRITER)],
        )
        return bool(cursor.fetchone()[0] > 1)
