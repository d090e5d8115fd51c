"""Setting a namespace's policy: what its writers do at once, and what waits for a person."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import connection, transaction

from governance import audit, plans, services
from governance.models import Namespace, Policy, User
from governance.review import LEVELS, TABLE, Rules, refuse_loosening, rules_of
from loomsite.ops import AuditEntry, Door, OpError, Role, invalid

BOUNDS = {"approvals": (1, 10), "plan_hours": (1, 8760), "apply_at_once": (0, 10_000)}


def policy_set(
    *,
    namespace: Namespace,
    by: User,
    levels: Mapping[str, str],
    approvals: int = 1,
    plan_hours: int = 72,
    apply_at_once: int = 25,
    reason: str,
    expected_version: int | None = None,
) -> Rules:
    """Set the whole policy; rows that `levels` leaves out take their default. For admins of the namespace.

    `expected_version` is the version that the page showed (0 for the defaults). Raises OpError 400 naming
    the field, 403 without the role or for a starred row set looser, 409 when it was changed meanwhile.
    """
    if plans.role_of(by, namespace) < Role.ADMIN:
        raise OpError("FORBIDDEN", "Only an admin of the namespace sets its policy.")
    if not reason.strip():
        raise invalid("reason", "must not be blank.", "missing")
    numbers = {"approvals": approvals, "plan_hours": plan_hours, "apply_at_once": apply_at_once}
    for name, value in numbers.items():
        low, high = BOUNDS[name]
        if not low <= value <= high:
            raise invalid(name, f"must be from {low} to {high}.")
    rows = _rows(levels)
    with transaction.atomic():
        Policy.objects.get_or_create(namespace=namespace, defaults={"version": 0})
        policy = Policy.objects.select_for_update().get(namespace=namespace)
        if expected_version is not None and policy.version != expected_version:
            raise OpError(
                "VERSION_CONFLICT",
                f"{policy.updated_by or 'somebody'} changed the policy since you looked; look at it again.",
                version=policy.version,
            )
        before = {"rows": policy.rows, **{name: getattr(policy, name) for name in numbers}}
        after: dict[str, Any] = {"rows": rows, **numbers}
        if before == after and policy.version:
            return rules_of(namespace.pk)
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            now = cursor.fetchone()[0]
        Policy.objects.filter(pk=policy.pk).update(
            **after, version=policy.version + 1, updated_by=by.username, updated_at=now
        )
        ctx = services.system_context(
            org=namespace.org, namespace=namespace, op_name="policy.set", principal=by.username
        )
        ctx.caller = replace(ctx.caller, principal_id=by.pk, door=Door.CONSOLE, acts_for="person")
        ctx.request_id = uuid.uuid4().hex
        entry = AuditEntry(
            target=f"policy:{namespace.slug}",
            before_version=policy.version,
            after_version=policy.version + 1,
            reason=reason.strip(),
            detail={"before": before, "after": after},
        )
        audit.append(ctx, [entry])
    return rules_of(namespace.pk)


def _rows(levels: Mapping[str, str]) -> dict[str, str]:
    """Only what differs from the default. OpError 400 or 403."""
    rows = {}
    for action, level in levels.items():
        row = TABLE.get(action)
        if row is None:
            raise invalid(f"levels.{action[:40]}", f"is none of {', '.join(TABLE)}.")
        if level not in LEVELS:
            raise invalid(f"levels.{action}", f"must be one of {', '.join(LEVELS)}.")
        if row.starred and LEVELS.index(level) < LEVELS.index(row.level):
            raise refuse_loosening(action)
        if level != row.level:
            rows[action] = level
    return rows
