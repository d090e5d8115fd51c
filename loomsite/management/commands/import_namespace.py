"""`manage.py import_namespace ORG:NAMESPACE [--input FILE]`: what export_namespace wrote, taken in again."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from loomsite.management.commands._access import place
from memories import transfer


class Command(BaseCommand):
    """Import into an empty namespace, in one transaction: all of the file or nothing."""

    help = "Import a namespace, named ORG:NAMESPACE, from JSON Lines."

    def add_arguments(self, parser: CommandParser) -> None:
        """The place, and the file."""
        parser.add_argument("place", metavar="ORG:NAMESPACE")
        parser.add_argument("--input", type=Path, help="what export_namespace wrote; default: stdin")

    def handle(self, *args: Any, **options: Any) -> None:
        """Take it in; progress and the counts go to stderr."""
        org, slug = place(options["place"])
        try:
            source = (
                nullcontext(sys.stdin.buffer) if options["input"] is None else options["input"].open("rb")
            )
            with source as file, tqdm(unit=" rows", desc="importing", disable=None) as bar:
                done = transfer.import_namespace(org, slug, file, bar.update)
        except OSError as error:
            raise CommandError(f"{options['input']}: {error.strerror}") from error
        except transfer.TransferError as error:
            raise CommandError(f"Nothing was imported. {error}") from error
        told = ", ".join(f"{number} {name}" for name, number in done.counts.items())
        self.stderr.write(f"{done.namespace}: {told}; SHA-256 of the file {done.sha256}")
