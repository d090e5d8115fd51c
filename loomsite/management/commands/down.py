"""`manage.py down`: stop what `manage.py up` started."""

from typing import Any

from django.core.management.base import BaseCommand

from loomsite.embedded.cli import exec_cli


class Command(BaseCommand):
    """Leads to `python -m loomsite.embedded down`, which runs without Django."""

    help = "Stop the servers under LOOM_HOME and wait until nothing of them runs."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Does not return: the process is replaced."""
        exec_cli("down")
