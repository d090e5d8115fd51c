"""Ops on plans: look at what waits for a person, and take one's own request back. No op approves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from governance import plan_selectors, plans
from governance.models import Plan
from loomsite.ops import AgentText, Context, OpInput, OpOutput, Role, WriteInput, invalid, limits, op
from loomsite.ops.schema import Count

StateName = Literal["pending", "approved", "applied", "rejected", "expired", "stale", "withdrawn", "failed"]


def _id(value: Any) -> Any:
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise ValueError("must be a plan_id, a string of digits as the 202 answered it")
    return text


PlanId = Annotated[str, BeforeValidator(_id)]
_PLAN = Field(description="The plan_id that the call answered with 202.")
_CURSOR = Field(None, description="next_cursor of the page before.")
Cursor = Annotated[str, Field(max_length=20)]


def _place_of(cursor: str | None) -> int | None:
    """The id in a cursor. OpError 400."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and int(cursor) < 2**63):
        raise invalid("cursor", "is none that this op answered; leave it out for the first page.")
    return int(cursor)


def _locate(ctx: Context, data: Any) -> bool:
    """Put the call where the plan is."""
    plan, there = plan_selectors.plan_place(ctx, int(data.plan_id))
    ctx.located = plan
    ctx.namespace, ctx.namespace_id, ctx.role = there["namespace"], there["id"], Role.of(there["role"])
    return True


class PlanShown(OpOutput):
    """A plan without its rows."""

    plan_id: str
    namespace: str
    op: str
    action: str = Field(description="The row of the policy that asked for a person.")
    effect: str | None = None
    state: str = Field(
        description="pending, approved, applied, rejected, expired, stale, withdrawn or failed."
    )
    digest: str = Field(description="SHA-256 of what was asked, as it was shown.")
    reason: str | None = None
    requested_by: str
    rows: int = Field(description="Rows that it is about.")
    changes: int = Field(description="How many of them it changes.")
    approvals_needed: int
    created_at: str
    expires_at: str = Field(description="Undecided by then, it is void.")
    applied_at: str | None = None
    decision: dict[str, Any] | None = Field(None, description="by, at, comment; null while it is open.")
    self_approved: bool = False
    refreshed_from: str | None = Field(None, description="plan_id of the plan that this one replaces.")
    moved_count: int = Field(0, description="Of a stale plan: how much moved since it was shown.")
    review_url: str


class PlanListInput(OpInput):
    """Which plans."""

    state: StateName | None = Field(None, description="Only those in this state.")
    mine: bool = Field(False, description="Only those that this principal asked for.")
    limit: Count = Field(50, ge=1, le=limits.PAGE, description="Plans a page.")
    cursor: Cursor | None = _CURSOR


class PlanListOutput(OpOutput):
    """Plans, the newest first."""

    plans: list[dict[str, Any]] = Field(
        description="plan_id, op, action, state, digest, rows, changes, requested_by, decision, … each."
    )
    next_cursor: str | None = None


@op(
    "plan.list",
    input=PlanListInput,
    output=PlanListOutput,
    role=Role.VIEWER,
    kind="read",
    idempotent=True,
    summary="What waits, or waited, for a person's decision.",
    text=AgentText(
        what="Lists the plans of a namespace, the newest first, with state and decision. Changes nothing.",
        when='"What is waiting for review?", "what became of my requests?".',
        when_not="For one plan with its rows (plan.get).",
        args="state and mine narrow it; limit and cursor.",
    ),
)
def plan_list(ctx: Context, data: PlanListInput) -> dict[str, Any]:
    """List plans."""
    page, following = plan_selectors.plan_list(
        ctx, state=data.state, mine=data.mine, before=_place_of(data.cursor), limit=data.limit
    )
    return {"plans": page, "next_cursor": None if following is None else str(following)}


class PlanGetInput(OpInput):
    """Which plan, and which of its rows."""

    plan_id: PlanId = _PLAN
    only: Literal["all", "changes", "left", "flagged", "moved"] = Field(
        "all", description="all its rows, those it changes, those it leaves, flagged ones, those that moved."
    )
    limit: Count = Field(50, ge=1, le=limits.PAGE, description="Rows a page.")
    cursor: Cursor | None = _CURSOR


class PlanGetOutput(PlanShown):
    """A plan with a page of its rows."""

    approvals: list[dict[str, Any]] = Field(description="by, at, comment, voided each.")
    failure: dict[str, Any] | None = Field(None, description="code and message of a failed plan.")
    refreshed_by: str | None = Field(None, description="plan_id of the plan that replaced this one.")
    moved: list[dict[str, Any]] = Field(description="Of a stale plan: what moved besides its rows.")
    targets: list[dict[str, Any]] = Field(
        description="id, kind, key, title, version, content_sha256, lock, status, planned, changes, why "
        "each; moved says what of a row moved: {what: {expected, current}}."
    )
    next_cursor: str | None = None


@op(
    "plan.get",
    input=PlanGetInput,
    output=PlanGetOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    locate=_locate,
    idempotent=True,
    toolset="core",
    summary="How a plan stands: decided or not, by whom, why, and what moved.",
    text=AgentText(
        what="Tells the state of what waits for a person: pending, applied, rejected (with a comment), stale "
        "(with exactly what moved; nothing was changed), expired, withdrawn or failed, and pages its rows. "
        "Changes nothing. 404: no such plan for you.",
        when="A call answered 202 pending_review: ask now and then, and tell the person where review_url is.",
        when_not="To approve: only a person in the console does. To take it back: plan.withdraw.",
        args="plan_id as answered; only, limit and cursor for its rows.",
    ),
)
def plan_get(ctx: Context, data: PlanGetInput) -> dict[str, Any]:
    """Read one plan."""
    assert isinstance(ctx.located, Plan)  # noqa: S101 - the pipeline has located the call
    return plan_selectors.plan_get(
        ctx.located, after=_place_of(data.cursor) or 0, limit=data.limit, only=data.only
    )


class PlanWithdrawInput(WriteInput):
    """Which plan is taken back."""

    plan_id: PlanId = _PLAN


class PlanWithdrawOutput(OpOutput):
    """How the plan stands now."""

    plan_id: str
    state: str = Field(description="withdrawn; expired when its time had run out.")
    digest: str


@op(
    "plan.withdraw",
    input=PlanWithdrawInput,
    output=PlanWithdrawOutput,
    role=Role.WRITER,
    kind="write",
    scoped=False,
    locate=_locate,
    summary="Take back one's own request before it is decided.",
    text=AgentText(
        what="Closes a pending plan that you asked for; nothing was changed by it, and nothing will be. 403: "
        "somebody else asked. 409 INVALID_TRANSITION: it is decided already. Undo: ask again.",
        when='"Never mind that deletion", or the request was wrong.',
        when_not="To reject another's request: a reviewer does that in the console.",
        args="plan_id; reason is kept.",
    ),
)
def plan_withdraw(ctx: Context, data: PlanWithdrawInput) -> dict[str, Any]:
    """Withdraw one plan."""
    plan = plans.plan_withdraw(ctx=ctx, plan_id=int(data.plan_id))
    return {"plan_id": str(plan.pk), "state": plan.state, "digest": plan.digest}
