"""Guards of single-user mode: may a call without a token act for the owner of this machine?

A web page in the owner's browser can send requests to loopback (DNS rebinding, cross-site POST). It cannot
choose the peer address, and it cannot hide its `Origin` or fake its `Host`, so those three are judged.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.\-]+))(?::(?P<port>\d{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# A proxy in front of the server makes every peer look like loopback; each of these names gives it away.
FORWARDING_HEADERS = frozenset(
    {
        "forwarded", "via", "x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
        "x-forwarded-server", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip",
        "cf-connecting-ip", "fastly-client-ip",
    }
)  # fmt: skip


def is_loopback_name(name: str) -> bool:
    """True for `localhost` and for an IP literal of the loopback networks (IPv4-mapped IPv6 included)."""
    if name.lower() == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        address = address.ipv4_mapped or address
    return address.is_loopback


def split_host(host: str) -> tuple[str, int | None] | None:
    """A `Host` header as (name, port or None), IPv6 without brackets; None when it is malformed."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    port = match["port"]
    return match["six"] or match["name"], int(port) if port else None


def split_origin(origin: str) -> tuple[str, str, int] | None:
    """An `Origin` header as (scheme, name, port); None when it is no single http(s) origin."""
    scheme, mark, host = origin.partition("://")
    named = split_host(host)
    if scheme not in _DEFAULT_PORTS or not mark or named is None:
        return None
    return scheme, named[0].lower(), named[1] or _DEFAULT_PORTS[scheme]


def _is_own_origin(origin: str, host_port: int | None) -> bool:
    """True for an http(s) origin on loopback whose port is the one that was called."""
    found = split_origin(origin)
    if found is None:
        return False
    scheme, name, port = found
    return is_loopback_name(name) and port == (host_port or _DEFAULT_PORTS[scheme])


def bearer_token(authorization: str | None) -> str | None:
    """The token of an `Authorization` header; None without one.

    A header of another scheme is handed on whole: it is no valid token, and must not count as "no token".
    """
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else authorization or "-"


def is_local_call(peer: str, host: str, origin: str | None, forwarded: bool) -> bool:
    """True when a call may act for the local owner in single-user mode.

    `peer` is the address of the other end of the connection, `host` and `origin` are the headers as sent
    (`origin` None when absent), `forwarded` says whether any of FORWARDING_HEADERS was present. Another
    port of this machine is a foreign origin: whatever is served there is not the owner.
    """
    if forwarded or not is_loopback_name(peer) or peer.lower() == "localhost":
        return False
    named = split_host(host)
    if named is None or not is_loopback_name(named[0]):
        return False
    return origin is None or _is_own_origin(origin, named[1])
