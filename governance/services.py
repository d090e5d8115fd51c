"""Changes to tenancy, tokens and jobs. Keyword-only, named `<entity>_<action>`."""

from __future__ import annotations

import json
import os
import socket
import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.models import Q
from guardian.shortcuts import assign_perm

from governance.models import (
    SOURCE_CLASSES,
    Namespace,
    NamespaceGroupPermission,
    NamespaceUserPermission,
    Org,
    Token,
    User,
)
from governance.tenancy import new_secret
from loomsite.ops import AuditEntry, Caller, Context, Role, invalid
from loomsite.ops.context import Door
from loomsite.ops.registry import AgentText, Op
from loomsite.ops.schema import OpOutput, WriteInput

NAMESPACE_ROLES = (Role.VIEWER, Role.WRITER, Role.REVIEWER, Role.ADMIN)


class NamespaceAppeared(Exception):
    """Somebody else made the namespace since the caller's role was judged."""


def namespace_create(ctx: Context) -> int:
    """Make the call's namespace and give its maker the role of admin; its id.

    Raises NamespaceAppeared when it exists by now.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO governance_namespace (org_id, slug, created_at) "
            "VALUES (%s, %s, statement_timestamp()) ON CONFLICT DO NOTHING RETURNING id",
            [ctx.caller.org_id, ctx.namespace],
        )
        row = cursor.fetchone()
    if row is None:
        raise NamespaceAppeared(ctx.namespace)
    namespace = Namespace.objects.get(pk=row[0])
    if ctx.caller.principal_id is not None:
        assign_perm("admin", User.objects.get(pk=ctx.caller.principal_id), namespace)
    ctx.record(AuditEntry(target=f"namespace:{ctx.namespace}", op="namespace.create"))
    return namespace.pk


def member_set_role(*, namespace: Namespace, member: User | Group, role: Role) -> None:
    """Give `member` exactly `role` on the namespace; Role.NONE takes every role away."""
    if role in NAMESPACE_ROLES:
        assign_perm(role.label, member, namespace)
    others = [other.label for other in NAMESPACE_ROLES if other != role]
    # One statement, where guardian's remove_perm takes one for each role.
    unwanted = Q(content_object=namespace, permission__codename__in=others)
    if isinstance(member, Group):
        NamespaceGroupPermission.objects.filter(unwanted, group=member).delete()
    else:
        NamespaceUserPermission.objects.filter(unwanted, user=member).delete()


def token_create(
    *,
    principal: User,
    org: Org,
    label: str = "",
    namespaces: list[str] | None = None,
    default_namespace: str = "",
    role: Role = Role.WRITER,
    agent: str = "",
    user_id: str = "",
    source_class: str = "local_tool_output",
    acts_for: str = "agent",
    may_create_namespaces: bool = False,
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> tuple[Token, str]:
    """A new token and its full text, which is shown once and never kept."""
    if role not in (Role.VIEWER, Role.WRITER):
        raise invalid("role", "a token carries viewer or writer; reviewers and admins act in the console.")
    if default_namespace and namespaces is not None and default_namespace not in namespaces:
        raise invalid("default_namespace", "is not among the token's namespaces.")
    if source_class not in SOURCE_CLASSES:
        raise invalid("source_class", f"must be one of {', '.join(SOURCE_CLASSES)}.")
    prefix, full, digest = new_secret()
    token = Token.objects.create(
        principal=principal,
        org=org,
        label=label,
        prefix=prefix,
        secret_sha256=digest,
        namespaces=namespaces,
        default_namespace=default_namespace,
        role=role.label,
        agent=agent,
        user_id=user_id,
        source_class=source_class,
        acts_for=acts_for,
        may_create_namespaces=may_create_namespaces,
        expires_at=expires_at,
        created_by=created_by,
    )
    return token, full


def token_revoke(*, token: Token) -> bool:
    """Revoke at once; False when it was revoked already."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_token SET revoked_at = clock_timestamp() WHERE id = %s AND revoked_at IS NULL",
            [token.pk],
        )
        return bool(cursor.rowcount == 1)


def worker_heartbeat() -> None:
    """Note that this worker is alive."""
    name = f"{socket.gethostname()}:{os.environ.get('LOOM_WORKER_NAME', 'worker')}"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO governance_workerbeat (name, at) VALUES (%s, clock_timestamp()) "
            "ON CONFLICT (name) DO UPDATE SET at = excluded.at",
            [name],
        )


def worker_forget() -> int:
    """Drop the beats of workers not heard from for a day; how many went."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM governance_workerbeat WHERE at < clock_timestamp() - make_interval(days => 1)"
        )
        return int(cursor.rowcount)


def idempotency_sweep() -> int:
    """Drop stored answers past their keep time; how many went."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM governance_idempotencykey "
            "WHERE created_at < statement_timestamp() - make_interval(hours => %s)",
            [settings.LOOM_IDEMPOTENCY_HOURS],
        )
        return int(cursor.rowcount)


def _system_op() -> Op:
    return Op(
        name="system",
        input=WriteInput,
        output=OpOutput,
        role=Role.NONE,
        kind="write",
        summary="Work that the server does by itself.",
        text=AgentText("", "", "", ""),
        handler=lambda ctx, data: {},
    )


def system_context(
    *, org: Org, namespace: Namespace | None, op_name: str, principal: str = "system"
) -> Context:
    """A context for work that the server does by itself: sweeps, jobs, commands.

    It is no op that a caller could reach; what it changes is audited under `op_name`.
    """
    op = Op(**{**_system_op().__dict__, "name": op_name})
    caller = Caller(
        principal_id=None,
        principal=principal,
        org_id=org.pk,
        org=org.slug,
        door=Door.SYSTEM,
        acts_for="agent",
    )
    ctx = Context(op=op, caller=caller, request_id=uuid.uuid4().hex, role=Role.ADMIN)
    if namespace is not None:
        ctx.namespace, ctx.namespace_id = namespace.slug, namespace.pk
    return ctx


def job_create(
    *, ctx: Context, kind: str, input: dict[str, Any], delay_s: float = 0.0, namespace_id: int | None = None
) -> int:
    """Store a job in the caller's transaction and send its id after the commit; the job's id."""
    from governance.jobs import send

    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO governance_job
                 (org_id, namespace_id, kind, input, state, progress, error, attempts, max_attempts,
                  run_after, enqueued_at, created_at, requested_by)
               VALUES (%s, %s, %s, %s, 'queued', 0, '', 0, 5,
                  clock_timestamp() + make_interval(secs => %s), clock_timestamp(), clock_timestamp(), %s)
               RETURNING id""",
            [
                ctx.caller.org_id,
                namespace_id if namespace_id is not None else ctx.namespace_id,
                kind,
                json.dumps(input),
                delay_s,
                ctx.caller.principal,
            ],
        )
        job_id = int(cursor.fetchone()[0])
    # Robust: the job is committed by then, and so is the write that asked for it.
    transaction.on_commit(lambda: send(job_id, delay_s), robust=True)
    return job_id
