"""`manage.py token_create`: a token, printed once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from governance import administration
from governance.models import SOURCE_CLASSES
from loomsite.management.commands._access import AccessCommand, org_named, user_named
from loomsite.ops import Role


class Command(AccessCommand):
    """The full token goes to standard output alone, so that a script can take it."""

    help = "Make a token for a person or a service account; it is printed once and only its hash is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whom it speaks for, and how far."""
        parser.add_argument("principal")
        parser.add_argument("--org", required=True)
        reach = parser.add_mutually_exclusive_group()
        reach.add_argument(
            "--namespace", action="append", metavar="NAME",
            help="may stand several times; without it, every namespace that the principal's roles allow",
        )  # fmt: skip
        reach.add_argument("--no-namespaces", action="store_true", help="the token covers none at all")
        parser.add_argument("--default-namespace", default="", metavar="NAME")
        parser.add_argument("--role", default="writer", choices=["viewer", "writer"], help="at most")
        parser.add_argument("--agent", default="", help="bind the token to this agent")
        parser.add_argument("--user-id", default="", help="bind the token to this end user")
        parser.add_argument("--acts-for", default="agent", choices=["agent", "person"])
        parser.add_argument("--source-class", default="local_tool_output", choices=SOURCE_CLASSES)
        parser.add_argument("--expires-in-days", type=int, metavar="N")
        parser.add_argument("--label", default="")
        parser.add_argument("--may-create-namespaces", action="store_true")

    def change(self, options: dict[str, Any]) -> None:
        """Make it."""
        days = options["expires_in_days"]
        if days is not None and not 1 <= days <= 3650:
            raise CommandError("--expires-in-days: a whole number from 1 to 3650 is needed.")
        _, full = administration.token_issue(
            principal=user_named(options["principal"]),
            org=org_named(options["org"]),
            label=options["label"],
            namespaces=[] if options["no_namespaces"] else options["namespace"],
            default_namespace=options["default_namespace"],
            role=Role.of(options["role"]),
            agent=options["agent"],
            user_id=options["user_id"],
            acts_for=options["acts_for"],
            source_class=options["source_class"],
            may_create_namespaces=options["may_create_namespaces"],
            expires_at=None if days is None else timezone.now() + timedelta(days=days),
        )
        self.stdout.write(full)
