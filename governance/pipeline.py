"""One pipeline for every door: validate, actor, permission, one transaction, after the commit."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from django.db import Error as DatabaseFault
from django.db import connection, transaction

from governance import audit, idempotency, plans, policy, ratelimit, services, tenancy
from governance.clock import iso
from governance.dispatch import check_output, handled
from governance.faults import is_lost, may_retry, refusal_of, wait
from governance.tenancy import Credentials
from loomsite.ops import AuditEntry, Context, Door, Op, OpError, Role, get, invalid, near
from loomsite.ops.schema import OpInput, validate
from loomsite.ops.text import clean

log = logging.getLogger("loomsite.pipeline")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
NO_SUCH_NAMESPACE = "No such namespace for this caller; namespace.list shows yours."
# What means "none" and "any" in the other identity fields; a namespace called so would be a trap.
NO_NAMESPACE = frozenset({"-", "*"})


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


@dataclass(frozen=True)
class _Call:
    """A valid call of a known op."""

    op: Op
    data: OpInput
    credentials: Credentials
    request_id: str


def new_request_id(given: str | None) -> str:
    """The caller's id when it is well formed, else a fresh one."""
    if given and REQUEST_ID.fullmatch(given):
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
    data, ignored = validate(op.input, payload)
    if op.is_read:
        idempotency_key = None
    elif idempotency_key is not None:
        idempotency.check_key(idempotency_key)
    call = _Call(op, data, credentials, request_id)
    ctx = _identified(call)
    ratelimit.admit(ctx)
    ctx.advisories.extend(advisories)
    ctx.ignored_args = ignored
    try:
        _permit(ctx, data)
        if op.prepare is not None:
            ctx.prepared = op.prepare(ctx, data)
        if op.is_read:
            return _read(ctx, data)
        return _write(ctx, call, payload, idempotency_key)
    except OpError as error:
        _audit_refusal(ctx, error, data)
        raise


def _identified(call: _Call) -> Context:
    """Step 2, who calls; tried once more after a lost connection.

    The first statement of a call meets a restarted server. Nothing has been written by then, so a second
    try is safe.
    """
    try:
        return _identify(call)
    except DatabaseFault as error:
        if not is_lost(error) or connection.in_atomic_block:
            raise refusal_of(error) from error
    connection.close()
    if pool := getattr(connection, "pool", None):
        pool.check()
    try:
        return _identify(call)
    except DatabaseFault as error:
        raise refusal_of(error) from error


def _identify(call: _Call) -> Context:
    data = call.data
    if data.namespace in NO_NAMESPACE:
        raise invalid("namespace", f'"{data.namespace}" names no namespace; namespace.list shows yours.')
    caller, namespace, namespace_id, role = tenancy.standing(call.credentials, data.org, data.namespace)
    return Context(
        op=call.op,
        caller=caller,
        request_id=call.request_id,
        role=role,
        namespace=namespace,
        namespace_id=namespace_id,
        run_id=data.run_id or "",
        reason=(getattr(data, "reason", None) or "").strip(),
        is_dry_run=_is_dry_run(data),
    )


def _permit(ctx: Context, data: OpInput) -> None:
    """Step 3: whether the caller may, and which identity the call has."""
    op, caller = ctx.op, ctx.caller
    by_token = caller.door != Door.CONSOLE
    if op.locate is not None:
        _narrow(ctx, data)
        if op.locate(ctx, data):
            policy.require_role(op, ctx.role, by_token=by_token)
            return
    if not op.scoped:
        if op.role > Role.VIEWER:
            policy.require_role(op, ctx.role, by_token=by_token)
        return
    if not ctx.namespace:
        if caller.default_namespace:
            raise OpError("NOT_FOUND", NO_SUCH_NAMESPACE)
        raise invalid("namespace", "is required: this caller has no default; see namespace.list.", "missing")
    if ctx.namespace_id is None:
        if not op.is_read and not caller.may_create_namespaces:
            raise OpError("NOT_FOUND", NO_SUCH_NAMESPACE)
        # What does not exist yet: its maker writes it, anyone who could see it reads it as empty.
        ctx.role = max(ctx.role, min(Role.WRITER, caller.ceiling))
    if by_token or op.planned_from is None or ctx.role < op.planned_from:
        policy.require_role(op, ctx.role, by_token=by_token)
    _narrow(ctx, data)


def _narrow(ctx: Context, data: OpInput) -> None:
    ctx.agent = policy.narrow(ctx, "agent", data.agent, ctx.caller.bound_agent)
    ctx.user_id = policy.narrow(ctx, "user_id", data.user_id, ctx.caller.bound_user)
    ctx.session_id = policy.narrow(ctx, "session_id", data.session_id, None)


def _read(ctx: Context, data: OpInput) -> Answer:
    try:
        body = ctx.op.handler(ctx, data)
    except DatabaseFault as error:
        raise refusal_of(error) from error
    return _answer(ctx, 200, body)


def _write(ctx: Context, call: _Call, payload: dict[str, Any], key: str | None) -> Answer:
    data = call.data
    digest = idempotency.body_digest(ctx, payload) if key is not None else b""
    attempt, namespace_id = 1, ctx.namespace_id
    while True:
        try:
            answer, replayed = _transaction(ctx, data, payload, key, digest)
            break
        except DatabaseFault as error:
            if not may_retry(error, attempt):
                raise refusal_of(error) from error
            wait(attempt)
        except services.NamespaceAppeared:
            # Somebody made it since we looked, so the role there is judged and not assumed.
            fresh = _identify(call)
            ctx.caller, ctx.role, namespace_id = fresh.caller, fresh.role, fresh.namespace_id
            ctx.namespace_id = namespace_id
            _permit(ctx, data)
        attempt += 1
        ctx.audit.clear()
        ctx.on_commit.clear()
        ctx.degraded.clear()
        ctx.review, ctx.needs_review = None, False
        ctx.namespace_id = namespace_id
    if ctx.op.after_commit is not None and answer.status == 200 and not _is_dry_run(data):
        answer = Answer(answer.status, ctx.op.after_commit(ctx, answer.body), answer.headers)
    if replayed:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


def _is_dry_run(data: OpInput) -> bool:
    return bool(getattr(data, "dry_run", False))


def _transaction(
    ctx: Context, data: OpInput, payload: dict[str, Any], key: str | None, digest: bytes
) -> tuple[Answer, bool]:
    dry_run = _is_dry_run(data)
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
            body = handled(ctx, data)
            if ctx.needs_review:
                body["needs_review"] = True
            if ctx.review is None:
                answer = _answer(ctx, 200, body)
            else:
                answer = _answer(ctx, 202, {**body, **_planned(ctx, payload)})
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


def _planned(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """Store the call as a plan; what its answer says of it."""
    plan = plans.plan_create(ctx=ctx, review=ctx.review, payload=payload)
    return {
        "state": "pending_review",
        "plan_id": str(plan.pk),
        "digest": plan.digest,
        "review_url": plans.review_url(plan.pk),
        "plan_expires_at": iso(plan.expires_at),
    }


def _answer(ctx: Context, status: int, body: dict[str, Any]) -> Answer:
    if ctx.ignored_args:
        body["ignored_args"] = ctx.ignored_args
    if ctx.advisories:
        # A batch may say the same of each of its items.
        body["advisories"] = list(dict.fromkeys([*body.get("advisories", []), *ctx.advisories]))
    if ctx.degraded:
        body["degraded"] = sorted({*body.get("degraded", []), *ctx.degraded})
    check_output(ctx, body)
    return Answer(status, body, {"X-Request-ID": ctx.request_id})


def _audit_refusal(ctx: Context, error: OpError, data: OpInput) -> None:
    """Refused destructive and locked calls are kept too, in a transaction of their own; dry runs are not."""
    if _is_dry_run(data) or not policy.audits_refusal(ctx.op, error):
        return
    target = str(getattr(data, "memory_key", "") or error.fields.get("memory_key", ""))
    detail: dict[str, Any] = {"code": error.code}
    if "blocked" in error.fields:
        detail["blocked"] = error.fields["blocked"]
    if "ids" in error.fields:
        detail["ids"] = error.fields["ids"][:100]
    try:
        with transaction.atomic():
            audit.append(ctx, [AuditEntry(target=target, outcome="refused", detail=detail)])
    except DatabaseFault as fault:
        raise refusal_of(fault) from fault
