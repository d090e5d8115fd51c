"""Console pages about memories: list, page, versions, locks, and the forms that call ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from governance import pipeline
from governance.console import Card, attention_cards, bounded_count, keyset, namespace_count, sight
from governance.console_forms import ReasonForm
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.console_selectors import audit_events
from governance.models import User
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from memories import console_selectors
from memories.console_forms import LockForm, LoosenForm
from memories.models import Memory, Status

LOCK_FILTERS = {
    "locked": console_selectors.IN_FORCE,
    "unlocked": ~console_selectors.IN_FORCE,
    "read_only": console_selectors.IN_FORCE & Q(lock_mode="read_only"),
    "no_delete": console_selectors.IN_FORCE & Q(lock_mode="no_delete"),
}


@dataclass(frozen=True)
class Action:
    """A form on a memory's page that calls an op."""

    op: str
    title: str
    button: str
    role: Role
    form: Callable[[HttpRequest, User], forms.Form]
    lines: tuple[str, ...]
    is_offered: Callable[[Memory], bool]
    done: str
    is_danger: bool = False


def _reason_form(request: HttpRequest, user: User) -> forms.Form:
    return ReasonForm(request.POST or None)


def _is_locked(memory: Memory) -> bool:
    return str(getattr(memory, "lock_now", "none")) != "none"


ACTIONS: dict[str, Action] = {
    "lock": Action(
        op="memory.lock",
        title="Lock",
        button="Lock it",
        role=Role.WRITER,
        form=lambda request, user: LockForm(request.POST or None),
        lines=(
            "A lock may only become firmer or longer. Loosening it takes an admin, a reason and a password.",
            "The value, its history and reads are not touched.",
        ),
        is_offered=lambda memory: memory.status not in (Status.DELETED, Status.REDACTED),
        done="Locked.",
    ),
    "loosen": Action(
        op="memory.unlock",
        title="Loosen the lock",
        button="Loosen it",
        role=Role.ADMIN,
        form=lambda request, user: LoosenForm(request.POST or None, user=user),
        lines=(
            "Agents with the role writer can change and delete this memory again at once.",
            "The value stays as it is. The lock, its reason and yours stay in the audit.",
        ),
        is_offered=_is_locked,
        done="Loosened. It can be changed and deleted again.",
        is_danger=True,
    ),
    "delete": Action(
        op="memory.delete",
        title="Delete",
        button="Delete it",
        role=Role.WRITER,
        form=_reason_form,
        lines=(
            "It is no longer served by get, list or search.",
            f"It is not erased: it can be restored here for {settings.LOOM_TOMBSTONE_DAYS} days, "
            "and every version stays.",
        ),
        is_offered=lambda memory: (
            memory.status not in (Status.DELETED, Status.REDACTED) and not _is_locked(memory)
        ),
        done="Deleted. It can be restored here.",
        is_danger=True,
    ),
    "restore": Action(
        op="memory.restore",
        title="Restore",
        button="Restore it",
        role=Role.WRITER,
        form=_reason_form,
        lines=("It is served again, with the value that it had, as a new version.",),
        is_offered=lambda memory: memory.status == Status.DELETED,
        done="Restored.",
    ),
}


@admin.register(Memory)
class MemoryAdmin(PageAdmin):
    """Memories and their locks."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the locks, the page, its versions and its forms."""
        return [
            self.route("locks/", self.lock_page, "locks"),
            self.route("<int:pk>/versions/<int:version>/", self.version_page, "version"),
            self.route("<int:pk>/<slug:action>/", self.act, "act"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Memories, newest change first."""
        seen = sight(request)
        asked = {
            name: request.GET.get(name, "").strip() for name in ("q", "namespace", "status", "type", "lock")
        }
        rows = console_selectors.matching(console_selectors.memory_rows(seen), asked["q"])
        if asked["namespace"]:
            # A namespace's name may hold a slash, an organisation's does not.
            place = asked["namespace"].replace("\x00", "")
            org, _, slug = place.partition("/")
            whole = Q(namespace__slug=place)
            rows = rows.filter(whole | Q(namespace__org__slug=org, namespace__slug=slug))
        if asked["status"] in Status.values:
            rows = rows.filter(status=asked["status"])
        if asked["type"]:
            rows = rows.filter(memory_type=asked["type"].replace("\x00", ""))
        if asked["lock"] in LOCK_FILTERS:
            rows = rows.filter(LOCK_FILTERS[asked["lock"]])
        return self.show(
            request,
            "memory_list.html",
            "Memories",
            asked=asked,
            filtered=any(asked.values()),
            statuses=Status.values,
            locks=[("locked", "locked"), ("read_only", "read only"), ("no_delete", "no delete"),
                   ("unlocked", "not locked")],
            namespaces=seen.namespaces()[:SUGGESTIONS],
            page=keyset(rows, cursor_of(request), "-updated_at", "-pk"),
            count=bounded_count(rows),
        )  # fmt: skip

    def lock_page(self, request: HttpRequest) -> HttpResponse:
        """Every lock in force."""
        seen = sight(request)
        is_soon = request.GET.get("ends") == "soon"
        rows = console_selectors.locks_expiring(seen) if is_soon else console_selectors.locked_memories(seen)
        page = keyset(rows, cursor_of(request), "-pk")
        return self.show(
            request,
            "lock_list.html",
            "Locks",
            section="locks",
            is_soon=is_soon,
            days=console_selectors.EXPIRING_DAYS,
            page=page,
            rows=[(memory, seen.role_in(memory.namespace) >= Role.ADMIN) for memory in page.rows],
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One memory: value, lock, versions, audit."""
        seen = sight(request)
        memory = get_object_or_404(console_selectors.memories(seen), pk=pk)
        role = seen.role_in(memory.namespace)
        before = request.GET.get("before", "")
        may_audit = role >= Role.REVIEWER
        return self.show(
            request,
            "memory_row.html",
            memory.memory_key,
            memory=memory,
            role=role.label,
            actions=[
                (name, action)
                for name, action in ACTIONS.items()
                if role >= action.role and action.is_offered(memory)
            ],
            timeline=console_selectors.timeline(memory, int(before) if before.isdecimal() else None),
            may_audit=may_audit,
            audit=console_selectors.audit_of(memory, audit_events(seen)) if may_audit else [],
        )

    def version_page(self, request: HttpRequest, pk: int, version: int) -> HttpResponse:
        """One version, whole, with all that it changed."""
        memory = get_object_or_404(console_selectors.memories(sight(request)), pk=pk)
        step = console_selectors.version_of(memory, version)
        if step is None:
            raise Http404("No such version.")
        return self.show(request, "memory_version.html", f"Version {version}", memory=memory, step=step)

    def act(self, request: HttpRequest, pk: int, action: str) -> HttpResponse:
        """A form that calls an op as the reader; a refusal is shown beside it."""
        seen = sight(request)
        memory = get_object_or_404(console_selectors.memories(seen), pk=pk)
        wanted = ACTIONS.get(action)
        if wanted is None:
            raise Http404("No such action.")
        form = wanted.form(request, seen.user)
        status = 200
        if request.method == "POST":
            status = 400
            if request.POST.get("version") != str(memory.version):
                form.add_error(
                    None, "It changed while you read. What you see below is its state now; decide again."
                )
                status = 409
            elif form.is_valid():
                answer = pipeline.run(
                    wanted.op,
                    _payload(memory, form.cleaned_data),
                    Credentials(door=Door.CONSOLE, user_id=seen.user.pk, org=memory.namespace.org.slug),
                )
                if answer.ok:
                    messages.success(request, _told(wanted, answer))
                    return HttpResponseRedirect(reverse("admin:memories_memory_change", args=[pk]))
                form.add_error(None, answer.body["detail"]["message"])
                status = answer.status
        return self.show(
            request,
            "memory_act.html",
            f"{wanted.title}: {memory.memory_key}",
            status=status,
            memory=memory,
            action=wanted,
            form=form,
        )


def _payload(memory: Memory, given: dict[str, Any]) -> dict[str, Any]:
    """The op's input: exactly this lineage, and what the form holds. The password stays here."""
    payload = {
        "namespace": memory.namespace.slug,
        "agent": memory.agent,
        "user_id": memory.user_id,
        "session_id": memory.session_id,
        "memory_key": memory.memory_key,
        "reason": given["reason"],
    }
    if given.get("mode"):
        payload["mode"] = given["mode"]
    if given.get("until"):
        payload["until"] = given["until"].astimezone(UTC).isoformat()
    return payload


def _told(action: Action, answer: pipeline.Answer) -> str:
    if answer.status == 202:
        return "It goes to review: a reviewer decides. Nothing has changed yet."
    if answer.body.get("changed") is False:
        return "Nothing changed: that was its state already."
    return action.done


@attention_cards
def expiring_locks(request: HttpRequest) -> list[Card]:
    """Locks that end within days."""
    soon = bounded_count(console_selectors.locks_expiring(sight(request)))
    url = f"{reverse('admin:memories_memory_locks')}?ends=soon"
    days = console_selectors.EXPIRING_DAYS
    labels = f"lock ends within {days} days", f"locks end within {days} days"
    return [Card(*labels, soon, url, "Lock again to keep it longer.", "warn")]


namespace_count("Memories")(console_selectors.counts_per_namespace)
