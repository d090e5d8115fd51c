"""Console pages about procedures: the list, the page with its graph, and a form to author one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from governance import pipeline
from governance.console import Card, attention_cards, bounded_count, keyset, namespace_count, sight
from governance.console import Count as BoundedCount
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.selectors import worker_seen
from governance.tenancy import Credentials
from loomsite.ops import Door, OpError, Role
from procedures import console_selectors
from procedures.console_actions import settings_store
from procedures.console_forms import AuthorForm, SettingsForm
from procedures.gate_picture import gate_picture
from procedures.gate_settings import EvolveFields
from procedures.models import Procedure
from procedures.picture import BOX_HEIGHT, BOX_WIDTH, Picture
from procedures.services import TAG

BOXES = {"box_width": BOX_WIDTH, "box_height": BOX_HEIGHT}
SUSPECTS = 30
"""Contrasted steps and transitions that the page shows, the least probable first."""
RUN_PAGE = 25


@admin.register(Procedure)
class ProcedureAdmin(PageAdmin):
    """Procedures and their runs."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the form, the page with its revisions, settings and evolve."""
        return [
            self.route("new/", self.new_page, "new"),
            self.route("<int:pk>/revisions/", self.revisions_page, "revisions"),
            self.route("<int:pk>/settings/", self.settings_page, "settings"),
            self.route("<int:pk>/evolve/", require_POST(self.evolve_now), "evolve"),
            self.route("<int:pk>/evolve/state/", self.evolve_state, "evolve_state"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Procedures, the latest run first."""
        seen = sight(request)
        asked = {name: request.GET.get(name, "").strip() for name in ("q", "namespace", "status")}
        rows = console_selectors.matching(
            console_selectors.procedures(seen).filter(memory__status="active"), asked["q"]
        )
        if asked["namespace"]:
            org, _, slug = asked["namespace"].replace("\x00", "").partition("/")
            rows = rows.filter(namespace__org__slug=org, namespace__slug=slug)
        if asked["status"] in console_selectors.STATUS_FILTERS:
            rows = rows.filter(console_selectors.STATUS_FILTERS[asked["status"]])
        page = keyset(rows, cursor_of(request), "-pk")
        return self.show(
            request,
            "procedure_list.html",
            "Procedures",
            asked=asked,
            filtered=any(asked.values()),
            statuses=console_selectors.STATUS_FILTERS,
            namespaces=seen.namespaces()[:SUGGESTIONS],
            page=page,
            rows=[(row, console_selectors.status_of(row)) for row in page.rows],
            count=bounded_count(rows),
            may_write=seen.namespaces(Role.WRITER).exists(),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One procedure: graph, tables, runs, notes."""
        seen = sight(request)
        procedure = _seen(request, pk)
        which = request.GET.get("runs", "")
        found = console_selectors.drawn(procedure)
        why = console_selectors.why(procedure)
        value = procedure.memory.value or {}
        return self.show(
            request,
            "procedure_row.html",
            str(value.get("name") or procedure.memory.memory_key),
            procedure=procedure,
            value=value,
            status_word=console_selectors.status_of(procedure),
            drawn=found,
            picture=found.picture,
            **BOXES,
            **_gate(request, procedure),
            **_evolve(request, procedure),
            why=why,
            dead_ends=[
                {
                    "id": one.id,
                    "words": why.found.graph.by_id[one.id].words,
                    "runs": one.runs,
                    "percent": 100 * one.upper,
                }
                for one in why.found.dead_ends
            ],
            last_gate_at=datetime.fromisoformat(why.last_gate["at"]) if why.last_gate else None,
            base_percent=100 * why.found.fail_prone.base_rate,
            suspects=why.found.fail_prone.suspects[:SUSPECTS],
            worker=worker_seen(),
            which=which,
            filters=[("", "all"), ("ok", "succeeded"), ("failed", "failed"), ("noted", "with a note")],
            page=keyset(console_selectors.runs(procedure, which), cursor_of(request), "-seq", size=RUN_PAGE),
            may_write=seen.role_in(procedure.namespace) >= Role.WRITER,
            namespace_text=f"{procedure.namespace.org.slug}/{procedure.namespace.slug}",
        )

    def revisions_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Every revision, and two of them compared."""
        procedure = _seen(request, pk)
        before, after = (_number(request.GET.get(name, "")) for name in ("before", "after"))
        compared = console_selectors.comparison(procedure, before, after)
        if compared is None and (before, after) != (None, None):
            raise Http404("No such revision.")
        return self.show(
            request,
            "procedure_revisions.html",
            f"Revisions of {(procedure.memory.value or {}).get('name') or procedure.memory.memory_key}",
            procedure=procedure,
            revisions=console_selectors.revisions(procedure),
            compared=compared,
            picture=compared.picture if compared else None,
            is_difference=True,
            graph_label="Both revisions in one graph; the lists below say the same",
            **BOXES,
            **_gate(request, procedure),
        )

    def settings_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """How the procedure is judged, and a form for who may change it."""
        seen = sight(request)
        procedure = _seen(request, pk)
        may_write = seen.role_in(procedure.namespace) >= Role.WRITER
        given = request.POST if request.method == "POST" else None
        form = SettingsForm(given, initial=_as_initial(procedure.evolve_settings))
        status = 200
        if request.method == "POST":
            status = 400
            if form.is_valid():
                try:
                    changed = settings_store(
                        by=seen.user,
                        procedure=procedure,
                        stored=form.cleaned_data["stored"],
                        reason=form.cleaned_data["reason"],
                    )
                except OpError as error:
                    form.add_error(None, error.message)
                    status = error.status
                else:
                    messages.success(request, "Stored." if changed else "It stood so already.")
                    return HttpResponseRedirect(request.path)
        chosen = console_selectors.settings_of(procedure)
        named = chosen.settings.model_fields_set
        return self.show(
            request,
            "procedure_settings.html",
            "Gate settings",
            status=status,
            procedure=procedure,
            form=form,
            may_write=may_write,
            chosen=chosen,
            rows=[
                (name, getattr(chosen.settings, name), known.description, name in named)
                for name, known in EvolveFields.model_fields.items()
            ],
        )

    def evolve_now(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Queue an evolve by its op, and go back to the page, which shows how it gets on."""
        seen = sight(request)
        procedure = _seen(request, pk)
        answer = pipeline.run(
            "procedure.evolve",
            {
                "namespace": procedure.namespace.slug,
                "memory_key": procedure.memory.memory_key,
                "wait_s": 0,
                "dry_run": "dry_run" in request.POST,
            },
            Credentials(door=Door.CONSOLE, user_id=seen.user.pk, org=procedure.namespace.org.slug),
        )
        detail = answer.body.get("detail", {})
        job_id = str(answer.body.get("job_id") or detail.get("job_id") or "")
        if not answer.ok:
            messages.warning(request, str(detail["message"]))
        url = reverse("admin:procedures_procedure_change", args=[pk])
        return HttpResponseRedirect(f"{url}?job={job_id}#evolve" if job_id else url)

    def evolve_state(self, request: HttpRequest, pk: int) -> HttpResponse:
        """How an evolve gets on, for the page: {state, progress, lines}; state `none` without one."""
        procedure = _seen(request, pk)
        job = console_selectors.evolve_job(procedure, request.GET.get("job", ""))
        if job is None:
            answer = JsonResponse({"state": "none", "progress": 0, "lines": []})
        else:
            lines = console_selectors.evolve_lines(job)
            answer = JsonResponse({"state": job.state, "progress": job.progress, "lines": lines})
        answer["Cache-Control"] = "no-store"
        return answer

    def new_page(self, request: HttpRequest) -> HttpResponse:
        """Author a procedure: shown first, stored on the second press."""
        seen = sight(request)
        form = AuthorForm(request.POST or None, initial={"namespace": request.GET.get("namespace", "")})
        shown: Picture | None = None
        present: Procedure | None = None
        status = 200
        if request.method == "POST":
            status = 400
            if form.is_valid():
                present = console_selectors.of_name(
                    seen, form.cleaned_data["namespace"], form.cleaned_data["name"]
                )
                shown, status = console_selectors.authored(present, form.proposed()), 200
                if "store" in request.POST:
                    answer = _store(seen.user.pk, form, present)
                    if answer.ok:
                        messages.success(request, "Stored.")
                        return HttpResponseRedirect(
                            reverse("admin:procedures_procedure_change", args=[answer.body["memory_id"]])
                        )
                    form.add_error(None, answer.body["detail"]["message"])
                    status = answer.status
        return self.show(
            request,
            "procedure_new.html",
            "New procedure",
            status=status,
            form=form,
            picture=shown,
            present=present,
            is_difference=present is not None,
            graph_label="The graph as it would be",
            **BOXES,
            namespaces=seen.namespaces(Role.WRITER)[:SUGGESTIONS],
        )


def _seen(request: HttpRequest, pk: int) -> Procedure:
    """The procedure, or 404 for who does not see it."""
    found: Procedure = get_object_or_404(console_selectors.procedures(sight(request)), pk=pk)
    return found


def _as_initial(stored: Any) -> dict[str, Any]:
    """What is stored as the form's values; what was stored some other way and is no object fills nothing."""
    return stored if isinstance(stored, dict) else {}


def _number(text: str) -> int | None:
    """A revision's number out of a query; -1, which none has, for what is no number."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _gate(request: HttpRequest, procedure: Procedure) -> dict[str, Any]:
    """The gate on the asked revision, else on the latest that was judged."""
    judged = console_selectors.judged_numbers(procedure)
    asked = _number(request.GET.get("gate", ""))
    number = asked if asked in judged else next(iter(judged), None)
    judgement = None if number is None else console_selectors.gate_walk(procedure, number)
    return {
        "judged": judged,
        "judgement": judgement,
        "gate": None if judgement is None else gate_picture(judgement),
    }


def _evolve(request: HttpRequest, procedure: Procedure) -> dict[str, Any]:
    """The evolve that was asked for last, and what it did."""
    job = console_selectors.evolve_job(procedure, request.GET.get("job", ""))
    return {
        "job": job,
        "job_lines": [] if job is None else console_selectors.evolve_lines(job),
        "job_open": job is not None and job.state in ("queued", "running"),
        "unfolded": procedure.runs_total - procedure.runs_folded,
    }


def _store(user_id: int, form: AuthorForm, present: Procedure | None) -> pipeline.Answer:
    """procedure.add as the form says; tags and metadata of one of this name stay."""
    given = form.cleaned_data
    org, _, slug = given["namespace"].partition("/")
    kept: dict[str, Any] = {}
    if present is not None:
        tags = [tag for tag in present.memory.tags if tag != TAG]
        kept = {"tags": tags, "metadata": present.memory.metadata or {}}
    return pipeline.run(
        "procedure.add",
        {
            "namespace": slug,
            "name": given["name"],
            "situation": given["situation"],
            "steps": given["steps"] if len(given["steps"]) > 1 else _words(given["graph"]),
            **({"graph": given["graph"]} if given["graph"] is not None else {}),
            **kept,
            "reason": given["reason"],
        },
        Credentials(door=Door.CONSOLE, user_id=user_id, org=org),
    )


def _words(graph: dict[str, Any]) -> list[str]:
    """Steps beside a graph give way to it; the op needs two."""
    return [str(node.get("text") or node["id"]) for node in graph["nodes"]]


@attention_cards
def pending_revisions(request: HttpRequest) -> list[Card]:
    """Procedures whose new graph waits for its verdict."""
    rows = console_selectors.pending(sight(request))
    url = f"{reverse('admin:procedures_procedure_changelist')}?status=pending"
    hint = "Their runs decide whether the new graph stays."
    return [Card("pending revision", "pending revisions", rows, url, hint)]


@attention_cards
def quarantined_procedures(request: HttpRequest) -> list[Card]:
    """Procedures that failed too often."""
    rows = console_selectors.procedures(sight(request)).filter(quarantined=True, memory__status="active")
    url = f"{reverse('admin:procedures_procedure_changelist')}?status=quarantined"
    labels = "quarantined procedure", "quarantined procedures"
    return [Card(*labels, rows, url, "They failed too often and are not offered.", "bad")]


@namespace_count("Procedures")
def procedures_per_namespace(ids: Any) -> dict[int, BoundedCount]:
    """Procedures that are served, counted in each namespace."""
    return console_selectors.counts_per_namespace(ids)
