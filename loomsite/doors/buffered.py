"""Serves the WSGI application behind ASGI: a thread is taken when the whole request is here, never before.

A WSGI server hands a request to a thread once its headers are read; the thread then waits for a body that
may never come, and as many sockets as there are threads stop the server. Here the event loop reads the body,
for so long and no longer, and the threads only ever compute. Probes have threads of their own, so that they
answer while every other thread waits for the database.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any
from wsgiref.util import FileWrapper

from starlette.types import Message, Receive, Scope, Send

from governance import pipeline
from loomsite.ops import OpError, limits

log = logging.getLogger("loomsite.web")
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Headers = list[tuple[bytes, bytes]]

THREADS = 8
HEALTH, READY = "/v1/health", "/v1/ready"
# Longer than this, a database that does not answer is no database for whoever asks.
READY_SECONDS = 3.0
BODY_SECONDS = 12.0
# Small bodies stay in memory; a large one that comes slowly must not hold megabytes of it.
MEMORY_BYTES = 256 * 1024
# So much of a body that is too large is read and thrown away: most clients read no answer before they have
# sent everything. Of a larger one the connection is closed.
DRAIN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Headers
    body: bytes


class Buffered:
    """The ASGI application around a WSGI one."""

    def __init__(self, inner: WsgiApplication, body_seconds: float = BODY_SECONDS) -> None:
        self.inner = inner
        self.body_seconds = body_seconds
        self.calls = ThreadPoolExecutor(THREADS, "web")
        # A thread each: readiness may wait for the database, liveness never does.
        self.probes = {HEALTH: ThreadPoolExecutor(1, "health"), READY: ThreadPoolExecutor(1, "ready")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: HTTP, and the end of the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await read_whole(scope, receive, limits.BODY_BYTES)
        except TimeoutError:
            await _send(_refusal(408, _late(self.body_seconds), scope), send, scope)
            return
        except OpError as error:
            await _send(_refusal(error.status, error, scope), send, scope)
            return
        with body:
            answer = await self._answer(scope, environ_of(scope, body))
        await _send(answer, send, scope)

    async def _answer(self, scope: Scope, environ: dict[str, Any]) -> _Answer:
        lane = self.probes.get(scope["path"], self.calls)
        running = asyncio.get_running_loop().run_in_executor(lane, self._run, environ)
        if scope["path"] != READY:
            return await running
        try:
            async with asyncio.timeout(READY_SECONDS):
                return await running  # one that has not begun is taken from the queue with this
        except TimeoutError:
            return _not_ready()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                self.calls.shutdown()
                for lane in self.probes.values():
                    lane.shutdown(wait=False)
                return

    def _run(self, environ: dict[str, Any]) -> _Answer:
        """The application's whole answer. In one thread from start to close: its database connection is
        the thread's own.
        """
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], _exc_info: object = None
        ) -> Callable[[bytes], object]:
            begun.append((status, headers))
            return io.BytesIO().write

        parts = self.inner(environ, start_response)
        try:
            body = b"".join(parts)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        status, headers = begun[-1]
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if not any(name == b"content-length" for name, _ in raw):
            raw.append((b"content-length", str(len(body)).encode()))
        return _Answer(int(status[:3]), raw, body)


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


async def read_whole(scope: Scope, receive: Receive, limit: int) -> IO[bytes]:
    """The body, at its beginning. Raises OpError 413, and 400 for one that breaks off or is badly framed."""
    length = _header(scope, b"content-length")
    declared = int(length) if length.isdigit() else 0
    if not declared and not _header(scope, b"transfer-encoding"):
        return io.BytesIO()
    waits_for_leave = _header(scope, b"expect").lower() == b"100-continue"
    if declared > DRAIN_BYTES or (waits_for_leave and declared > limit):
        raise _too_large(declared, limit)
    body: IO[bytes] = (
        io.BytesIO() if declared and declared <= MEMORY_BYTES else tempfile.SpooledTemporaryFile(MEMORY_BYTES)
    )
    taken, more = 0, True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            body.close()
            raise OpError("INVALID_ARGUMENT", "The body ended before its end.")
        chunk = message.get("body", b"")
        taken += len(chunk)
        if taken <= limit:
            body.write(chunk)
        elif taken > DRAIN_BYTES:
            break
        more = message.get("more_body", False)
    if taken > limit:
        body.close()
        raise _too_large(max(taken, declared), limit)
    body.seek(0)
    return body


def environ_of(scope: Scope, body: IO[bytes]) -> dict[str, Any]:
    """The request as PEP 3333 wants it; a body that came in chunks has its length by now."""
    length = body.seek(0, io.SEEK_END)
    body.seek(0)
    client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "CONTENT_LENGTH": str(length),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": body,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        "wsgi.input_terminated": True,
    }
    for raw_name, raw_value in scope["headers"]:
        # A name with an underscore would pass for the one with a dash, which a proxy may have removed.
        if b"_" in raw_name or raw_name in (b"content-length", b"transfer-encoding"):
            continue
        name, value = raw_name.decode("latin-1").upper().replace("-", "_"), raw_value.decode("latin-1")
        key = name if name == "CONTENT_TYPE" else f"HTTP_{name}"
        if key in environ:
            value = f"{environ[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{value}"
        environ[key] = value
    return environ


def _too_large(size: int, limit: int) -> OpError:
    return OpError("TOO_LARGE", f"The body has {size} bytes; the limit is {limit}.", limit=limit)


def _not_ready() -> _Answer:
    state = {"status": "not ready", "database": "no answer", "migrations": "unknown", "worker": "unknown"}
    body = json.dumps(state).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return _Answer(503, headers, body)


def _late(seconds: float) -> OpError:
    return OpError("INVALID_ARGUMENT", f"The body did not come within {seconds:g} s.")


def _refusal(status: int, error: OpError, scope: Scope) -> _Answer:
    """The answer to a request that no thread was taken for. What is left of its body ends the connection."""
    request_id = pipeline.new_request_id(_header(scope, b"x-request-id").decode("latin-1") or None)
    body = json.dumps({"detail": error.detail(request_id)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    return _Answer(status, headers, body)


async def _send(answer: _Answer, send: Send, scope: Scope) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})
