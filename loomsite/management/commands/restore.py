"""`manage.py restore FILE`: what `manage.py backup` wrote, into an empty database and home."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error as DatabaseFault
from django.db import connection
from tqdm import tqdm

from governance import backup, selectors
from loomsite.embedded.home import Home
from loomsite.embedded.session import VARIABLE, is_running
from loomsite.management.commands._with_database import DatabaseCommand


class Command(DatabaseCommand):
    """All of the file or nothing; the audit is verified before anything is committed."""

    help = "Restore a backup into an empty database; --overwrite gives up what a database holds."

    def add_arguments(self, parser: CommandParser) -> None:
        """The file, and what may be given up for it."""
        parser.add_argument("file", help="what backup wrote; - for standard input")
        parser.add_argument(
            "--overwrite", action="store_true", help="lose everything that this database holds"
        )
        parser.add_argument(
            "--accept-broken-audit", action="store_true", help="restore although the audit does not verify"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Never under a running server."""
        if not os.environ.get(VARIABLE, "").strip() and is_running(Home.from_env()):
            raise CommandError("A server runs under this LOOM_HOME; stop it first (make stop).")
        super().handle(*args, **options)

    def work(self, options: dict[str, Any]) -> None:
        """Take it in; progress and the counts go to stderr."""
        self._require_no_worker()
        wanted = backup.Options(options["overwrite"], options["accept_broken_audit"])
        try:
            source = (
                nullcontext(sys.stdin.buffer) if options["file"] == "-" else Path(options["file"]).open("rb")
            )
            with source as file, tqdm(unit=" rows", desc="restore", disable=None) as bar:
                done = backup.restore(file, wanted, bar.update)
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from error
        except backup.BackupError as error:
            raise CommandError(f"Nothing was restored. {error}") from error
        self.stderr.write(
            f"{sum(done.rows.values())} rows of {len(done.rows)} tables as of {done.taken_at}; the audit "
            "verifies. Tokens revoked and texts erased since then are back: revoke and erase them again."
        )

    def _require_no_worker(self) -> None:
        try:
            seen = (
                "governance_workerbeat" in connection.introspection.table_names() and selectors.worker_seen()
            )
        except DatabaseFault as error:
            raise CommandError(f"The database cannot be reached: {str(error).splitlines()[0]}") from error
        if seen and seen["alive"]:
            raise CommandError("A worker of this database was heard from just now; stop the servers first.")
