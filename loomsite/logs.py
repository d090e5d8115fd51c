"""Log lines without what people stored."""

from __future__ import annotations

import logging
import re
from typing import Any

# What PostgreSQL adds to an error's own words (the row that failed, the statement), up to the next error's
# traceback or the end; a row's values may hold line breaks.
_DATA = re.compile(
    r"^(?:DETAIL|CONTEXT|QUERY|STATEMENT|LINE \d+):.*?(?=^\n(?:The above exception|During handling of)|\Z)",
    re.MULTILINE | re.DOTALL,
)


class WithoutData(logging.Formatter):
    """Errors are logged with their words and their place, and not with the values of a row."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        """The traceback, its errors without their details."""
        return _DATA.sub("", super().formatException(ei))
