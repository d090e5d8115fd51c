"""`manage.py member_set ORG:NAMESPACE --user NAME --role ROLE`: a role on a namespace."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, member_named, namespace_named
from loomsite.ops import Role


class Command(AccessCommand):
    """Give an account or a group exactly one role on a namespace."""

    help = "Give --user or --group the --role on a namespace; `none` takes every role away."

    def add_arguments(self, parser: CommandParser) -> None:
        """The place, who, and the role."""
        parser.add_argument("place", metavar="ORG:NAMESPACE")
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--user", metavar="NAME")
        who.add_argument("--group", metavar="NAME")
        parser.add_argument("--role", required=True, choices=[role.label for role in Role])

    def change(self, options: dict[str, Any]) -> None:
        """Set it."""
        namespace, member = namespace_named(options["place"]), member_named(options)
        administration.role_give(namespace=namespace, member=member, role=Role.of(options["role"]))
        self.stdout.write(f"{member} on {namespace}: {options['role']}")
