"""Console pages about facts: list, page with both axes, and correction by a person."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from facts import console_actions, console_selectors
from facts.console_actions import ACTIONS
from facts.console_forms import BeliefForm, CorrectForm
from facts.console_shelf import register_shelf
from facts.models import SHARED, Lineage
from facts.selectors import Fact
from governance import pipeline
from governance.console import bounded_count, keyset, namespace_count, sight
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from memories.console_actions import told


@admin.register(Lineage)
class LineageAdmin(PageAdmin):
    """Facts and their versions."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, and its forms."""
        return [
            self.route("<int:pk>/correct/<int:version>/", self.correct, "correct"),
            self.route("<int:pk>/<slug:action>/", self.act, "act"),
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
            rows=[
                (line, found[: console_selectors.FEW], len(found) > console_selectors.FEW)
                for line, found in ((line, current.get(line.pk, [])) for line in page.rows)
            ],
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One fact: what holds, both axes, every version, and what was believed on a day."""
        seen = sight(request)
        line = get_object_or_404(console_selectors.lineages(seen), pk=pk)
        role = seen.role_in(line.namespace)
        asks = "known_at" in request.GET or "valid_at" in request.GET
        form = BeliefForm(request.GET if asks else None)
        known_at = valid_at = None
        if asks and form.is_valid():
            known_at, valid_at = form.instant("known_at"), form.instant("valid_at")
        versions, more = console_selectors.versions(line)
        picture = console_selectors.drawn(versions)
        answer = console_selectors.believed(line, known_at, valid_at)
        return self.show(
            request,
            "fact_row.html",
            f"{line.subject}: {line.attribute}",
            line=line,
            form=form,
            asks=asks,
            believed=answer,
            cut=len(answer) == console_selectors.SHOWN,
            versions=versions,
            more=more,
            picture=picture,
            step=console_selectors.step_of(picture, known_at),
            may_correct=role >= Role.WRITER,
            role=role.label,
            actions=[
                (name, action)
                for name, action in ACTIONS.items()
                if action.is_listed and role >= action.role and action.is_offered(line)
            ],
            holds=console_selectors.holds_of(line),
            may_release=role >= Role.ADMIN,
            flagged=console_selectors.flagged(versions),
            may_acknowledge=role >= Role.REVIEWER,
        )

    def act(self, request: HttpRequest, pk: int, action: str) -> HttpResponse:
        """A form that calls an op as the reader; a refusal is shown beside it."""
        seen = sight(request)
        line = get_object_or_404(console_selectors.lineages(seen), pk=pk)
        wanted = ACTIONS.get(action)
        if wanted is None:
            raise Http404("No such action.")
        form = wanted.form(request, seen.user, line)
        status = 200
        if request.method == "POST":
            status = 400
            if request.POST.get("version") != str(line.version):
                form.add_error(
                    None, "It changed while you read. What you see below is its state now; decide again."
                )
                status = 409
            elif form.is_valid():
                # The lock that the reader saw; the op judges it again under the row's lock.
                seen_lock = {"locked_at": request.POST.get("locked_at", "")} if action == "loosen" else {}
                answer = console_actions.perform(wanted, seen.user, line, {**form.cleaned_data, **seen_lock})
                if answer.ok:
                    messages.success(request, told(wanted.done, answer))
                    return HttpResponseRedirect(reverse("admin:facts_lineage_change", args=[pk]))
                form.add_error(None, answer.body["detail"]["message"])
                status = answer.status
        about = console_actions.asked_version(request)
        return self.show(
            request,
            "fact_act.html",
            f"{wanted.title}: {line.subject}: {line.attribute}",
            status=status,
            line=line,
            action=wanted,
            form=form,
            believed=console_selectors.believed(line, None, None),
            flags=console_selectors.flags_in(line, about) if action == "acknowledge" else [],
        )

    def correct(self, request: HttpRequest, pk: int, version: int) -> HttpResponse:
        """Correct one version: first the timeline that would be, then the correction itself."""
        seen = sight(request)
        line = get_object_or_404(console_selectors.lineages(seen), pk=pk)
        now = console_selectors.believed(line, None, None)
        fact = console_selectors.standing(line, version)
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
    """The op's input. A fact with private versions is corrected in their owner's name, for nobody else
    sees all of it; the audit has the reader's."""
    payload = {
        "factId": str(fact.id),
        "value": given["value"],
        "kind": given["kind"],
        "reason": given["reason"],
        "expected_version": line.version,
        "dry_run": dry_run,
    }
    payload |= {name: given[name] for name in ("validFrom", "validTo") if given[name]}
    owner = console_selectors.first_owner(line)
    if owner != SHARED:
        payload["user_id"] = owner
    return payload


register_shelf()
namespace_count("Facts")(console_selectors.counts_per_namespace)
