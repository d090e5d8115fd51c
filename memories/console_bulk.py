"""One action on the memories that a person ticked in a list: shown first row by row, then done through ops.

Nothing is done that was not shown: the form carries a digest of what the dry run said of each row, and what
has moved meanwhile is shown again.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django import forms
from django.db import transaction

from governance.console import Sight
from governance.pipeline import Answer
from governance.review import rules_of
from loomsite.ops import Role
from memories import console_selectors
from memories.console_actions import run
from memories.console_forms import LabelFields, LockFields
from memories.models import Memory, Status

Fields = Callable[[Mapping[str, Any] | None], forms.Form]


@dataclass(frozen=True)
class BulkAction:
    """What can be done to ticked rows: `does` is the verb on the button, `governs` a governed action."""

    title: str
    does: str
    did: str
    lines: tuple[str, ...]
    fields: Fields | None = None
    governs: str | None = None
    is_danger: bool = False


BULK: dict[str, BulkAction] = {
    "lock": BulkAction(
        "Lock memories",
        "Lock",
        "locked",
        ("A lock may only become firmer or longer. Loosening it takes an admin, one by one.",),
        LockFields,
    ),
    "label": BulkAction(
        "Label memories",
        "Label",
        "labelled",
        ("Tags are part of what a memory is found by: each gets a new version.",),
        LabelFields,
    ),
    "stale": BulkAction(
        "Mark memories stale",
        "Mark stale:",
        "marked stale",
        ("They are no longer served by default. The next save on its key makes each active again.",),
        governs="stale",
    ),
    "archive": BulkAction(
        "Archive memories",
        "Archive",
        "archived",
        (
            "They are no longer served by default, and a save does not bring them back: a reviewer does, one "
            "by one.",
        ),
        governs="archive",
    ),
    "delete": BulkAction(
        "Delete memories",
        "Delete",
        "deleted",
        ("They are no longer served. Each can be restored from its page; every version stays.",),
        is_danger=True,
    ),
}


@dataclass(frozen=True)
class Verdict:
    """What would become of one ticked row."""

    memory: Memory
    applies: bool
    why: str


@dataclass(frozen=True)
class Outcome:
    """What a bulk action did."""

    applied: int
    skipped: list[str]
    # Rows that the policy sent to review instead: nothing has changed of them yet.
    waiting: int = 0


def ticked(sight: Sight, ids: Sequence[str], most: int) -> list[Memory]:
    """The rows of these ids that the user sees, by id; at most `most` of them."""
    wanted = {int(text) for text in ids[:most] if text.isascii() and text.isdigit() and len(text) < 19}
    return list(console_selectors.memory_rows(sight).filter(pk__in=wanted).order_by("pk"))


def verdicts(sight: Sight, rows: Sequence[Memory], action: str, given: Mapping[str, Any]) -> list[Verdict]:
    """What the action would do to each row, by a dry run of the ops."""
    found: dict[int, Verdict] = {}
    for group in _groups(rows, BULK[action]):
        refusal = _refusal(sight, group, action)
        if refusal:
            found |= {memory.pk: Verdict(memory, False, refusal) for memory in group}
            continue
        answer = _call(sight, group, action, given, "dry run", dry_run=True)
        found |= _judged(group, answer)
    return [found[memory.pk] for memory in rows]


def digest(judged: Sequence[Verdict]) -> str:
    """What was shown, in a few characters."""
    lines = [[v.memory.pk, v.memory.version, v.applies] for v in judged]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def apply(
    sight: Sight, shown: Sequence[Verdict], action: str, given: Mapping[str, Any], reason: str
) -> Outcome:
    """Do it to the rows that were shown as changing; what has moved since is skipped and named."""
    chosen = [verdict.memory for verdict in shown if verdict.applies]
    skipped: list[str] = []
    applied = waiting = 0
    with transaction.atomic():
        # Locked in id order before any op does: no version moves between the look and the op.
        now = dict(
            Memory.objects.select_for_update()
            .filter(pk__in=[memory.pk for memory in chosen])
            .order_by("pk")
            .values_list("pk", "version")
        )
        still = [memory for memory in chosen if now.get(memory.pk) == memory.version]
        skipped += [
            f"{memory.memory_key}: it changed while you read"
            for memory in chosen
            if now.get(memory.pk) != memory.version
        ]
        for group in _groups(still, BULK[action]):
            answer = _call(sight, group, action, given, reason, dry_run=False)
            judged = _judged(group, answer).values()
            does = sum(verdict.applies for verdict in judged)
            applied, waiting = (
                (applied, waiting + does) if answer.status == 202 else (applied + does, waiting)
            )
            skipped += [f"{v.memory.memory_key}: {v.why}" for v in judged if not v.applies]
    return Outcome(applied, skipped, waiting)


def _groups(rows: Sequence[Memory], action: BulkAction) -> list[list[Memory]]:
    """The rows that one call can name: governed ones by namespace, others by their exact identity too.

    A key alone may name several lineages, and only the ticked one is meant.
    """
    groups: dict[tuple[Any, ...], list[Memory]] = defaultdict(list)
    for memory in rows:
        place: tuple[Any, ...] = (memory.namespace.org_id, memory.namespace_id)
        if action.governs is None:
            place += (memory.agent, memory.user_id, memory.session_id)
        groups[place].append(memory)
    return [groups[place] for place in sorted(groups)]


def _refusal(sight: Sight, group: Sequence[Memory], action: str) -> str:
    """Why none of these may be asked for at all; "" when they may."""
    role = sight.role_in(group[0].namespace)
    if role < Role.WRITER:
        return f"It takes the role writer there; you hold {role.label}."
    return ""


def too_many(sight: Sight, judged: Sequence[Verdict], action: str) -> str:
    """Why so many at once need an admin, though each op alone would not; "" when they do not."""
    if action != "delete":
        return ""
    counts: dict[int, int] = defaultdict(int)
    for verdict in judged:
        if verdict.applies and sight.role_in(verdict.memory.namespace) < Role.ADMIN:
            counts[verdict.memory.namespace_id] += 1
    for namespace_id, count in counts.items():
        most = rules_of(namespace_id).apply_at_once
        if count > most:
            return f"More than {most} deletes at once in a namespace take its admin. Tick fewer, or ask one."
    return ""


def _call(
    sight: Sight, group: Sequence[Memory], action: str, given: Mapping[str, Any], reason: str, dry_run: bool
) -> Answer:
    first = group[0]
    governs = BULK[action].governs
    payload: dict[str, Any] = {"reason": reason, "dry_run": dry_run}
    if governs is not None:
        payload |= {"ids": [memory.pk for memory in group], "action": governs}
        if not dry_run:
            payload["expected_versions"] = {str(memory.pk): memory.version for memory in group}
            payload["confirm_destructive"] = True
        return run(sight.user, first.namespace, "memory.govern", payload)
    payload |= {
        "agent": first.agent,
        "user_id": first.user_id,
        "session_id": first.session_id,
        "keys": [memory.memory_key for memory in group],
        "action": action,
    }
    if action == "lock":
        block = {"mode": given["mode"]}
        if given.get("until"):
            block["until"] = given["until"].astimezone(UTC).isoformat()
        payload["lock"] = block
    elif action == "label":
        payload["label"] = {"tags": given["tags"], "mode": given["how"]}
    return run(sight.user, first.namespace, "memory.apply", payload)


def _judged(group: Sequence[Memory], answer: Answer) -> dict[int, Verdict]:
    if not answer.ok:
        why = answer.body["detail"]["message"]
        return {memory.pk: Verdict(memory, False, why) for memory in group}
    lines: dict[str, tuple[bool, str]] = {}
    for row in answer.body.get("rows", []):
        lines[row["memory_id"]] = (row["outcome"] != "refused", row["why"] or "")
    for row in answer.body.get("affected", []):
        same = row["new_status"] == row["previous_status"]
        why = row["why"] or (f"it is {row['previous_status']} already" if same else "")
        lines[row["id"]] = (not row["refused"] and not same, why)
    return {memory.pk: Verdict(memory, *lines.get(str(memory.pk), _not_met(memory))) for memory in group}


def _not_met(memory: Memory) -> tuple[bool, str]:
    is_active = memory.status == Status.ACTIVE
    return False, "its time is up" if is_active else f"only an active memory: this one is {memory.status}"
