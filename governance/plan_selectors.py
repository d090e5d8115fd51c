"""Reads over plans: the queue and the page of the console, and what `plan.list` and `plan.get` answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from governance import plan_kinds, plans
from governance.clock import iso
from governance.console import Page, Sight, keyset
from governance.models import Plan, PlanApproval, PlanTarget, User
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, Role, not_found

QUEUE_PAGE = 50
TARGETS = ("all", "changes", "left", "flagged", "moved")


@dataclass(frozen=True)
class QueueFilter:
    """What the queue shows. `state` "" is every state; sizes count rows."""

    state: str = "pending"
    namespace_id: int | None = None
    requested_by: str = ""
    action: str = ""
    at_least: int | None = None
    at_most: int | None = None

    @property
    def condition(self) -> Q:
        """The filter over plans."""
        asked = {
            "state": self.state,
            "namespace_id": self.namespace_id,
            "requested_by": self.requested_by,
            "action": self.action,
            "rows__gte": self.at_least,
            "rows__lte": self.at_most,
        }
        return Q(**{name: value for name, value in asked.items() if value not in (None, "")})


def plan_rows(sight: Sight) -> QuerySet[Plan]:
    """The plans of the namespaces that this user sees, with what a line of a list needs."""
    return Plan.objects.filter(sight.where("namespace", Role.VIEWER)).select_related("namespace__org")


def plan_queue(sight: Sight, wanted: QueueFilter, cursor: str = "", size: int = QUEUE_PAGE) -> Page:
    """One page of the queue: what waits by age, the oldest first; other states the newest first."""
    found = plan_rows(sight).filter(wanted.condition).defer("input", "result", "moved")
    return keyset(found, cursor, "pk" if wanted.state == "pending" else "-pk", size=size)


def plan_header(sight: Sight, plan_id: int) -> Plan:
    """A plan that the user sees; its targets are not loaded. OpError 404."""
    plan = plan_rows(sight).select_related("requester", "behind", "refreshed_from").filter(pk=plan_id).first()
    if plan is None:
        raise not_found("plan_id: no such plan for you.")
    return plan


def why_not(user: User, sight: Sight, plan: Plan) -> str:
    """Why this person may not approve the plan, "" when he may."""
    return plans.why_not(plan, user, sight.role_in(plan.namespace))


def is_overdue(plan: Plan) -> bool:
    """True when the plan's time has run out by the database's clock, swept or not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() >= %s", [plan.expires_at])
        return plan.state == Plan.State.PENDING and bool(cursor.fetchone()[0])


def approvals(plan: Plan) -> list[PlanApproval]:
    """Who approved, in order, voided ones included."""
    return list(plan.approvals.select_related("reviewer").order_by("pk"))


@dataclass(frozen=True)
class Moved:
    """What has moved since the plan was made: at which rows, and beside them."""

    rows: Sequence[dict[str, Any]]
    beside: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows) + len(self.beside)


def moved_now(plan: Plan) -> Moved:
    """What an apply of an open plan would find moved: {id, key, what: {expected, current}} for every row.

    Reads every row, a thousand at a time; takes no lock.
    """
    return Moved(plans.moved_rows(plan, lock=False), plans.moved_around(plan))


@dataclass(frozen=True)
class TargetNow:
    """A planned row beside its present state. `content` is its present value, any JSON; None when gone."""

    target: PlanTarget
    now: plan_kinds.Present | None
    drift: dict[str, Any] | None
    content: Any
    dependants: Sequence[plan_kinds.Dependant]
    # Name of the row's console page, which takes the id; "" for none.
    page: str


def _targets(plan: Plan, only: str) -> QuerySet[PlanTarget]:
    narrowed = {
        "all": Q(),
        "changes": Q(changes=True),
        "left": Q(changes=False),
        "flagged": Q(flagged=True),
        "moved": Q(drift__isnull=False),
    }
    return PlanTarget.objects.filter(narrowed[only], plan=plan).order_by("node_id")


def plan_targets(
    plan: Plan, *, after: int = 0, limit: int = 50, only: str = "all", with_content: bool = True
) -> tuple[list[TargetNow], int | None]:
    """A page of the plan's rows by id, and the `after` of the next one. `only` is one of `TARGETS`.

    For each: present state, drift (the stored one of a stale plan, the present one of an open plan), content
    and dependants; a constant number of statements a page.
    """
    found = list(_targets(plan, only).filter(node_id__gt=after)[: limit + 1])
    following = found[limit - 1].node_id if len(found) > limit else None
    page = found[:limit]
    present: dict[int, plan_kinds.Present] = {}
    content: dict[int, Any] = {}
    for name in sorted({target.kind for target in page}):
        ids = [target.node_id for target in page if target.kind == name]
        kind = plan_kinds.kind(name)
        present |= kind.present(ids, False)
        if with_content:
            content |= kind.content(ids)
    cited = plan_kinds.dependants([target.node_id for target in page]) if with_content and page else {}
    is_open = plan.state in Plan.OPEN
    rows = []
    for target in page:
        now = present.get(target.node_id)
        rows.append(
            TargetNow(
                target,
                now,
                plans.drift_of(target, now) if is_open else target.drift,
                content.get(target.node_id),
                cited.get(target.node_id, ()),
                plan_kinds.kind(target.kind).page,
            )
        )
    return rows, following


# What the ops answer


def _covered(ctx: Context) -> Q:
    """Plans that a narrowed token may know of: those asked under the same narrowing."""
    covered = Q()
    if ctx.caller.bound_agent is not None:
        covered &= Q(bound_agent=ctx.caller.bound_agent)
    if ctx.caller.bound_user is not None:
        covered &= Q(bound_user=ctx.caller.bound_user)
    return covered


def plan_place(ctx: Context, plan_id: int) -> tuple[Plan, dict[str, Any]]:
    """A plan of any namespace that the caller sees, and that namespace. OpError 404."""
    seen = {row["id"]: row for row in visible_namespaces(ctx.caller)}
    plan = (
        Plan.objects.select_related("org", "namespace")
        .filter(_covered(ctx), pk=plan_id, namespace_id__in=list(seen))
        .first()
    )
    if plan is None:
        raise not_found(plans.NO_SUCH_PLAN)
    return plan, seen[plan.namespace_id]


def plan_list(
    ctx: Context, *, state: str | None, mine: bool, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """A page of the namespace's plans, the newest first, and the id that the next page lies before."""
    if ctx.namespace_id is None:
        return [], None
    found = Plan.objects.filter(_covered(ctx), namespace_id=ctx.namespace_id).select_related("namespace")
    if state is not None:
        found = found.filter(state=state)
    if mine:
        found = found.filter(requester_id=ctx.caller.principal_id)
    if before is not None:
        found = found.filter(pk__lt=before)
    rows = list(found.order_by("-pk")[: limit + 1])
    following = rows[limit - 1].pk if len(rows) > limit else None
    return [plan_shown(plan) for plan in rows[:limit]], following


def plan_shown(plan: Plan) -> dict[str, Any]:
    """A plan as answers show it, without its rows."""
    decision = None
    if plan.state not in Plan.OPEN:
        decision = {
            "by": plan.decided_by or None,
            "at": iso(plan.decided_at),
            "comment": plan.comment or None,
        }
    return {
        "plan_id": str(plan.pk),
        "namespace": plan.namespace.slug,
        "op": plan.op,
        "action": plan.action,
        "effect": plan.effect or None,
        "state": plan.state,
        "digest": plan.digest,
        "reason": plan.reason or None,
        "requested_by": plan.requested_by,
        "rows": plan.rows,
        "changes": plan.changes,
        "approvals_needed": plan.approvals_needed,
        "created_at": iso(plan.created_at),
        "expires_at": iso(plan.expires_at),
        "applied_at": iso(plan.applied_at),
        "decision": decision,
        "self_approved": plan.self_approved,
        "refreshed_from": str(plan.refreshed_from_id) if plan.refreshed_from_id else None,
        "moved_count": plan.moved_rows + len(plan.moved),
        "review_url": plans.review_url(plan.pk),
    }


def plan_get(plan: Plan, *, after: int, limit: int, only: str) -> dict[str, Any]:
    """A plan with a page of its rows as planned, what moved at each, and what else moved."""
    found = list(_targets(plan, only).filter(node_id__gt=after)[: limit + 1])
    following = str(found[limit - 1].node_id) if len(found) > limit else None
    standing = [
        {"by": given.approved_by, "at": iso(given.at), "comment": given.comment or None,
         "voided": given.voided_at is not None}
        for given in approvals(plan)
    ]  # fmt: skip
    new = plan.refreshed_by.order_by("-pk").values_list("pk", flat=True).first()
    return {
        **plan_shown(plan),
        "approvals": standing,
        "refreshed_by": str(new) if new is not None else None,
        "failure": plan.result if plan.state == Plan.State.FAILED else None,
        "moved": plan.moved,
        "targets": [_target_shown(target) for target in found[:limit]],
        "next_cursor": following,
    }


def _target_shown(target: PlanTarget) -> dict[str, Any]:
    return {
        "id": str(target.node_id),
        "kind": target.kind,
        "key": target.key,
        "title": target.title,
        "version": target.version,
        "content_sha256": target.content_sha256,
        "lock": target.lock,
        "status": target.status,
        "planned": target.planned,
        "changes": target.changes,
        "why": target.why or None,
        "moved": target.drift,
    }
