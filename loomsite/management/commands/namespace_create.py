"""`manage.py namespace_create ORG:NAMESPACE`: a namespace."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, place


class Command(AccessCommand):
    """Make a namespace of an organisation unless it is there."""

    help = "Make a namespace, named ORG:NAMESPACE."

    def add_arguments(self, parser: CommandParser) -> None:
        """The place."""
        parser.add_argument("place", metavar="ORG:NAMESPACE")

    def change(self, options: dict[str, Any]) -> None:
        """Make it."""
        org, slug = place(options["place"])
        namespace, made = administration.namespace_create(org=org, slug=slug)
        self.stdout.write(f"namespace {namespace}: {'made' if made else 'was there already'}")
