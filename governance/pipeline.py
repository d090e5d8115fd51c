"""One pipeline for every door: validate, actor, permission, one transaction, after the commit."""

from __future__ import annotations

import logging
import random
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.db import DatabaseError, connection, transaction
from psycopg_pool import PoolTimeout
from pydantic import ValidationError

from governance import audit, idempotency, policy, services, tenancy
from governance.tenancy import Credentials
from loomsite.ops import AuditEntry, Context, Door, Op, OpError, Role, get, near
from loomsite.ops.schema import OpInput, validate
from loomsite.ops.text import clean

log = logging.getLogger("loomsite.pipeline")
REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
RETRY_STATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
ATTEMPTS = 5


@dataclass(frozen=True)
class Answer:
    """What a door turns into HTTP or JSON-RPC. `body` is plain JSON."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True for a 2xx answer."""
        return self.status < 400


def new_request_id(given: str | None) -> str:
    """The caller's id when it is well formed, else a fresh one."""
    if given and REQUEST_ID.match(given):
        return given
    return uuid.uuid4().hex


def run(
    op_name: str,
    payload: dict[str, Any],
    credentials: Credentials,
    *,
    request_id: str | None = None,
    idempotency_key: str | None = None,
) -> Answer:
    """Run one call from validation to audit. Refusals are answers; nothing is raised."""
    request_id = new_request_id(request_id)
    try:
        return _run(op_name, payload, credentials, request_id, idempotency_key)
    except OpError as error:
        return refusal(error, request_id)
    except Exception:
        log.exception("op %s failed, request %s", op_name, request_id)
        return refusal(
            OpError("INTERNAL", "The server met a fault of its own; its log has this request id."),
            request_id,
        )


def refusal(error: OpError, request_id: str) -> Answer:
    """The error as an answer."""
    headers = {"X-Request-ID": request_id}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return Answer(error.status, {"detail": error.detail(request_id)}, headers)


def _run(
    op_name: str,
    payload: dict[str, Any],
    credentials: Credentials,
    request_id: str,
    idempotency_key: str | None,
) -> Answer:
    op = get(op_name)
    if op is None:
        hints = list(near(op_name))
        raise OpError(
            "UNKNOWN_OP",
            f"No op is called {op_name[:80]!r}; ops.capabilities lists them."
            + (f" Near: {', '.join(hints)}." if hints else ""),
            did_you_mean=hints,
        )
    payload, advisories = clean(payload)
    data, ignored = validate(op.input, payload, op.fields)
    if idempotency_key is not None and not op.is_read:
        idempotency.check_key(idempotency_key)
    ctx = _admit_healed(op, data, credentials, request_id)
    ctx.advisories.extend(advisories)
    ctx.ignored_args = ignored
    try:
        if op.prepare is not None:
            ctx.prepared = op.prepare(ctx, data)
        if op.is_read:
            return _read(ctx, data)
        return _write(ctx, data, payload, idempotency_key)
    except OpError as error:
        _audit_refusal(ctx, error, data)
        raise


def _admit_healed(op: Op, data: OpInput, credentials: Credentials, request_id: str) -> Context:
    """`_admit`, once more after a lost connection: the first statement of a call meets a restarted server.

    Nothing has been written by then, so a second try is safe, and a request need not pay for a health
    check of its connection.
    """
    try:
        return _admit(op, data, credentials, request_id)
    except DatabaseError as error:
        lost = isinstance(error.__cause__, psycopg.OperationalError) and not isinstance(
            error.__cause__, PoolTimeout
        )
        if not lost or connection.in_atomic_block:
            raise _database_refusal(error) from error
    connection.close()
    if pool := getattr(connection, "pool", None):
        pool.check()
    try:
        return _admit(op, data, credentials, request_id)
    except DatabaseError as error:
        raise _database_refusal(error) from error


def _admit(op: Op, data: OpInput, credentials: Credentials, request_id: str) -> Context:
    """Steps 2 and 3: who calls, and whether he may."""
    caller, namespace, namespace_id, role = tenancy.standing(credentials, data.org, data.namespace)
    ctx = Context(op=op, caller=caller, request_id=request_id, role=role)
    ctx.reason = (getattr(data, "reason", None) or "").strip()
    ctx.run_id = data.run_id or ""
    ctx.namespace, ctx.namespace_id = namespace, namespace_id
    if op.scoped:
        if not namespace:
            raise OpError(
                "INVALID_ARGUMENT",
                "namespace: this caller has several; name the one that is meant (namespace.list).",
                errors=[{"path": "namespace", "message": "is required here", "type": "missing"}],
            )
        if namespace_id is None and not op.is_read and not caller.may_create_namespaces:
            raise OpError("NOT_FOUND", "No such namespace for this caller; namespace.list shows yours.")
        effective = role
        if namespace_id is None:
            # What does not exist yet: its maker writes it, anyone who could see it reads it as empty.
            effective = max(role, min(Role.WRITER, caller.ceiling))
        policy.require_role(op, effective, by_token=caller.door != Door.CONSOLE)
        ctx.role = effective
        ctx.agent = policy.narrow(ctx, "agent", data.agent, caller.bound_agent)
        ctx.user_id = policy.narrow(ctx, "user_id", data.user_id, caller.bound_user)
        ctx.session_id = policy.narrow(ctx, "session_id", data.session_id, None)
    return ctx


def _read(ctx: Context, data: OpInput) -> Answer:
    try:
        body = ctx.op.handler(ctx, data)
    except DatabaseError as error:
        raise _database_refusal(error) from error
    return _answer(ctx, 200, body)


def _write(ctx: Context, data: OpInput, payload: dict[str, Any], key: str | None) -> Answer:
    digest = idempotency.body_digest(payload) if key is not None else b""
    attempt, namespace_id = 1, ctx.namespace_id
    while True:
        try:
            answer, replayed = _transaction(ctx, data, key, digest)
            break
        except DatabaseError as error:
            if _sqlstate(error) not in RETRY_STATES or attempt >= ATTEMPTS or connection.in_atomic_block:
                raise _database_refusal(error) from error
            # Full jitter: writers that met once should not meet again at the same moment.
            time.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311 - not a secret
            attempt += 1
            ctx.audit.clear()
            ctx.on_commit.clear()
            ctx.namespace_id = namespace_id
    if ctx.op.after_commit is not None:
        body = ctx.op.after_commit(ctx, answer.body)
        answer = Answer(answer.status, body, answer.headers)
    if replayed:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


def _transaction(ctx: Context, data: OpInput, key: str | None, digest: bytes) -> tuple[Answer, bool]:
    dry_run = bool(getattr(data, "dry_run", False))
    advisories = list(ctx.advisories)
    with transaction.atomic():
        if key is not None and not dry_run:
            stored = idempotency.claim(ctx, key, digest)
            if stored is not None:
                headers = {"X-Request-ID": ctx.request_id}
                return Answer(stored["status"], stored["body"], headers), True
        if ctx.op.scoped and ctx.namespace_id is None:
            ctx.namespace_id = services.namespace_create(ctx)
        try:
            body = ctx.op.handler(ctx, data)
            answer = _answer(ctx, 200, body)
        finally:
            ctx.advisories[:] = advisories
        if dry_run:
            # The same code as a real run; nothing of it stays, the audit included.
            transaction.set_rollback(True)
            ctx.audit.clear()
            return answer, False
        if key is not None:
            idempotency.store(ctx, key, answer.status, answer.body)
        for callback in ctx.on_commit:
            transaction.on_commit(callback)
        audit.append(ctx, ctx.audit)
    return answer, False


def _answer(ctx: Context, status: int, body: dict[str, Any]) -> Answer:
    if ctx.ignored_args:
        body["ignored_args"] = ctx.ignored_args
    if ctx.advisories:
        body["advisories"] = [*body.get("advisories", []), *ctx.advisories]
    if ctx.degraded:
        body["degraded"] = sorted({*body.get("degraded", []), *ctx.degraded})
    try:
        ctx.op.output.model_validate(body)
    except ValidationError as error:
        raise RuntimeError(f"{ctx.op.name} answered outside its declared output: {error}") from error
    return Answer(status, body, {"X-Request-ID": ctx.request_id})


def _audit_refusal(ctx: Context, error: OpError, data: OpInput) -> None:
    """Refused destructive and locked calls are kept too, in a transaction of their own."""
    if not policy.audits_refusal(ctx.op, error) or ctx.op.is_read:
        return
    target = str(getattr(data, "memory_key", "") or error.fields.get("memory_key", ""))
    detail = {"code": error.code}
    if "blocked" in error.fields:
        detail["blocked"] = error.fields["blocked"]
    with transaction.atomic():
        audit.append(ctx, [AuditEntry(target=target, outcome="refused", detail=detail)])


def _sqlstate(error: DatabaseError) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def _database_refusal(error: DatabaseError) -> Exception:
    """A database error as the refusal it stands for; the error itself when it is a defect."""
    state, cause = _sqlstate(error), error.__cause__
    if state == "LM423":
        return OpError("LOCKED", str(cause).split("\n", 1)[0], blocked={"by": "database"})
    if isinstance(cause, PoolTimeout):
        return OpError("BUSY", "All database connections are in use; try again.", retry_after_s=1)
    if state in RETRY_STATES or state in {"57014", "55P03", "53300", "57P01", "57P02", "57P03"}:
        return OpError("BUSY", "The database did not get to it in time; try again.", retry_after_s=1)
    if isinstance(cause, psycopg.OperationalError) and not state:
        return OpError("BUSY", "The database cannot be reached at the moment; try again.", retry_after_s=2)
    return error
