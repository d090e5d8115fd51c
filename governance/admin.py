"""Console pages about governance: audit, namespaces, tokens, jobs, people.

Rows are shown as the reader's roles allow and never edited through Django's forms: every change is an op
or a service with an audit row.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_POST

from governance import administration, audit, console_selectors
from governance.console import (
    Card,
    attention_cards,
    bounded_count,
    counts_by_namespace,
    keyset,
    sight,
)
from governance.console_forms import AuditFilter, RoleForm, TokenForm
from governance.models import AuditEvent, Job, Namespace, Org, Token, User
from governance.templatetags.console import revealed
from loomsite.ops import Role, all_ops

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin

SUGGESTIONS = 100
ROLE_WORDS = (
    ("viewer", "reads"),
    ("writer", "reads and writes, tightens locks"),
    ("reviewer", "decides what waits, reads the audit"),
    ("admin", "loosens locks, sets roles"),
)


class PageAdmin(BaseAdmin):
    """A model's own list and page on the admin site, without Django's forms.

    `list_page` and `row_page` are the views behind the usual URL names (`..._changelist`, `..._change`).
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: rows come from ops."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: changes go through ops."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: nothing governed is deleted by a form."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The pages decide row by row."""
        return self.admin_site.has_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """As viewing."""
        return self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """The list and the page."""
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<int:pk>/", self.row_page, "change"),
        ]

    def route(self, where: str, view: Any, name: str) -> URLPattern:
        """A URL of this model, for people who logged in; named like Django's own."""
        full = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        pattern: URLPattern = path(where, self.admin_site.admin_view(view), name=full)
        return pattern

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The list."""
        raise NotImplementedError

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One row."""
        raise NotImplementedError

    def show(
        self, request: HttpRequest, template: str, title: str, status: int = 200, **context: Any
    ) -> HttpResponse:
        """The page in the site's frame."""
        request.current_app = self.admin_site.name
        frame = {
            **self.admin_site.each_context(request),
            "title": revealed(title),
            "section": self.opts.model_name,
        }
        return TemplateResponse(request, f"admin/loom/{template}", {**frame, **context}, status=status)


def cursor_of(request: HttpRequest) -> str:
    """Where the asked page of a list starts."""
    return request.GET.get("after", "")[:1500]


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
        for name in ("namespace", "op", "outcome", "principal", "target"):
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
        org = get_object_or_404(console_selectors.audit_orgs(seen), slug=request.POST.get("org", ""))
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


@admin.register(Namespace)
class NamespaceAdmin(PageAdmin):
    """Namespaces, their members and roles."""

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The namespaces that the reader sees, by name, with counts and the reader's role."""
        seen = sight(request)
        rows = seen.namespaces()
        wanted = request.GET.get("q", "").strip()
        if wanted:
            rows = rows.filter(slug__icontains=wanted.replace("\x00", ""))
        page = keyset(rows, cursor_of(request), "slug", "pk")
        counts = counts_by_namespace([namespace.pk for namespace in page.rows])
        return self.show(
            request,
            "namespace_list.html",
            "Namespaces",
            page=page,
            count=bounded_count(rows),
            labels=list(counts),
            rows=[
                (
                    namespace,
                    seen.role_in(namespace).label,
                    [column.get(namespace.pk, 0) for column in counts.values()],
                )
                for namespace in page.rows
            ],
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One namespace; its admins set roles here."""
        seen = sight(request)
        namespace = get_object_or_404(seen.namespaces(), pk=pk)
        role = seen.role_in(namespace)
        form = RoleForm(request.POST or None, namespace=namespace)
        if request.method == "POST":
            if role < Role.ADMIN:
                raise PermissionDenied("Only an admin of the namespace sets roles.")
            if form.is_valid():
                given = Role.of(form.cleaned_data["role"])
                administration.role_give(
                    by=seen.user, namespace=namespace, member=form.cleaned_data["member"], role=given
                )
                messages.success(request, f"{form.cleaned_data['name']} now has the role {given.label} here.")
                return HttpResponseRedirect(request.path)
        return self.show(
            request,
            "namespace_row.html",
            str(namespace),
            namespace=namespace,
            role=role.label,
            may_set=role >= Role.ADMIN,
            members=console_selectors.members(namespace),
            counts=[(label, column.get(pk, 0)) for label, column in counts_by_namespace([pk]).items()],
            form=form,
            roles=ROLE_WORDS,
        )


@admin.register(Token)
class TokenAdmin(PageAdmin):
    """Tokens: make, show once, revoke."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Superusers and organisation admins."""
        return super().has_view_permission(request, obj) and sight(request).administers

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, the form, and revocation."""
        return [
            self.route("new/", self.make, "new"),
            self.route("<int:pk>/revoke/", require_POST(self.revoke), "revoke"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Tokens, newest first."""
        self._admins_only(request)
        state = request.GET.get("state", "")
        state = state if state in ("valid", "revoked", "expired") else ""
        rows = console_selectors.tokens(sight(request), state)
        return self.show(
            request,
            "token_list.html",
            "Tokens",
            state=state,
            page=keyset(rows, cursor_of(request), "-pk"),
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One token: what it may do, and who made it."""
        self._admins_only(request)
        token = get_object_or_404(console_selectors.tokens(sight(request)), pk=pk)
        return self.show(request, "token_row.html", token.label or token.prefix, token=token)

    def make(self, request: HttpRequest) -> HttpResponse:
        """The form; after it the token's text, once, in the answer itself: it is stored nowhere.

        A one-time form id keeps a reload of that answer from making a second token.
        """
        self._admins_only(request)
        seen = sight(request)
        if request.method == "POST":
            if not self._take_form(request):
                messages.warning(
                    request, "That form was sent before. Its token is in this list; its text is not kept."
                )
                return HttpResponseRedirect(reverse("admin:governance_token_changelist"))
            form = TokenForm(request.POST, sight=seen)
            if form.is_valid():
                given = {**form.cleaned_data, "role": Role.of(form.cleaned_data["role"])}
                token, text = administration.token_issue(by=seen.user, **given)
                return self.show(request, "token_made.html", "Token made", token=token, text=text)
        else:
            form = TokenForm(sight=seen, initial={"principal": seen.user.username})
        form_id = secrets.token_urlsafe(16)
        # Several, because the form may be open in several tabs.
        request.session["token_forms"] = [*request.session.get("token_forms", []), form_id][-5:]
        return self.show(
            request,
            "token_new.html",
            "Make a token",
            form=form,
            form_id=form_id,
            principals=console_selectors.token_principals(seen).values_list("username", flat=True)[
                :SUGGESTIONS
            ],
        )

    def _take_form(self, request: HttpRequest) -> bool:
        """True the first time a form made for this session comes back."""
        known = request.session.get("token_forms", [])
        given = request.POST.get("form", "")
        if given not in known:
            return False
        request.session["token_forms"] = [form_id for form_id in known if form_id != given]
        return True

    def revoke(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Dead from the next call on."""
        self._admins_only(request)
        token = get_object_or_404(console_selectors.tokens(sight(request)), pk=pk)
        if administration.token_withdraw(by=sight(request).user, token=token):
            messages.success(
                request, f"Revoked {token.label or token.prefix}. It is refused from its next call on."
            )
        else:
            messages.info(request, "It was revoked already.")
        return HttpResponseRedirect(reverse("admin:governance_token_changelist"))

    def _admins_only(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied("Tokens are for superusers and organisation admins.")


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
    failed = bounded_count(console_selectors.jobs(sight(request)).filter(state="failed"))
    url = f"{reverse('admin:governance_job_changelist')}?state=failed"
    return [Card("failed job", "failed jobs", failed, url, "Background work that gave up.", "bad")]


class SuperusersOnly:
    """People and groups are managed by superusers; deactivating takes the place of deleting."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Superusers only."""
        return bool(request.user.is_active and request.user.is_superuser)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Superusers only."""
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Superusers only."""
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Superusers only."""
        return self.has_module_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: a deleted user would take its tokens and the trace of its roles along."""
        return False


@admin.register(User)
class LoomUserAdmin(SuperusersOnly, UserAdmin):  # type: ignore[type-arg]
    """Django's page for users, for superusers."""

    list_display = ("username", "kind", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("kind", "is_active", "is_superuser")
    show_full_result_count = False
    fieldsets = (
        (None, {"fields": ("username", "password", "kind")}),
        ("Name", {"fields": ("first_name", "last_name", "email")}),
        ("May", {"fields": ("is_active", "is_staff", "is_superuser", "groups")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """No bulk actions."""
        return {}


admin.site.unregister(Group)


@admin.register(Group)
class LoomGroupAdmin(SuperusersOnly, GroupAdmin):
    """Groups are a list of people; their roles are set on the namespace."""

    fields = ("name",)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """No bulk actions."""
        return {}
