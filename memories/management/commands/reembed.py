"""`manage.py reembed`: vectors of the configured embedder for everything that lacks them."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from memories import reembed
from memories.embedders import EmbedderUnavailable, get_embedder

WIDTH = 30


class Command(BaseCommand):
    """Embed memories, facts and procedures for the embedder that this command's own settings name.

    The server may go on meanwhile with the embedder that it was started with. Stopped and run again, the
    command goes on where it was.
    """

    help = (
        "Embed everything that has no vector of the embedder named by LOOM_EMBEDDER in this command's "
        "environment. A running server keeps serving the vectors of its own. Then restart it with the new "
        "setting, and run this again with --prune."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """--prune, --check."""
        parser.add_argument(
            "--prune", action="store_true",
            help="afterwards delete the vectors of other embedders; only once no server uses them any more",
        )  # fmt: skip
        parser.add_argument(
            "--check", action="store_true", help="change nothing; say how many rows have no vector yet"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the progress, and what was stored."""
        embedder = get_embedder()
        if embedder.name == "none":
            raise CommandError("LOOM_EMBEDDER=none embeds nothing; name another embedder.")
        if options["check"]:
            for name, number in reembed.missing(embedder.name).items():
                self.stdout.write(f"{name}: {number:,} without a vector of {embedder.name}")
            return
        bar = Bar(self)
        try:
            stored = reembed.reembed(embedder, bar)
            bar.end()
            for name, number in stored.items():
                self.stdout.write(f"{name}: {number:,} embedded by {embedder.name}")
            if options["prune"]:
                for name, number in reembed.prune(embedder).items():
                    self.stdout.write(f"{name}: {number:,} vectors of other embedders deleted")
        except EmbedderUnavailable as error:
            bar.end()
            raise CommandError(f"{error}. What is embedded stays; run it again to go on.") from error
        except KeyboardInterrupt:
            bar.end()
            raise CommandError("stopped. What is embedded stays; run it again to go on.") from None


class Bar:
    """One line that is written over on a terminal; elsewhere a line for each tenth."""

    def __init__(self, command: BaseCommand) -> None:
        self._err = command.stderr
        self._live = bool(self._err.isatty())
        self._shown: tuple[str, int] = ("", -1)
        self._begun: dict[str, float] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        if total == 0:
            return
        tenth = done * 10 // total
        if not self._live and (name, tenth) == self._shown:
            return
        self._shown = (name, tenth)
        seconds = time.monotonic() - self._begun.setdefault(name, time.monotonic())
        full = done * WIDTH // total
        rate = f", {done / seconds:,.0f}/s" if done and seconds > 1 else ""
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {name} {done:,}/{total:,}{rate}"
        self._err.write(f"\r{line:<79}" if self._live else line, ending="" if self._live else "\n")
        self._err.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._live and self._shown[0]:
            self._err.write("")
