"""A sample of the permission matrix through real transports: HTTP, MCP over HTTP and MCP over pipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone
from mcp import Client

from governance.models import Token
from governance.services import token_revoke
from loomsite.ops import Role, get
from tests.conftest import Cast
from tests.doors import serving, test_mcp_stdio

pytestmark = pytest.mark.django_db(transaction=True)
Call = Callable[[str, str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""(token, op, body) -> (code or "", answer)."""


def _over_mcp(result: Any) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = result.structured_content or {}
    return (body["detail"]["code"] if result.is_error else ""), body


def _tool(op: str) -> str:
    found = get(op)
    assert found is not None
    return found.tool_name


def over_rest(live_server: Any) -> Call:
    """POST /v1/<op> to a listening server."""

    def call(token: str, op: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        answer = httpx.post(
            f"{live_server.url}/v1/{op}", json=body, headers={"Authorization": f"Bearer {token}"}
        )
        found = answer.json()
        return (found["detail"]["code"] if answer.status_code >= 400 else ""), found

    return call


def over_http(url: str) -> Call:
    """The official client over streamable HTTP."""

    def call(token: str, op: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        async def conversation(client: Client) -> Any:
            return await client.call_tool(_tool(op), body)

        headers = {"Authorization": f"Bearer {token}"}
        return _over_mcp(serving.talk(f"{url}/mcp", conversation, headers=headers))

    return call


def over_pipes(token: str, op: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The official client with a process of `manage.py mcp`."""

    async def conversation(client: Client) -> Any:
        return await client.call_tool(_tool(op), body)

    return _over_mcp(test_mcp_stdio.talk(conversation, ["manage.py", "mcp"], LOOM_TOKEN=token))


@pytest.fixture(params=["rest", "mcp over http", "mcp over pipes"])
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """A door."""
    if request.param == "rest":
        yield over_rest(request.getfixturevalue("live_server"))
    elif request.param == "mcp over pipes":
        yield over_pipes
    else:
        with serving.served() as url:
            yield over_http(url)


def test_every_transport_gives_and_refuses_the_same(cast: Cast, call: Call, settings: Any) -> None:
    cast.namespace("vault", owner=Role.WRITER)
    assert cast.run("memory.set", {"memory_key": "k", "value": "v"}).status == 200
    assert cast.run("memory.lock", {"memory_key": "k", "reason": "it stays"}).status == 200
    revoked = cast.token("mate")
    token_revoke(token=Token.objects.get(prefix=revoked.split("_")[1]))
    mate, viewer = cast.tokens["mate"], cast.tokens["viewer"]
    narrow = cast.token("owner", namespaces=["vault"], default_namespace="vault")
    cells: list[tuple[str, str, dict[str, Any], str]] = [
        (mate, "memory.get", {"memory_key": "k"}, ""),
        (viewer, "memory.get", {"memory_key": "k"}, ""),
        (viewer, "memory.set", {"memory_key": "x", "value": 1}, "FORBIDDEN"),
        (cast.token("mate", role=Role.VIEWER), "memory.set", {"memory_key": "x", "value": 1}, "FORBIDDEN"),
        (mate, "memory.set", {"memory_key": "x", "value": 1}, ""),
        (mate, "memory.delete", {"memory_key": "k"}, "LOCKED"),
        (mate, "memory.unlock", {"memory_key": "k", "reason": "r"}, "FORBIDDEN"),
        (cast.tokens["owner"], "memory.unlock", {"memory_key": "k", "reason": "r"}, "FORBIDDEN"),
        (mate, "memory.get", {"memory_key": "k", "namespace": "vault"}, "NOT_FOUND"),
        (mate, "memory.get", {"memory_key": "k", "org": "elsewhere"}, "NOT_FOUND"),
        (narrow, "memory.get", {"memory_key": "k", "namespace": "team"}, "NOT_FOUND"),
        (revoked, "memory.get", {"memory_key": "k"}, "UNAUTHENTICATED"),
        (
            cast.token("mate", expires_at=timezone.now() - timedelta(seconds=1)),
            "memory.get", {"memory_key": "k"}, "UNAUTHENTICATED",
        ),
        (mate[:-1], "memory.get", {"memory_key": "k"}, "UNAUTHENTICATED"),
        (cast.tokens["stranger"], "memory.list", {}, ""),
    ]  # fmt: skip
    for token, op, body, due in cells:
        code, answer = call(token, op, body)
        assert code == due, (op, body, answer)
        secret = token.split("_", 2)[2]
        assert secret not in json.dumps(answer)
    assert call(cast.tokens["stranger"], "memory.list", {})[1]["memories"] == []
