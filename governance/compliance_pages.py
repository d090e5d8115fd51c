"""Console pages for people who answer for what is kept: erasures, and audit rows that came with imports."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from governance import audit, compliance_selectors, pipeline
from governance.compliance_forms import EraseForm, ErasureForm
from governance.console import Card, Sight, attention_cards, bounded_count, keyset, sight
from governance.console_forms import PasswordCheck
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.models import ErasureRequest, Namespace
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.ops import Door, Role

KINDS = {
    "memories": "memories", "memory_versions": "versions of memories", "facts": "facts",
    "fact_versions": "versions of facts", "run_notes": "notes on runs of procedures",
    "raw_conversations": "conversations of the raw archive", "raw_turns": "turns of the raw archive",
    "stored_answers": "stored answers", "jobs": "jobs", "plans": "plans",
}  # fmt: skip
STAYS = (
    "Ids, keys, labels such as the user, agent and session, hashes, and who did what when.",
    "The audit, with the reasons given in it: it has to verify.",
    "Backups that were made before. docs/operations.md says what to do about them.",
)


def run(seen: Sight, namespace: Namespace, op: str, payload: dict[str, Any]) -> Answer:
    """An op as this person, at the console's door."""
    credentials = Credentials(door=Door.CONSOLE, user_id=seen.user.pk, org=namespace.org.slug)
    return pipeline.run(op, {"namespace": namespace.slug, **payload}, credentials)


def told(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Counts in words."""
    return [(KINDS.get(kind, kind.replace("_", " ")), number) for kind, number in counts.items()]


class ErasureAdmin(PageAdmin):
    """Erasure requests: what was asked, what is parked and by what, what is done."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, and the form for a new one."""
        return [self.route("new/", self.ask, "new"), *super().get_urls()]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Requests of the namespaces that the reader administers, newest first."""
        seen = sight(request)
        rows = compliance_selectors.erasures(seen)
        state = request.GET.get("state", "")
        if state in ErasureRequest.State.values:
            rows = rows.filter(state=state)
        return self.show(
            request,
            "erasure_list.html",
            "Erasures",
            state=state,
            states=ErasureRequest.State.values,
            page=keyset(rows, cursor_of(request), "-pk"),
            count=bounded_count(rows),
            may_ask=seen.administers_some,
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One request; a parked one is resumed here, with the reader's password."""
        seen = sight(request)
        erasure = get_object_or_404(compliance_selectors.erasures(seen), pk=pk)
        waits = erasure.state in (ErasureRequest.State.PARKED, ErasureRequest.State.FAILED)
        form = PasswordCheck(request.POST or None, user=seen.user) if waits else None
        error = ""
        if request.method == "POST" and form is not None and form.is_valid():
            answer = run(seen, erasure.namespace, "erasure.resume", {"erasure_id": pk})
            if answer.ok:
                self._say(request, answer)
                return HttpResponseRedirect(request.path)
            error = answer.body["detail"]["message"]
        return self.show(
            request,
            "erasure_row.html",
            f"Erasure {erasure.pk}",
            status=400 if error or (form is not None and form.errors) else 200,
            erasure=erasure,
            counts=told(erasure.counts),
            guards=compliance_selectors.shown_guards(erasure.guards),
            form=form,
            error=error,
            stays=STAYS,
            job_seen=erasure.job_id is not None,
        )

    def ask(self, request: HttpRequest) -> HttpResponse:
        """The form; first it shows what would go, and then it asks for the password."""
        seen = sight(request)
        spaces = seen.namespaces(Role.ADMIN)
        if not seen.administers_some:
            raise PermissionDenied("Only admins of a namespace ask for an erasure.")
        form = ErasureForm(request.POST or None, spaces=spaces, seen=seen)
        preview: dict[str, Any] | None = None
        confirm = None
        if request.method == "POST" and form.is_valid():
            is_final = request.POST.get("step") == "erase"
            confirm = EraseForm(request.POST if is_final else None, user=seen.user)
            namespace = form.cleaned_data["namespace"]
            payload = form.payload()
            if is_final and confirm.is_valid():
                given = {**payload, "digest": confirm.cleaned_data["digest"]}
                answer = run(seen, namespace, "erasure.request", given)
                if answer.ok:
                    self._say(request, answer)
                    url = reverse("admin:governance_erasurerequest_change", args=[answer.body["erasure_id"]])
                    return HttpResponseRedirect(url)
                form.add_error(None, answer.body["detail"]["message"])
            shown = run(seen, namespace, "erasure.request", {**payload, "dry_run": True})
            if shown.ok:
                preview = shown.body
                if not is_final or form.errors:
                    confirm = EraseForm(None, user=seen.user, initial={"digest": preview["digest"]})
            elif not form.errors:
                form.add_error(None, shown.body["detail"]["message"])
        failed = form.errors or (confirm is not None and confirm.errors)
        return self.show(
            request,
            "erasure_new.html",
            "Erase a person’s text",
            status=400 if failed else 200,
            form=form,
            confirm=confirm if preview else None,
            preview=preview,
            counts=told(preview["counts"]) if preview else [],
            guards=compliance_selectors.shown_guards(preview["guards"]) if preview else [],
            spaces=spaces[:SUGGESTIONS],
            stays=STAYS,
        )

    def _say(self, request: HttpRequest, answer: Answer) -> None:
        if answer.body["state"] == ErasureRequest.State.PARKED:
            messages.warning(
                request,
                f"Parked: {answer.body['guarded']} of its rows are under a hold or a lock. Nothing was "
                "erased. Release what guards them, then resume it here.",
            )
        else:
            messages.success(request, "A worker erases it now. This page says when it is done.")


class ImportedAuditAdmin(PageAdmin):
    """Audit rows of other chains, as they came with imported namespaces."""

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """In the order in which they came."""
        seen = sight(request)
        rows = compliance_selectors.imported(seen)
        wanted = request.GET.get("namespace", "").replace("\x00", "")
        if wanted:
            rows = rows.filter(namespace__slug=wanted)
        page = keyset(rows, cursor_of(request), "pk")
        return self.show(
            request,
            "imported_list.html",
            "Imported audit",
            wanted=wanted,
            namespaces=seen.namespaces(Role.REVIEWER).values_list("slug", flat=True)[:SUGGESTIONS],
            page=page,
            rows=[(row, json.loads(row.row)) for row in page.rows],
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One row, and whether it is what its own hash says."""
        row = get_object_or_404(compliance_selectors.imported(sight(request)), pk=pk)
        event = json.loads(row.row)
        return self.show(
            request,
            "imported_row.html",
            f"Imported audit row {event.get('seq')}",
            row=row,
            event=event,
            is_whole=audit.is_whole(event),
        )


@attention_cards
def parked_erasures(request: HttpRequest) -> list[Card]:
    """Erasures that wait for an admin."""
    rows = compliance_selectors.erasures(sight(request)).filter(state__in=["parked", "failed"])
    url = reverse("admin:governance_erasurerequest_changelist")
    hint = "A hold or lock stands in their way; nothing was erased."
    return [Card("erasure waits", "erasures wait", rows, f"{url}?state=parked", hint, "warn")]
