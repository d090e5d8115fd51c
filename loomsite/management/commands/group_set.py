"""`manage.py group_set NAME --org ORG`: a group, and who is in it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, org_named, user_named


class Command(AccessCommand):
    """Make a group of an organisation unless it is there, and put accounts in or take them out."""

    help = "Make a group of an organisation; --add and --remove (several times) say who is in it."

    def add_arguments(self, parser: CommandParser) -> None:
        """The group and the accounts."""
        parser.add_argument("name")
        parser.add_argument("--org", required=True)
        parser.add_argument("--add", action="append", default=[], metavar="ACCOUNT")
        parser.add_argument("--remove", action="append", default=[], metavar="ACCOUNT")

    def change(self, options: dict[str, Any]) -> None:
        """Change it. Every name is looked up before anything is done."""
        org = org_named(options["org"])
        coming = [user_named(name) for name in options["add"]]
        going = [user_named(name) for name in options["remove"]]
        group, made = administration.group_create(org=org, name=options["name"])
        for account in coming:
            administration.group_member_set(group=group, account=account, is_member=True)
        for account in going:
            administration.group_member_set(group=group, account=account, is_member=False)
        self.stdout.write(
            f"group {group.name}: {'made, ' if made else ''}{len(coming)} added, {len(going)} removed"
        )
