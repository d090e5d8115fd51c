"""What a person can do on a memory's page: each action is a form that calls an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest

from governance import pipeline
from governance.console_forms import ReasonForm
from governance.models import Namespace, User
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from memories import console_selectors
from memories.console_forms import AcknowledgeForm, ConfirmedForm, HoldForm, LockForm, LoosenForm, ReleaseForm
from memories.models import Memory, Status

MakeForm = Callable[[HttpRequest, User, Memory], forms.Form]
Given = Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """A form on a memory's page that calls an op; `governs` names the action of memory.govern.

    `role` is the one from which it is offered: what the policy sends to review becomes a plan of whoever may
    not decide it himself.

    `is_listed` is false for what is offered beside what it is about, and not among the buttons on top.
    """

    op: str
    title: str
    button: str
    role: Role
    form: MakeForm
    lines: tuple[str, ...]
    is_offered: Callable[[Memory, Role], bool]
    done: str
    is_danger: bool = False
    governs: str | None = None
    is_listed: bool = True


def run(user: User, namespace: Namespace, op: str, payload: dict[str, Any]) -> Answer:
    """An op as this person, at the console's door."""
    credentials = Credentials(door=Door.CONSOLE, user_id=user.pk, org=namespace.org.slug)
    return pipeline.run(op, {"namespace": namespace.slug, **payload}, credentials)


def govern_preview(user: User, namespace: Namespace, ids: Sequence[int], action: str) -> Answer:
    """What a governed action would do to these memories; nothing is changed."""
    return run(user, namespace, "memory.govern", {"ids": list(ids), "action": action, "dry_run": True})


def perform(action: Action, user: User, memory: Memory, given: Given) -> Answer:
    """The action on exactly this lineage in exactly the version that the page showed."""
    payload = _governed(action, memory, given) if action.governs else _by_key(memory, given)
    return run(user, memory.namespace, action.op, payload)


def _by_key(memory: Memory, given: Given) -> dict[str, Any]:
    """The op's input: exactly this lineage, and what the form holds. The password stays here."""
    payload = {
        "agent": memory.agent,
        "user_id": memory.user_id,
        "session_id": memory.session_id,
        "memory_key": memory.memory_key,
        "reason": given["reason"],
    }
    for name in ("mode", "matter", "relock_seconds"):
        if given.get(name):
            payload[name] = given[name]
    if given.get("locked_at"):
        payload["locked_at"] = given["locked_at"]
    if given.get("until"):
        payload["until"] = given["until"].astimezone(UTC).isoformat()
    return payload


def _governed(action: Action, memory: Memory, given: Given) -> dict[str, Any]:
    payload = {
        "ids": [memory.pk],
        "action": action.governs,
        "reason": given["reason"],
        "expected_versions": {str(memory.pk): memory.version},
        "confirm_destructive": True,
    }
    if given.get("pattern"):
        payload["acknowledge_pattern"] = given["pattern"]
    return payload


def told(done: str, answer: Answer) -> str:
    """What a person reads after an action: `done` when it did something at once."""
    if answer.status == 202:
        return "It goes to review: a reviewer decides. Nothing has changed yet."
    if answer.body.get("changed") is False:
        return "Nothing changed: that was its state already."
    return done


def _reason(request: HttpRequest, user: User, memory: Memory) -> forms.Form:
    return ReasonForm(request.POST or None)


def _confirmed(request: HttpRequest, user: User, memory: Memory) -> forms.Form:
    return ConfirmedForm(request.POST or None, user=user)


def _release(request: HttpRequest, user: User, memory: Memory) -> forms.Form:
    return ReleaseForm(
        request.POST or None,
        user=user,
        matters=[hold.matter for hold in console_selectors.holds_of(memory) if hold.released_at is None],
        initial={"matter": request.GET.get("matter", "")},
    )


def _acknowledge(request: HttpRequest, user: User, memory: Memory) -> forms.Form:
    return AcknowledgeForm(
        request.POST or None,
        patterns=[flag.pattern for flag in console_selectors.flags_of(memory) if not flag.acknowledged_at],
        initial={"pattern": request.GET.get("pattern", "")},
    )


def _is_locked(memory: Memory) -> bool:
    return str(getattr(memory, "lock_now", "none")) != "none"


def _is_guarded(memory: Memory) -> bool:
    return _is_locked(memory) or memory.holds > 0


def _lives(memory: Memory) -> bool:
    return memory.status not in (Status.DELETED, Status.REDACTED)


RETIRED = "A save does not bring it back: a reviewer restores it here."
ACTIONS: dict[str, Action] = {
    "lock": Action(
        op="memory.lock",
        title="Lock",
        button="Lock it",
        role=Role.WRITER,
        form=lambda request, user, memory: LockForm(request.POST or None),
        lines=(
            "A lock may only become firmer or longer. Loosening it takes an admin, a reason and a password.",
            "The value, its history and reads are not touched.",
        ),
        is_offered=lambda memory, role: _lives(memory),
        done="Locked.",
    ),
    "loosen": Action(
        op="memory.unlock",
        title="Loosen the lock",
        button="Loosen it",
        role=Role.WRITER,
        form=lambda request, user, memory: LoosenForm(request.POST or None, user=user),
        lines=(
            "Agents with the role writer can change and delete this memory again at once.",
            "The value stays as it is. The lock, its reason and yours stay in the audit.",
        ),
        is_offered=lambda memory, role: _is_locked(memory),
        done="Loosened. It can be changed and deleted again.",
        is_danger=True,
    ),
    "pin": Action(
        op="memory.pin",
        title="Pin",
        button="Pin it",
        role=Role.WRITER,
        form=_reason,
        lines=(
            "A write of another value by anybody else is then refused and stores nothing.",
            "You may still change it. It is no lock: it can be deleted.",
        ),
        is_offered=lambda memory, role: memory.status == Status.ACTIVE and not memory.pinned,
        done="Pinned.",
    ),
    "unpin": Action(
        op="memory.unpin",
        title="Unpin",
        button="Unpin it",
        role=Role.WRITER,
        form=_reason,
        lines=("Every writer may change the value again. Whoever pinned it unpins it, or an admin.",),
        is_offered=lambda memory, role: memory.status == Status.ACTIVE and memory.pinned,
        done="Unpinned.",
    ),
    "hold": Action(
        op="hold.add",
        title="Hold",
        button="Place the hold",
        role=Role.WRITER,
        form=lambda request, user, memory: HoldForm(request.POST or None),
        lines=(
            "A legal hold keeps it from being deleted, retired or expired; its value may still change.",
            "A hold has no end. An admin releases it, with a reason and a password.",
        ),
        is_offered=lambda memory, role: _lives(memory),
        done="Held.",
    ),
    "release": Action(
        op="hold.release",
        title="Release a hold",
        button="Release it",
        role=Role.WRITER,
        form=_release,
        lines=(
            "With its last hold gone, and without a lock, it can be deleted and expires again.",
            "The hold, its reason and yours stay in the history and in the audit.",
        ),
        is_offered=lambda memory, role: memory.holds > 0,
        done="Released.",
        is_danger=True,
        is_listed=False,
    ),
    "acknowledge": Action(
        op="memory.govern",
        title="Acknowledge a pattern",
        button="I have read it",
        role=Role.WRITER,
        form=_acknowledge,
        lines=(
            "You say that you have read what was found, and that it may be served to agents.",
            "With the last pattern acknowledged, the memory is found by search and packed again.",
            "Any edit of the text, and a newer catalogue of patterns, void it.",
        ),
        is_offered=lambda memory, role: memory.held and memory.status != Status.REDACTED,
        done="Acknowledged.",
        governs="acknowledge-pattern",
        is_listed=False,
    ),
    "stale": Action(
        op="memory.govern",
        title="Mark stale",
        button="Mark it stale",
        role=Role.WRITER,
        form=_reason,
        lines=(
            "It is no longer served by default. The next save on its key makes it active again.",
            "Nothing is erased: every version stays.",
        ),
        is_offered=lambda memory, role: memory.status == Status.ACTIVE,
        done="Marked stale.",
        governs="stale",
    ),
    "archive": Action(
        op="memory.govern",
        title="Archive",
        button="Archive it",
        role=Role.WRITER,
        form=_reason,
        lines=("It is no longer served by default. Nothing is erased: every version stays.", RETIRED),
        is_offered=lambda memory, role: memory.status in (Status.ACTIVE, Status.STALE),
        done="Archived.",
        governs="archive",
    ),
    "reject": Action(
        op="memory.govern",
        title="Reject",
        button="Reject it",
        role=Role.WRITER,
        form=_reason,
        lines=(
            "It counts as wrong and is no longer served. Nothing is erased: every version stays.",
            RETIRED,
        ),
        is_offered=lambda memory, role: memory.status in (Status.ACTIVE, Status.STALE),
        done="Rejected.",
        is_danger=True,
        governs="reject",
    ),
    "delete": Action(
        op="memory.delete",
        title="Delete",
        button="Delete it",
        role=Role.WRITER,
        form=_reason,
        lines=(
            "It is no longer served by get, list or search.",
            f"It is not erased: it can be restored here for {settings.LOOM_TOMBSTONE_DAYS} days, "
            "and every version stays.",
        ),
        is_offered=lambda memory, role: (
            memory.status in (Status.ACTIVE, Status.STALE, Status.SUPERSEDED) and not _is_guarded(memory)
        ),
        done="Deleted. It can be restored here.",
        is_danger=True,
    ),
    "restore": Action(
        op="memory.restore",
        title="Restore",
        button="Restore it",
        role=Role.WRITER,
        form=_reason,
        lines=(
            "It goes one step back, to what it was before it ended, as a new version: what was deleted while "
            "stale is stale again. Its value is the one that it had.",
        ),
        is_offered=lambda memory, role: (
            memory.status in (Status.DELETED, Status.REJECTED, Status.ARCHIVED, Status.STALE)
        ),
        done="Restored.",
    ),
    "redact": Action(
        op="memory.govern",
        title="Redact",
        button="Redact it for good",
        role=Role.WRITER,
        form=_confirmed,
        lines=(
            "Its content goes for good: the value, tags and metadata of every version, its vector, its "
            "index, and stored answers about it.",
            "Hashes and the history of who and when stay. Nobody can undo it.",
        ),
        is_offered=lambda memory, role: memory.status != Status.REDACTED,
        done="Redacted. Its content is gone for good.",
        is_danger=True,
        governs="redact",
    ),
}
