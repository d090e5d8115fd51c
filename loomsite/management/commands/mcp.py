"""`manage.py mcp`: MCP over stdio, for clients that start their servers themselves."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """Serve MCP on standard input and output.

    Environment: LOOM_TOKEN (without it the local owner acts, in single-user mode), LOOM_NAMESPACE,
    LOOM_TOOLSET (core or all). Attaches to the server that runs under LOOM_HOME, or to LOOM_DATABASE_URL.
    """

    help = "Serve MCP on standard input and output (LOOM_TOKEN, LOOM_NAMESPACE, LOOM_TOOLSET)."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until the client closes standard input."""
        from loomsite.doors.stdio import main

        try:
            main()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
