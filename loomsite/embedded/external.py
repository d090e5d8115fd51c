"""Servers that the environment names are only looked at: can they be reached at all?

Without this, an unreachable server shows up as a migration that times out, or as a worker that is never
heard from.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from urllib.parse import urlsplit

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import BASE_DIR

CONNECT_SECONDS = 5.0
POSTGRES_PORT = 5432
OLDEST_POSTGRES = 15
OLDEST_PGVECTOR = (0, 8)
_BROKER_PORTS = {"redis": 6379, "rediss": 6379, "valkey": 6379, "amqp": 5672, "amqps": 5671, "pyamqp": 5672}


def _connect(variable: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise EmbeddedError(f"{variable}: cannot connect to {where} ({error.strerror or error}).") from error


def _connect_unix(variable: str, path: str) -> None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(CONNECT_SECONDS)
            client.connect(path)
    except OSError as error:
        raise EmbeddedError(f"{variable}: cannot connect to {path} ({error.strerror or error}).") from error


def check_database(url: str) -> None:
    """Raises EmbeddedError when it cannot be reached, does not let us in, or is too old.

    The log-in happens in a process of its own, for the driver's memory should not stay with the supervisor.
    """
    # Here and not above: whoever imports the settings has them judge every LOOM_* value, and `up` wants
    # to do that itself, to answer with one line.
    from loomsite.settings.database import parse_database_url

    address = parse_database_url(url)
    port = address.port or POSTGRES_PORT
    plain = "," not in address.host and not {"hostaddr", "service"} & set(address.options)
    if plain and address.host.startswith("/"):
        _connect_unix("LOOM_DATABASE_URL", f"{address.host}/.s.PGSQL.{port}")
    elif plain and address.host:
        _connect("LOOM_DATABASE_URL", address.host, port)
    result = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "LOOM_DATABASE_URL": url},
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise EmbeddedError(f"LOOM_DATABASE_URL: {lines[-1]}")


def database_fault(url: str) -> str | None:
    """Log in and look: what is wrong with this database, in one line; None when it will do."""
    import psycopg

    from loomsite.settings.database import parse_database_url

    address = parse_database_url(url)
    known = {"dbname": address.name, "user": address.user, "password": address.password, "host": address.host}
    settings = {key: value for key, value in known.items() if value}
    if address.port is not None:
        settings["port"] = str(address.port)
    try:
        connection = psycopg.connect(**{"connect_timeout": "10", **address.options, **settings})  # type: ignore[arg-type]
    except psycopg.OperationalError as error:
        return str(error).strip().splitlines()[0]
    with connection:
        version = connection.info.server_version // 10_000
        if version < OLDEST_POSTGRES:
            return f"PostgreSQL {version} is too old; {OLDEST_POSTGRES} or newer is needed."
        query = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"
        row = connection.execute(query).fetchone()
    if row is None:
        return "the pgvector extension is not installed on this server."
    if tuple(int(part) for part in str(row[0]).split(".")[:2]) < OLDEST_PGVECTOR:
        return f"pgvector {row[0]} is too old; {'.'.join(map(str, OLDEST_PGVECTOR))} or newer is needed."
    return None


def check_broker(url: str) -> None:
    """Raises EmbeddedError when nothing answers there or the URL is of no kind that we know."""
    if ";" in url:
        return  # a list of brokers; Celery tries each
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EmbeddedError(f"LOOM_BROKER_URL: {error}.") from error
    if parts.scheme in {"redis+socket", "valkey+socket"}:
        _connect_unix("LOOM_BROKER_URL", parts.path)
    elif parts.scheme in _BROKER_PORTS:
        _connect("LOOM_BROKER_URL", host or "localhost", port or _BROKER_PORTS[parts.scheme])
    else:
        raise EmbeddedError(
            f"LOOM_BROKER_URL: {parts.scheme or 'no scheme'} is not supported; "
            "redis://, rediss:// and amqp:// are."
        )


if __name__ == "__main__":
    sys.exit(database_fault(os.environ["LOOM_DATABASE_URL"]))
