"""Where a text stands: every column of every table, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection


def columns() -> list[tuple[str, str]]:
    """Every column of every table of the schema, by the system catalogue."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.oid::regclass::text, quote_ident(a.attname) FROM pg_class c "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'm') ORDER BY 1, 2"
        )
        return list(cursor.fetchall())


def spellings(text: str) -> list[str]:
    """How a column may print it: as it is, escaped as JSON does, in hexadecimal as bytea is."""
    plain = text.encode()
    escaped = text.encode("ascii", "backslashreplace").decode()
    return list(dict.fromkeys([text, text.lower(), escaped, plain.hex(), text.encode("utf-16-le").hex()]))


def found(texts: Iterable[str]) -> set[str]:
    """`table.column` wherever one of the texts stands, in any case of its letters."""
    wanted = [f"%{spelling}%" for text in texts for spelling in spellings(text)]
    hits = set()
    with connection.cursor() as cursor:
        for table, column in columns():
            cursor.execute(
                f"SELECT EXISTS (SELECT FROM {table} WHERE {column}::text ILIKE ANY(%s))", [wanted]
            )
            if cursor.fetchone()[0]:
                hits.add(f"{table}.{column}")
    return hits
