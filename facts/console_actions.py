"""What a person can do on a fact's page beside correcting it: each action is a form that calls an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django import forms
from django.http import HttpRequest

from facts import console_selectors
from facts.models import SHARED, Lineage
from governance.models import User
from governance.pipeline import Answer
from loomsite.ops import Role
from memories.console_actions import run
from memories.console_forms import AcknowledgeForm, ConfirmedForm, HoldForm, LockForm, ReleaseForm

MakeForm = Callable[[HttpRequest, User, Lineage], forms.Form]
Given = Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """A form on a fact's page that calls an op; `is_listed` is false for what is offered elsewhere on it."""

    op: str
    title: str
    button: str
    role: Role
    form: MakeForm
    lines: tuple[str, ...]
    is_offered: Callable[[Lineage], bool]
    done: str
    is_danger: bool = False
    is_listed: bool = True


def perform(action: Action, user: User, line: Lineage, given: Given) -> Answer:
    """The action on this fact. A private fact is acted on in its owner's name; the audit has the reader's."""
    payload = _acknowledged(line, given) if action.op == "memory.govern" else _by_key(line, given)
    if line.owner != SHARED:
        payload["user_id"] = line.owner
    return run(user, line.namespace, action.op, payload)


def _by_key(line: Lineage, given: Given) -> dict[str, Any]:
    payload = {
        "memory_key": f"fact:{console_selectors.key_version(line)}",
        "reason": given["reason"],
        **{name: given[name] for name in ("mode", "matter", "locked_at") if given.get(name)},
    }
    if given.get("until"):
        payload["until"] = given["until"].astimezone(UTC).isoformat()
    return payload


def _acknowledged(line: Lineage, given: Given) -> dict[str, Any]:
    return {
        "ids": [given["fact"]],
        "action": "acknowledge-pattern",
        "acknowledge_pattern": given["pattern"],
        "reason": given["reason"],
        "expected_versions": {str(given["fact"]): line.version},
        "confirm_destructive": True,
    }


class AcknowledgeFactForm(AcknowledgeForm):
    """Which pattern of which version was read, and what the reader makes of it."""

    fact = forms.IntegerField(widget=forms.HiddenInput, min_value=1, max_value=2**63 - 1)


def asked_version(request: HttpRequest) -> int:
    """The version that the acknowledgement is about; 0 where none is named."""
    text = request.POST.get("fact") or request.GET.get("fact", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _acknowledge(request: HttpRequest, user: User, line: Lineage) -> forms.Form:
    version = asked_version(request)
    return AcknowledgeFactForm(
        request.POST or None,
        patterns=console_selectors.open_patterns(line, version),
        initial={"pattern": request.GET.get("pattern", ""), "fact": version},
    )


def _release(request: HttpRequest, user: User, line: Lineage) -> forms.Form:
    return ReleaseForm(
        request.POST or None,
        user=user,
        matters=[hold.matter for hold in console_selectors.holds_of(line) if hold.released_at is None],
        initial={"matter": request.GET.get("matter", "")},
    )


def _is_locked(line: Lineage) -> bool:
    return str(getattr(line, "lock_now", "none")) != "none"


ACTIONS: dict[str, Action] = {
    "lock": Action(
        op="memory.lock",
        title="Lock",
        button="Lock it",
        role=Role.WRITER,
        form=lambda request, user, line: LockForm(request.POST or None),
        lines=(
            "A lock may only become firmer or longer. Loosening it takes an admin, a reason and a password.",
            "It guards the whole fact: read only refuses every new version, no delete refuses that it is "
            "ended without a successor. Reads are not touched.",
        ),
        is_offered=lambda line: True,
        done="Locked.",
    ),
    "loosen": Action(
        op="memory.unlock",
        title="Loosen the lock",
        button="Loosen it",
        role=Role.ADMIN,
        form=lambda request, user, line: ConfirmedForm(request.POST or None, user=user),
        lines=(
            "Agents with the role writer can correct and end this fact again at once.",
            "What it says stays as it is. The lock, its reason and yours stay in the audit.",
        ),
        is_offered=_is_locked,
        done="Loosened. It can be corrected and ended again.",
        is_danger=True,
    ),
    "hold": Action(
        op="hold.add",
        title="Hold",
        button="Place the hold",
        role=Role.WRITER,
        form=lambda request, user, line: HoldForm(request.POST or None),
        lines=(
            "A legal hold keeps it from being ended or erased; it may still be corrected.",
            "A hold has no end. An admin releases it, with a reason and a password.",
        ),
        is_offered=lambda line: True,
        done="Held.",
    ),
    "release": Action(
        op="hold.release",
        title="Release a hold",
        button="Release it",
        role=Role.ADMIN,
        form=_release,
        lines=(
            "With its last hold gone, and without a lock, it can be ended and erased.",
            "The hold, its reason and yours stay in the history and in the audit.",
        ),
        is_offered=lambda line: line.holds > 0,
        done="Released.",
        is_danger=True,
        is_listed=False,
    ),
    "acknowledge": Action(
        op="memory.govern",
        title="Acknowledge a pattern",
        button="I have read it",
        role=Role.REVIEWER,
        form=_acknowledge,
        lines=(
            "You say that you have read what was found, and that it may be served to agents.",
            "It counts for every version of this fact with the same value, and for no other.",
            "With the last pattern acknowledged, it is found by a query and packed again. A newer catalogue "
            "of patterns voids it.",
        ),
        is_offered=lambda line: True,
        done="Acknowledged.",
        is_listed=False,
    ),
}
