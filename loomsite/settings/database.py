"""Turns `LOOM_DATABASE_URL` (or the embedded server's address) into Django's DATABASES.

Written by hand and not with `urllib.parse.urlsplit`, because people paste passwords as they are: a raw
`@`, `%`, `/` or `#` in a password is understood, and so is its percent-encoded form.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from django.core.exceptions import ImproperlyConfigured

VARIABLE = "LOOM_DATABASE_URL"
SERVICES_FILE = Path("run") / "services.json"
EXAMPLE = "postgresql://user:password@host:5432/database"

# What may stand after the `?`: libpq's connection keywords. An unknown one is refused, because a mistyped
# `sslmod=require` would silently mean "no TLS".
LIBPQ_OPTIONS = frozenset(
    {
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "options",
        "passfile",
        "require_auth",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
_QUERY = re.compile(r"[A-Za-z_]+=[^&]*(?:&[A-Za-z_]+=[^&]*)*")


@dataclass(frozen=True)
class DatabaseAddress:
    """Where a PostgreSQL is and who connects; `host` may be a socket directory (empty: libpq's default)."""

    name: str
    user: str = ""
    password: str = field(default="", repr=False)
    host: str = ""
    port: int | None = None
    options: dict[str, str] = field(default_factory=dict)


def _wrong(why: str) -> ImproperlyConfigured:
    """The one line a wrong URL gives. It never repeats the URL, which may hold a password."""
    return ImproperlyConfigured(f"{VARIABLE}: {why} (expected {EXAMPLE}).")


def _port(raw: str) -> int | None:
    if not raw:
        return None
    if not (raw.isascii() and raw.isdigit() and 0 < int(raw) < 65536):
        raise _wrong(f"the port {raw!r} is not a number from 1 to 65535")
    return int(raw)


def _host_and_port(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[::1]:port` or a percent-encoded socket directory."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise _wrong("an IPv6 host needs brackets, like [::1]:5432")
        return host, _port(rest[1:])
    if text.count(":") > 1:
        raise _wrong("an IPv6 host needs brackets, like [::1]:5432")
    host, _, port = text.partition(":")
    return unquote(host), _port(port)


def parse_database_url(url: str) -> DatabaseAddress:
    """Read a `postgresql://` URL.

    Understood: percent-encoded or raw passwords (only a raw `?` must be encoded), IPv6 hosts in brackets,
    a socket directory as `?host=/dir` or percent-encoded in the host's place, libpq's options after `?`.
    Raises ImproperlyConfigured with one line that names LOOM_DATABASE_URL and repeats no secret.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in {"postgresql", "postgres"}:
        raise _wrong("it must start with postgresql://")
    body, mark, query = rest.rpartition("?")
    if not mark:
        body, query = rest, ""
    elif not query:
        pass
    elif not _QUERY.fullmatch(query):
        raise _wrong("what follows '?' must be name=value pairs; a '?' inside a password is written %3F")

    credentials, at, address = body.rpartition("@")
    user, _, password = credentials.partition(":")
    host_text, _, name = address.partition("/")
    host, port = _host_and_port(host_text)
    if at and not user:
        raise _wrong("the user name is missing")

    given: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        given[key] = unquote(value)
    name = given.pop("dbname", unquote(name))
    user = given.pop("user", unquote(user))
    password = given.pop("password", unquote(password))
    host = given.pop("host", host)
    if "port" in given:
        port = _port(given.pop("port"))
    unknown = sorted(set(given) - LIBPQ_OPTIONS)
    if unknown:
        raise _wrong(f"unknown option {unknown[0]!r} after '?'")
    if not name:
        raise _wrong("the database name is missing")
    if "\0" in "".join((name, user, password, host, *given.values())):
        raise _wrong("it holds a NUL character")
    return DatabaseAddress(name, user, password, host, port, given)


def embedded_service(home: Path, key: str) -> str | None:
    """An address (`database_url`, `broker_url`) of a server that runs under `home`, None while none does."""
    try:
        services = json.loads((home / SERVICES_FILE).read_text())
    except (OSError, ValueError):
        return None
    url = services.get(key) if isinstance(services, dict) else None
    return url if isinstance(url, str) else None


def broker_url_from_env(home: Path, default: str = "memory://") -> str:
    """LOOM_BROKER_URL, else the embedded broker under `home`, else `default` (no server runs here)."""
    return os.environ.get("LOOM_BROKER_URL", "").strip() or embedded_service(home, "broker_url") or default


def _pool_size() -> int:
    raw = os.environ.get("LOOM_DB_POOL", "").strip() or "16"
    if not (raw.isascii() and raw.isdigit() and 1 <= int(raw) <= 500):
        raise ImproperlyConfigured(f"LOOM_DB_POOL={raw!r}: a whole number from 1 to 500 is needed.")
    return int(raw)


def django_database(address: DatabaseAddress, pool_size: int) -> dict[str, Any]:
    """Django's settings for one address.

    A psycopg pool and CONN_MAX_AGE=0, because persistent connections leak under ASGI. Health checks, so
    that a restarted server costs a reconnect and not an error. No server-side cursors and no prepared
    statements (Django's default), so that a transaction-mode PgBouncer works.
    """
    options: dict[str, Any] = {"connect_timeout": "10", **address.options}
    options["pool"] = {"min_size": 1, "max_size": pool_size, "timeout": 10, "max_idle": 120}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.name,
        "USER": address.user,
        "PASSWORD": address.password,
        "HOST": address.host,
        "PORT": "" if address.port is None else str(address.port),
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,
        "DISABLE_SERVER_SIDE_CURSORS": True,
        "OPTIONS": options,
    }


def databases_from_env(home: Path) -> dict[str, dict[str, Any]]:
    """DATABASES from LOOM_DATABASE_URL, else from the embedded server under `home`.

    While no embedded server runs, the address is the place where it would listen: commands that need no
    database work, the others get libpq's "Is the server running" with that path.
    """
    url = os.environ.get(VARIABLE, "").strip() or embedded_service(home, "database_url")
    if url:
        return {"default": django_database(parse_database_url(url), _pool_size())}
    nowhere = DatabaseAddress(name="loom", user="loom", host=str(home / "run" / "pg"))
    settings = django_database(nowhere, _pool_size())
    del settings["OPTIONS"]["pool"]  # a pool would try for ten seconds and then not say why
    return {"default": settings}
