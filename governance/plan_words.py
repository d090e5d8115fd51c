"""What a plan is called in the console: a sentence for people, what it will not do, and what to watch for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from governance.models import Plan

# A plan that changes more than this many rows is decided on its own page only, and its count is typed.
LARGE = 50


@dataclass(frozen=True)
class Words:
    """The verb of the headline ("asks to ..."), the noun of its rows, and what stays as it is."""

    verb: str
    one: str = "memory"
    many: str = "memories"
    keeps: tuple[str, ...] = ()
    # False for what nobody can bring back.
    is_undone: bool = True


_HISTORY = "Every version stays in the history; the raw archive is not touched."
_TOMBSTONE = f"A deleted memory can be restored from its page for {settings.LOOM_TOMBSTONE_DAYS} days."
_RESTORE = "Each can be restored from its page; a save does not bring it back, a reviewer does."
_GONE = (
    "It cannot be undone: the content leaves every version and every index.",
    "Hashes, the fact that it was and the audit stay; the raw archive is not touched.",
)
WORDS: Mapping[str, Words] = {
    "memory.delete": Words("delete", keeps=(_HISTORY, _TOMBSTONE)),
    "memory.consolidate": Words(
        "merge",
        keeps=(_HISTORY, "The sources are marked superseded; a save on one of them revives it."),
    ),
    "fact.retract": Words("retract", "fact", "facts", (_HISTORY, "What was believed stays answerable.")),
    "apply.few": Words("change", keeps=(_HISTORY,)),
    "apply.many": Words("change", keeps=(_HISTORY,)),
    "apply.other": Words("change", keeps=(_HISTORY,)),
    "govern.stale": Words("mark stale", keeps=(_HISTORY, "The next save on a key makes it active again.")),
    "govern.archive": Words("archive", keeps=(_HISTORY, _RESTORE)),
    "govern.delete": Words("delete", keeps=(_HISTORY, _RESTORE)),
    "govern.reject": Words("reject", keeps=(_HISTORY, _RESTORE)),
    "memory.clear": Words("clear", keeps=(_HISTORY, _RESTORE)),
    "memory.redact": Words("redact for good", keeps=_GONE, is_undone=False),
    "govern.redact": Words("redact for good", keeps=_GONE, is_undone=False),
    "govern.acknowledge-pattern": Words(
        "release from screening",
        keeps=("Status and content stay. From then on search and context.pack may serve it to agents.",),
    ),
    "memory.restore": Words("restore", keeps=("Nothing is lost: the present state stays a version.",)),
    "hold.release": Words(
        "release a hold on",
        "row",
        "rows",
        ("The value is not touched. What only the hold kept may be deleted from then on.",),
    ),
    "memory.unlock": Words(
        "loosen the lock of",
        "row",
        "rows",
        ("The value is not touched. Writers may change it from then on.",),
    ),
}
# memory.apply says in its input what it does.
_APPLIED = {
    "delete": "delete",
    "expire": "set an end to",
    "lock": "lock",
    "label": "label",
    "demote": "demote",
}


def words(plan: Plan) -> Words:
    """The words of the plan's action; the action itself where it has none of its own."""
    return WORDS.get(plan.action, Words(plan.action))


def verb(plan: Plan) -> str:
    """What the plan does, as the headline says it."""
    if plan.action.startswith("apply."):
        return _APPLIED.get(str(plan.input.get("action", "")), "change")
    return words(plan).verb


def asker(plan: Plan) -> str:
    """Who asks: the agent where one is named, else the principal."""
    return plan.agent if plan.agent not in ("", "-") else plan.requested_by


def counted(plan: Plan) -> str:
    """How many rows it changes, with their noun."""
    said = words(plan)
    return f"{plan.changes:,} {said.one if plan.changes == 1 else said.many}"


def headline(plan: Plan) -> str:
    """The plan in one sentence."""
    asks = "asks" if plan.state in Plan.OPEN else "asked"
    into = f" {plan.effect}" if plan.action == "memory.consolidate" and plan.effect else ""
    return f"{asker(plan)} {asks} to {verb(plan)} {counted(plan)}{into} in {plan.namespace}"


def keeps(plan: Plan) -> tuple[str, ...]:
    """What stays as it is, and how to undo the plan."""
    if plan.action.startswith("apply.") and plan.input.get("action") == "delete":
        return (_HISTORY, _TOMBSTONE)
    return words(plan).keeps


def lock_said(text: str) -> str:
    """A lock as plans compare it (`mode|until|holds` or "none"), in words."""
    if text == "none":
        return "not locked"
    mode, until, holds = (*text.split("|"), "", "")[:3]
    said = []
    if mode != "none":
        said.append(mode.replace("_", " ") + (f" until {until}" if until else ""))
    if holds not in ("", "0"):
        said.append("1 hold" if holds == "1" else f"{holds} holds")
    return ", ".join(said)


@dataclass(frozen=True)
class Move:
    """One thing that is no longer as planned, in words."""

    what: str
    expected: str = ""
    current: str = ""


_MOVED = {"content_sha256": "the content changed", "planned": "outcome", "changes": "change"}


def moves(drift: Mapping[str, Any]) -> list[Move]:
    """What moved at a row, or beside the rows: {what: {expected, current}} in words."""
    if isinstance(drift.get("what"), str):
        return [Move(str(drift["what"]), str(drift.get("expected", "")), str(drift.get("current", "")))]
    return list(_moves(drift))


def _moves(drift: Mapping[str, Any]) -> Iterable[Move]:
    for name, pair in drift.items():
        if not isinstance(pair, Mapping):
            continue
        expected, current = str(pair.get("expected", "")), str(pair.get("current", ""))
        if name == "lock":
            expected, current = lock_said(expected), lock_said(current)
        elif name == "content_sha256":
            # A hash tells a reader nothing; the content is beside it.
            expected = current = ""
        yield Move(_MOVED.get(name, name), expected, current)


def is_large(plan: Plan) -> bool:
    """Whether it is too large to be read row by row at one sight."""
    return plan.rows > LARGE


@dataclass(frozen=True)
class Chip:
    """A reason for care, as a small label."""

    text: str
    tone: str


def chips(plan: Plan, figures: Mapping[str, int]) -> list[Chip]:
    """What to watch for. `figures` counts the plan's rows: flagged, guarded, left, cited."""
    found = []
    if not words(plan).is_undone:
        found.append(Chip("cannot be undone", "bad"))
    if is_large(plan):
        found.append(Chip(f"large: {plan.rows:,} rows", "warn"))
    for name, one, many, tone in (
        ("flagged", "flagged text", "flagged texts", "warn"),
        ("guarded", "locked or held row", "locked or held rows", "lock"),
        ("left", "row left as it is", "rows left as they are", "quiet"),
    ):
        count = figures.get(name, 0)
        if count:
            found.append(Chip(f"{count:,} {one if count == 1 else many}", tone))
    if plan.self_approved:
        found.append(Chip("self-approved", "warn"))
    return found
