"""MCP over streamable HTTP at /mcp: stateless, JSON answers, natively asynchronous."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from urllib.parse import parse_qs

from django.conf import settings
from django.http.request import validate_host
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from governance import pipeline
from governance.tenancy import Credentials
from loomsite.doors import guards
from loomsite.doors.buffered import BODY_SECONDS, read_whole
from loomsite.doors.tools import TOOLSETS, Access, Context, Toolset, build_server
from loomsite.doors.warm import warm_up
from loomsite.ops import Door, OpError, invalid, limits
from loomsite.ops.text import unique_names
from loomsite.settings import env

PATH = "/mcp"
# The JSON-RPC envelope and escapes come on top of the arguments, whose own limit answers as a tool result.
REQUEST_BYTES = 4 * limits.BODY_BYTES


def default_toolset() -> Toolset:
    """`LOOM_TOOLSET`, else core; ImproperlyConfigured for another word."""
    return "all" if env.choice("LOOM_TOOLSET", "core", TOOLSETS) == "all" else "core"


def _one(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """A header's value; several of one name are joined, which no guard accepts."""
    values = [value.decode("latin-1") for key, value in headers if key == name]
    return ", ".join(values) if values else None


def _is_served_name(name: str) -> bool:
    return guards.is_loopback_name(name) or validate_host(name.lower(), settings.LOOM_PUBLIC_HOSTS)


def _check_host_and_origin(host: str, origin: str | None) -> None:
    """Refuse names that are not this server's: a page elsewhere may have pointed its own name at it."""
    named = guards.split_host(host)
    if named is None or not _is_served_name(named[0]):
        raise OpError("FORBIDDEN", f"Host {host[:200]!r} is not served here; LOOM_PUBLIC_HOSTS lists others.")
    if origin is None:
        return
    page = guards.split_origin(origin)
    if page is None or not _is_served_name(page[1]):
        raise OpError("FORBIDDEN", f"Origin {origin[:200]!r} may not call this server.")


def _query_toolset(scope: Scope, default: Toolset) -> Toolset:
    given = parse_qs(scope["query_string"].decode("latin-1")).get("toolset", [default])[-1]
    for toolset in TOOLSETS:
        if given == toolset:
            return toolset
    raise invalid("toolset", f"must be one of {', '.join(TOOLSETS)}.")


def access_of(ctx: Context) -> Access:
    """Who calls, from the HTTP request that carried the message."""
    request = ctx.request
    if not isinstance(request, Request):
        raise TypeError("a message over HTTP came without its request")
    headers = request.scope["headers"]
    names = {key.decode("latin-1") for key, _ in headers}
    client = request.scope.get("client")
    is_local = guards.is_local_call(
        client[0] if client else "",
        _one(headers, b"host") or "",
        _one(headers, b"origin"),
        bool(names & guards.FORWARDING_HEADERS),
    )
    bearer = guards.bearer_token(_one(headers, b"authorization"))
    return Access(
        credentials=Credentials(bearer=bearer, door=Door.MCP, is_local=is_local),
        toolset=_query_toolset(request.scope, default_toolset()),
        request_id=_one(headers, b"x-request-id"),
    )


class McpDoor:
    """Judges Host, Origin, method and toolset, then hands over to the SDK's application."""

    def __init__(self, inner: ASGIApp, toolset: Toolset) -> None:
        self.inner = inner
        self.toolset = toolset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. The lifespan goes through too: it starts the SDK's task group."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, _warming(send))
            return
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = scope["headers"]
        try:
            _check_host_and_origin(_one(headers, b"host") or "", _one(headers, b"origin"))
            if scope["path"].rstrip("/") != PATH:
                raise OpError("NOT_FOUND", f"MCP is served at {PATH}.")
            if scope["method"] != "POST":
                raise OpError("METHOD_NOT_ALLOWED", "Stateless MCP has no stream to open: send POST.")
            _query_toolset(scope, self.toolset)
            async with asyncio.timeout(BODY_SECONDS):
                with await read_whole(scope, receive, REQUEST_BYTES) as body:
                    raw = body.read()
        except (OpError, TimeoutError) as error:
            fault = (
                error
                if isinstance(error, OpError)
                else OpError("INVALID_ARGUMENT", "The body came too late.")
            )
            await _refuse(fault, pipeline.new_request_id(_one(headers, b"x-request-id")), send)
            return
        twice = _named_twice(raw)
        if twice:
            await _answer(400, _rpc_error(twice), [], send)
            return
        await self.inner({**scope, "path": PATH, "raw_path": PATH.encode()}, _again(raw, receive), send)


def _warming(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        await send(message)
        if message["type"] == "lifespan.startup.complete":
            warm_up()

    return wrapped


def _named_twice(raw: bytes) -> str:
    """What stands twice in one object of the body, as over REST; else nothing. Bad JSON is the SDK's."""
    try:
        json.loads(raw, object_pairs_hook=unique_names)
    except OpError as error:
        return error.message
    except (ValueError, RecursionError):
        return ""
    return ""


def _rpc_error(message: str) -> bytes:
    """JSON-RPC's parse error: of a body that readers read differently no id can be trusted."""
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": message}}).encode()


def _again(raw: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the body that was read already."""
    waiting: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


async def _refuse(error: OpError, request_id: str, send: Send) -> None:
    headers = [(b"x-request-id", request_id.encode())]
    if error.code == "METHOD_NOT_ALLOWED":
        headers.append((b"allow", b"POST"))
    await _answer(error.status, json.dumps({"detail": error.detail(request_id)}).encode(), headers, send)


async def _answer(status: int, body: bytes, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body})


def http_application() -> ASGIApp:
    """The ASGI application that serves /mcp; one a process and lifespan."""
    app = build_server(access_of).streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=REQUEST_BYTES,
        # McpDoor has judged both, by the same rules as REST.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return McpDoor(app, default_toolset())
