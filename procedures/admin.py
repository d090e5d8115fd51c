"""Console pages about procedures: the list, the page with its graph, and a form to author one."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from governance import pipeline
from governance.console import Card, attention_cards, bounded_count, keyset, namespace_count, sight
from governance.console import Count as BoundedCount
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.tenancy import Credentials
from loomsite.ops import Door, Role
from procedures import console_selectors
from procedures.counting import Tally
from procedures.graph import MAX_NODES, NAME_CHARS, TEXT_CHARS, chain, read
from procedures.graph import faults_of as graph_faults
from procedures.models import Procedure
from procedures.picture import BOX_HEIGHT, BOX_WIDTH, Picture, picture

RUN_PAGE = 25
STATES = ("template", "exercised", "authored", "candidate", "quarantined")


class AuthorForm(forms.Form):
    """A procedure as a person writes it: steps, one a line, or a graph as JSON."""

    namespace = forms.CharField(max_length=260, help_text="organisation/namespace")
    name = forms.CharField(max_length=NAME_CHARS)
    situation = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}), max_length=16_000,
        help_text="When it applies. Agents find it by this text.",
    )  # fmt: skip
    steps = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 8}), help_text="One step a line, two at least."
    )
    graph = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        help_text="For branches: JSON with nodes and edges. It goes before the steps.",
    )
    reason = forms.CharField(max_length=2000, required=False)

    def clean_graph(self) -> dict[str, Any] | None:
        """The graph as JSON, judged; every fault is shown."""
        text = self.cleaned_data["graph"].strip()
        if not text:
            return None
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise forms.ValidationError("This is no JSON object with nodes and edges.")
        faults = graph_faults(given)
        if faults:
            raise forms.ValidationError(
                [f"{'.'.join(map(str, fault.place))}: {fault.message}" for fault in faults]
            )
        return given

    def clean_steps(self) -> list[str]:
        """The lines that say something."""
        lines = [line.strip() for line in self.cleaned_data["steps"].splitlines() if line.strip()]
        if len(lines) > MAX_NODES:
            raise forms.ValidationError(f"{len(lines)} steps; the limit is {MAX_NODES}. Put some together.")
        long = [place for place, line in enumerate(lines, 1) if len(line) > TEXT_CHARS]
        if long:
            raise forms.ValidationError(f"Step {long[0]} is longer than {TEXT_CHARS} characters.")
        return lines

    def clean(self) -> dict[str, Any]:
        """Steps or a graph."""
        given = super().clean() or self.cleaned_data
        if "graph" in given and given["graph"] is None and len(given.get("steps", "..")) < 2:
            self.add_error("steps", "Two steps at least, or a graph.")
        return given

    def preview(self) -> Picture:
        """The graph as it would be drawn."""
        given = self.cleaned_data
        graph = read(given["graph"]) if given["graph"] is not None else chain(given["steps"])
        return picture(graph, Tally())


@admin.register(Procedure)
class ProcedureAdmin(PageAdmin):
    """Procedures and their runs."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the form, the page."""
        return [self.route("new/", self.new_page, "new"), *super().get_urls()]

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
        if asked["status"] == "quarantined":
            rows = rows.filter(quarantined=True)
        page = keyset(rows, cursor_of(request), "-pk")
        return self.show(
            request,
            "procedure_list.html",
            "Procedures",
            asked=asked,
            filtered=any(asked.values()),
            namespaces=seen.namespaces()[:SUGGESTIONS],
            page=page,
            rows=[(row, console_selectors.status_of(row)) for row in page.rows],
            count=bounded_count(rows),
            may_write=seen.namespaces(Role.WRITER).exists(),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One procedure: graph, tables, runs, notes."""
        seen = sight(request)
        procedure = get_object_or_404(console_selectors.procedures(seen), pk=pk)
        which = request.GET.get("runs", "")
        found = console_selectors.drawn(procedure)
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
            box_width=BOX_WIDTH,
            box_height=BOX_HEIGHT,
            which=which,
            filters=[("", "all"), ("ok", "succeeded"), ("failed", "failed"), ("noted", "with a note")],
            page=keyset(console_selectors.runs(procedure, which), cursor_of(request), "-seq", size=RUN_PAGE),
            may_write=seen.role_in(procedure.namespace) >= Role.WRITER,
            namespace_text=f"{procedure.namespace.org.slug}/{procedure.namespace.slug}",
        )

    def new_page(self, request: HttpRequest) -> HttpResponse:
        """Author a procedure: shown first, stored on the second press."""
        seen = sight(request)
        form = AuthorForm(request.POST or None, initial={"namespace": request.GET.get("namespace", "")})
        shown: Picture | None = None
        status = 200
        if request.method == "POST":
            status = 400
            if form.is_valid():
                shown, status = form.preview(), 200
                if "store" in request.POST:
                    given = form.cleaned_data
                    org, _, slug = given["namespace"].partition("/")
                    answer = pipeline.run(
                        "procedure.add",
                        {
                            "namespace": slug,
                            "name": given["name"],
                            "situation": given["situation"],
                            "steps": given["steps"] if len(given["steps"]) > 1 else _words(given["graph"]),
                            **({"graph": given["graph"]} if given["graph"] is not None else {}),
                            "reason": given["reason"],
                        },
                        Credentials(door=Door.CONSOLE, user_id=seen.user.pk, org=org),
                    )
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
            box_width=BOX_WIDTH,
            box_height=BOX_HEIGHT,
            namespaces=seen.namespaces(Role.WRITER)[:SUGGESTIONS],
        )


def _words(graph: dict[str, Any]) -> list[str]:
    """Steps beside a graph give way to it; the op needs two."""
    words = [str(node.get("text") or node["id"]) for node in graph["nodes"]]
    return words if len(words) > 1 else words * 2


@attention_cards
def quarantined_procedures(request: HttpRequest) -> list[Card]:
    """Procedures that failed too often."""
    rows = console_selectors.procedures(sight(request)).filter(quarantined=True, memory__status="active")
    url = f"{reverse('admin:procedures_procedure_changelist')}?status=quarantined"
    labels = "quarantined procedure", "quarantined procedures"
    return [Card(*labels, bounded_count(rows), url, "They failed too often and are not offered.", "bad")]


@namespace_count("Procedures")
def procedures_per_namespace(ids: Any) -> dict[int, BoundedCount]:
    """Procedures that are served, counted in each namespace."""
    return console_selectors.counts_per_namespace(ids)
