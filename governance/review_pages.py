"""Console pages where people decide: the review queue, and the page of one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Count as Number
from django.db.models import Max, Min
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from governance import plan_selectors, plan_words, plans
from governance.console import COUNT_LIMIT, Card, Count, Sight, attention_cards, bounded_count, sight
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.models import Plan
from governance.plan_forms import DecisionForm, ManyForm, QueueForm
from governance.plan_selectors import QueueFilter
from governance.plan_views import plan_view, queue_lines
from governance.review import TABLE
from loomsite.ops import OpError, Role

QUEUE_SIZE = 25
"""Plans a page of the queue: each that may be ticked shows its rows."""
DECISIONS = ("approve", "reject")
CHANGED = "it changed while you read"


class PlanAdmin(PageAdmin):
    """Plans: what waits for a person, and what came of it."""

    def get_urls(self) -> list[URLPattern]:
        """The queue, one plan, and what is decided on either."""
        return [
            self.route("decide/", require_POST(self.decide_many), "decide"),
            self.route("<int:pk>/refresh/", require_POST(self.refresh), "refresh"),
            *super().get_urls(),
        ]

    # The queue

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """What waits, the oldest first; or what was decided, the newest first."""
        return self._queue(request, ManyForm(None, user=sight(request).user))

    def _queue(self, request: HttpRequest, decision: ManyForm, status: int = 200) -> HttpResponse:
        seen = sight(request)
        form = QueueForm(request.GET, actions=list(TABLE), label_suffix="")
        form.is_valid()
        wanted, known = _wanted(seen, form)
        page = plan_selectors.plan_queue(seen, wanted, cursor_of(request), QUEUE_SIZE)
        lines = queue_lines(seen, page.rows)
        return self.show(
            request,
            "plan_list.html",
            "Review",
            status=status,
            form=form,
            decision=decision,
            page=page,
            lines=lines,
            ticked=request.POST.getlist("row"),
            waiting=wanted.state == "pending",
            may_decide=any(line.may_tick for line in lines),
            filtered=any(value not in (None, "") for value in form.cleaned_data.values()),
            unknown=not known,
            count=bounded_count(plan_selectors.plan_rows(seen).filter(wanted.condition)),
            namespaces=[str(one) for one in seen.namespaces()[:SUGGESTIONS]],
        )

    def decide_many(self, request: HttpRequest) -> HttpResponse:
        """One decision about the ticked plans; what moved since the list was shown is skipped and named."""
        seen = sight(request)
        wanted = request.POST.get("decision", "")
        ticked = [_ticked(text) for text in request.POST.getlist("row")[:QUEUE_SIZE]]
        form = ManyForm(request.POST, user=seen.user, decision=wanted)
        if wanted not in DECISIONS or not any(ticked):
            messages.warning(request, "Tick plans in the list, and choose what to do with them.")
            return HttpResponseRedirect(reverse("admin:governance_plan_changelist"))
        if not form.is_valid():
            return self._queue(request, form, status=400)
        done, skipped = 0, []
        for chosen in filter(None, ticked):
            said = _decide_one(seen, *chosen, wanted, form.cleaned_data["comment"])
            if said:
                skipped.append((chosen[0], said))
            else:
                done += 1
        told = f"{done} {'approved' if wanted == 'approve' else 'rejected'}{_skipped(skipped)}."
        (messages.warning if skipped else messages.success)(request, told)
        return HttpResponseRedirect(reverse("admin:governance_plan_changelist"))

    # One plan

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The plan as it would be applied now, and the form that decides."""
        seen = sight(request)
        plan = _plan_of(seen, pk)
        wanted = request.POST.get("decision", "")
        form = DecisionForm(request.POST or None, user=seen.user, plan=plan, decision=wanted)
        status = 200
        if request.method == "POST":
            status = 400
            if wanted not in DECISIONS:
                form.add_error(None, "Choose to approve or to reject.")
            elif form.is_valid():
                status = self._decide(request, seen, plan, form)
                if status == 302:
                    return HttpResponseRedirect(reverse("admin:governance_plan_change", args=[pk]))
                plan = _plan_of(seen, pk)
        return self._plan(request, seen, plan, form, status)

    def _decide(self, request: HttpRequest, seen: Sight, plan: Plan, form: DecisionForm) -> int:
        """Do it: 302, or the refusal's status, which the form then says."""
        decide = plans.plan_approve if form.decision == "approve" else plans.plan_reject
        try:
            decision = decide(
                plan_id=plan.pk,
                reviewer=seen.user,
                digest=request.POST.get("digest", ""),
                comment=form.cleaned_data["comment"],
            )
        except OpError as error:
            form.add_error(None, error.message)
            return error.status
        bad = decision.state in ("stale", "failed", "expired")
        (messages.warning if bad else messages.success)(request, decision.message)
        return 302

    def _plan(
        self, request: HttpRequest, seen: Sight, plan: Plan, form: DecisionForm, status: int
    ) -> HttpResponse:
        only = request.GET.get("rows", "all")
        after = request.GET.get("from", "")
        view = plan_view(
            seen,
            plan,
            only=only if only in plan_selectors.TARGETS else "all",
            after=int(after) if after.isascii() and after.isdigit() and len(after) < 19 else 0,
            size=plan_words.LARGE,
        )
        return self.show(
            request, "plan_row.html", view.headline, status=status, plan=plan, view=view, form=form
        )

    def refresh(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The same request from the present state, as a new plan."""
        seen = sight(request)
        _plan_of(seen, pk)
        try:
            fresh = plans.plan_refresh(plan_id=pk, by=seen.user)
        except OpError as error:
            messages.error(request, error.message)
            return HttpResponseRedirect(reverse("admin:governance_plan_change", args=[pk]))
        messages.success(request, f"Plan {fresh.pk} takes the place of plan {pk}, from the present state.")
        return HttpResponseRedirect(reverse("admin:governance_plan_change", args=[fresh.pk]))


def _plan_of(seen: Sight, pk: int) -> Plan:
    """The plan, 404 for one that the reader does not see."""
    if pk >= 2**63:
        raise Http404("No such plan.")
    try:
        return plan_selectors.plan_header(seen, pk)
    except OpError as error:
        raise Http404(error.message) from error


def _wanted(seen: Sight, form: QueueForm) -> tuple[QueueFilter, bool]:
    """The filter as typed; False beside it when the namespace is none that the reader sees."""
    asked: Mapping[str, Any] = form.cleaned_data
    namespace_id: int | None = None
    if asked.get("namespace"):
        org, _, slug = str(asked["namespace"]).rpartition("/")
        found = seen.namespaces().filter(slug=slug, **({"org__slug": org} if org else {}))
        namespace_id = found.values_list("pk", flat=True).first() or 0
    state = asked.get("state") or "pending"
    wanted = QueueFilter(
        state="" if state == "all" else state,
        namespace_id=namespace_id,
        requested_by=asked.get("requested_by") or "",
        action=asked.get("action") or "",
        at_least=asked.get("at_least"),
    )
    return wanted, namespace_id != 0


def _ticked(text: str) -> tuple[int, str] | None:
    """The plan and the digest that a checkbox carries, as `plan:digest`."""
    plan, _, digest = text.partition(":")
    if plan.isascii() and plan.isdigit() and len(plan) < 19 and digest:
        return int(plan), digest
    return None


def _decide_one(seen: Sight, pk: int, digest: str, wanted: str, comment: str) -> str:
    """Why the plan was skipped; "" when it was decided."""
    try:
        plan = plan_selectors.plan_header(seen, pk)
        if plan_words.is_large(plan):
            return "it is large and is decided on its own page"
        decide = plans.plan_approve if wanted == "approve" else plans.plan_reject
        decision = decide(plan_id=pk, reviewer=seen.user, digest=digest, comment=comment)
    except OpError as error:
        return CHANGED if error.code == "VERSION_CONFLICT" else error.message
    if decision.state == "stale":
        return CHANGED
    if decision.state in ("failed", "expired"):
        return decision.message
    return ""


def _skipped(skipped: list[tuple[int, str]]) -> str:
    """`, 1 skipped: plan 7: it changed while you read`, each plan named."""
    if not skipped:
        return ""
    named = " · ".join(f"plan {pk}: {why.rstrip('.')}" for pk, why in skipped)
    return f", {len(skipped)} skipped: {named}"


@dataclass(frozen=True)
class Waiting:
    """What waits where a reader is a reviewer: how many (of the oldest thousand), since when, how large."""

    count: Count
    oldest: datetime | None
    largest: int


def waiting_for(request: HttpRequest) -> Waiting:
    """What waits for this reader, in one statement, asked once per request."""
    known: Waiting | None = getattr(request, "_loom_waiting", None)
    if known is None:
        known = _waiting(sight(request))
        request._loom_waiting = known  # type: ignore[attr-defined]
    return known


def _waiting(seen: Sight) -> Waiting:
    waits = Plan.objects.filter(seen.where("namespace", Role.REVIEWER), state=Plan.State.PENDING)
    found = (
        waits.order_by("pk")
        .values("pk", "created_at", "rows")[: COUNT_LIMIT + 1]
        .aggregate(number=Number("pk"), oldest=Min("created_at"), largest=Max("rows"))
    )
    number = found["number"]
    count = Count(min(number, COUNT_LIMIT), number > COUNT_LIMIT)
    return Waiting(count, found["oldest"], found["largest"] or 0)


@attention_cards
def pending_plans(request: HttpRequest) -> list[Card]:
    """Plans that this reader may decide, with the age of the oldest and the size of the largest."""
    waits = waiting_for(request)
    hint = ""
    if waits.oldest is not None:
        hint = f"The oldest waits since {waits.oldest:%Y-%m-%d %H:%M} UTC; the largest has {waits.largest:,} "
        hint += "row." if waits.largest == 1 else "rows."
    url = reverse("admin:governance_plan_changelist")
    return [Card("plan to decide", "plans to decide", waits.count, url, hint, "warn")]
