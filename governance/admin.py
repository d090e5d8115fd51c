"""Console pages about governance: audit and jobs are here, the others are registered from their modules.

Rows are shown as the reader's roles allow and never edited through Django's forms: every change is an op
or a service with an audit row.
"""

from __future__ import annotations

from typing import Any

import django.contrib.auth.admin  # noqa: F401 - registers Group, which is replaced below
from django.contrib import admin, messages
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from governance import audit, compliance_selectors, console_selectors
from governance.access_pages import NamespaceAdmin, TokenAdmin
from governance.compliance_pages import ErasureAdmin, ImportedAuditAdmin
from governance.console import Card, attention_cards, bounded_count, keyset, sight
from governance.console_forms import AuditFilter
from governance.console_pages import SUGGESTIONS, PageAdmin, cursor_of
from governance.models import (
    AuditEvent,
    ErasureRequest,
    ImportedAudit,
    Job,
    Namespace,
    Org,
    Plan,
    Token,
    User,
)
from governance.people_pages import AccountAdmin, GroupPages, OrgAdmin
from governance.review_pages import PlanAdmin
from loomsite.ops import Role, all_ops

admin.site.register(Plan, PlanAdmin)
admin.site.register(Namespace, NamespaceAdmin)
admin.site.register(Token, TokenAdmin)
admin.site.register(Org, OrgAdmin)
admin.site.register(User, AccountAdmin)
admin.site.unregister(Group)
admin.site.register(Group, GroupPages)
admin.site.register(ErasureRequest, ErasureAdmin)
admin.site.register(ImportedAudit, ImportedAuditAdmin)


@admin.register(AuditEvent)
class AuditEventAdmin(PageAdmin):
    """The audit browser."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, and the chain's check."""
        return [self.route("verify/", require_POST(self.verify), "verify"), *super().get_urls()]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Rows of one organisation, newest first."""
        seen = sight(request)
        orgs = list(console_selectors.audit_orgs(seen)[:SUGGESTIONS])
        form = AuditFilter(request.GET, label_suffix="")
        form.is_valid()
        asked = form.cleaned_data
        org = self._org(seen, orgs, asked.get("org") or "")
        rows = console_selectors.audit_events(seen).filter(org=org) if org else AuditEvent.objects.none()
        for name in ("namespace", "op", "outcome", "principal", "target", "request_id"):
            if asked.get(name):
                rows = rows.filter(**{name: asked[name]})
        if asked.get("since"):
            rows = rows.filter(at__date__gte=asked["since"])
        if asked.get("until"):
            rows = rows.filter(at__date__lte=asked["until"])
        namespaces = (
            seen.namespaces(Role.REVIEWER).filter(org=org).values_list("slug", flat=True)[:SUGGESTIONS]
        )
        return self.show(
            request,
            "audit_list.html",
            "Audit",
            org=org,
            orgs=orgs,
            form=form,
            filtered=any(asked.get(name) for name in asked if name != "org"),
            page=keyset(rows, cursor_of(request), "-seq"),
            count=bounded_count(rows),
            namespaces=namespaces if org else [],
            ops=[op.name for op in all_ops()],
            has_imported=compliance_selectors.imported(seen).exists(),
            may_verify=org is not None and seen.administers_org(org.pk),
        )

    def _org(self, seen: Any, orgs: list[Org], slug: str) -> Org | None:
        if not slug:
            return orgs[0] if orgs else None
        return get_object_or_404(console_selectors.audit_orgs(seen), slug=slug)

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One row with its links of the chain."""
        event = get_object_or_404(console_selectors.audit_events(sight(request)), pk=pk)
        memory_id = str(event.detail.get("memory_id", ""))
        return self.show(
            request,
            "audit_row.html",
            f"Audit row {event.seq}",
            event=event,
            hash=bytes(event.hash).hex(),
            prev_hash=bytes(event.prev_hash).hex(),
            memory_id=memory_id if memory_id.isdecimal() else None,
        )

    def verify(self, request: HttpRequest) -> HttpResponse:
        """Walk the organisation's chain and say what was found."""
        seen = sight(request)
        org = get_object_or_404(
            console_selectors.audit_orgs(seen), slug=request.POST.get("org", "").replace("\0", "")
        )
        if not seen.administers_org(org.pk):
            raise PermissionDenied("Only an admin of the organisation checks its chain.")
        report = audit.verify(org.pk, org.slug)
        if report.fault is None:
            messages.success(
                request,
                f"The chain of {org.slug} is whole: {report.events:,} rows checked up to the anchored head.",
            )
        else:
            messages.error(
                request,
                f"The chain of {org.slug} is broken at row {report.fault.seq}: {report.fault.what}. "
                f"{report.events:,} rows before it are whole. Keep the database and the anchor file as they "
                "are and compare with a backup.",
            )
        return HttpResponseRedirect(f"{reverse('admin:governance_auditevent_changelist')}?org={org.slug}")


@admin.register(Job)
class JobAdmin(PageAdmin):
    """Background work."""

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Jobs, newest first."""
        rows = console_selectors.jobs(sight(request)).defer("input", "result")
        state = request.GET.get("state", "")
        if state in Job.State.values:
            rows = rows.filter(state=state)
        elif state == "open":
            rows = rows.filter(state__in=["queued", "running"])
        return self.show(
            request,
            "job_list.html",
            "Jobs",
            state=state,
            states=["open", *Job.State.values],
            page=keyset(rows, cursor_of(request), "-pk"),
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One job with its result or error."""
        job = get_object_or_404(console_selectors.jobs(sight(request)), pk=pk)
        return self.show(request, "job_row.html", f"Job {job.pk}", job=job)


@attention_cards
def failed_jobs(request: HttpRequest) -> list[Card]:
    """Jobs that gave up."""
    failed = console_selectors.jobs(sight(request)).filter(state="failed")
    url = f"{reverse('admin:governance_job_changelist')}?state=failed"
    return [Card("failed job", "failed jobs", failed, url, "Background work that gave up.", "bad")]
