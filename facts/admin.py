"""Console pages about facts: list, page with both axes, and correction by a person."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from facts import console_selectors
from facts.console_forms import BeliefForm, CorrectForm
from facts.models import SHARED, Lineage
from facts.selectors import Fact
from governance import pipeline
from governance.console import bounded_count, keyset, namespace_count, sight
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.tenancy import Credentials
from loomsite.ops import Door, Role


@admin.register(Lineage)
class LineageAdmin(PageAdmin):
    """Facts and their versions."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, and the form of a correction."""
        return [
            self.route("<int:pk>/correct/<int:version>/", self.correct, "correct"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Facts with what holds now, newest first."""
        seen = sight(request)
        asked = {name: request.GET.get(name, "").strip().replace("\x00", "") for name in ("q", "namespace")}
        rows = console_selectors.about(console_selectors.lineages(seen), asked["q"])
        if asked["namespace"]:
            # A namespace's name may hold a slash, an organisation's does not.
            org, _, slug = asked["namespace"].partition("/")
            whole = Q(namespace__slug=asked["namespace"])
            rows = rows.filter(whole | Q(namespace__org__slug=org, namespace__slug=slug))
        page = keyset(rows, cursor_of(request), "-pk")
        current = console_selectors.current(page.rows)
        return self.show(
            request,
            "fact_list.html",
            "Facts",
            asked=asked,
            filtered=any(asked.values()),
            namespaces=seen.namespaces()[:SUGGESTIONS],
            page=page,
            rows=[(line, current.get(line.pk, [])) for line in page.rows],
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One fact: what holds, both axes, every version, and what was believed on a day."""
        seen = sight(request)
        line = get_object_or_404(console_selectors.lineages(seen), pk=pk)
        asks = "known_at" in request.GET or "valid_at" in request.GET
        form = BeliefForm(request.GET if asks else None)
        known_at = valid_at = None
        if asks and form.is_valid():
            known_at, valid_at = form.instant("known_at"), form.instant("valid_at")
        versions, more = console_selectors.versions(line)
        answer = console_selectors.believed(line, known_at, valid_at)
        return self.show(
            request,
            "fact_row.html",
            f"{line.subject}: {line.attribute}",
            line=line,
            form=form,
            asks=asks,
            believed=answer,
            versions=versions,
            more=more,
            picture=console_selectors.drawn(versions),
            may_correct=seen.role_in(line.namespace) >= Role.WRITER,
        )

    def correct(self, request: HttpRequest, pk: int, version: int) -> HttpResponse:
        """Correct one version: first the timeline that would be, then the correction itself."""
        seen = sight(request)
        line = get_object_or_404(console_selectors.lineages(seen), pk=pk)
        now = console_selectors.believed(line, None, None)
        fact = next((fact for fact in now if fact.id == version), None)
        if fact is None:
            messages.warning(request, "That version is no longer believed; these are.")
            return HttpResponseRedirect(reverse("admin:facts_lineage_change", args=[pk]))
        form = CorrectForm(request.POST or None)
        preview, status = None, 200
        if request.method == "POST":
            status = 400
            if form.is_valid():
                decided = "decide" in request.POST and request.POST.get("version") == str(line.version)
                if "decide" in request.POST and not decided:
                    form.add_error(None, "It changed while you read; look at the timeline again.")
                    status = 409
                else:
                    answer = pipeline.run(
                        "fact.correct",
                        _payload(line, fact, form.cleaned_data, dry_run=not decided),
                        Credentials(door=Door.CONSOLE, user_id=seen.user.pk, org=line.namespace.org.slug),
                    )
                    status = answer.status
                    if not answer.ok:
                        form.add_error(None, answer.body["detail"]["message"])
                    elif decided:
                        messages.success(request, "Corrected. The old value stays in the history.")
                        return HttpResponseRedirect(reverse("admin:facts_lineage_change", args=[pk]))
                    else:
                        preview = console_selectors.after_correction(now, answer.body, line)
        return self.show(
            request,
            "fact_correct.html",
            f"Correct: {line.subject}: {line.attribute}",
            status=status,
            line=line,
            fact=fact,
            form=form,
            preview=preview,
        )


def _payload(line: Lineage, fact: Fact, given: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """The op's input. A private fact is corrected in its owner's name; the audit has the reader's."""
    payload = {
        "factId": str(fact.id),
        "value": given["value"],
        "kind": given["kind"],
        "reason": given["reason"],
        "expected_version": line.version,
        "dry_run": dry_run,
    }
    payload |= {name: given[name] for name in ("validFrom", "validTo") if given[name]}
    if fact.owner != SHARED:
        payload["user_id"] = fact.owner
    return payload


namespace_count("Facts")(console_selectors.counts_per_namespace)
