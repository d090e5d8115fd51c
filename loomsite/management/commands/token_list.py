"""`manage.py token_list`: every token with its reach and its last use."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import console_selectors
from loomsite.management.commands._access import AccessCommand, org_named


class Command(AccessCommand):
    """One line a token; secrets are not kept and cannot be shown."""

    help = "List tokens that are let in, newest first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which."""
        parser.add_argument("--org", help="only this organisation's")
        parser.add_argument("--all", action="store_true", help="those that are refused, too")

    def change(self, options: dict[str, Any]) -> None:
        """Print them."""
        tokens = console_selectors.all_tokens("" if options["all"] else "valid")
        if options["org"]:
            tokens = tokens.filter(org=org_named(options["org"]))
        for token in tokens.order_by("-pk").iterator():
            names = token.namespaces
            reach = "all of the account's" if names is None else ",".join(names) or "none"
            used = f"{token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never"
            state = getattr(token, "state", "")
            parts = (
                token.prefix, state, token.org.slug, token.principal.username, token.role,
                f"namespaces: {reach}", f"last used: {used}", token.label,
            )  # fmt: skip
            self.stdout.write("  ".join(parts).rstrip())
