"""`manage.py account_create NAME --org ORG`: a person or a service account."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, org_named


class Command(AccessCommand):
    """A person logs in to the console; a service account only has tokens."""

    help = (
        "Make an account of an organisation. A person's password comes from LOOM_NEW_PASSWORD, else one is "
        "made and printed once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The name, the organisation and the kind."""
        parser.add_argument("name")
        parser.add_argument("--org", required=True)
        parser.add_argument("--service", action="store_true", help="a service account, without a password")
        parser.add_argument("--email", default="")

    def change(self, options: dict[str, Any]) -> None:
        """Make it; an existing name is an error."""
        given = None if options["service"] else os.environ.get("LOOM_NEW_PASSWORD") or None
        account, password = administration.account_create(
            org=org_named(options["org"]),
            name=options["name"],
            service=options["service"],
            email=options["email"],
            password=given,
        )
        kind = "service account" if options["service"] else "person"
        self.stdout.write(f"{kind} {account.username}: made")
        if password:
            self.stdout.write(f"password (shown once): {password}")
