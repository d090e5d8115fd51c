"""Plans: destructive calls that wait for a person, and what a person does with them.

A plan is the canonical JSON of the action, the rows as they stood (id, version, content hash, lock; by id),
the policy and the scanner's version; its SHA-256 is the digest. Applying it dispatches the stored op again
with exactly these rows, in one transaction, by the code of a direct run. None of the deciding functions is
an op, so no token can call one: they take the `User` of a logged-in session.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection, transaction

from governance import audit, plan_kinds, services, tenancy
from governance.dispatch import check_output, handled
from governance.faults import refusal_of, retried, sqlstate
from governance.models import Namespace, Plan, PlanApproval, PlanTarget, Token, User
from governance.patterns import CATALOGUE_VERSION
from governance.review import TABLE, Drifted, Frozen, Review, Target, differences, lock_text, rules_of
from governance.tenancy import Credentials
from loomsite.ops import AuditEntry, Context, Door, OpError, Role, get, invalid, not_found
from loomsite.ops.schema import validate

CHUNK = 1000
ACKNOWLEDGE = "govern.acknowledge-pattern"
NO_SUCH_PLAN = "plan_id: no such plan for this caller; plan.list shows yours."
Final = Plan.State


@dataclass(frozen=True)
class Decision:
    """What came of a person's decision. `moved` counts the rows that moved, of a stale plan."""

    plan_id: int
    state: str
    message: str
    approvals: int = 0
    needed: int = 1
    moved: int = 0
    # False when it had been decided so before, as by the second of two clicks.
    changed: bool = True


# Making


def canonical_json(value: Any) -> str:
    """Canonical JSON: sorted names, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(plan: Plan, rows: Iterable[tuple[int, int, str, str]]) -> Iterator[str]:
    """The plan's canonical JSON in pieces. `rows` are (id, version, content hash, lock) by id."""
    head = canonical_json(
        {
            "action": {
                "op": plan.op, "action": plan.action, "org": plan.org.slug,
                "namespace": plan.namespace.slug, "input_sha256": plan.input_sha256,
            },
            "policy": {
                "version": plan.policy_version, "level": plan.policy_level,
                "approvals": plan.approvals_needed,
            },
            "scanner": plan.scanner,
        }
    )  # fmt: skip
    # "targets" sorts behind the others.
    yield f'{head[:-1]},"targets":['
    for number, (id_, version, sha, lock) in enumerate(rows):
        yield ("," if number else "") + canonical_json([str(id_), version, sha, lock])
    yield "]}"


def digest_of(plan: Plan, rows: Iterable[tuple[int, int, str, str]]) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    sha = hashlib.sha256()
    for piece in canonical(plan, rows):
        sha.update(piece.encode("utf-8", "surrogatepass"))
    return sha.hexdigest()


def plan_create(
    *, ctx: Context, review: Review, payload: dict[str, Any], refreshed_from: Plan | None = None
) -> Plan:
    """Store the call as a plan, in the caller's transaction; its audit row is left in `ctx`."""
    assert ctx.namespace_id is not None  # noqa: S101 - rows were found there
    rules, targets = review.rules, sorted(review.targets, key=lambda row: row.id)
    caller = ctx.caller
    plan = Plan(
        namespace=Namespace.objects.select_related("org").get(pk=ctx.namespace_id),
        op=ctx.op.name,
        action=review.action,
        input=payload,
        input_sha256=hashlib.sha256(canonical_json(payload).encode("utf-8", "surrogatepass")).hexdigest(),
        requester_id=caller.principal_id,
        requested_by=caller.principal,
        behind_id=_behind(caller.token_prefix),
        token_prefix=caller.token_prefix,
        acts_for=caller.acts_for,
        door=str(caller.door),
        agent=ctx.agent or "",
        user_id=ctx.user_id or "",
        session_id=ctx.session_id or "",
        run_id=ctx.run_id,
        bound_agent=caller.bound_agent or "",
        bound_user=caller.bound_user or "",
        request_id=ctx.request_id,
        reason=ctx.reason,
        effect=review.effect,
        policy_level=review.level,
        policy_version=rules.version,
        approvals_needed=rules.approvals,
        scanner=CATALOGUE_VERSION,
        rows=len(targets),
        changes=sum(row.changes for row in targets),
        refreshed_from=refreshed_from,
    )
    plan.org = plan.namespace.org
    plan.digest = digest_of(plan, ((r.id, r.version, r.content_sha256, lock_text(r.lock)) for r in targets))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT clock_timestamp(), clock_timestamp() + make_interval(hours => %s)", [rules.plan_hours]
        )
        plan.created_at, plan.expires_at = cursor.fetchone()
    plan.save(force_insert=True)
    for first in range(0, len(targets), CHUNK):
        PlanTarget.objects.bulk_create([_stored(plan, row) for row in targets[first : first + CHUNK]])
    detail: dict[str, Any] = {
        "digest": plan.digest, "action": plan.action, "rows": plan.rows, "changes": plan.changes,
    }  # fmt: skip
    if refreshed_from is not None:
        detail["refreshed_from"] = str(refreshed_from.pk)
    ctx.record(AuditEntry(target=f"plan:{plan.pk}", outcome="pending_review", detail=detail))
    return plan


def _stored(plan: Plan, row: Target) -> PlanTarget:
    return PlanTarget(
        plan=plan, kind=row.kind, node_id=row.id, key=row.key[:600], title=row.title[:200],
        version=row.version, content_sha256=row.content_sha256, lock=lock_text(row.lock), status=row.status,
        planned=row.planned[:64], changes=row.changes, why=row.why, flagged=row.flagged,
    )  # fmt: skip


def _behind(token_prefix: str) -> int | None:
    """The person behind a service account's token: whoever made the token."""
    if not token_prefix:
        return None
    token = Token.objects.select_related("principal").filter(prefix=token_prefix).first()
    if token is None or token.principal.kind == User.Kind.PERSON:
        return None
    return token.created_by_id


def review_url(plan_id: int) -> str:
    """Where a person decides about the plan."""
    hosts = settings.LOOM_PUBLIC_HOSTS
    host, port = settings.LOOM_BIND
    base = f"https://{hosts[0]}" if hosts else f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"{base}/console/governance/plan/{plan_id}/"


# Deciding


def plan_approve(*, plan_id: int, reviewer: User, digest: str, comment: str = "") -> Decision:
    """Approve exactly this digest; the last approval applies the plan in the same transaction.

    Raises OpError 404 for a plan that the reviewer cannot see, 403 without the role or for one's own
    request, 409 VERSION_CONFLICT for another digest, 409 INVALID_TRANSITION when it is decided already.
    A plan that drifted, expired or failed is no error: the decision's state says so.
    """
    return retried(lambda: _approve(plan_id, reviewer, digest, comment.strip()))


def plan_reject(*, plan_id: int, reviewer: User, digest: str, comment: str) -> Decision:
    """Reject the plan, with a reason. OpError as `plan_approve`; 400 without a comment."""
    return retried(lambda: _reject(plan_id, reviewer, digest, comment.strip()))


def plan_withdraw(*, ctx: Context, plan_id: int) -> Plan:
    """Take back one's own request, in the caller's transaction. OpError 404, 403, 409."""
    plan = _locked(plan_id)
    if plan is None or plan.namespace_id != ctx.namespace_id:
        raise not_found(NO_SUCH_PLAN)
    caller = ctx.caller
    mine = caller.principal_id is not None and plan.requester_id == caller.principal_id
    if not mine or (caller.bound_agent or plan.bound_agent) != plan.bound_agent:
        raise OpError(
            "FORBIDDEN",
            f"plan {plan.pk} was asked for by {plan.requested_by}; whoever asked withdraws it. A reviewer "
            "rejects it in the console.",
            plan_id=str(plan.pk),
        )
    _require_open(plan)
    if _overdue(plan):
        _close(plan, Final.EXPIRED)
        ctx.record(_entry(plan, "expired"))
        return plan
    _close(plan, Final.WITHDRAWN, by=caller.principal, comment=ctx.reason)
    ctx.record(_entry(plan, "withdrawn"))
    return plan


def plan_refresh(*, plan_id: int, by: User) -> Plan:
    """A new plan of the same request from the present state, linked to the old one; an open one is void.

    The request keeps its requester, so whoever refreshes may review it. Raises OpError 404, 403, and what
    a real run of the request raises now; 409 INVALID_TRANSITION when nothing would change any more.
    """
    return retried(lambda: _refresh(plan_id, by))


def plans_expire(limit: int = 500) -> int:
    """Close what nobody decided in time, by the database's clock; how many."""
    with transaction.atomic():
        overdue = list(
            Plan.objects.raw(
                "SELECT * FROM governance_plan WHERE state = 'pending' AND expires_at <= clock_timestamp() "
                "ORDER BY org_id, id LIMIT %s FOR UPDATE SKIP LOCKED",
                [limit],
            )
        )
        entries: dict[int, list[tuple[Plan, AuditEntry]]] = {}
        for plan in overdue:
            _close(plan, Final.EXPIRED)
            entries.setdefault(plan.namespace_id, []).append((plan, _entry(plan, "expired")))
        spaces = Namespace.objects.select_related("org").filter(pk__in=entries).order_by("org", "pk")
        for namespace in spaces:
            ctx = services.system_context(org=namespace.org, namespace=namespace, op_name="plan.expire")
            audit.append(ctx, [entry for _, entry in entries[namespace.pk]])
    return len(overdue)


def forget_text(node_ids: Sequence[int], ctx: Context | None = None) -> int:
    """Blank what plans repeat of these rows' text, in the caller's transaction; how many plans named one.

    Titles, reasons of refusal and the stored inputs go, and an open plan about such a row is over: it could
    no longer be shown or applied as it was asked. Ids, versions, hashes and the digest stay. With `ctx` the
    plans that end so are left in its audit.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_plantarget SET title = '', why = '' WHERE node_id = ANY(%s) RETURNING plan_id",
            [list(node_ids)],
        )
        plans = sorted({row[0] for row in cursor.fetchall()})
        cursor.execute(
            """WITH was AS (SELECT id, state FROM governance_plan WHERE id = ANY(%s) ORDER BY id FOR UPDATE)
               UPDATE governance_plan p SET input = '{}', effect = '', result = '{}',
                 state = CASE WHEN was.state = 'pending' THEN 'stale' ELSE was.state END,
                 moved = CASE WHEN was.state = 'pending' THEN %s::jsonb ELSE p.moved END,
                 decided_at = coalesce(p.decided_at, clock_timestamp())
               FROM was WHERE was.id = p.id RETURNING p.id, was.state, p.digest""",
            [plans, json.dumps([{"what": "a text of it was erased"}])],
        )
        ended = [(id_, digest) for id_, state, digest in cursor.fetchall() if state == Final.PENDING]
    if ctx is not None:
        for id_, digest in sorted(ended):
            detail = {"digest": digest, "why": "a text of it was erased"}
            ctx.record(AuditEntry(target=f"plan:{id_}", op="plan.forget", outcome="stale", detail=detail))
    return len(plans)


# Inside


def _locked(plan_id: int) -> Plan | None:
    """The plan, its row locked until the transaction ends; of concurrent clicks the second waits here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM governance_plan WHERE id = %s FOR UPDATE", [plan_id])
        if cursor.fetchone() is None:
            return None
    return Plan.objects.select_related("org", "namespace", "requester").get(pk=plan_id)


def _overdue(plan: Plan) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() >= %s", [plan.expires_at])
        return bool(cursor.fetchone()[0])


def _require_open(plan: Plan) -> None:
    if plan.state != Final.PENDING:
        raise OpError(
            "INVALID_TRANSITION",
            f"plan {plan.pk} is {plan.state}; nothing more is decided about it.",
            plan_id=str(plan.pk),
            state=plan.state,
        )


def _close(plan: Plan, state: str, *, by: str = "", comment: str = "", **fields: Any) -> None:
    """Move an open plan to a state by compare-and-set."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now = cursor.fetchone()[0]
    fields |= {"state": state, "decided_at": now, "decided_by": by, "comment": comment}
    if state == Final.APPLIED:
        fields["applied_at"] = now
    moved = Plan.objects.filter(pk=plan.pk, state__in=Plan.OPEN).update(**fields)
    if moved != 1:
        raise RuntimeError(f"plan {plan.pk} left its state while its row was locked")
    for name, value in fields.items():
        setattr(plan, name, value)


def _entry(plan: Plan, outcome: str, **detail: Any) -> AuditEntry:
    """The audit row of a step in a plan's life."""
    verb = {
        "approved": "approve", "voided": "approve", "rejected": "reject", "withdrawn": "withdraw",
        "expired": "expire", "refreshed": "refresh",
    }.get(outcome, "apply")  # fmt: skip
    about = {
        "digest": plan.digest,
        "action": plan.action,
        "rows": plan.rows,
        "requested_by": plan.requested_by,
    }
    return AuditEntry(
        target=f"plan:{plan.pk}", op=f"plan.{verb}", outcome=outcome, reason=plan.reason,
        detail={**about, **detail},
    )  # fmt: skip


def role_of(user: User, namespace: Namespace) -> Role:
    """The person's present role in the namespace; Role.NONE where it sees nothing."""
    try:
        return tenancy.standing(
            Credentials(door=Door.CONSOLE, user_id=user.pk, org=namespace.org.slug), None, namespace.slug
        ).role
    except OpError:
        return Role.NONE


def why_not(plan: Plan, reviewer: User, role: Role, *, alone: bool | None = None) -> str:
    """Why this person may not approve the plan, "" when he may. `alone` is `decides_alone(reviewer)`."""
    needed = TABLE[plan.action].approves
    if role < needed:
        return f"approving {plan.action} needs the role {needed.label} here; you have {role.label}."
    if reviewer.kind != User.Kind.PERSON:
        return "a service account decides nothing."
    if decides_alone(reviewer) if alone is None else alone:
        return ""
    if reviewer.pk == plan.requester_id:
        return "you asked for it yourself; another person decides."
    if reviewer.pk == plan.behind_id:
        return "a token that you made asked for it; another person decides."
    return ""


def decides_alone(reviewer: User) -> bool:
    """Whether he is the owner in single-user mode, where nobody else is there to decide."""
    if not (settings.LOOM_SINGLE_USER and reviewer.is_superuser):
        return False
    owners = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")
    return owners.values_list("pk", flat=True).first() == reviewer.pk


def _decided_by(plan_id: int, reviewer: User) -> tuple[Plan, Role]:
    """The plan, locked, and the reviewer's role there. OpError 404."""
    plan = _locked(plan_id)
    role = Role.NONE if plan is None else role_of(reviewer, plan.namespace)
    if plan is None or role == Role.NONE:
        raise not_found("plan_id: no such plan for you.")
    return plan, role


def _require_digest(plan: Plan, digest: str) -> None:
    if digest != plan.digest:
        raise OpError(
            "VERSION_CONFLICT",
            f"digest: plan {plan.pk} has another one than the page that you saw; look at it again.",
            plan_id=str(plan.pk),
            digest=plan.digest,
        )


def _acting(plan: Plan, reviewer: User) -> Context:
    """The reviewer's context for the plan's op: his role, the request's identity fields."""
    op = get(plan.op)
    if op is None:
        raise OpError("UNKNOWN_OP", f"plan {plan.pk} is about {plan.op}, which this server no longer has.")
    credentials = Credentials(door=Door.CONSOLE, user_id=reviewer.pk, org=plan.org.slug)
    caller, namespace, namespace_id, role = tenancy.standing(credentials, None, plan.namespace.slug)
    caller = replace(
        caller,
        bound_agent=plan.bound_agent or None,
        bound_user=plan.bound_user or None,
        acts_for=plan.acts_for,
    )
    return Context(
        op=op,
        caller=caller,
        request_id=plan.request_id,
        role=role,
        namespace=namespace,
        namespace_id=namespace_id,
        agent=plan.agent or None,
        user_id=plan.user_id or None,
        session_id=plan.session_id or None,
        run_id=plan.run_id,
        reason=plan.reason,
    )


def _frozen(plan: Plan, approvers: Sequence[str] = ()) -> Frozen:
    rows = PlanTarget.objects.filter(plan=plan).order_by("node_id").values_list(
        "node_id", "version", "content_sha256", "lock", "planned", "changes"
    )  # fmt: skip
    note = {
        "plan_id": str(plan.pk), "digest": plan.digest, "requested_by": plan.requested_by,
        "requested_with": plan.token_prefix, "approved_by": list(approvers),
    }  # fmt: skip
    frozen = {
        id_: (version, sha, lock, planned, changes)
        for id_, version, sha, lock, planned, changes in rows.iterator(CHUNK)
    }
    return Frozen(plan.pk, frozen, note)


def _prepared(plan_id: int, reviewer: User) -> Any:
    """What the op computes before a transaction opens, such as an embedding."""
    plan = Plan.objects.select_related("org", "namespace").filter(pk=plan_id, state=Final.PENDING).first()
    op = None if plan is None else get(plan.op)
    if plan is None or op is None or op.prepare is None or not role_of(reviewer, plan.namespace):
        return None
    ctx = _acting(plan, reviewer)
    ctx.plan = _frozen(plan)
    return op.prepare(ctx, validate(op.input, plan.input)[0])


def _approve(plan_id: int, reviewer: User, digest: str, comment: str) -> Decision:
    prepared = _prepared(plan_id, reviewer)
    with transaction.atomic():
        plan, role = _decided_by(plan_id, reviewer)
        barred = why_not(plan, reviewer, role)
        if barred:
            raise OpError("FORBIDDEN", barred, plan_id=str(plan.pk))
        mine = PlanApproval.objects.filter(plan=plan, reviewer=reviewer, voided_at=None).exists()
        if mine and plan.state == Final.APPLIED:
            return Decision(plan.pk, plan.state, "It was applied already.", changed=False)
        _require_open(plan)
        _require_digest(plan, digest)
        ctx = _acting(plan, reviewer)
        ctx.prepared = prepared
        if _overdue(plan):
            _close(plan, Final.EXPIRED)
            ctx.record(_entry(plan, "expired"))
            audit.append(ctx, ctx.audit)
            return Decision(plan.pk, plan.state, "Its time had run out; nothing was changed.")
        if not mine:
            PlanApproval.objects.create(
                plan=plan, reviewer=reviewer, approved_by=reviewer.username, role=role.label, comment=comment
            )
            themselves = reviewer.pk in (plan.requester_id, plan.behind_id)
            if themselves:
                Plan.objects.filter(pk=plan.pk).update(self_approved=True)
            ctx.record(_entry(plan, "approved", comment=comment, role=role.label, self_approved=themselves))
        approvers = _standing_approvals(plan, ctx)
        needed = max(plan.approvals_needed, rules_of(plan.namespace_id).approvals)
        if len(approvers) < needed:
            audit.append(ctx, ctx.audit)
            return Decision(
                plan.pk, plan.state, f"{len(approvers)} of {needed} approvals; nothing has changed yet.",
                len(approvers), needed, changed=not mine,
            )  # fmt: skip
        decision = _apply(plan, ctx, approvers, comment)
        audit.append(ctx, ctx.audit)
        return replace(decision, approvals=len(approvers), needed=needed)


def _standing_approvals(plan: Plan, ctx: Context) -> list[str]:
    """Who approves and still may; whoever lost the role since is voided."""
    standing = []
    for approval in PlanApproval.objects.select_related("reviewer").filter(plan=plan, voided_at=None):
        who = approval.reviewer
        if who is not None and not why_not(plan, who, role_of(who, plan.namespace)):
            standing.append(approval.approved_by)
            continue
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_planapproval SET voided_at = clock_timestamp() WHERE id = %s",
                [approval.pk],
            )
        ctx.record(_entry(plan, "voided", approved_by=approval.approved_by, why="the role was lost"))
    return standing


def _apply(plan: Plan, ctx: Context, approvers: list[str], comment: str) -> Decision:
    """Execute exactly the planned rows, or say what moved; the plan is closed either way."""
    by = ctx.caller.principal
    ctx.plan = frozen = _frozen(plan, approvers)
    Plan.objects.filter(pk=plan.pk, state=Final.PENDING).update(state=Final.APPROVED)
    if not _untouched(plan, frozen):
        return _failed(
            plan, ctx, by, comment, "INTERNAL", "what is stored of the plan no longer has its digest"
        )
    moved = [*moved_around(plan), *moved_rows(plan)]
    if moved:
        return _stale(plan, ctx, by, comment, moved)
    records = len(ctx.audit)
    data = validate(ctx.op.input, plan.input)[0]
    try:
        with transaction.atomic():
            if ctx.op.locate is not None:
                ctx.op.locate(ctx, data)
            body = handled(ctx, data)
            check_output(ctx, body)
            if not frozen.checked:
                raise Drifted([{"what": "the op no longer has anything to do"}])
    except Drifted as drifted:
        del ctx.audit[records:]
        return _stale(plan, ctx, by, comment, drifted.moved)
    except OpError as error:
        del ctx.audit[records:]
        if error.code in ("BUSY", "INTERNAL"):
            raise
        return _failed(plan, ctx, by, comment, error.code, error.message)
    except DatabaseFault as error:
        del ctx.audit[records:]
        if sqlstate(error) != "LM423":
            raise
        return _failed(plan, ctx, by, comment, "LOCKED", str(refusal_of(error)))
    for entry in ctx.audit[records:]:
        entry.detail = {**entry.detail, **frozen.note}
    result = {"rows": plan.rows, "changes": plan.changes, "left": plan.rows - plan.changes}
    _close(plan, Final.APPLIED, by=by, comment=comment, result=result)
    ctx.record(_entry(plan, "applied", approved_by=approvers, changes=plan.changes))
    return Decision(plan.pk, plan.state, f"Applied: {plan.changes} of {plan.rows} rows changed.")


def _untouched(plan: Plan, frozen: Frozen) -> bool:
    """Whether the stored rows and input still have the digest."""
    rows = ((id_, row[0], row[1], row[2]) for id_, row in frozen.rows.items())
    sha = hashlib.sha256(canonical_json(plan.input).encode("utf-8", "surrogatepass")).hexdigest()
    return sha == plan.input_sha256 and digest_of(plan, rows) == plan.digest


def moved_around(plan: Plan) -> list[dict[str, Any]]:
    """What moved besides the rows: who asked no longer may, the scanner has another catalogue."""
    moved: list[dict[str, Any]] = []
    op = get(plan.op)
    role = Role.NONE if plan.requester is None else role_of(plan.requester, plan.namespace)
    wanted = min(Role.WRITER, op.role) if op is not None else Role.WRITER
    if role < wanted:
        moved.append(
            {"what": "the requester's role", "who": plan.requested_by, "expected": wanted.label,
             "current": role.label}
        )  # fmt: skip
    if plan.action == ACKNOWLEDGE and plan.scanner != CATALOGUE_VERSION:
        moved.append(
            {"what": "the catalogue of patterns", "expected": plan.scanner, "current": CATALOGUE_VERSION}
        )
    return moved


def drift_of(target: PlanTarget, now: plan_kinds.Present | None) -> dict[str, Any] | None:
    """{what: {expected, current}} of a row that is no longer as planned; None while it is."""
    if now is None:
        return {"row": {"expected": "present", "current": "gone"}}
    drift = differences(
        (target.version, target.content_sha256, target.lock),
        (now.version, now.content_sha256, lock_text(now.lock)),
    )
    if now.status != target.status:
        drift["status"] = {"expected": target.status, "current": now.status}
    return drift or None


def moved_rows(plan: Plan, *, lock: bool = True) -> list[dict[str, Any]]:
    """Every row that is no longer as planned, its row lock taken in id order; a thousand at a time."""
    moved: list[dict[str, Any]] = []
    after = 0
    while True:
        chunk = list(PlanTarget.objects.filter(plan=plan, node_id__gt=after).order_by("node_id")[:CHUNK])
        if not chunk:
            return moved
        present: dict[int, plan_kinds.Present] = {}
        for name in sorted({target.kind for target in chunk}):
            ids = [target.node_id for target in chunk if target.kind == name]
            present |= plan_kinds.kind(name).present(ids, lock)
        for target in chunk:
            drift = drift_of(target, present.get(target.node_id))
            if drift is not None:
                moved.append({"id": str(target.node_id), "key": target.key, **drift})
        after = chunk[-1].node_id


def _stale(plan: Plan, ctx: Context, by: str, comment: str, moved: list[dict[str, Any]]) -> Decision:
    """Void the plan and keep exactly what moved: at each row, and beside them."""
    known = set(ctx.plan.rows) if ctx.plan is not None else set(_frozen(plan).rows)
    drifts = {
        int(line["id"]): {name: value for name, value in line.items() if name not in ("id", "key")}
        for line in moved
        if "id" in line and int(line["id"]) in known
    }
    beside = [line for line in moved if "id" not in line or int(line["id"]) not in known]
    ids = list(drifts)
    for first in range(0, len(ids), CHUNK):
        some = ids[first : first + CHUNK]
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_plantarget t SET drift = d.drift FROM unnest(%s::bigint[], %s::jsonb[]) "
                "AS d (node_id, drift) WHERE t.plan_id = %s AND t.node_id = d.node_id",
                [some, [json.dumps(drifts[id_]) for id_ in some], plan.pk],
            )
    _close(plan, Final.STALE, by=by, comment=comment, moved=beside, moved_rows=len(drifts))
    ctx.record(
        _entry(plan, "stale", moved=len(moved), ids=[line["id"] for line in moved[:100] if "id" in line])
    )
    return Decision(
        plan.pk, plan.state, f"Nothing was changed: {len(moved)} moved since it was shown.", moved=len(moved)
    )


def _failed(plan: Plan, ctx: Context, by: str, comment: str, code: str, message: str) -> Decision:
    _close(plan, Final.FAILED, by=by, comment=comment, result={"code": code, "message": message[:1000]})
    ctx.record(_entry(plan, "failed", code=code))
    return Decision(plan.pk, plan.state, f"Nothing was changed: {message}")


def _reject(plan_id: int, reviewer: User, digest: str, comment: str) -> Decision:
    if not comment:
        raise invalid("comment", "a rejection needs a reason, for whoever asked.", "missing")
    with transaction.atomic():
        plan, role = _decided_by(plan_id, reviewer)
        needed = TABLE[plan.action].approves
        if role < needed:
            raise OpError("FORBIDDEN", why_not(plan, reviewer, role), plan_id=str(plan.pk))
        _require_open(plan)
        _require_digest(plan, digest)
        ctx = _acting(plan, reviewer)
        if _overdue(plan):
            _close(plan, Final.EXPIRED)
            ctx.record(_entry(plan, "expired"))
        else:
            _close(plan, Final.REJECTED, by=reviewer.username, comment=comment)
            ctx.record(_entry(plan, "rejected", comment=comment))
        audit.append(ctx, ctx.audit)
        said = "Rejected; nothing was changed." if plan.state == Final.REJECTED else "Its time had run out."
        return Decision(plan.pk, plan.state, said)


REFRESHED = (Final.PENDING, Final.STALE, Final.EXPIRED, Final.FAILED)


def _refresh(plan_id: int, by: User) -> Plan:
    with transaction.atomic():
        plan, role = _decided_by(plan_id, by)
        if role < Role.WRITER:
            raise OpError("FORBIDDEN", "refreshing a plan needs the role writer here.", plan_id=str(plan.pk))
        if plan.state not in REFRESHED or not plan.input:
            raise OpError(
                "INVALID_TRANSITION",
                f"plan {plan.pk} is {plan.state}{'' if plan.input else ', its text erased'}; ask anew.",
                plan_id=str(plan.pk), state=plan.state,
            )  # fmt: skip
        acting = _acting(plan, by)
        if plan.state == Final.PENDING:
            moved = [*moved_around(plan), *moved_rows(plan)]
            if not moved:
                raise OpError(
                    "INVALID_TRANSITION",
                    f"nothing has moved since plan {plan.pk} was made; decide about it as it stands.",
                    plan_id=str(plan.pk), state=plan.state,
                )  # fmt: skip
            acting.plan = _frozen(plan)
            _stale(plan, acting, by.username, "", moved)
        ctx = _asking(plan)
        data = validate(ctx.op.input, plan.input)[0]
        if ctx.op.locate is not None:
            ctx.op.locate(ctx, data)
        if ctx.op.prepare is not None:
            ctx.prepared = ctx.op.prepare(ctx, data)
        handled(ctx, data)
        if ctx.review is None:
            raise OpError(
                "INVALID_TRANSITION",
                "the request would change nothing any more, or needs nobody now; it is asked anew.",
                plan_id=str(plan.pk),
            )
        payload = dict(plan.input)
        if payload.get("expected_versions"):
            payload["expected_versions"] = {str(row.id): row.version for row in ctx.review.targets}
        ctx.audit.clear()
        fresh = plan_create(ctx=ctx, review=ctx.review, payload=payload, refreshed_from=plan)
        acting.record(_entry(plan, "refreshed", plan_id=str(fresh.pk)))
        audit.append(acting, [*acting.audit, *(replace(e, op="plan.refresh") for e in ctx.audit)])
        return fresh


def _asking(plan: Plan) -> Context:
    """The request's own context as it would be now. OpError 403 when whoever asked no longer may."""
    op = get(plan.op)
    if op is None or plan.requester is None or role_of(plan.requester, plan.namespace) < Role.WRITER:
        raise OpError("FORBIDDEN", f"{plan.requested_by}, who asked for it, may no longer do so here.")
    ctx = _acting(plan, plan.requester)
    by_token = plan.door != Door.CONSOLE
    caller = replace(
        ctx.caller,
        door=Door(plan.door),
        token_prefix=plan.token_prefix,
        ceiling=Role.WRITER if by_token else ctx.caller.ceiling,
    )
    return replace(ctx, caller=caller, role=min(ctx.role, caller.ceiling), is_refresh=True)
