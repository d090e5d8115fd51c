"""Reads for the console's pages about governance. Each list is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.models import Case, CharField, Q, QuerySet, Value, When
from django.db.models.functions import Now

from governance.console import Sight
from governance.directory import accounts_of
from governance.models import AuditEvent, Job, Namespace, Org, Token, User
from loomsite.ops import Role

_RECENT = 5000
_ROLES = ("viewer", "writer", "reviewer", "admin")


def audit_orgs(sight: Sight) -> QuerySet[Org]:
    """The organisations of which the user may read at least a part of the audit."""
    if sight.is_superuser:
        return Org.objects.order_by("slug")
    namespaces = Namespace.objects.filter(sight.where("", Role.REVIEWER))
    return Org.objects.filter(Q(pk__in=sight.org_ids) | Q(pk__in=namespaces.values("org"))).order_by("slug")


def audit_events(sight: Sight) -> QuerySet[AuditEvent]:
    """Audit rows that the user may read: all of an org it administers, else of the namespaces it reviews."""
    rows = AuditEvent.objects.select_related("org")
    if sight.is_superuser:
        return rows
    allowed = Q(org__in=list(sight.org_ids))
    names: dict[int, list[str]] = {}
    held = [pk for pk, role in sight.roles.items() if role >= Role.REVIEWER]
    if held:
        for org_id, slug in Namespace.objects.filter(pk__in=held).values_list("org_id", "slug"):
            names.setdefault(org_id, []).append(slug)
    for org_id, slugs in names.items():
        allowed |= Q(org=org_id, namespace__in=slugs)
    return rows.filter(allowed)


@dataclass(frozen=True)
class Hour:
    """One hour's bar of the activity chart: counts, and the bar's geometry in a 100 x 40 box."""

    label: str
    applied: int
    refused: int
    x: float
    width: float
    applied_y: float
    applied_height: float
    refused_y: float
    refused_height: float


@dataclass(frozen=True)
class Activity:
    """What the last 24 hours held, read from at most the newest rows."""

    hours: list[Hour]
    applied: int
    refused: int
    is_partial: bool


def activity(sight: Sight) -> Activity:
    """The last 24 hours of audit rows by hour, from at most the newest 5,000."""
    newest = audit_events(sight).order_by("-pk").values_list("at", "outcome")[:_RECENT]
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('hour', clock_timestamp(), 'UTC')")
        this_hour = cursor.fetchone()[0]
    applied, refused, seen = [0] * 24, [0] * 24, 0
    oldest = this_hour
    for at, outcome in newest:
        seen += 1
        oldest = at
        back = -((at - this_hour) // timedelta(hours=1))
        if at >= this_hour:
            back = 0
        if back < 24:
            (refused if outcome == "refused" else applied)[23 - back] += 1
    top = max([a + r for a, r in zip(applied, refused, strict=True)] + [1])
    hours = []
    for index in range(24):
        good, bad = 36 * applied[index] / top, 36 * refused[index] / top
        hour = this_hour - timedelta(hours=23 - index)
        hours.append(
            Hour(
                label=f"{hour:%H:%M} UTC",
                applied=applied[index],
                refused=refused[index],
                x=round(index * 100 / 24 + 0.4, 2),
                width=round(100 / 24 - 0.8, 2),
                applied_y=round(40 - good, 2),
                applied_height=round(good, 2),
                refused_y=round(40 - good - bad, 2),
                refused_height=round(bad, 2),
            )
        )
    partial = seen == _RECENT and oldest > this_hour - timedelta(hours=23)
    return Activity(hours, sum(applied), sum(refused), partial)


def jobs(sight: Sight) -> QuerySet[Job]:
    """Jobs of the namespaces that the user sees, and of the organisations it administers."""
    rows = Job.objects.select_related("namespace__org", "org")
    if sight.is_superuser:
        return rows
    return rows.filter(Q(org__in=list(sight.org_ids)) | Q(namespace__in=list(sight.roles)))


def all_tokens(state: str = "") -> QuerySet[Token]:
    """Every token with its `state` (revoked, expired, owner inactive, valid), or those in one state."""
    found = Token.objects.select_related("principal", "org", "created_by").annotate(
        state=Case(
            When(revoked_at__isnull=False, then=Value("revoked")),
            When(expires_at__lte=Now(), then=Value("expired")),
            When(principal__is_active=False, then=Value("owner inactive")),
            default=Value("valid"),
            output_field=CharField(),
        )
    )
    return found.filter(state=state) if state else found


def tokens(sight: Sight, state: str = "") -> QuerySet[Token]:
    """Tokens of the organisations that the user administers, each with its `state`; only those in `state`."""
    found = all_tokens(state)
    return found if sight.is_superuser else found.filter(org__in=list(sight.org_ids))


def token_principals(sight: Sight) -> QuerySet[User]:
    """For whom the user may make a token: itself, and the accounts of its organisations.

    A superuser speaks through tokens that a superuser made.
    """
    rows = User.objects.filter(is_active=True).order_by("username")
    if sight.is_superuser:
        return rows
    known = accounts_of(sight.org_ids).order_by().values("pk")
    return rows.filter(Q(pk=sight.user.pk) | Q(pk__in=known, is_superuser=False))


def members(namespace: Namespace) -> list[dict[str, Any]]:
    """Who holds a role on the namespace: `kind` (user, service, group), `name`, `role`, by name.

    Organisation admins and superusers hold every role without a row.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT kind, name, max(rank) FROM (
                 SELECT CASE u.kind WHEN 'service' THEN 'service' ELSE 'user' END AS kind, u.username AS name,
                        array_position(%(roles)s::text[], p.codename::text) AS rank
                 FROM governance_namespaceuserpermission x
                 JOIN auth_permission p ON p.id = x.permission_id JOIN governance_user u ON u.id = x.user_id
                 WHERE x.content_object_id = %(namespace)s
                 UNION ALL
                 SELECT 'group', g.name, array_position(%(roles)s::text[], p.codename::text)
                 FROM governance_namespacegrouppermission x
                 JOIN auth_permission p ON p.id = x.permission_id JOIN auth_group g ON g.id = x.group_id
                 WHERE x.content_object_id = %(namespace)s) held
               WHERE rank IS NOT NULL GROUP BY kind, name ORDER BY name, kind LIMIT 1000""",
            {"roles": list(_ROLES), "namespace": namespace.pk},
        )
        return [
            {"kind": kind, "name": name, "role": _ROLES[rank - 1]} for kind, name, rank in cursor.fetchall()
        ]
