"""What the access commands share: finding things by name, and refusals as one line."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from django.contrib.auth.models import Group
from django.core.management.base import BaseCommand, CommandError

from governance.models import Namespace, Org, User
from loomsite.ops import OpError


class AccessCommand(BaseCommand):
    """A command that changes who may do what, as the operator of the server; refusals are one line."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run `change`."""
        try:
            self.change(options)
        except OpError as error:
            raise CommandError(error.message) from error

    @abstractmethod
    def change(self, options: dict[str, Any]) -> None:
        """Do it. An OpError is shown as the command's error."""


def org_named(slug: str) -> Org:
    """The organisation; CommandError naming those that exist."""
    found = Org.objects.filter(slug=slug).first()
    if found is None:
        known = ", ".join(Org.objects.order_by("slug").values_list("slug", flat=True)[:20]) or "none"
        raise CommandError(f"No organisation {slug!r}; there are: {known}. `manage.py org_create` makes one.")
    return found


def place(text: str) -> tuple[Org, str]:
    """`ORG:NAMESPACE` as the organisation and the namespace's name, which may hold colons."""
    org_slug, colon, slug = text.partition(":")
    if not colon or not slug:
        raise CommandError(f"{text!r}: name a namespace as ORG:NAMESPACE, for example dev:local.")
    return org_named(org_slug), slug


def namespace_named(text: str) -> Namespace:
    """The namespace of `ORG:NAMESPACE`; CommandError when either is missing."""
    org, slug = place(text)
    found = Namespace.objects.select_related("org").filter(org=org, slug=slug).first()
    if found is None:
        raise CommandError(f"No namespace {slug!r} in {org.slug}; `manage.py namespace_create` makes one.")
    return found


def user_named(name: str) -> User:
    """The person or service account; CommandError when there is none."""
    found = User.objects.filter(username=name).first()
    if found is None:
        raise CommandError(f"No account {name!r}; `manage.py account_create` makes one.")
    return found


def group_named(name: str) -> Group:
    """The group; CommandError when there is none."""
    found = Group.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"No group {name!r}; `manage.py group_set` makes one.")
    return found


def member_named(options: dict[str, Any]) -> User | Group:
    """The account or group of the options `--user` and `--group`."""
    return user_named(options["user"]) if options["user"] else group_named(options["group"])
