"""Console pages about who there is: accounts, groups and organisations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse

from governance import administration, people_selectors
from governance.console import Sight, bounded_count, keyset, sight
from governance.console_forms import PasswordCheck
from governance.console_pages import SUGGESTIONS, AdminsOnly, cursor_of
from governance.directory import accounts_of, groups_of
from governance.models import User
from governance.people_forms import AccountForm, GroupForm, OrgForm, StandingForm
from loomsite.ops import OpError


@dataclass(frozen=True)
class Change:
    """A form on an account's page: what it asks, and what it does. `run` gives the words to show."""

    title: str
    button: str
    lines: tuple[str, ...]
    form: Callable[[HttpRequest, Sight], forms.Form]
    run: Callable[[User, User, dict[str, Any]], str]
    is_offered: Callable[[User], bool] = lambda account: True
    is_danger: bool = False


def _password(request: HttpRequest, seen: Sight) -> forms.Form:
    return PasswordCheck(request.POST or None, user=seen.user)


def _standing(request: HttpRequest, seen: Sight) -> forms.Form:
    return StandingForm(request.POST or None, user=seen.user, sight=seen)


def _group(request: HttpRequest, seen: Sight) -> forms.Form:
    return GroupForm(request.POST or None, user=seen.user, sight=seen)


def _set_active(is_active: bool) -> Callable[[User, User, dict[str, Any]], str]:
    def run(by: User, account: User, given: dict[str, Any]) -> str:
        administration.account_set_active(by=by, account=account, is_active=is_active)
        return "Reactivated." if is_active else "Deactivated: no login, no session, no token."

    return run


def _set_superuser(is_superuser: bool) -> Callable[[User, User, dict[str, Any]], str]:
    def run(by: User, account: User, given: dict[str, Any]) -> str:
        administration.account_set_superuser(by=by, account=account, is_superuser=is_superuser)
        return "Is a superuser now." if is_superuser else "Is no superuser any more."

    return run


def set_standing(by: User, member: User | Group, given: dict[str, Any]) -> str:
    """Apply a StandingForm."""
    org, standing = given["org"], given["standing"]
    administration.org_admin_set(by=by, org=org, member=member, is_admin=standing == "admin")
    administration.org_member_set(by=by, org=org, member=member, is_member=standing != "none")
    words = {"member": "Is known in", "admin": "Administers", "none": "Is neither admin nor member of"}
    return f"{words[standing]} {org.slug} now."


def _set_group(by: User, account: User, given: dict[str, Any]) -> str:
    is_member = given["membership"] == "in"
    group = Group.objects.filter(name=given["name"]).first()
    if group is None:
        if not is_member:
            return "There is no group of that name, so nothing was done."
        group, _ = administration.group_create(by=by, org=given["org"], name=given["name"])
    administration.group_member_set(by=by, group=group, account=account, is_member=is_member)
    return f"Is {'in' if is_member else 'not in'} {group.name} now."


CHANGES: dict[str, Change] = {
    "standing": Change(
        "Organisation", "Set it", ("Admins of an organisation set roles and make tokens in it.",),
        _standing, set_standing,
    ),
    "group": Change(
        "Group", "Set it", ("Who is in a group has its roles, from the next call on.",), _group, _set_group
    ),
    "superuser": Change(
        "Make a superuser", "Make a superuser",
        ("A superuser is admin of every namespace of every organisation and manages all accounts.",),
        _password, _set_superuser(True),
        lambda account: account.kind == "person" and account.is_active and not account.is_superuser,
        True,
    ),
    "no-superuser": Change(
        "End superuser", "End it", ("Roles that were given by name stay.",), _password, _set_superuser(False),
        lambda account: account.is_superuser,
    ),
    "deactivate": Change(
        "Deactivate", "Deactivate",
        ("No login from now on, open sessions end, and every token is refused.",
         "Roles, tokens and the history stay; it can be reactivated here."),
        _password, _set_active(False), lambda account: account.is_active, True,
    ),
    "reactivate": Change(
        "Reactivate", "Reactivate",
        ("The login works again, and so do its tokens that are neither revoked nor expired.",),
        _password, _set_active(True), lambda account: not account.is_active,
    ),
}  # fmt: skip


class AccountAdmin(AdminsOnly):
    """People and service accounts. Superusers make and change them; org admins see those of theirs."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, the form for a new one, and what can be changed."""
        return [
            self.route("new/", self.make, "new"),
            self.route("<int:pk>/password/", self.reset, "reset"),
            self.route("<int:pk>/<slug:change>/", self.change, "act"),
            *super().get_urls(),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Accounts by name."""
        seen = sight(request)
        rows = people_selectors.accounts(seen)
        wanted = request.GET.get("q", "").strip().replace("\x00", "")
        if wanted:
            rows = rows.filter(username__icontains=wanted)
        return self.show(
            request,
            "account_list.html",
            "People and service accounts",
            may_make=seen.is_superuser,
            page=keyset(rows, cursor_of(request), "username"),
            count=bounded_count(rows),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One account: what it is, its roles and its tokens."""
        seen = sight(request)
        account = get_object_or_404(people_selectors.accounts(seen), pk=pk)
        tokens = people_selectors.tokens_of(seen, account)
        return self.show(
            request,
            "account_row.html",
            account.username,
            account=account,
            is_platform=seen.is_superuser,
            standings=people_selectors.standings(seen, account),
            roles=people_selectors.roles_of(seen, account),
            groups=account.groups.filter(pk__in=people_selectors.groups(seen).values("pk"))[:SUGGESTIONS],
            tokens=tokens[:SUGGESTIONS],
            changes=[(name, change) for name, change in CHANGES.items() if change.is_offered(account)]
            if seen.is_superuser
            else [],
        )

    def make(self, request: HttpRequest) -> HttpResponse:
        """A new account; a person's password is shown once, in the answer itself."""
        seen = self._superuser(request)
        form = AccountForm(request.POST or None, sight=seen)
        if request.method == "POST" and form.is_valid():
            given = form.cleaned_data
            try:
                account, password = administration.account_create(
                    by=seen.user,
                    org=given["org"],
                    name=given["name"],
                    email=given["email"],
                    service=given["kind"] == User.Kind.SERVICE,
                )
            except OpError as error:
                form.add_error(None, error.message)
            else:
                return self._told(request, account, password, "Account made")
        return self.show(
            request,
            "form.html",
            "Make an account",
            status=400 if form.errors else 200,
            form=form,
            button="Make the account",
            back=reverse("admin:governance_user_changelist"),
            back_label="People",
            lines=["A person gets a password, shown once. Roles are given on the namespaces’ pages."],
        )

    def reset(self, request: HttpRequest, pk: int) -> HttpResponse:
        """A new password for somebody, shown once."""
        seen = self._superuser(request)
        account = get_object_or_404(User, pk=pk, kind=User.Kind.PERSON)
        form = PasswordCheck(request.POST or None, user=seen.user)
        if request.method == "POST" and form.is_valid():
            password = administration.account_reset_password(by=seen.user, account=account)
            return self._told(request, account, password, "New password")
        return self.show(
            request,
            "form.html",
            f"New password: {account.username}",
            status=400 if form.errors else 200,
            form=form,
            button="Make a new password",
            back=reverse("admin:governance_user_change", args=[pk]),
            back_label=account.username,
            lines=["The old one stops working and every session of this person ends. Tokens stay."],
        )

    def change(self, request: HttpRequest, pk: int, change: str) -> HttpResponse:
        """One of CHANGES, with the reader's password."""
        seen = self._superuser(request)
        account = get_object_or_404(User, pk=pk)
        wanted = CHANGES.get(change)
        if wanted is None:
            raise Http404("No such change.")
        form = wanted.form(request, seen)
        if request.method == "POST" and form.is_valid():
            try:
                said = wanted.run(seen.user, account, form.cleaned_data)
            except OpError as error:
                form.add_error(None, error.message)
            else:
                messages.success(request, said)
                return HttpResponseRedirect(reverse("admin:governance_user_change", args=[pk]))
        return self.show(
            request,
            "form.html",
            f"{wanted.title}: {account.username}",
            status=400 if form.errors else 200,
            form=form,
            button=wanted.button,
            is_danger=wanted.is_danger,
            back=reverse("admin:governance_user_change", args=[pk]),
            back_label=account.username,
            lines=wanted.lines,
        )

    def _superuser(self, request: HttpRequest) -> Sight:
        seen = sight(request)
        if not seen.is_superuser:
            raise PermissionDenied("Only superusers make and change accounts.")
        return seen

    def _told(self, request: HttpRequest, account: User, password: str | None, title: str) -> HttpResponse:
        return self.show(request, "account_made.html", title, account=account, password=password)


class GroupPages(AdminsOnly):
    """Groups and who is in them. They are made from an account's page."""

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Groups by name."""
        seen = sight(request)
        rows = people_selectors.groups(seen)
        page = keyset(rows, cursor_of(request), "name")
        return self.show(request, "group_list.html", "Groups", page=page, count=bounded_count(rows))

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One group: its people, its roles, and what it is in organisations."""
        seen = sight(request)
        group = get_object_or_404(people_selectors.groups(seen), pk=pk)
        form = StandingForm(request.POST or None, user=seen.user, sight=seen)
        if request.method == "POST":
            if not seen.is_superuser:
                raise PermissionDenied("Only superusers change what a group is in an organisation.")
            if form.is_valid():
                messages.success(request, set_standing(seen.user, group, form.cleaned_data))
                return HttpResponseRedirect(request.path)
        people = group.user_set.filter(pk__in=people_selectors.accounts(seen).values("pk"))
        page = keyset(people, cursor_of(request), "username")
        return self.show(
            request,
            "group_row.html",
            group.name,
            status=400 if form.errors else 200,
            group=group,
            page=page,
            count=bounded_count(people),
            standings=people_selectors.standings(seen, group),
            roles=people_selectors.roles_of(seen, group),
            form=form if seen.is_superuser else None,
        )


class OrgAdmin(AdminsOnly):
    """Organisations: who administers them, and whom they know."""

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, and the form for a new one."""
        return [self.route("new/", self.make, "new"), *super().get_urls()]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """The reader's organisations by name."""
        seen = sight(request)
        rows = people_selectors.orgs(seen)
        return self.show(
            request,
            "org_list.html",
            "Organisations",
            may_make=seen.is_superuser,
            page=keyset(rows, cursor_of(request), "slug"),
            count=bounded_count(seen.orgs()),
        )

    def row_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One organisation."""
        org = get_object_or_404(people_selectors.orgs(sight(request)), pk=pk)
        people = accounts_of([org.pk])
        return self.show(
            request,
            "org_row.html",
            org.slug,
            org=org,
            admins=people_selectors.admins_of(org),
            groups=groups_of([org.pk])[:SUGGESTIONS],
            page=keyset(people, cursor_of(request), "username"),
            count=bounded_count(people),
        )

    def make(self, request: HttpRequest) -> HttpResponse:
        """The form for a new organisation, for superusers."""
        seen = sight(request)
        if not seen.is_superuser:
            raise PermissionDenied("Only superusers make organisations.")
        form = OrgForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                org, made = administration.org_create(by=seen.user, slug=form.cleaned_data["name"])
            except OpError as error:
                form.add_error("name", error.message)
            else:
                messages.success(request, "Made." if made else "It was there already.")
                return HttpResponseRedirect(reverse("admin:governance_org_change", args=[org.pk]))
        return self.show(
            request,
            "form.html",
            "Make an organisation",
            status=400 if form.errors else 200,
            form=form,
            button="Make the organisation",
            back=reverse("admin:governance_org_changelist"),
            back_label="Organisations",
            lines=["Nothing is shared between organisations: memories, roles, tokens and audit are apart."],
        )
