"""A command that needs the database while no server runs: the embedded one is started for its time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from loomsite.embedded import postgres
from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import BASE_DIR, Home

VARIABLE = "LOOM_DATABASE_URL"
STOP_SECONDS = 30.0


def is_running(home: Home) -> bool:
    """Whether a supervisor holds this home."""
    if not home.root.is_dir():
        return False
    with home.lock() as mine:
        return not mine


def with_database(arguments: Sequence[str]) -> int | None:
    """Run `manage.py arguments` with the embedded database of this home, and stop that again: its exit code.

    None when the database is there already: named by the environment, or kept by a running server. Raises
    EmbeddedError with one line.
    """
    if os.environ.get(VARIABLE, "").strip():
        return None
    home = Home.from_env()
    if is_running(home):
        return None
    home.prepare()
    with home.lock() as mine:
        if not mine:
            raise EmbeddedError(f"a server is just starting under {home.root}; try again.")
        sockets = home.make_socket_dir()
        database = postgres.Postgres(home, sockets)
        try:
            database.prepare()
            server = database.spawn()
            try:
                postgres.wait_ready(database, server)
                database.provision()
                return subprocess.run(
                    [sys.executable, str(BASE_DIR / "manage.py"), *arguments],
                    env={**os.environ, VARIABLE: database.url(), "LOOM_HOME": str(home.root)},
                    check=False,
                ).returncode
            finally:
                postgres.stop(server, database.death_signal, STOP_SECONDS)
        finally:
            home.remove_socket_dir(sockets)
