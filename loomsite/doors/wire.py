"""Keeps standard output for the MCP protocol. Imports only the standard library: it must come first."""

from __future__ import annotations

import os
import sys
from functools import cache
from io import TextIOWrapper


@cache
def claim_stdout() -> TextIOWrapper:
    """A private writer to standard output, the same one on every call.

    From the first call on, descriptor 1 and `sys.stdout` lead to standard error, for this process and for its
    children; what was printed before and still sits in the buffer goes there as well. UTF-8 always, whatever
    PYTHONIOENCODING says.
    """
    wire = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout.flush()
    sys.stdout = sys.stderr
    return TextIOWrapper(os.fdopen(wire, "wb"), encoding="utf-8", newline="\n")
