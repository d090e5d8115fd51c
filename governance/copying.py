"""Rows into tables by COPY, in PostgreSQL's text format (documentation of COPY, "Text Format")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_QUOTES = str.maketrans({"\\": "\\\\", '"': '\\"'})


def field(value: Any) -> str:
    """One value as a field: None, bool, int, float, str, bytes, datetime, or a list of str (an array)."""
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, bytes | memoryview):
        return "\\\\x" + bytes(value).hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return ("{" + ",".join(f'"{item.translate(_QUOTES)}"' for item in value) + "}").translate(_ESCAPES)
    raise TypeError(f"{type(value).__name__} has no text form for COPY")


def term_field(term: str) -> str:
    """A short text that seldom holds what has to be escaped."""
    return term if term.isalnum() else term.translate(_ESCAPES)


def copy_lines(cursor: Any, table: str, columns: str, lines: Iterable[str]) -> None:
    """Insert rows that are in the text format already, each with its newline; see `copy_rows`."""
    text = "".join(lines)
    if text:
        with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
            copy.write(text.encode())


def copy_rows(cursor: Any, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows; `table` and `columns` are constants of the caller's.

    Raises psycopg's own errors, for COPY does not pass Django's wrapper.
    """
    copy_lines(cursor, table, columns, ("\t".join(map(field, row)) + "\n" for row in rows))
