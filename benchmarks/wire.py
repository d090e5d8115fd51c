"""A keep-alive HTTP/1.1 client on a bare socket, so that the client is not what is measured.

It knows what the benchmarks need and no more: POST of a prepared request, answers with Content-Length or
chunked, any status.
"""

import json
import socket
from typing import Any
from urllib.parse import urlsplit


class Wire:
    """One connection; not for use by two threads at once."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"{url}: http://host:port is needed")
        self._host = f"{parts.hostname}:{parts.port}"
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kept = b""

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def request(self, path: str, body: Any, headers: dict[str, str]) -> bytes:
        """The bytes of a POST of `body` as JSON."""
        raw = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(raw)}", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request's bytes; (status, body) of the answer. Raises OSError when the line breaks."""
        self._socket.sendall(request)
        head = self._until(b"\r\n\r\n")
        status = int(head[9:12])
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        if b"content-length" in fields:
            return status, self._exactly(int(fields[b"content-length"]))
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            return status, self._chunks()
        raise OSError("an answer without length")

    def _more(self) -> None:
        got = self._socket.recv(262_144)
        if not got:
            raise OSError("the server hung up")
        self._kept += got

    def _until(self, mark: bytes) -> bytes:
        while (at := self._kept.find(mark)) < 0:
            self._more()
        found, self._kept = self._kept[:at], self._kept[at + len(mark) :]
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._kept) < count:
            self._more()
        found, self._kept = self._kept[:count], self._kept[count:]
        return found

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._exactly(2)
        self._until(b"\r\n")
        return body
