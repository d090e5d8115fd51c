"""`manage.py up`: start everything behind `make run`."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from loomsite.embedded.cli import exec_cli


class Command(BaseCommand):
    """Leads to `python -m loomsite.embedded up`, which runs without Django."""

    help = "Start database, broker, web, MCP and worker, and keep them alive until Ctrl-C."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Only where the servers go: to this terminal, or to the background."""
        parser.add_argument("--detach", action="store_true", help="return when ready; `down` stops it")

    def handle(self, *args: Any, **options: Any) -> None:
        """Does not return: the process is replaced."""
        exec_cli("up", *(["--detach"] if options["detach"] else []))
