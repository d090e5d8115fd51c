"""Console pages about memories: list, page, versions, locks and holds, held texts, and forms that call ops.

What the forms do is in `memories.console_actions` and `memories.console_bulk`; the raw archive's pages are in
`memories.console_raw`.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from governance.console import (
    PAGE,
    Card,
    Sight,
    attention_cards,
    bounded_count,
    keyset,
    namespace_count,
    sight,
)
from governance.console_forms import ReasonForm
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.console_selectors import audit_events
from loomsite.ops import Role
from memories import console_actions, console_bulk, console_nodes, console_selectors
from memories.console_actions import ACTIONS, Action
from memories.console_bulk import BULK
from memories.console_flags import flag_views
from memories.console_nodes import HeldQuery
from memories.console_raw import RawSessionAdmin
from memories.console_shelf import register_shelf
from memories.models import Memory, RawSession, Status

LOCK_FILTERS = {
    "locked": console_selectors.IN_FORCE,
    "unlocked": ~console_selectors.IN_FORCE,
    "read_only": console_selectors.IN_FORCE & Q(lock_mode="read_only"),
    "no_delete": console_selectors.IN_FORCE & Q(lock_mode="no_delete"),
    "hold": Q(holds__gt=0),
}
HELD_PAGE = 20

admin.site.register(RawSession, RawSessionAdmin)
register_shelf()


@admin.register(Memory)
class MemoryAdmin(PageAdmin):
    """Memories, their locks and holds, and the texts that wait for a reader."""

    def get_urls(self) -> list[URLPattern]:
        """The lists, the page, its versions and its forms."""
        return [
            self.route("locks/", self.lock_page, "locks"),
            self.route("holds/", self.hold_page, "holds"),
            self.route("held/", self.held_page, "held"),
            self.route("bulk/", require_POST(self.bulk), "bulk"),
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
            rows = rows.filter(console_selectors.of_namespace(asked["namespace"]))
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
                   ("hold", "under a hold"), ("unlocked", "not locked")],
            namespaces=seen.namespaces()[:SUGGESTIONS],
            bulk=BULK if _writes(seen) else {},
            page=keyset(rows, cursor_of(request), "-updated_at", "-pk"),
            count=bounded_count(rows),
        )  # fmt: skip

    def lock_page(self, request: HttpRequest) -> HttpResponse:
        """Everything that a lock in force or a hold guards."""
        seen = sight(request)
        is_soon = request.GET.get("ends") == "soon"
        namespace = request.GET.get("namespace", "").strip()
        return self.show(
            request,
            "lock_list.html",
            "Locks",
            section="locks",
            tab="soon" if is_soon else "all",
            namespace=namespace,
            namespaces=seen.namespaces()[:SUGGESTIONS],
            days=console_selectors.EXPIRING_DAYS,
            page=console_nodes.guarded(seen, is_soon, namespace, cursor_of(request), PAGE),
            count=console_nodes.guarded_count(seen, is_soon, namespace),
        )

    def hold_page(self, request: HttpRequest) -> HttpResponse:
        """Every hold that stands, each with its matter."""
        seen = sight(request)
        asked = {name: request.GET.get(name, "").strip() for name in ("matter", "namespace")}
        rows = console_selectors.open_holds(seen)
        if asked["matter"]:
            rows = rows.filter(matter__icontains=asked["matter"].replace("\x00", ""))
        if asked["namespace"]:
            rows = rows.filter(console_selectors.of_namespace(asked["namespace"]))
        page = keyset(rows, cursor_of(request), "-placed_at", "-pk")
        places = console_nodes.places(seen, [hold.node_id for hold in page.rows])
        return self.show(
            request,
            "hold_list.html",
            "Holds",
            section="locks",
            tab="holds",
            asked=asked,
            filtered=any(asked.values()),
            namespaces=seen.namespaces()[:SUGGESTIONS],
            days=console_selectors.EXPIRING_DAYS,
            page=page,
            rows=[
                (hold, *places.get(hold.node_id, ("", "")), seen.role_in(hold.namespace) >= Role.ADMIN)
                for hold in page.rows
            ],
            count=bounded_count(rows),
        )

    def held_page(self, request: HttpRequest) -> HttpResponse:
        """Flagged texts that wait for a reader, the one that waits longest first."""
        seen = sight(request)
        asked = {name: request.GET.get(name, "").strip() for name in ("pattern", "namespace")}
        query = HeldQuery(asked["pattern"], asked["namespace"])
        return self.show(
            request,
            "held_list.html",
            "Held texts",
            section="held",
            asked=asked,
            filtered=any(asked.values()),
            namespaces=seen.namespaces()[:SUGGESTIONS],
            page=console_nodes.held(seen, query, cursor_of(request), HELD_PAGE),
            count=console_nodes.held_count(seen, query),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One memory: value, lock, holds, flags, sources, versions, audit."""
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
                if action.is_listed and role >= action.role and action.is_offered(memory, role)
            ],
            holds=console_selectors.holds_of(memory),
            may_release=role >= Role.WRITER,
            flags=flag_views(memory, console_selectors.flags_of(memory)),
            may_acknowledge=role >= Role.WRITER,
            sources=console_selectors.sources_of(seen, memory),
            timeline=console_selectors.timeline(
                memory, int(before) if before.isdecimal() and len(before) < 19 else None
            ),
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
        form = wanted.form(request, seen.user, memory)
        status = 200
        if request.method == "POST":
            status = 400
            if request.POST.get("version") != str(memory.version):
                form.add_error(
                    None, "It changed while you read. What you see below is its state now; decide again."
                )
                status = 409
            elif form.is_valid():
                given = form.cleaned_data
                if wanted.op == "memory.unlock":
                    # The lock that the reader saw; the op judges it again under the row's lock.
                    given = {**given, "locked_at": request.POST.get("locked_at", "")}
                answer = console_actions.perform(wanted, seen.user, memory, given)
                if answer.ok:
                    messages.success(request, console_actions.told(wanted.done, answer))
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
            preview=self._preview(seen, memory, wanted),
            flags=flag_views(memory, console_selectors.flags_of(memory)) if action == "acknowledge" else [],
        )

    def _preview(self, seen: Sight, memory: Memory, action: Action) -> dict[str, Any] | None:
        """What the dry run says of the memory; None where there is none. A refused one would be audited."""
        if action.governs in (None, "acknowledge-pattern"):
            return None
        if seen.role_in(memory.namespace) < Role.WRITER:
            return None
        answer = console_actions.govern_preview(seen.user, memory.namespace, [memory.pk], str(action.governs))
        if not answer.ok:
            return {"refused": True, "why": answer.body["detail"]["message"]}
        line: dict[str, Any] = answer.body["affected"][0]
        return line

    def bulk(self, request: HttpRequest) -> HttpResponse:
        """One action on the rows ticked in the list: shown first, and done when the same is confirmed."""
        seen = sight(request)
        if not _writes(seen):
            raise PermissionDenied("Only writers of a namespace change its memories.")
        name = request.POST.get("action", "")
        back = reverse("admin:memories_memory_changelist") + _query(request)
        rows = console_bulk.ticked(seen, request.POST.getlist("row"), PAGE)
        if name not in BULK or not rows:
            messages.warning(request, "Tick memories in the list, and choose what to do with them.")
            return HttpResponseRedirect(back)
        action, shown = BULK[name], request.POST.get("shown")
        fields = (
            action.fields(request.POST if shown is not None else None) if action.fields else forms.Form({})
        )
        if shown is None and name == "lock":
            # The firmest lock without an end is what the form begins with, so it is shown at once.
            fields = action.fields({"mode": "read_only"}) if action.fields else fields
        judged, error, status = [], "", 200
        reason = ReasonForm(request.POST if shown else None)
        if fields.is_valid():
            judged = console_bulk.verdicts(seen, rows, name, fields.cleaned_data)
            error = console_bulk.too_many(seen, judged, name)
            if shown and not error and shown != console_bulk.digest(judged):
                error, status = "This is not what you saw: look at it again, then confirm.", 409
            elif shown and not error and reason.is_valid():
                outcome = console_bulk.apply(
                    seen, judged, name, fields.cleaned_data, reason.cleaned_data["reason"]
                )
                self._tell(request, action.did, outcome)
                return HttpResponseRedirect(back)
            elif shown:
                status = 400
        elif shown is not None:
            status = 400
        return self.show(
            request,
            "memory_bulk.html",
            action.title,
            status=status,
            name=name,
            action=action,
            fields=fields,
            reason=reason,
            error=error,
            rows=rows,
            verdicts=judged,
            applies=sum(verdict.applies for verdict in judged) if not error or status == 409 else 0,
            shown=console_bulk.digest(judged) if judged else "",
            back=back,
            query=_query(request),
        )

    def _tell(self, request: HttpRequest, did: str, outcome: console_bulk.Outcome) -> None:
        if outcome.applied:
            noun = "memory" if outcome.applied == 1 else "memories"
            messages.success(request, f"{outcome.applied} {noun} {did}.")
        if outcome.waiting:
            messages.info(
                request,
                f"{outcome.waiting} wait for a person: the policy of their namespace sends it to review. "
                "Nothing has changed of them yet.",
            )
        if outcome.skipped:
            messages.warning(
                request, f"{len(outcome.skipped)} skipped. " + " · ".join(outcome.skipped[:PAGE])
            )


def _writes(seen: Sight) -> bool:
    return seen.administers or any(role >= Role.WRITER for role in seen.roles.values())


def _query(request: HttpRequest) -> str:
    """The list's own query, to lead back to the same page of it."""
    text = request.POST.get("query", "")[:2000]
    return text if text.startswith("?") else ""


@attention_cards
def held_texts(request: HttpRequest) -> list[Card]:
    """Flagged texts that the reader may acknowledge."""
    held = console_nodes.held_count(sight(request), HeldQuery(at_least=Role.REVIEWER))
    url = reverse("admin:memories_memory_held")
    hint = "Flagged by screening, out of search until you have read them."
    return [Card("held text", "held texts", held, url, hint, "warn")]


@attention_cards
def expiring_locks(request: HttpRequest) -> list[Card]:
    """Locks that end within days."""
    soon = console_nodes.guarded_count(sight(request), is_soon=True)
    url = f"{reverse('admin:memories_memory_locks')}?ends=soon"
    days = console_selectors.EXPIRING_DAYS
    labels = f"lock ends within {days} days", f"locks end within {days} days"
    return [Card(*labels, soon, url, "Lock again to keep it longer.", "warn")]


namespace_count("Memories")(console_selectors.counts_per_namespace)
