"""Console pages of the raw archive: conversations, their turns, and a search. Nothing here changes it."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern

from governance.console import Sight, bounded_count, keyset, sight
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.models import Namespace
from memories import console_selectors
from memories.console_actions import run

TURNS = 30
HITS = 20


class RawSessionAdmin(PageAdmin):
    """The raw archive, read-only."""

    def get_urls(self) -> list[URLPattern]:
        """The conversations, the turns of one, and one turn whole."""
        return [
            self.route("<int:pk>/turns/<int:seq>/", self.turn_page, "turn"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Conversations, the latest first; with words, the turns of one namespace that hold them."""
        seen = sight(request)
        asked = {name: request.GET.get(name, "").strip() for name in ("q", "namespace")}
        rows = console_selectors.raw_sessions(seen)
        place = self._place(seen, asked["namespace"])
        if asked["namespace"]:
            rows = rows.filter(console_selectors.of_namespace(asked["namespace"]))
        error = ""
        hits: list[dict[str, Any]] = []
        if asked["q"] and place is None:
            error = "Name one namespace to search in, as org/namespace: each has an archive of its own."
        elif asked["q"] and place is not None:
            error, hits = self._found(seen, place, asked["q"])
        return self.show(
            request,
            "raw_list.html",
            "Raw archive",
            asked=asked,
            filtered=any(asked.values()),
            place=place,
            namespaces=seen.namespaces()[:SUGGESTIONS],
            error=error,
            hits=hits,
            page=keyset(rows, cursor_of(request), "-last_at", "-pk"),
            count=bounded_count(rows),
        )

    def _place(self, seen: Sight, name: str) -> Namespace | None:
        """The namespace that is searched: the one that is named, else the only one."""
        rows = seen.namespaces()
        if name:
            org, _, slug = name.replace("\x00", "").partition("/")
            whole = [found for found in rows.filter(slug=name.replace("\x00", ""))[:2]]
            found = rows.filter(org__slug=org, slug=slug).first()
            return found or (whole[0] if len(whole) == 1 else None)
        two = list(rows[:2])
        return two[0] if len(two) == 1 else None

    def _found(self, seen: Sight, place: Namespace, words: str) -> tuple[str, list[dict[str, Any]]]:
        answer = run(seen.user, place, "raw.search", {"query": words, "top_k": HITS})
        if not answer.ok:
            return str(answer.body["detail"]["message"]), []
        hits: list[dict[str, Any]] = answer.body["results"]
        sessions = {
            (row.session_id, row.agent, row.user_id): row.pk
            for row in console_selectors.raw_sessions(seen).filter(
                namespace=place, session_id__in={hit["session_id"] for hit in hits}
            )
        }
        for hit in hits:
            hit["pk"] = sessions.get((hit["session_id"], hit["agent"], hit["user_id"]))
        return "", [hit for hit in hits if hit["pk"] is not None]

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The turns of one conversation in order, a page at a time."""
        session = get_object_or_404(console_selectors.raw_sessions(sight(request)), pk=pk)
        return self.show(
            request,
            "raw_row.html",
            session.session_id,
            session=session,
            page=keyset(console_selectors.raw_turns(session), cursor_of(request), "seq", size=TURNS),
            count=session.turns,
        )

    def turn_page(self, request: HttpRequest, pk: int, seq: int) -> HttpResponse:
        """One turn, whole."""
        session = get_object_or_404(console_selectors.raw_sessions(sight(request)), pk=pk)
        turn = console_selectors.raw_turns(session).defer(None).filter(seq=seq).first()
        if turn is None:
            raise Http404("No such turn.")
        return self.show(request, "raw_turn.html", f"Turn {seq}", session=session, turn=turn)
