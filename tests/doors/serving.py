"""Serves /mcp on loopback from a thread of the test process, and talks to it with the official client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from loomsite.doors.mcp import http_application

Result = TypeVar("Result")


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a running server, such as http://127.0.0.1:4711; it shares the test's settings."""
    config = uvicorn.Config(
        http_application(), lifespan="on", log_config=None, ws="none", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    # asyncio turns Nagle's algorithm off only where the protocol is named; else each answer waits 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="mcp-under-test")
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


@contextlib.asynccontextmanager
async def connected(
    url: str, headers: dict[str, str] | None = None, mode: Any = "auto"
) -> AsyncIterator[Client]:
    """The official client on `url`."""
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


def talk(
    url: str,
    conversation: Callable[[Client], Awaitable[Result]],
    *,
    headers: dict[str, str] | None = None,
    mode: Any = "auto",
) -> Result:
    """Run a conversation from synchronous test code."""

    async def run() -> Result:
        async with connected(url, headers, mode) as client:
            return await conversation(client)

    return anyio.run(run)
