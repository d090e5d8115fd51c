"""Addresses the servers listen on: the one asked for, or the next free one when nobody asked."""

from __future__ import annotations

import os
import socket

from loomsite.embedded.errors import EmbeddedError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8321
_TRIES = 200
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, never bound by default)


class Address:
    """A host and a port, with their spellings in URLs."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def numeric(self) -> str:
        """The host as an IP address, IPv4 first: the web server takes no names."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
        return str(ordered[0][4][0])

    @property
    def reachable(self) -> Address:
        """The address a client on this machine uses; a wildcard is reached over loopback."""
        return Address(_WILDCARDS.get(self.host, self.host), self.port)

    @property
    def url(self) -> str:
        """`http://host:port` for a client on this machine."""
        return f"http://{self.reachable}"


def address_from_env(name: str) -> Address | None:
    """The `host:port` in a variable, None when it is unset."""
    raw = os.environ.get(name, "").strip()
    if not raw:
        return None
    host, _, port = raw.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise EmbeddedError(
            f"{name}={raw!r}: host:port is needed, for example {DEFAULT_HOST}:{DEFAULT_PORT}."
        )
    return Address(host, int(port))


def why_not_free(address: Address) -> str | None:
    """Why nothing can listen there, None when it is free."""
    try:
        host = address.numeric
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, address.port))
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def explicit(name: str, address: Address) -> Address:
    """An address that was asked for by name: taken means a refusal, never another port."""
    reason = why_not_free(address)
    if reason is not None:
        raise EmbeddedError(f"{name}={address}: cannot listen there ({reason}); choose another host:port.")
    return address


def next_free(host: str, first: int) -> Address:
    """The first free port from `first` on."""
    reason: str | None = "no port left"
    for port in range(first, min(first + _TRIES, 65536)):
        address = Address(host, port)
        reason = why_not_free(address)
        if reason is None:
            return address
    raise EmbeddedError(
        f"no free port on {host} from {first} on ({reason}); set LOOM_BIND and LOOM_MCP_BIND."
    )
