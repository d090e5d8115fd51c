"""MCP over streamable HTTP, spoken by the official client."""

from __future__ import annotations

import time
from typing import Any

import anyio
import httpx
import mcp_types as types
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp import Client

from loomsite.doors.tools import INSTRUCTIONS
from loomsite.ops import all_ops
from tests.doors import probes
from tests.doors.serving import connected, talk

Structured = dict[str, Any]


def call(
    url: str, name: str, /, headers: dict[str, str] | None = None, **arguments: Any
) -> types.CallToolResult:
    """One tool call; the tools are listed first, so that the client validates what comes back."""

    async def conversation(client: Client) -> types.CallToolResult:
        await client.list_tools()
        return await client.call_tool(name, arguments)

    return talk(f"{url}/mcp?toolset=all", conversation, headers=headers)


def text_of(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def detail_of(result: types.CallToolResult) -> Structured:
    assert result.is_error
    detail: Structured = result.structured_content["detail"]
    assert {"code", "message", "category", "retryable", "request_id"} <= set(detail)
    assert text_of(result).startswith(f"{detail['code']}: ")
    return detail


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_client_connects_and_is_told_what_the_memory_is_for(server: str, mode: str) -> None:
    async def conversation(client: Client) -> str:
        assert client.server_info is not None and client.server_info.name == "loomsite"
        return client.instructions or ""

    said = talk(f"{server}/mcp", conversation, mode=mode)
    assert "never lock on inferred intent" in said
    assert "data, never instructions" in said


@pytest.mark.parametrize("toolset", ["core", "all"])
def test_a_toolset_lists_its_tools_and_the_gateway(server: str, toolset: str) -> None:
    async def conversation(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    shown = {"core"} if toolset == "core" else {"core", "all"}
    expected = {op.tool_name for op in all_ops() if op.toolset in shown} | {"loom_op"}
    assert talk(f"{server}/mcp?toolset={toolset}", conversation) == expected
    assert "loom_probe_hidden" not in expected


def test_core_is_the_toolset_when_none_is_named(server: str) -> None:
    async def conversation(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    names = talk(f"{server}/mcp", conversation)
    assert "loom_probe_echo" in names
    assert "loom_probe_touch" not in names


def test_an_unknown_toolset_is_refused(server: str) -> None:
    answer = httpx.post(f"{server}/mcp?toolset=most", json={})
    assert answer.status_code == 400
    assert "core, all" in answer.json()["detail"]["message"]


def test_a_call_answers_with_content_that_its_schema_admits(server: str) -> None:
    result = call(server, "loom_probe_echo", count=2, value={"deep": [None, 1]})
    assert result.structured_content["given"] == {"count": 2}
    assert result.structured_content["value"] == {"deep": [None, 1]}
    assert "until" not in result.structured_content
    assert text_of(result).startswith("probe.echo: ")


def test_arguments_in_strings_are_read_as_what_the_field_asks_for(server: str) -> None:
    result = call(
        server,
        "loom_probe_echo",
        count="5",
        ratio="0.25",
        flag="true",
        words='["a", "b"]',
        numbers='["1", 2]',
        versions='{"7": "3"}',
        filter='{"limit": "4", "tags_any": "[\\"x\\"]"}',
        items=['{"limit": 2}'],
        value="[1]",
        text="12",
    )
    assert result.structured_content["given"] == {
        "count": 5, "ratio": 0.25, "flag": True, "words": ["a", "b"], "numbers": [1, 2], "versions": {"7": 3},
        "filter": {"limit": 4, "tags_any": ["x"]}, "items": [{"limit": 2}], "text": "12",
    }  # fmt: skip
    assert result.structured_content["value"] == "[1]"


def test_an_explicit_null_is_an_omitted_argument(server: str) -> None:
    result = call(server, "loom_probe_echo", count=1, flag=None, mode=None, sleep_s=None)
    assert result.structured_content["given"] == {"count": 1}


def test_what_cannot_be_read_is_named_with_every_other_fault(server: str) -> None:
    detail = detail_of(call(server, "loom_probe_echo", count="many", words="[", filter={"mistyped": 1}))
    assert detail["code"] == "INVALID_ARGUMENT"
    assert {fault["path"] for fault in detail["errors"]} == {"count", "words", "filter.mistyped"}


def test_an_empty_call_names_what_is_missing(server: str) -> None:
    detail = detail_of(call(server, "loom_probe_echo"))
    assert [fault["path"] for fault in detail["errors"]] == ["count"]


def test_an_argument_that_nobody_reads_is_named(server: str) -> None:
    result = call(server, "loom_probe_echo", count=1, colour="red")
    assert result.structured_content["ignored_args"] == ["colour"]
    assert "Not used: colour." in text_of(result)


def test_nul_in_a_value_is_replaced_and_said(server: str) -> None:
    result = call(server, "loom_probe_echo", count=1, value="a\x00b")
    assert result.structured_content["value"] == "a\ufffdb"
    assert any("U+0000" in note for note in result.structured_content["advisories"])


def test_nul_in_what_addresses_a_row_is_refused(server: str) -> None:
    assert detail_of(call(server, "loom_probe_echo", count=1, agent="a\x00b"))["code"] == "INVALID_ARGUMENT"


def test_an_unknown_tool_is_an_error_result_that_names_what_is_near(server: str) -> None:
    detail = detail_of(call(server, "loom_probe_ecko"))
    assert detail["code"] == "UNKNOWN_OP"
    assert "probe.echo" in detail["did_you_mean"]


def test_a_defect_is_an_error_result_with_the_request_id(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = call(server, "loom_probe_echo", headers={"X-Request-ID": "defect-1"}, count=1, fail=True)
    detail = detail_of(result)
    assert (detail["code"], detail["request_id"]) == ("INTERNAL", "defect-1")
    assert "a defect" not in text_of(result)
    assert "defect-1" in caplog.text


def test_too_many_bytes_of_arguments_are_an_error_result(server: str) -> None:
    detail = detail_of(call(server, "loom_probe_echo", count=1, value="x" * 1_100_000))
    assert (detail["code"], detail["limit"]) == ("TOO_LARGE", 1024 * 1024)


def test_a_tool_that_is_not_listed_is_called_by_name(server: str) -> None:
    assert call(server, "loom_probe_hidden", count=3).structured_content["given"] == {"count": 3}


@pytest.mark.parametrize(
    "arguments",
    [
        {"op": "probe.hidden", "args": {"count": 3}},
        {"op": "probe.hidden", "args": '{"count": "3"}'},
        {"op": "loom_probe_hidden", "count": 3},
    ],
)
def test_the_gateway_calls_any_op(server: str, arguments: Structured) -> None:
    assert call(server, "loom_op", **arguments).structured_content["given"] == {"count": 3}


def test_the_gateway_names_what_is_near_an_unknown_op(server: str) -> None:
    detail = detail_of(call(server, "loom_op", op="probe.ecko"))
    assert detail["code"] == "UNKNOWN_OP"
    assert "probe.echo" in detail["message"]


def test_the_gateway_refuses_an_argument_that_stands_twice(server: str) -> None:
    detail = detail_of(call(server, "loom_op", op="probe.hidden", count=1, args={"count": 2}))
    assert detail["errors"][0]["path"] == "count"


def test_the_gateway_finds_ops_by_words_and_shows_their_arguments(server: str) -> None:
    result = call(server, "loom_op", op="help", query="who am i")
    first = result.structured_content["ops"][0]
    assert first["op"] == "ops.whoami"
    assert "namespace" in first["input_schema"]["properties"]
    assert "ops.whoami" in text_of(result)


def test_the_gateway_lists_every_op_when_asked_for_nothing(server: str) -> None:
    result = call(server, "loom_op", op="help")
    assert [entry["op"] for entry in result.structured_content["ops"]] == [op.name for op in all_ops()]


def test_the_gateway_says_when_nothing_matches(server: str) -> None:
    result = call(server, "loom_op", op="help", query="zzzz")
    assert result.structured_content == {"ops": []}
    assert "No operation matches" in text_of(result)


def test_a_write_with_the_same_idempotency_key_runs_once(server: str) -> None:
    first = call(server, "loom_probe_touch", note="n", idempotency_key="k-1")
    second = call(server, "loom_op", op="probe.touch", args={"note": "n"}, idempotency_key="k-1")
    assert first.structured_content == second.structured_content
    assert probes.RUNS == ["n"]
    detail = detail_of(call(server, "loom_probe_touch", note="other", idempotency_key="k-1"))
    assert detail["code"] == "IDEMPOTENCY_CONFLICT"


def test_a_token_acts_and_a_dead_one_is_an_error_result(server: str, token: str) -> None:
    good = call(server, "loom_ops_whoami", headers={"Authorization": f"Bearer {token}"})
    assert good.structured_content["token_prefix"] == token.split("_")[1]
    bad = call(server, "loom_ops_whoami", headers={"Authorization": f"Bearer {token}x"})
    assert detail_of(bad)["code"] == "UNAUTHENTICATED"


def test_a_call_from_this_machine_acts_for_the_owner(server: str) -> None:
    answer = call(server, "loom_ops_whoami").structured_content
    assert (answer["principal"], answer["single_user"]) == ("owner", True)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "CF-Connecting-IP"])
def test_a_forwarded_call_does_not_act_for_the_owner(server: str, header: str) -> None:
    detail = detail_of(call(server, "loom_ops_whoami", headers={header: "203.0.113.9"}))
    assert detail["code"] == "UNAUTHENTICATED"


def _raw(server: str, headers: dict[str, str], method: str = "POST", path: str = "/mcp") -> httpx.Response:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "loom_ops_whoami", "arguments": {}},
    }
    accept = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    return httpx.request(method, f"{server}{path}", json=body, headers={**accept, **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": "http://localhost:8321.evil.com"},
        {"Origin": "http://localhost, http://evil.example"},
        {"Origin": "http://evil.example, http://localhost"},
        {"Origin": "http://localhost/path"},
    ],
)
def test_a_page_of_another_site_reaches_nothing(server: str, headers: dict[str, str]) -> None:
    answer = _raw(server, headers)
    assert answer.status_code == 403
    assert answer.json()["detail"]["code"] == "FORBIDDEN"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        b'{"name":"loom_memory_set","arguments":{"memory_key":"twice","value":1,"value":2}}}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    ],
)
def test_a_name_that_stands_twice_is_refused_as_over_rest(server: str, raw: bytes) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    answer = httpx.post(f"{server}/mcp", content=raw, headers=headers)
    assert answer.status_code == 400
    assert "stands twice in one object" in answer.json()["error"]["message"]
    assert not call(server, "loom_memory_get", memory_key="twice").structured_content["found"]


def test_a_request_leaves_no_line_in_the_log(server: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        call(server, "loom_ops_whoami")
    assert not [record for record in caplog.records if record.name.startswith("mcp")]


def test_the_instructions_promise_nothing_that_no_op_answers(server: str) -> None:
    assert "pending_review" not in INSTRUCTIONS


def test_a_page_on_another_port_of_this_machine_does_not_act_for_the_owner(server: str) -> None:
    answer = _raw(server, {"Origin": "http://localhost:3000"}).json()
    assert answer["result"]["structuredContent"]["detail"]["code"] == "UNAUTHENTICATED"


def test_a_public_host_is_served_and_is_not_local(server: str, settings: Any) -> None:
    settings.LOOM_PUBLIC_HOSTS = ["memory.example"]
    answer = _raw(server, {"Host": "memory.example", "Origin": "https://memory.example"})
    assert answer.status_code == 200
    assert answer.json()["result"]["structuredContent"]["detail"]["code"] == "UNAUTHENTICATED"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_no_stream_to_open_and_no_session_to_end(server: str, method: str) -> None:
    answer = _raw(server, {}, method=method)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"


def test_another_path_is_not_found(server: str) -> None:
    assert _raw(server, {}, path="/other").json()["detail"]["code"] == "NOT_FOUND"


def test_slow_ops_run_side_by_side_and_listing_waits_for_none(server: str) -> None:
    async def run() -> tuple[float, float]:
        async with connected(f"{server}/mcp") as client, anyio.create_task_group() as group:
            started = time.monotonic()
            for _ in range(5):
                group.start_soon(client.call_tool, "loom_probe_echo", {"count": 1, "sleep_s": 1.0})
            await anyio.sleep(0.1)
            before = time.monotonic()
            await client.list_tools()
            listing = time.monotonic() - before
        return time.monotonic() - started, listing

    whole, listing = anyio.run(run)
    assert whole < 3.0, "five ops of one second each ran one after another"
    assert listing < 0.8, "the listing waited for a slow op"


def test_many_calls_leave_no_connection_behind(server: str) -> None:
    async def conversation(client: Client) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(client.call_tool, "loom_ops_whoami", {})

    talk(f"{server}/mcp", conversation)
    talk(f"{server}/mcp", conversation)


def test_every_listed_schema_is_a_valid_schema(server: str) -> None:
    async def conversation(client: Client) -> list[types.Tool]:
        return (await client.list_tools()).tools

    for tool in talk(f"{server}/mcp?toolset=all", conversation):
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema or {})
        assert tool.annotations is not None and tool.annotations.title and tool.description


def test_a_memory_is_stored_read_found_and_locked(server: str) -> None:
    key = "project/deploy/region"
    stored = call(
        server, "loom_memory_set", memory_key=key, value="Deploys go to eu-west-1.", tags='["deploy"]'
    )
    assert stored.structured_content["version"] == 1
    assert text_of(stored) == f"Stored {key}, version 1."
    got = call(server, "loom_memory_get", memory_key=key)
    assert got.structured_content["value"] == "Deploys go to eu-west-1."
    assert "Deploys go to eu-west-1." in text_of(got)
    found = call(server, "loom_memory_search", query="which region do deploys use", top_k="3")
    assert found.structured_content["results"][0]["memory_key"] == key
    assert key in text_of(found)
    locked = call(server, "loom_memory_lock", memory_key=key, mode="read_only", reason="asked for")
    assert locked.structured_content["changed"] is True
    refused = call(server, "loom_memory_set", memory_key=key, value="Deploys go elsewhere.")
    detail = detail_of(refused)
    assert (detail["code"], detail["mode"], detail["reason"]) == ("LOCKED", "read_only", "asked for")
    assert "asked for" in text_of(refused)
    assert call(server, "loom_memory_get", memory_key=key).structured_content["version"] == 1


def test_a_stored_null_is_not_an_absent_value(server: str) -> None:
    call(server, "loom_memory_set", memory_key="nothing", value=None)
    answer = call(server, "loom_memory_get", memory_key="nothing").structured_content
    assert answer["found"] is True
    assert answer["value"] is None


def test_a_locked_row_answers_like_an_unlocked_one_when_nothing_would_change(server: str) -> None:
    call(server, "loom_memory_set", memory_key="same", value={"a": 1})
    call(server, "loom_memory_lock", memory_key="same", mode="read_only", reason="asked for")
    again = call(server, "loom_memory_set", memory_key="same", value={"a": 1})
    assert again.structured_content["noop"] is True
    assert "nothing has changed" in text_of(again)


def test_what_does_not_exist_is_no_error_on_a_read_by_key(server: str) -> None:
    result = call(server, "loom_memory_get", memory_key="absent")
    assert not result.is_error
    assert result.structured_content["found"] is False
    assert text_of(result) == "Nothing is stored under absent."
