"""Asks a server whether it answers, with a socket and no HTTP library: the supervisor stays small."""

from __future__ import annotations

import socket

from loomsite.embedded.ports import Address


def status(address: Address, path: str) -> int | None:
    """The HTTP status that a GET gets, None when nothing answers."""
    request = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/json\r\n\r\n"
    )
    try:
        with socket.create_connection((address.host, address.port), timeout=5.0) as client:
            client.sendall(request.encode())
            head = b""
            while b"\r\n" not in head and len(head) < 1024:
                chunk = client.recv(1024)
                if not chunk:
                    break
                head += chunk
    except OSError:
        return None
    parts = head.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        return None
    return int(parts[1])
