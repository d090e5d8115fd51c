"""`manage.py account_set NAME --deactivate`: what an account is, changed."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand, org_named, user_named


class Command(AccessCommand):
    """One change a run; the same change again says that nothing was done."""

    help = (
        "Deactivate or reactivate an account, make it a superuser or not, or bring it into an organisation."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Who, and what."""
        parser.add_argument("name")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--deactivate", action="store_true", help="no login, no session, no token")
        what.add_argument("--reactivate", action="store_true")
        what.add_argument("--superuser", action="store_true", help="administers the whole server")
        what.add_argument("--no-superuser", action="store_true")
        what.add_argument("--join", metavar="ORG", help="the organisation's admins may give it roles")
        what.add_argument("--leave", metavar="ORG", help="they may not; roles that it has stay")

    def change(self, options: dict[str, Any]) -> None:
        """Change it."""
        account = user_named(options["name"])
        if options["join"] or options["leave"]:
            org, is_member = org_named(options["join"] or options["leave"]), bool(options["join"])
            administration.org_member_set(org=org, member=account, is_member=is_member)
            done = True
        elif options["deactivate"] or options["reactivate"]:
            done = administration.account_set_active(account=account, is_active=options["reactivate"])
        else:
            done = administration.account_set_superuser(account=account, is_superuser=options["superuser"])
        self.stdout.write(f"account {account.username}: {'changed' if done else 'was like that already'}")
