"""What a caller may do at once and what waits for a person: the policy's table, and how an op asks it.

An op that the table names calls `consider` once it has done its work, with the rows as they stood before.
Where the namespace's policy wants a person, the pipeline takes that work back and stores a plan instead.
While a plan is applied the same call checks that exactly the planned rows were touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from governance.clock import iso
from governance.locks import LockState
from loomsite.ops import Context, Door, OpError, Role

# From the loosest to the strictest. `review`: a person of the row's role decides at once in the console, for
# everybody else it makes a plan. `review_always`: it makes a plan of everybody's call.
LEVELS = ("direct", "review", "review_always")


@dataclass(frozen=True)
class PolicyRow:
    """A row of the table: who acts at once in the console, and who approves a plan."""

    action: str
    title: str
    level: str
    at_once: Role = Role.ADMIN
    approves: Role = Role.REVIEWER
    # No namespace may set it looser than the default.
    starred: bool = False


TABLE: dict[str, PolicyRow] = {
    row.action: row
    for row in (
        PolicyRow("memory.delete", "Delete one memory", "direct", Role.REVIEWER),
        PolicyRow("memory.consolidate", "Put one memory in the place of several", "direct", Role.REVIEWER),
        PolicyRow("fact.retract", "Retract a fact", "direct", Role.REVIEWER),
        PolicyRow("apply.few", "Delete or expire a few memories at once", "direct", Role.REVIEWER),
        PolicyRow("apply.many", "Delete or expire more than that at once", "review"),
        PolicyRow("apply.other", "Lock, label or demote many memories", "direct", Role.REVIEWER),
        PolicyRow("govern.stale", "Mark memories stale", "direct", Role.REVIEWER),
        PolicyRow("govern.archive", "Archive memories", "direct", Role.REVIEWER),
        PolicyRow("govern.delete", "Delete memories under governance", "review"),
        PolicyRow("govern.reject", "Reject memories", "review"),
        PolicyRow("memory.clear", "Clear what matches a filter", "review"),
        PolicyRow("memory.redact", "Redact one memory for good", "review"),
        PolicyRow("govern.redact", "Redact memories for good", "review"),
        PolicyRow(
            "govern.acknowledge-pattern", "Acknowledge a flagged text", "review", Role.REVIEWER, starred=True
        ),
        PolicyRow("memory.restore", "Restore a governed memory", "review", Role.REVIEWER, starred=True),
        PolicyRow("hold.release", "Release a legal hold", "review", approves=Role.ADMIN, starred=True),
        PolicyRow("memory.unlock", "Loosen a lock", "review", approves=Role.ADMIN, starred=True),
    )
}


@dataclass(frozen=True)
class Rules:
    """The policy in force in a namespace. `version` is 0 while the defaults stand."""

    version: int = 0
    levels: Mapping[str, str] = field(default_factory=dict)
    approvals: int = 1
    plan_hours: int = 72
    apply_at_once: int = 25

    def level(self, action: str) -> str:
        """`direct`, `review` or `review_always`; never looser than a starred row's default."""
        row = TABLE[action]
        level = self.levels.get(action, row.level)
        if row.starred and LEVELS.index(level) < LEVELS.index(row.level):
            return row.level
        return level


def rules_of(namespace_id: int | None) -> Rules:
    """The namespace's policy, the defaults where it has none. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT version, rows, approvals, plan_hours, apply_at_once FROM governance_policy "
            "WHERE namespace_id = %s",
            [namespace_id],
        )
        row = cursor.fetchone()
    if row is None:
        return Rules()
    levels = json.loads(row[1]) if isinstance(row[1], str) else row[1]
    return Rules(row[0], levels, row[2], row[3], row[4])


@dataclass(frozen=True)
class Target:
    """A row as it stood before the call, and what the call makes of it."""

    kind: str
    id: int
    key: str
    title: str
    version: int
    content_sha256: str
    lock: LockState
    status: str
    planned: str
    changes: bool = True
    why: str = ""
    flagged: bool = False


def lock_text(lock: LockState) -> str:
    """A lock as plans compare it: "none", or `mode|until|holds`."""
    if not lock.in_force:
        return "none"
    return f"{lock.mode}|{iso(lock.until) or ''}|{lock.holds}"


@dataclass(frozen=True)
class Review:
    """A call that waits for a person: the policy's row, and the rows that it would touch."""

    action: str
    level: str
    rules: Rules
    targets: list[Target]
    effect: str = ""


@dataclass
class Frozen:
    """The list that an approved plan executes: id -> (version, content hash, lock, planned, changes)."""

    plan_id: int
    rows: Mapping[int, tuple[int, str, str, str, bool]]
    # What the audit says besides of every row that the plan changes.
    note: Mapping[str, Any]
    # True once the op has shown which rows it touched.
    checked: bool = False


class Drifted(Exception):
    """The rows that a plan's op touched are not those that were shown. `moved` says which and how."""

    def __init__(self, moved: list[dict[str, Any]]) -> None:
        super().__init__(f"{len(moved)} rows moved")
        self.moved = moved


def frozen_ids(ctx: Context) -> list[int] | None:
    """The ids that the call is about, in ascending order, while it applies a plan; else None."""
    return None if ctx.plan is None else sorted(ctx.plan.rows)


def consider(
    ctx: Context,
    action: str,
    targets: Callable[[], Iterable[Target]],
    *,
    effect: str = "",
) -> bool:
    """Judge the call by the policy; True when it waits for a person and what it did will be taken back.

    `targets` gives every row of the call as it stood. A dry run is told that the real one would wait. Where
    nothing would change there is nothing to decide. Raises Drifted while a plan is applied to other rows
    than it names.
    """
    if ctx.plan is not None:
        _check(ctx.plan, targets())
        return False
    level, rules = _level(ctx, action)
    if level == "direct":
        return False
    rows = list(targets())
    if not any(row.changes for row in rows):
        return False
    if ctx.is_dry_run:
        ctx.needs_review = True
        return False
    ctx.review = Review(action, level, rules, rows, effect[:256])
    return True


def _level(ctx: Context, action: str) -> tuple[str, Rules]:
    """The level for this caller: a person of the row's role, in the console, decides by acting."""
    rules = rules_of(ctx.namespace_id)
    level = rules.level(action)
    if ctx.caller.door == Door.SYSTEM:
        return "direct", rules
    if level == "review" and ctx.caller.door == Door.CONSOLE and ctx.role >= TABLE[action].at_once:
        return "direct", rules
    return level, rules


def apply_action(ctx: Context, action: str, rows: int) -> str:
    """The table's row for a memory.apply of so many memories."""
    if action not in ("delete", "expire"):
        return "apply.other"
    return "apply.many" if rows > rules_of(ctx.namespace_id).apply_at_once else "apply.few"


def state(ctx: Context) -> str:
    """What an answer says of the call: previewed, pending_review or applied."""
    if ctx.is_dry_run:
        return "previewed"
    return "applied" if ctx.review is None else "pending_review"


def _check(plan: Frozen, rows: Iterable[Target]) -> None:
    plan.checked = True
    moved: list[dict[str, Any]] = []
    left = dict(plan.rows)
    for row in rows:
        planned = left.pop(row.id, None)
        if planned is None:
            moved.append({"id": str(row.id), "key": row.key, "what": "it is not in the plan"})
            continue
        found = (row.version, row.content_sha256, lock_text(row.lock), row.planned[:64], row.changes)
        if found != planned:
            moved.append({"id": str(row.id), "key": row.key, **differences(planned, found)})
    moved.extend({"id": str(id_), "what": "the op no longer reaches it"} for id_ in left)
    if moved:
        raise Drifted(moved)


def differences(planned: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
    """{what: {expected, current}} of version, content hash, lock (and what is planned), where they differ."""
    names = ("version", "content_sha256", "lock", "planned", "changes")
    return {
        name: {"expected": was, "current": now}
        for name, was, now in zip(names, planned, found, strict=False)
        if was != now
    }


def refuse_loosening(action: str) -> OpError:
    """The 403 for a starred row that somebody wants looser."""
    return OpError("FORBIDDEN", f"{action} always needs a person: no policy makes it direct.", action=action)
