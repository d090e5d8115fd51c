"""How often a password may be tried. Counted in the database, so that every process counts together."""

from __future__ import annotations

import hashlib

from django.db import connection

ATTEMPTS = 5
WINDOW_S = 300


def key_of(*parts: str) -> str:
    """The throttle key of what is tried (a purpose, a name, an address)."""
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def admit(key: str) -> int:
    """Count an attempt before the password is looked at; 0 to go on, else the seconds to wait.

    The attempt is stored first: of many at the same moment no more than ATTEMPTS get through. A refused
    attempt is not kept, so waiting always helps.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM governance_loginfailure WHERE at < clock_timestamp() - make_interval(secs => %s)",
            [WINDOW_S],
        )
        cursor.execute(
            "INSERT INTO governance_loginfailure (key, at) VALUES (%s, clock_timestamp()) RETURNING id", [key]
        )
        own = cursor.fetchone()[0]
        cursor.execute(
            "SELECT count(*), ceil(%s - extract(epoch FROM clock_timestamp() - min(at))) "
            "FROM governance_loginfailure WHERE key = %s",
            [WINDOW_S, key],
        )
        count, wait = cursor.fetchone()
        if count <= ATTEMPTS:
            return 0
        cursor.execute("DELETE FROM governance_loginfailure WHERE id = %s", [own])
    return max(1, int(wait))


def forget(key: str) -> None:
    """The password was right: its failures no longer count."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM governance_loginfailure WHERE key = %s", [key])
