#!/usr/bin/env python
"""Django's command line for Loomsite."""

import os
import sys


def main() -> None:
    """Run a management command with the settings named by DJANGO_SETTINGS_MODULE."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
    if sys.argv[1:2] == ["mcp"]:
        # Before anything else can print: standard output belongs to the protocol.
        from loomsite.doors.wire import claim_stdout

        claim_stdout()
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
