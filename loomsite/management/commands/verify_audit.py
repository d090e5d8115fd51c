"""`manage.py verify_audit`: is the audit what it was when it was written?"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from governance import audit
from governance.models import Org


class Command(BaseCommand):
    """Check every organisation's chain against itself, its head and the anchored heads.

    One line per organisation; the first bad row or the missing tail is named. Exit code 1 on a fault.
    """

    help = "Verify the audit chains; names the first bad row or the missing tail."

    def add_arguments(self, parser: CommandParser) -> None:
        """--org."""
        parser.add_argument("--org", help="only this organisation (its slug)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a line per organisation."""
        orgs = Org.objects.order_by("slug")
        if options["org"] is not None:
            orgs = orgs.filter(slug=options["org"])
            if not orgs:
                raise CommandError(f"no organisation is called {options['org']!r}")
        faults = 0
        for org in orgs:
            report = audit.verify(org.pk, org.slug)
            if report.fault is None:
                self.stdout.write(f"{org.slug}: {report.events} rows, chain and head intact")
            else:
                faults += 1
                self.stdout.write(f"{org.slug}: BROKEN after {report.events} good rows: {report.fault.what}")
        if faults:
            sys.exit(1)
