"""`manage.py member_list ORG:NAMESPACE`: who holds which role there."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance.console_selectors import members
from loomsite.management.commands._access import AccessCommand, namespace_named


class Command(AccessCommand):
    """One line a member; admins of the organisation and superusers hold every role without one."""

    help = "List the roles on a namespace."

    def add_arguments(self, parser: CommandParser) -> None:
        """The place."""
        parser.add_argument("place", metavar="ORG:NAMESPACE")

    def change(self, options: dict[str, Any]) -> None:
        """Print them."""
        for member in members(namespace_named(options["place"])):
            self.stdout.write(f"{member['role']:9} {member['kind']:8} {member['name']}")
