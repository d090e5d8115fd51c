"""`manage.py org_create SLUG`: an organisation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from governance import administration
from loomsite.management.commands._access import AccessCommand


class Command(AccessCommand):
    """Make an organisation unless it is there."""

    help = "Make an organisation."

    def add_arguments(self, parser: CommandParser) -> None:
        """The name."""
        parser.add_argument("slug")

    def change(self, options: dict[str, Any]) -> None:
        """Make it."""
        org, made = administration.org_create(slug=options["slug"])
        self.stdout.write(f"organisation {org.slug}: {'made' if made else 'was there already'}")
