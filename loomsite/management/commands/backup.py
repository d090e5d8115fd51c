"""`manage.py backup FILE`: the whole database and the anchors of its audit, as of one moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import CommandError, CommandParser
from tqdm import tqdm

from governance import backup
from loomsite.management.commands._with_database import DatabaseCommand


class Command(DatabaseCommand):
    """Others may go on reading and writing meanwhile. The file holds everything in the clear."""

    help = "Write a backup of the database and of the audit's anchor file."

    def add_arguments(self, parser: CommandParser) -> None:
        """The file."""
        parser.add_argument("file", help="a new file that only you may read; - for standard output")

    def work(self, options: dict[str, Any]) -> None:
        """Write it; progress and the counts go to stderr."""
        try:
            with _opened(options["file"]) as file, tqdm(unit=" rows", desc="backup", disable=None) as bar:
                done = backup.backup(file, bar.update)
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from error
        self.stderr.write(
            f"{sum(done.rows.values())} rows of {len(done.rows)} tables as of {done.taken_at}; "
            f"SHA-256 of the content {done.sha256}"
        )


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Where it goes. A file gets its name when it is whole; one that is there is never replaced."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    if path.exists():
        raise CommandError(f"{path} exists; a backup is never replaced. Name a new file.")
    part = path.with_name(f"{path.name}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
