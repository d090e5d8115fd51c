"""The console: Django's admin frame with Loomsite's own home, navigation and login."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme


@dataclass(frozen=True)
class NavItem:
    """An entry of the navigation."""

    label: str
    url: str
    section: str
    # What waits there for the reader; "" for nothing.
    count: str = ""


class LoomAdminSite(AdminSite):
    """The admin site that people decide in."""

    site_header = "Loomsite"
    site_title = "Loomsite"
    index_title = "Home"
    site_url = None
    enable_nav_sidebar = False
    index_template = "admin/loom/home.html"
    login_template = "admin/loom/login.html"
    logout_template = "admin/loom/logged_out.html"

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """A page for people who logged in; none is kept by the browser for whoever uses it next."""
        return super().admin_view(view)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Django's frame, and the navigation. Without the list of apps, which no page here shows."""
        allowed = self.has_permission(request)
        return {
            "site_title": self.site_title,
            "site_header": self.site_header,
            "site_url": None,
            "has_permission": allowed,
            "available_apps": [],
            "is_popup": False,
            "is_nav_sidebar_enabled": False,
            "log_entries": None,
            "nav": self.navigation(request) if allowed else [],
        }

    def navigation(self, request: HttpRequest) -> list[NavItem]:
        """What this user finds in the console."""
        from governance.console import sight
        from governance.review_pages import waiting_for

        waiting = waiting_for(request).count
        counts = {"plan": str(waiting) if waiting else ""}
        items = [
            ("Home", "index", "home"),
            ("Review", "governance_plan_changelist", "plan"),
            ("Memories", "memories_memory_changelist", "memory"),
            ("Facts", "facts_lineage_changelist", "lineage"),
            ("Procedures", "procedures_procedure_changelist", "procedure"),
            ("Held", "memories_memory_held", "held"),
            ("Locks", "memories_memory_locks", "locks"),
            ("Raw archive", "memories_rawsession_changelist", "rawsession"),
            ("Audit", "governance_auditevent_changelist", "auditevent"),
            ("Namespaces", "governance_namespace_changelist", "namespace"),
            ("Jobs", "governance_job_changelist", "job"),
        ]
        if sight(request).administers_some:
            items.append(("Erasures", "governance_erasurerequest_changelist", "erasurerequest"))
        if sight(request).administers:
            items.append(("Tokens", "governance_token_changelist", "token"))
            items.append(("People", "governance_user_changelist", "user"))
            items.append(("Organisations", "governance_org_changelist", "org"))
        return [
            NavItem(label, reverse(f"admin:{name}"), section, counts.get(section, ""))
            for label, name, section in items
        ]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Home: what needs a person, what happened lately, and whether all is well."""
        from governance.console import all_attention, bounded_count, sight
        from governance.console_selectors import activity, audit_events, jobs
        from governance.selectors import worker_seen

        seen = sight(request)
        connection.ensure_connection()
        major, minor = divmod(connection.connection.info.server_version, 10_000)
        request.current_app = self.name
        context = {
            **self.each_context(request),
            "title": "Home",
            "section": "home",
            "attention": all_attention(request),
            "activity": activity(seen),
            "events": list(audit_events(seen).order_by("-pk")[:12]),
            "database": f"{major}.{minor}",
            "worker": worker_seen(),
            "open_jobs": bounded_count(jobs(seen).filter(state__in=["queued", "running"])),
            "embedder": settings.LOOM_EMBEDDER,
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.index_template or "", context)

    def app_index(  # type: ignore[override]
        self, request: HttpRequest, app_label: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Django's page of one app's models; home takes its place."""
        return HttpResponseRedirect(reverse("admin:index"))

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Django's login with a throttle per user name and address; it leads to nowhere but this site."""
        from governance.login import ThrottledLogin

        wanted = request.POST.get("next") or request.GET.get("next") or ""
        if wanted and not url_has_allowed_host_and_scheme(
            wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        ):
            return HttpResponseRedirect(reverse("admin:login"))
        self.login_form = ThrottledLogin
        return super().login(request, extra_context)

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Django's page with wrong tries throttled. The change ends every other session of the person."""
        from django.contrib.auth.views import PasswordChangeView

        from governance.login import ThrottledPasswordChange

        request.current_app = self.name
        view = PasswordChangeView.as_view(
            form_class=ThrottledPasswordChange,
            success_url=reverse("admin:password_change_done", current_app=self.name),
            extra_context={**self.each_context(request), **(extra_context or {})},
        )
        return view(request)
