"""Changes made on the console's pages that are no ops, each with its audit row in one transaction."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction

from governance import audit, services
from governance.models import Namespace, Org, Token, User
from loomsite.ops import AuditEntry, Context, Door, Role


def _context(user: User, org: Org, op_name: str, namespace: Namespace | None = None) -> Context:
    ctx = services.system_context(org=org, namespace=namespace, op_name=op_name, principal=user.username)
    ctx.caller = replace(ctx.caller, principal_id=user.pk, door=Door.CONSOLE, acts_for="person")
    ctx.request_id = uuid.uuid4().hex
    return ctx


def token_issue(*, by: User, **given: Any) -> tuple[Token, str]:
    """`services.token_create` with these arguments, audited."""
    with transaction.atomic():
        token, full = services.token_create(created_by=by, **given)
        entry = AuditEntry(
            target=f"token:{token.prefix}",
            detail={
                "principal": token.principal.username,
                "role": token.role,
                "namespaces": token.namespaces,
                "acts_for": token.acts_for,
                "label": token.label,
            },
        )
        audit.append(_context(by, token.org, "token.create"), [entry])
    return token, full


def token_withdraw(*, by: User, token: Token) -> bool:
    """`services.token_revoke`, audited; False when it was revoked already."""
    with transaction.atomic():
        changed = services.token_revoke(token=token)
        if changed:
            entry = AuditEntry(target=f"token:{token.prefix}", detail={"principal": token.principal.username})
            audit.append(_context(by, token.org, "token.revoke"), [entry])
    return changed


def role_give(*, by: User, namespace: Namespace, member: User | Group, role: Role) -> None:
    """`services.member_set_role`, audited."""
    name = f"user:{member.username}" if isinstance(member, User) else f"group:{member.name}"
    with transaction.atomic():
        services.member_set_role(namespace=namespace, member=member, role=role)
        entry = AuditEntry(target=name, detail={"role": role.label})
        audit.append(_context(by, namespace.org, "member.set_role", namespace), [entry])
