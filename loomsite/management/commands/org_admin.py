"""`manage.py org_admin ORG --user NAME`: who administers every namespace of an organisation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, member_named, org_named


class Command(AccessCommand):
    """Give or take the administration of an organisation."""

    help = "Let --user or --group administer an organisation; --remove takes it away."

    def add_arguments(self, parser: CommandParser) -> None:
        """The organisation and who."""
        parser.add_argument("org")
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--user", metavar="NAME")
        who.add_argument("--group", metavar="NAME")
        parser.add_argument("--remove", action="store_true")

    def change(self, options: dict[str, Any]) -> None:
        """Set it."""
        org, member, is_admin = org_named(options["org"]), member_named(options), not options["remove"]
        administration.org_admin_set(org=org, member=member, is_admin=is_admin)
        self.stdout.write(f"{member} {'administers' if is_admin else 'no longer administers'} {org.slug}")
