"""Commands that work on the whole database, whether a server runs or not."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.session import with_database


class DatabaseCommand(BaseCommand):
    """Where no server runs, the embedded database is started for the command's time."""

    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Work here, or in a process that has the database."""
        try:
            code = with_database(sys.argv[1:])
        except EmbeddedError as error:
            raise CommandError(str(error)) from error
        if code is None:
            self.work(options)
        elif code:
            sys.exit(code)

    @abstractmethod
    def work(self, options: dict[str, Any]) -> None:
        """Do it; the database can be reached."""
