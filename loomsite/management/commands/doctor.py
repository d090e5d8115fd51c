"""`manage.py doctor`: is everything here that a working server needs?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import Error as DatabaseFault
from django.db import connection
from kombu.exceptions import OperationalError as BrokerError

from governance import selectors, tenancy
from loomsite.celery import app
from memories.embedders import EmbedderUnavailable, get_embedder

PGVECTOR = (0, 8)
FREE_BYTES = 1024**3


class Sick(Exception):
    """What is wrong with a part, and what to do about it."""


def database() -> str:
    """The server and its version."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = str(cursor.fetchone()[0])
    if int(version.split(".")[0].split()[0]) < 15:
        raise Sick(f"PostgreSQL {version}; 15 or newer is needed")
    return f"PostgreSQL {version}"


def extension() -> str:
    """pgvector, new enough."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        row = cursor.fetchone()
    if row is None:
        raise Sick("pgvector is not installed in this database; `manage.py migrate` does it")
    if tuple(int(part) for part in row[0].split(".")[:2]) < PGVECTOR:
        raise Sick(f"pgvector {row[0]}; 0.8 or newer is needed (ALTER EXTENSION vector UPDATE)")
    return f"pgvector {row[0]}"


def migrations() -> str:
    """Nothing waits to be applied."""
    pending = selectors.migrations_pending()
    if pending:
        raise Sick(f"{pending} pending; run `manage.py migrate`")
    return "all applied"


def tokens() -> str:
    """A server that other machines reach needs one."""
    usable = tenancy.usable_tokens()
    if not usable and not settings.LOOM_SINGLE_USER:
        raise Sick("none is usable, and single-user mode is off; make one in the console under Tokens")
    return f"{usable} usable, single-user mode {'on' if settings.LOOM_SINGLE_USER else 'off'}"


def broker() -> str:
    """The queue takes connections."""
    with app.connection_for_write(connect_timeout=2) as queue:
        if queue.transport_cls == "memory":
            raise Sick("none; LOOM_BROKER_URL is not set and no embedded broker runs here")
        queue.ensure_connection(max_retries=0, timeout=2)
        return str(queue.as_uri())


def worker() -> str:
    """One was heard from lately."""
    seen = selectors.worker_seen()
    if not seen["alive"]:
        last = f"last heard from {seen['age_s']} s ago" if seen["last_seen"] else "never heard from"
        raise Sick(f"{last}; start one with `celery -A loomsite worker`")
    return f"heard from {seen['age_s']} s ago"


def embedder() -> str:
    """It makes a vector."""
    if settings.LOOM_EMBEDDER == "none":
        return "none (search by words alone)"
    chosen = get_embedder()
    return f"{chosen.name}, {len(chosen.embed(['a text'])[0])} dimensions"


def anchor() -> str:
    """The audit's heads can be noted outside the database."""
    path = settings.LOOM_AUDIT_ANCHOR
    with path.open("a"):
        return f"{path}, {path.stat().st_size} bytes"


def disk() -> str:
    """Room for data."""
    free = shutil.disk_usage(settings.LOOM_HOME).free
    if free < FREE_BYTES:
        raise Sick(f"{free / 1024**2:.0f} MB free under {settings.LOOM_HOME}; 1 GB is wanted")
    return f"{free / 1024**3:.1f} GB free under {settings.LOOM_HOME}"


PARTS: tuple[Callable[[], str], ...] = (
    database, extension, migrations, tokens, broker, worker, embedder, anchor, disk,
)  # fmt: skip


class Command(BaseCommand):
    """One line per part: ok or FAIL, and what is there. Exit code 1 when a part fails."""

    help = "Check database, extension, migrations, tokens, broker, worker, embedder, anchor file and disk."
    requires_migrations_checks = False
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Look at each part, whatever the others say."""
        failed = 0
        for part in PARTS:
            try:
                word, found = "ok", part()
            except (Sick, DatabaseFault, BrokerError, EmbedderUnavailable, OSError) as error:
                word, found = "FAIL", " ".join(str(error).split())
                failed += 1
            self.stdout.write(f"{word:<5}{part.__name__:<11}{found}")
        if failed:
            sys.exit(1)
