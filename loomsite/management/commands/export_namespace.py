"""`manage.py export_namespace ORG:NAMESPACE [--output FILE]`: a namespace as JSON Lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from tqdm import tqdm

from loomsite.management.commands._access import namespace_named
from memories import transfer


class Command(BaseCommand):
    """Write everything that a namespace holds, with its history and audit, as it is at one moment."""

    help = "Export a namespace, named ORG:NAMESPACE, as JSON Lines."

    def add_arguments(self, parser: CommandParser) -> None:
        """The place, and the file."""
        parser.add_argument("place", metavar="ORG:NAMESPACE")
        parser.add_argument("--output", type=Path, help="a file that only you may read; default: stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write it; progress and the counts go to stderr."""
        namespace = namespace_named(options["place"])
        with (
            _opened(options["output"]) as write,
            tqdm(unit=" rows", desc="exporting", disable=None) as bar,
        ):
            counts = transfer.export_namespace(namespace, write, bar.update)
        told = ", ".join(f"{number} {name}" for name, number in counts.items())
        self.stderr.write(f"{namespace}: {told}")


@contextmanager
def _opened(output: Path | None) -> Iterator[Callable[[bytes], Any]]:
    """Where the lines go. A file gets its name when it is whole."""
    if output is None:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    part = output.with_name(f"{output.name}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
