"""Reads LOOM_* variables; a wrong value stops the start with one line that names it."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def text(name: str, default: str = "") -> str:
    """The variable's value, stripped; `default` when it is unset or blank."""
    return os.environ.get(name, "").strip() or default


def needed(name: str, why: str) -> None:
    """ImproperlyConfigured when the variable is unset or blank."""
    if not text(name):
        raise ImproperlyConfigured(f"{name} is not set: {why}.")


def refuse_wildcard(name: str, hosts: list[str]) -> None:
    """ImproperlyConfigured for `*`: a server that answers to every name is open to DNS rebinding."""
    if "*" in hosts:
        raise ImproperlyConfigured(f"{name}='*': host names are needed, for example memory.example.org.")


def integer(name: str, default: int, low: int, high: int) -> int:
    """A whole number within [low, high]; ImproperlyConfigured otherwise."""
    raw = text(name)
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ImproperlyConfigured(f"{name}={raw!r}: a whole number from {low} to {high} is needed.")
    return value


def flag(name: str, default: bool) -> bool:
    """1/true/yes/on or 0/false/no/off; ImproperlyConfigured otherwise."""
    raw = text(name).lower()
    if not raw:
        return default
    if raw in {"1", "true", "yes", "on"}:
        return True
    if raw in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name}={raw!r}: 1 or 0 is needed.")


def choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    """One of `allowed`; ImproperlyConfigured otherwise."""
    raw = text(name, default)
    if raw not in allowed:
        raise ImproperlyConfigured(f"{name}={raw!r}: one of {', '.join(allowed)} is needed.")
    return raw


RATE_PERIODS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86_400.0}


def rate(name: str, default: str) -> tuple[int, float] | None:
    """`calls/period` (s, min, h, day) as (calls, seconds); None for `off`."""
    raw = text(name, default)
    if raw == "off":
        return None
    calls, _, period = raw.partition("/")
    if not (calls.isascii() and calls.isdigit() and 0 < int(calls) <= 10**9 and period in RATE_PERIODS):
        raise ImproperlyConfigured(f"{name}={raw!r}: calls/period is needed, for example 600/min, or off.")
    return int(calls), RATE_PERIODS[period]


def bind(name: str, default: str) -> tuple[str, int]:
    """`host:port` (IPv6 in brackets) as (host, port)."""
    raw = text(name, default)
    host, _, port = raw.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ImproperlyConfigured(f"{name}={raw!r}: host:port is needed, for example 127.0.0.1:8321.")
    return host, int(port)


def home(base_dir: Path) -> Path:
    """The folder that holds everything a run keeps: `LOOM_HOME`, default `.loom` beside manage.py."""
    return Path(text("LOOM_HOME", str(base_dir / ".loom"))).expanduser().absolute()


def secret_key(path: Path) -> str:
    """`LOOM_SECRET_KEY`, else the key kept in LOOM_HOME (made on first use, mode 0600)."""
    import secrets

    given = text("LOOM_SECRET_KEY")
    if given:
        if len(given) < 32:
            raise ImproperlyConfigured("LOOM_SECRET_KEY: at least 32 characters are needed.")
        return given
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # O_EXCL: of two processes that start at once, one makes the key and the other reads it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"LOOM_HOME: cannot write {path} ({error.strerror}).") from error
    with os.fdopen(handle, "w") as file:
        key = secrets.token_urlsafe(48)
        file.write(key)
    return key
