"""Console pages about access: namespaces with their members, roles and tokens; tokens by themselves."""

from __future__ import annotations

import secrets

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from governance import administration, console_selectors, people_selectors
from governance.console import bounded_count, counts_by_namespace, keyset, sight
from governance.console_forms import RoleForm, TokenForm
from governance.console_pages import SUGGESTIONS, AdminsOnly, PageAdmin, cursor_of
from governance.people_forms import NamespaceForm
from governance.policy_pages import policy_page
from loomsite.ops import OpError, Role

ROLE_WORDS = (
    ("viewer", "reads"),
    ("writer", "reads and writes, tightens locks"),
    ("reviewer", "decides what waits, reads the audit"),
    ("admin", "loosens locks, sets roles"),
)


class NamespaceAdmin(PageAdmin):
    """Namespaces, their members, roles and tokens."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, its policy, and the form for a new one."""
        return [
            self.route("new/", self.make, "new"),
            self.route("<int:pk>/policy/", policy_page(self), "policy"),
            *super().get_urls(),
        ]

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
            may_make=seen.administers,
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
        """One namespace; its admins set roles here, and see which tokens reach it."""
        seen = sight(request)
        namespace = get_object_or_404(seen.namespaces(), pk=pk)
        role = seen.role_in(namespace)
        may_set = role >= Role.ADMIN
        form = RoleForm(request.POST or None, namespace=namespace, user=seen.user)
        status = 200
        if request.method == "POST":
            if not may_set:
                raise PermissionDenied("Only an admin of the namespace sets roles.")
            status = 400
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
            status=status,
            namespace=namespace,
            role=role.label,
            may_set=may_set,
            may_make_tokens=seen.administers_org(namespace.org_id),
            members=console_selectors.members(namespace),
            tokens=people_selectors.tokens_reaching(namespace)[:SUGGESTIONS] if may_set else [],
            counts=[(label, column.get(pk, 0)) for label, column in counts_by_namespace([pk]).items()],
            form=form,
            roles=ROLE_WORDS,
        )

    def make(self, request: HttpRequest) -> HttpResponse:
        """The form for a new namespace, for admins of its organisation."""
        seen = sight(request)
        if not seen.administers:
            raise PermissionDenied("Only an admin of an organisation makes namespaces.")
        form = NamespaceForm(request.POST or None, sight=seen)
        if request.method == "POST" and form.is_valid():
            try:
                namespace, made = administration.namespace_create(
                    by=seen.user, org=form.cleaned_data["org"], slug=form.cleaned_data["name"]
                )
            except OpError as error:
                form.add_error("name", error.message)
            else:
                messages.success(
                    request, "Made. Give roles on it below." if made else "It was there already."
                )
                return HttpResponseRedirect(reverse("admin:governance_namespace_change", args=[namespace.pk]))
        return self.show(
            request,
            "form.html",
            "Make a namespace",
            status=400 if form.errors else 200,
            form=form,
            button="Make the namespace",
            back=reverse("admin:governance_namespace_changelist"),
            back_label="Namespaces",
            lines=["It is empty, and nobody but the organisation’s admins has a role on it yet."],
        )


class TokenAdmin(AdminsOnly):
    """Tokens: make, show once, revoke."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, the form, and revocation."""
        return [
            self.route("new/", self.make, "new"),
            self.route("<int:pk>/revoke/", require_POST(self.revoke), "revoke"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Tokens, newest first."""
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
        token = get_object_or_404(console_selectors.tokens(sight(request)), pk=pk)
        return self.show(request, "token_row.html", token.label or token.prefix, token=token)

    def make(self, request: HttpRequest) -> HttpResponse:
        """The form; after it the token's text, once, in the answer itself: it is stored nowhere.

        A one-time form id keeps a reload of that answer from making a second token.
        """
        seen = sight(request)
        if request.method == "POST":
            if not self._take_form(request):
                messages.warning(
                    request, "That form was sent before. Its token is in this list; its text is not kept."
                )
                return HttpResponseRedirect(reverse("admin:governance_token_changelist"))
            form = TokenForm(request.POST, sight=seen)
            if form.is_valid():
                try:
                    token, text = administration.token_issue(by=seen.user, **form.given())
                except OpError as error:
                    form.add_error(None, error.message)
                else:
                    return self.show(request, "token_made.html", "Token made", token=token, text=text)
        else:
            form = TokenForm(
                sight=seen,
                initial={
                    "principal": request.GET.get("principal", "") or seen.user.username,
                    "namespaces": request.GET.get("namespace", ""),
                    "default_namespace": request.GET.get("namespace", ""),
                },
            )
        form_id = secrets.token_urlsafe(16)
        # Several, because the form may be open in several tabs.
        request.session["token_forms"] = [*request.session.get("token_forms", []), form_id][-5:]
        return self.show(
            request,
            "token_new.html",
            "Make a token",
            status=400 if form.errors else 200,
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
        token = get_object_or_404(console_selectors.tokens(sight(request)), pk=pk)
        if administration.token_withdraw(by=sight(request).user, token=token):
            messages.success(
                request, f"Revoked {token.label or token.prefix}. It is refused from its next call on."
            )
        else:
            messages.info(request, "It was revoked already.")
        return HttpResponseRedirect(reverse("admin:governance_token_changelist"))
