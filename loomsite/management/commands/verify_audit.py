"""`manage.py verify_audit`: is the audit what it was when it was written?"""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from governance import audit
from governance.models import Org


class Command(BaseCommand):
    """Check every organisation's chain against itself, its head and the anchored heads.

    One line per organisation; the first bad row or the missing tail is named. Exit code 1 on a fault, and
    where there is no anchor to hold the end of a chain against, unless that is said to be known.
    """

    help = "Verify the audit chains; names the first bad row or the missing tail."

    def add_arguments(self, parser: CommandParser) -> None:
        """--org."""
        parser.add_argument("--org", help="only this organisation (its slug)")
        parser.add_argument(
            "--without-anchor",
            action="store_true",
            help="the anchor file is known not to be here (another machine, a restored dump)",
        )

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
            if report.fault is not None:
                faults += 1
                self.stdout.write(f"{org.slug}: BROKEN after {report.events} good rows: {report.fault.what}")
            elif report.events and not report.anchored and not options["without_anchor"]:
                faults += 1
                self.stdout.write(
                    f"{org.slug}: {report.events} rows, chain and head intact, but "
                    f"{settings.LOOM_AUDIT_ANCHOR} knows nothing of it: a cut tail would not be seen "
                    "(--without-anchor if that is known)"
                )
            else:
                self.stdout.write(f"{org.slug}: {report.events} rows, chain and head intact")
        if options["org"] is None:
            for org_id in sorted(audit.orphaned_anchors(set(Org.objects.values_list("pk", flat=True)))):
                faults += 1
                self.stdout.write(f"organisation {org_id}: MISSING, though its chain was anchored")
        if faults:
            sys.exit(1)
