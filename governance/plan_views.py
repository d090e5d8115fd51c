"""What the pages of the review queue and of a plan show, made of plans, their rows and the reader's sight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Count as Number
from django.db.models import Q
from django.urls import reverse

from governance import plan_selectors, plan_words, plans
from governance.console import Sight
from governance.console_selectors import audit_events
from governance.diffs import DiffLine, diff
from governance.models import AuditEvent, Plan, PlanTarget
from governance.plan_selectors import Moved, TargetNow
from governance.review import rules_of
from governance.templatetags.console import pretty
from loomsite.ops import Role

CONTENT_CHARS = 20_000
"""Characters of a row's content that a page shows; the row's own page shows all of it."""
COMPARED_CHARS = 64 * 1024
MOVED_SHOWN = 50
FLAGGED_SHOWN = 200
EVENTS_SHOWN = 20


@dataclass(frozen=True)
class QueueLine:
    """A plan in the queue, why this reader may not approve it, and its rows where it may be ticked."""

    plan: Plan
    barred: str
    rows: Sequence[PlanTarget] = ()

    @property
    def headline(self) -> str:
        """The plan in one sentence."""
        return plan_words.headline(self.plan)

    @property
    def is_large(self) -> bool:
        """True when it is decided on its own page only."""
        return plan_words.is_large(self.plan)

    @property
    def may_tick(self) -> bool:
        """Only small plans that wait, and that the reader may decide."""
        return self.plan.state == Plan.State.PENDING and not self.barred and not self.is_large


def queue_lines(seen: Sight, found: Sequence[Plan]) -> list[QueueLine]:
    """The lines of a page of the queue. Two statements at most, whatever the number of plans."""
    alone = plans.decides_alone(seen.user)
    lines = [
        QueueLine(plan, plans.why_not(plan, seen.user, seen.role_in(plan.namespace), alone=alone))
        for plan in found
    ]
    ticked = [line.plan.pk for line in lines if line.may_tick]
    rows: dict[int, list[PlanTarget]] = defaultdict(list)
    if ticked:
        for target in PlanTarget.objects.filter(plan__in=ticked).order_by("plan", "node_id"):
            rows[target.plan_id].append(target)
    return [QueueLine(line.plan, line.barred, rows[line.plan.pk]) for line in lines]


@dataclass(frozen=True)
class Shown:
    """A planned row as its page shows it; `new_value` is what a merge would put in its place."""

    row: TargetNow
    new_value: str | None = None
    event: AuditEvent | None = None

    @property
    def target(self) -> PlanTarget:
        """The row as planned."""
        return self.row.target

    @property
    def url(self) -> str:
        """The row's own page."""
        return reverse(self.row.page, args=[self.target.node_id]) if self.row.page else ""

    @property
    def version_now(self) -> int | None:
        """The present version; None where the row is gone."""
        return self.row.now.version if self.row.now else None

    @property
    def moves(self) -> list[plan_words.Move]:
        """What is no longer as planned."""
        return plan_words.moves(self.row.drift or {})

    @property
    def lock(self) -> str:
        """The lock and the holds as planned, in words."""
        return plan_words.lock_said(self.target.lock)

    @cached_property
    def content(self) -> str:
        """The present value as JSON; "" where there is none."""
        return "" if self.row.content is None else pretty(self.row.content)

    @property
    def content_cut(self) -> str:
        """As much of it as a page shows."""
        return self.content[:CONTENT_CHARS]

    @property
    def content_left(self) -> int:
        """How many characters more there are."""
        return max(0, len(self.content) - CONTENT_CHARS)

    @property
    def lines(self) -> list[DiffLine]:
        """The present value against the one that would take its place."""
        if self.new_value is None or not self.content:
            return []
        if max(len(self.content), len(self.new_value)) > COMPARED_CHARS:
            return [DiffLine("…", "too large to compare here")]
        return diff(self.content, self.new_value)


@dataclass(frozen=True)
class Step:
    """One moment in a plan's life."""

    at: datetime
    what: str
    who: str = ""
    comment: str = ""
    tone: str = ""


@dataclass
class PlanView:
    """Everything on the page of a plan."""

    plan: Plan
    headline: str
    chips: list[plan_words.Chip]
    figures: Mapping[str, int]
    keeps: Sequence[str]
    is_open: bool
    is_overdue: bool
    is_large: bool
    moved: Moved | None
    barred: str
    may_decide: bool
    may_refresh: bool
    has_approved: bool
    approvals_needed: int
    standing: int
    newer: Plan | None
    steps: list[Step]
    events: list[AuditEvent]
    rows: list[Shown] = field(default_factory=list)
    following: int | None = None
    flagged: list[Shown] = field(default_factory=list)
    only: str = "all"
    new_value: str | None = None

    @property
    def counted(self) -> str:
        """How many rows it changes, with their noun."""
        return plan_words.counted(self.plan)

    @property
    def tabs(self) -> list[tuple[str, str, int]]:
        """The parts of a plan that a reader can look at alone: name, words, number of rows."""
        changed = "changed" if self.plan.state == Plan.State.APPLIED else "would change"
        words = {"changes": changed, "left": "left as they are", "flagged": "flagged", "moved": "moved"}
        found = [(name, said, self.figures[name]) for name, said in words.items()]
        parts = [part for part in found if 0 < part[2] and (part[0], part[2]) != ("changes", self.plan.rows)]
        return [("all", "all rows", self.plan.rows), *parts]

    @property
    def moves(self) -> list[tuple[str, list[plan_words.Move]]]:
        """What moved, by row (its key) and beside them (""), at most `MOVED_SHOWN`."""
        if self.moved is None:
            beside, rows = self.plan.moved, []
        else:
            beside, rows = list(self.moved.beside), list(self.moved.rows)
        lines = [("", plan_words.moves(line)) for line in beside]
        lines += [
            (str(line.get("key") or line["id"]), plan_words.moves(_without_name(line))) for line in rows
        ]
        return lines[:MOVED_SHOWN]

    @property
    def moved_count(self) -> int:
        """How much moved: rows, and what else."""
        if self.moved is not None:
            return len(self.moved)
        return self.plan.moved_rows + len(self.plan.moved)


def _without_name(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("id", "key")}


def plan_view(seen: Sight, plan: Plan, *, only: str, after: int, size: int) -> PlanView:
    """The page of a plan; a constant number of statements, and two more for every thousand rows it has."""
    role = seen.role_in(plan.namespace)
    is_overdue = plan_selectors.is_overdue(plan)
    is_open = plan.state in Plan.OPEN and not is_overdue
    moved = plan_selectors.moved_now(plan) if is_open else None
    figures = _figures(plan)
    barred = plan_selectors.why_not(seen.user, seen, plan)
    given = plan_selectors.approvals(plan)
    standing = [approval for approval in given if approval.voided_at is None]
    has_approved = any(approval.reviewer_id == seen.user.pk for approval in standing)
    may_refresh = role >= Role.WRITER and bool(plan.input) and (
        bool(moved) or is_overdue or plan.state in ("stale", "expired", "failed")
    )  # fmt: skip
    is_large = plan_words.is_large(plan)
    newer = plan.refreshed_by.order_by("-pk").first()
    view = PlanView(
        plan=plan,
        headline=plan_words.headline(plan),
        chips=plan_words.chips(plan, figures),
        figures=figures,
        keeps=plan_words.keeps(plan),
        is_open=is_open,
        is_overdue=is_overdue,
        is_large=is_large,
        moved=moved,
        barred=barred,
        may_decide=is_open and not barred,
        may_refresh=may_refresh and newer is None,
        has_approved=has_approved,
        approvals_needed=max(plan.approvals_needed, rules_of(plan.namespace_id).approvals),
        standing=len(standing),
        newer=newer,
        steps=_steps(plan, given, newer),
        events=_events(seen, plan) if role >= Role.REVIEWER else [],
        only=only,
        new_value=_new_value(plan),
    )
    found, view.following = plan_selectors.plan_targets(plan, after=after, limit=size, only=only)
    flagged: list[TargetNow] = []
    if is_large and is_open and only == "all" and figures["flagged"]:
        flagged, _ = plan_selectors.plan_targets(plan, limit=FLAGGED_SHOWN, only="flagged")
    events = _events_by_row(seen, plan, found) if role >= Role.REVIEWER else {}
    view.rows = [Shown(row, view.new_value, events.get(row.target.node_id)) for row in found]
    view.flagged = [Shown(row, view.new_value) for row in flagged]
    return view


def _figures(plan: Plan) -> dict[str, int]:
    """How many of the plan's rows change, are left, are flagged, are guarded, in one statement."""
    conditions = {
        "changes": Q(changes=True),
        "left": Q(changes=False),
        "flagged": Q(flagged=True),
        "guarded": ~Q(lock="none"),
        "moved": Q(drift__isnull=False),
    }
    # A name of its own for each: Django would take `changes` for the count where the filter means the column.
    counts = plan.targets.aggregate(
        **{f"of_{name}": Number("pk", filter=condition) for name, condition in conditions.items()}
    )
    return {name: counts[f"of_{name}"] for name in conditions}


def _new_value(plan: Plan) -> str | None:
    """What a merge stores, as JSON; None for every other plan."""
    if plan.op != "memory.consolidate" or "value" not in plan.input:
        return None
    return pretty(plan.input["value"])


_SAID = {
    "applied": ("applied it", "good"), "rejected": ("rejected it", "bad"), "withdrawn": ("took it back", ""),
    "expired": ("Its time ran out; nothing was changed.", ""),
    "stale": ("It was void: something had moved. Nothing was changed.", "warn"),
    "failed": ("It could not be applied. Nothing was changed.", "bad"),
}  # fmt: skip


def _steps(plan: Plan, given: Sequence[Any], newer: Plan | None) -> list[Step]:
    """The plan's life, the earliest first."""
    steps = [Step(plan.created_at, "asked for it", plan.requested_by, plan.reason)]
    for approval in given:
        steps.append(Step(approval.at, "approved", approval.approved_by, approval.comment, "good"))
        if approval.voided_at is not None:
            said = "This approval is void: the role was lost."
            steps.append(Step(approval.voided_at, said, approval.approved_by, "", "warn"))
    if plan.state in _SAID and plan.decided_at is not None:
        what, tone = _SAID[plan.state]
        by = plan.decided_by if plan.state in ("applied", "rejected", "withdrawn") else ""
        # The comment of an approval stands beside the approval.
        comment = plan.comment if plan.state in ("rejected", "withdrawn") else ""
        steps.append(Step(plan.decided_at, what, by, comment, tone))
    if newer is not None:
        steps.append(Step(newer.created_at, f"Plan {newer.pk} took its place, from the state then."))
    return sorted(steps, key=lambda step: step.at)


def _events(seen: Sight, plan: Plan) -> list[AuditEvent]:
    """The audit of the plan itself, the newest first."""
    rows = audit_events(seen).filter(org=plan.org_id, namespace=plan.namespace.slug, target=f"plan:{plan.pk}")
    return list(rows.order_by("-seq")[:EVENTS_SHOWN])


def _events_by_row(seen: Sight, plan: Plan, found: Sequence[TargetNow]) -> dict[int, AuditEvent]:
    """The audit row of each of these rows, of an applied plan, by id."""
    if plan.state != Plan.State.APPLIED:
        return {}
    rows = audit_events(seen).filter(
        org=plan.org_id, namespace=plan.namespace.slug,
        target__in={row.target.key for row in found}, detail__plan_id=str(plan.pk),
    )  # fmt: skip
    by_id: dict[int, AuditEvent] = {}
    by_key: dict[str, list[AuditEvent]] = defaultdict(list)
    for event in rows.order_by("seq")[: 4 * len(found)]:
        memory_id = str(event.detail.get("memory_id", ""))
        if memory_id.isdecimal():
            by_id.setdefault(int(memory_id), event)
        by_key[event.target].append(event)
    for row in found:
        same = by_key.get(row.target.key, [])
        if len(same) == 1:
            by_id.setdefault(row.target.node_id, same[0])
    return by_id
