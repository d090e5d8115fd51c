"""`manage.py token_revoke PREFIX`: a token is dead from the next call on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from governance import administration
from governance.models import Token
from loomsite.management.commands._access import AccessCommand


class Command(AccessCommand):
    """Revoke by the prefix that `token_list` and the audit show."""

    help = "Revoke a token by its prefix, or by its whole text."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which."""
        parser.add_argument("prefix")

    def change(self, options: dict[str, Any]) -> None:
        """Revoke it at once."""
        # A whole token must not be repeated in the message.
        prefix = options["prefix"].removeprefix("loom_")[:12]
        token = Token.objects.select_related("org", "principal").filter(prefix=prefix).first()
        if token is None:
            raise CommandError(f"No token {prefix!r}; `manage.py token_list --all` shows them.")
        changed = administration.token_withdraw(token=token)
        self.stdout.write(f"token {token.prefix}: {'revoked' if changed else 'was revoked already'}")
