"""`manage.py reindex`: the words of a namespace anew, in another language if one is named."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from governance.models import Namespace
from memories import text_config
from memories.analysis import LANGUAGES
from memories.management.commands.reembed import Bar


class Command(BaseCommand):
    """Set the language of a namespace's words and index its memories by it, while the search goes on.

    Until the end a query is asked in both languages. Stopped and run again without --language, the command
    goes on where it was. Facts and the raw archive are indexed as English.
    """

    help = "Index the words of a namespace's memories anew; --language changes how they are stemmed."

    def add_arguments(self, parser: CommandParser) -> None:
        """--org, --namespace, --language."""
        parser.add_argument("--org", required=True)
        parser.add_argument("--namespace", required=True)
        parser.add_argument("--language", choices=LANGUAGES, help="default: the one it has")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the progress, and what was done."""
        space = Namespace.objects.filter(org__slug=options["org"], slug=options["namespace"]).first()
        if space is None:
            raise CommandError(f"no namespace {options['namespace']!r} in {options['org']!r}")
        bar = Bar(self)
        try:
            done = text_config.reindex(
                space.pk, options["language"], lambda done, total: bar("memories", done, total)
            )
        except KeyboardInterrupt:
            raise CommandError("stopped; run it again without --language to go on.") from None
        finally:
            bar.end()
        self.stdout.write(f"{done:,} memories indexed as {text_config.language_of(space.pk)}")
