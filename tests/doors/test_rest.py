"""The HTTP door: bodies, headers, methods, and the envelope around every answer."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from governance.models import AuditEvent, Namespace, Org, User
from loomsite.doors.rest import OpView
from loomsite.ops import CODES, limits
from memories.models import Memory
from tests.conftest import Cast

Post = Callable[..., HttpResponse]


@pytest.fixture
def post(cast: Cast) -> Post:
    """POST raw bytes to an op as `mate`."""

    def send(op: str, raw: bytes, content_type: str = "application/json", **headers: Any) -> HttpResponse:
        headers.setdefault("HTTP_AUTHORIZATION", f"Bearer {cast.tokens['mate']}")
        response: Any = Client().post(f"/v1/{op}", raw, content_type=content_type, **headers)
        return response  # type: ignore[no-any-return]

    return send


def detail(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.content)["detail"]
    return found


def paths(found: dict[str, Any]) -> list[str]:
    return [fault["path"] for fault in found["errors"]]


# The envelope


def test_an_answer_is_the_bare_output_object(cast: Cast) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": 1})
    assert reply.status == 200
    assert reply.body["memory_key"] == "k" and "detail" not in reply.body
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Cache-Control"] == "no-store"


def test_every_answer_says_how_long_it_took(post: Post) -> None:
    for raw in (b'{"memory_key": "k"}', b"{", b"{}"):
        timing = post("memory.get", raw)["Server-Timing"]
        app, database = (part.strip() for part in timing.split(","))
        assert app.startswith("app;dur=") and database.startswith("db;dur=")
        assert float(app.removeprefix("app;dur=")) >= float(database.removeprefix("db;dur=")) >= 0


def test_an_error_has_code_message_category_and_whether_a_retry_helps(cast: Cast) -> None:
    found = cast.call("memory.get", {}).detail
    assert found["code"] == "INVALID_ARGUMENT"
    assert found["category"] == CODES["INVALID_ARGUMENT"].category
    assert found["retryable"] is False
    assert found["message"] and found["request_id"]


def test_every_fault_of_a_body_is_listed_with_its_path(cast: Cast) -> None:
    body = {
        "value": 1,
        "tags": ["", 5],
        "confidence": 7,
        "ttl_seconds": 0,
        "if_match_sha256": "x",
        "org": " ",
        "agent": "a\nb",
    }
    reply = cast.call("memory.set", body)
    assert reply.status == 400
    assert set(paths(reply.detail)) == {
        "memory_key", "tags.0", "tags.1", "confidence", "ttl_seconds", "if_match_sha256", "org", "agent",
    }  # fmt: skip
    assert not Memory.objects.exists()


def test_faults_of_nested_items_are_listed_too(cast: Cast) -> None:
    items = [{"memory_key": "a", "value": 1}, {"value": 2}, {"memory_key": "c"}]
    found = cast.call("memory.set_many", {"items": items}).detail
    assert paths(found) == ["items.1.memory_key", "items.2.value"]


def test_unknown_fields_are_served_and_named(cast: Cast) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": 1, "colour": "red", "shape": None})
    assert reply["ignored_args"] == ["colour", "shape"]


def test_unknown_fields_of_items_are_named_by_their_path(cast: Cast) -> None:
    items = [{"memory_key": "k", "value": {"colour": 1}}, {"memory_key": "l", "value": 1, "colour": "red"}]
    reply = cast.call("memory.set_many", {"items": items})
    assert reply["ignored_args"] == ["items.1.colour"]


def test_an_answer_without_unknown_fields_has_no_ignored_args(cast: Cast) -> None:
    assert "ignored_args" not in cast.call("memory.get", {"memory_key": "k"}).body


def test_an_explicit_null_counts_as_left_out_where_null_says_nothing(cast: Cast) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": 1, "clear_expiry": None, "dry_run": None})
    assert reply.status == 200 and reply["dry_run"] is False
    items = [{"memory_key": "l", "value": 1, "clear_expiry": None}]
    assert cast.call("memory.set_many", {"items": items}).status == 200
    assert paths(cast.call("memory.get", {"memory_key": None}).detail) == ["memory_key"]


def test_null_is_a_value_like_any_other(cast: Cast) -> None:
    cast.call("memory.set", {"memory_key": "k", "value": None})
    found = cast.call("memory.get", {"memory_key": "k"})
    assert found["found"] is True and found["value"] is None


@pytest.mark.parametrize("value", [0, "", False, [], {}, None, 0.0])
def test_a_falsy_value_is_stored_as_given(cast: Cast, value: Any) -> None:
    cast.call("memory.set", {"memory_key": "k", "value": value})
    assert cast.call("memory.get", {"memory_key": "k"})["value"] == value


# Bodies


def test_an_empty_body_is_an_empty_object(post: Post) -> None:
    for raw in (b"", b"  \n"):
        response = post("ops.whoami", raw)
        assert response.status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"[]", b"1", b'"text"', b"null", b"true", b'{"memory_key": "k"} trailing', b'{"a": 1}{"b": 2}',
        b"{'memory_key': 'k'}", b'{"memory_key": NaN}', b'{"memory_key": Infinity}', b'{"x": -Infinity}',
        b"\xff\xfe{\x00}\x00", b'{"memory_key": "\xff"}', b'\xef\xbb\xbf{"memory_key": "k"}', b'{"a": 01}',
        b'{"memory_key": "a\nb"}', b'{"memory_key": "a", "memory_key": "b"}', b'{"value": {"a": 1, "a": 2}}',
        b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 500_000, b'{"n": ' + b"9" * 5000 + b"}",
    ],
    ids=range(23),
)  # fmt: skip
def test_what_is_not_one_json_object_is_refused(post: Post, raw: bytes) -> None:
    response = post("memory.get", raw)
    assert response.status_code == 400
    found = detail(response)
    assert found["code"] == "INVALID_ARGUMENT" and found["errors"]
    assert len(response.content) < 2000


@pytest.mark.parametrize(
    ("op", "raw", "path"),
    [
        ("memory.search", b'{"query":"\\ud83d"}', "query"),
        ("memory.set", b'{"memory_key":"k","value":["a",{"b":"\\udc00"}]}', "value.1.b"),
        ("memory.set", b'{"memory_key":"k","value":{"\\ud800":1}}', "value.?"),
        ("memory.get", b'{"memory_key":"k","\\ud800":1}', "?"),
        ("memory.get", b'{"memory_key":"\\ud83d"}', "memory_key"),
    ],
)
def test_a_lone_surrogate_is_refused_by_name(post: Post, op: str, raw: bytes, path: str) -> None:
    response = post(op, raw)
    assert response.status_code == 400
    assert paths(detail(response)) == [path]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"memory_key":"k","value":1,"confidence":1e999}', "confidence"),
        (b'{"memory_key":"k","value":[0,{"x":-1e999}]}', "value.1.x"),
        (b'{"memory_key":"k","value":1,"metadata":{"x":1e400}}', "metadata.x"),
    ],
)
def test_a_number_beyond_all_floats_is_refused_by_name(post: Post, raw: bytes, path: str) -> None:
    response = post("memory.set", raw)
    assert response.status_code == 400
    assert paths(detail(response)) == [path]


def test_minus_zero_is_zero(post: Post, cast: Cast) -> None:
    response = post("memory.set", b'{"memory_key":"k","value":-0.0,"confidence":-0.0}')
    assert response.status_code == 200
    found = cast.call("memory.get", {"memory_key": "k"})
    assert found["value"] == 0 and found["confidence"] == 0


@pytest.mark.parametrize("number", [2**31, 2**63, -(2**63), 10**400, 1e308, 5e-324, 0.1, 1e16])
def test_numbers_of_any_size_are_kept_in_values(cast: Cast, number: float) -> None:
    assert cast.call("memory.set", {"memory_key": "k", "value": {"n": number}}).status == 200
    found = cast.call("memory.get", {"memory_key": "k"})["value"]["n"]
    # The database keeps decimals: 1e308 comes back as a one with 308 zeros, which is the same double.
    assert (float(found) if isinstance(number, float) else found) == number


@pytest.mark.parametrize("number", [2**31, 2**63, -1, 10**400, 1e300, True, "1e5", [], 1.5])
@pytest.mark.parametrize("field", ["ttl_seconds", "confidence"])
def test_numbers_out_of_bounds_are_refused_by_name(cast: Cast, field: str, number: Any) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": 1, field: number})
    allowed = field == "ttl_seconds" and number == 2**31
    assert reply.status == (200 if allowed else 400), reply.body
    if not allowed:
        assert paths(reply.detail) == [field]


@pytest.mark.parametrize("number", [0, -1, 201, 10**9, 2**63, 10**400, True])
def test_a_page_out_of_bounds_is_refused_by_name(cast: Cast, number: Any) -> None:
    reply = cast.call("memory.list", {"limit": number})
    assert reply.status == 400
    assert paths(reply.detail) == ["limit"]


@pytest.mark.parametrize("field", ["agent", "user_id", "session_id", "org", "namespace", "run_id"])
@pytest.mark.parametrize("blank", ["", " ", "\t", "\u00a0"])
def test_a_blank_identity_is_refused_and_never_means_all(cast: Cast, field: str, blank: str) -> None:
    reply = cast.call("memory.list", {field: blank})
    assert reply.status == 400
    assert paths(reply.detail) == [field]


def test_text_is_nfc_on_the_way_in(cast: Cast) -> None:
    cast.call("memory.set", {"memory_key": "caf\u0065\u0301", "value": {"e\u0301": "e\u0301"}})
    found = cast.call("memory.get", {"memory_key": "caf\u00e9"})
    assert found["value"] == {"\u00e9": "\u00e9"}
    assert cast.call("memory.get", {"memory_key": "cafe\u0301"})["memory_id"] == found["memory_id"]


def test_case_of_keys_is_kept_apart(cast: Cast) -> None:
    for key in ("Istanbul", "\u0130stanbul", "istanbul", "stra\u00dfe", "strasse"):
        cast.call("memory.set", {"memory_key": key, "value": key})
    for key in ("Istanbul", "\u0130stanbul", "istanbul", "stra\u00dfe", "strasse"):
        assert cast.call("memory.get", {"memory_key": key})["value"] == key


def test_names_that_become_one_by_nfc_are_refused(cast: Cast) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": {"\u00e9": 1, "e\u0301": 2}})
    assert reply.status == 400 and paths(reply.detail) == ["value.\u00e9"]


def test_nul_in_a_value_is_replaced_and_said(cast: Cast) -> None:
    body = {
        "memory_key": "k",
        "value": {"a\u0000": ["b\u0000c"]},
        "metadata": {"m": "\u0000"},
        "tags": ["t\u0000"],
        "reason": "\u0000",
    }
    reply = cast.call("memory.set", body)
    named = {advisory.split(":", 1)[0] for advisory in reply["advisories"]}
    assert named == {"value.a\ufffd", "value.a\ufffd.0", "metadata.m", "tags.0", "reason"}
    found = cast.call("memory.get", {"memory_key": "k"})
    assert found["value"] == {"a\ufffd": ["b\ufffdc"]}
    assert found["tags"] == ["t\ufffd"]


def test_ten_thousand_nuls_are_said_shortly(cast: Cast) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": ["\u0000"] * 10_000})
    assert len(reply["advisories"]) == 21
    assert "9980 more" in reply["advisories"][-1]


@pytest.mark.parametrize(
    ("op", "body", "path"),
    [
        ("memory.get", {"memory_key": "a\u0000b"}, "memory_key"),
        ("memory.list", {"prefix": "a\u0000"}, "prefix"),
        ("memory.list", {"cursor": "\u0000"}, "cursor"),
        ("memory.list", {"agent": "\u0000"}, "agent"),
        ("memory.list", {"namespace": "te\u0000am"}, "namespace"),
        ("memory.search", {"query": "q", "key_prefix": "\u0000"}, "key_prefix"),
        ("memory.set_many", {"items": [{"memory_key": "\u0000", "value": 1}]}, "items.0.memory_key"),
    ],
)
def test_nul_in_what_addresses_a_row_is_refused(cast: Cast, op: str, body: dict[str, Any], path: str) -> None:
    reply = cast.call(op, body)
    assert reply.status == 400 and paths(reply.detail) == [path]


def test_a_stored_value_may_use_the_words_of_addressing_fields(cast: Cast) -> None:
    value = {"memory_key": "\u0000", "items": [{"agent": "\u0000"}], "filter": {"prefix": "\u0000"}}
    assert len(cast.call("memory.set", {"memory_key": "k", "value": value})["advisories"]) == 3


def test_metadata_that_names_owners_is_inert(cast: Cast) -> None:
    metadata = {"user_id": "bob", "org": "elsewhere", "namespace": "other", "pinned": True}
    cast.call("memory.set", {"memory_key": "k", "value": 1, "metadata": metadata})
    found = cast.call("memory.get", {"memory_key": "k"})
    assert (found["user_id"], found["pinned"], found["metadata"]) == ("-", False, metadata)


# Limits


def test_a_body_over_its_limit_is_413_with_a_short_answer(post: Post) -> None:
    response = post("memory.set", b'{"memory_key":"k","value":"' + b"x" * limits.BODY_BYTES + b'"}')
    assert response.status_code == 413
    found = detail(response)
    assert found["code"] == "TOO_LARGE" and found["limit"] == limits.BODY_BYTES
    assert len(response.content) < 500


def test_a_body_is_measured_and_its_length_not_believed(cast: Cast) -> None:
    raw = b'{"memory_key":"k","value":"' + b"x" * limits.BODY_BYTES + b'"}'
    environ = _environ(cast, raw, CONTENT_LENGTH="")
    environ |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    assert _serve(environ)[0] == 413


def test_a_chunked_body_is_read_where_the_server_ends_it(cast: Cast) -> None:
    environ = _environ(cast, b'{"memory_key":"k","value":1}', CONTENT_LENGTH="")
    environ |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    status, body = _serve(environ)
    assert status == 200 and body["memory_key"] == "k"


def test_a_chunked_body_that_cannot_be_read_is_not_taken_for_an_empty_one(cast: Cast) -> None:
    environ = _environ(cast, b'{"memory_key":"k","value":1}', CONTENT_LENGTH="")
    environ |= {"HTTP_TRANSFER_ENCODING": "chunked"}
    status, body = _serve(environ)
    assert status == 400 and "Content-Length" in body["detail"]["message"]


def _environ(cast: Cast, raw: bytes, **more: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/v1/memory.set",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8321",
        "HTTP_HOST": "127.0.0.1:8321",
        "HTTP_AUTHORIZATION": f"Bearer {cast.tokens['mate']}",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(raw)),
        "wsgi.input": io.BytesIO(raw),
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        **more,
    }


def _serve(environ: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = OpView.as_view()(WSGIRequest(environ), op="memory.set")
    return response.status_code, json.loads(response.content)


def test_a_value_over_its_limit_is_413_and_one_within_is_stored(cast: Cast) -> None:
    fits = "x" * (limits.VALUE_BYTES - 2)
    assert cast.call("memory.set", {"memory_key": "k", "value": fits}).status == 200
    reply = cast.call("memory.set", {"memory_key": "k", "value": fits + "x"})
    assert reply.status == 413
    assert reply.detail["code"] == "TOO_LARGE" and reply.detail["limit"] == limits.VALUE_BYTES
    assert paths(reply.detail) == ["value"]


@pytest.mark.parametrize(
    ("body", "path", "limit"),
    [
        ({"memory_key": "k" * 513}, "memory_key", 512),
        ({"memory_key": "k" * 3000}, "memory_key", 512),
        ({"memory_key": "k", "tags": [str(i) for i in range(65)]}, "tags", 64),
        ({"memory_key": "k", "tags": ["t" * 129]}, "tags.0", 128),
        ({"memory_key": "k", "agent": "a" * 129}, "agent", 128),
        ({"memory_key": "k", "reason": "r" * 2001}, "reason", 2000),
        ({"memory_key": "k", "namespace": "n" * 129}, "namespace", 128),
    ],
)
def test_every_other_limit_is_400_and_named(cast: Cast, body: dict[str, Any], path: str, limit: int) -> None:
    reply = cast.call("memory.set", {"value": 1, **body})
    assert reply.status == 400
    (fault,) = reply.detail["errors"]
    assert fault["path"] == path and str(limit) in fault["message"]


def test_long_keys_that_begin_alike_do_not_collide(cast: Cast) -> None:
    for end in "ab":
        cast.call("memory.set", {"memory_key": "\u00e9" * 511 + end, "value": end})
    assert cast.call("memory.get", {"memory_key": "\u00e9" * 511 + "a"})["value"] == "a"


def _nested(depth: int, innermost: Any) -> Any:
    value = innermost
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


def test_nesting_of_32_is_kept_and_33_is_refused(cast: Cast) -> None:
    inside = _nested(31, "leaf")  # the body itself is the first level
    assert cast.call("memory.set", {"memory_key": "k", "value": inside}).status == 200
    assert cast.call("memory.get", {"memory_key": "k"})["value"] == inside
    innermost: Any
    for innermost in ("leaf", {}):
        reply = cast.call("memory.set", {"memory_key": "k", "value": _nested(32, innermost)})
        assert reply.status == 400 and "32" in reply.detail["message"]
        assert paths(reply.detail) == ["value"]


def test_long_names_at_depth_do_not_make_long_errors_or_long_work(post: Post) -> None:
    name = "n" * 25_000
    raw = b'{"memory_key":"k","value":' + f'{{"{name}":'.encode() * 29 + b"[" + b"0," * 50_000 + b"1e999]"
    response = post("memory.set", raw + b"}" * 30)
    assert response.status_code == 400
    assert len(response.content) < 2000


# Addresses, methods, content types


def test_an_unknown_op_is_404_and_names_near_ones(cast: Cast) -> None:
    reply = cast.call("memory.gett", {})
    assert reply.status == 404 and reply.code == "UNKNOWN_OP"
    assert "memory.get" in reply.detail["did_you_mean"]


@pytest.mark.parametrize(
    "path", ["/v1/", "/v1/memory/get", "/v1/memory.get/", "/v1//memory.get", "/v1/a/b/c"]
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_an_address_that_names_no_op_is_404_in_the_envelope(cast: Cast, method: str, path: str) -> None:
    response = getattr(Client(), method)(path)
    assert response.status_code == 404
    assert detail(response)["code"] == "UNKNOWN_OP"
    assert response["X-Request-ID"] == detail(response)["request_id"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_405_in_the_envelope(cast: Cast, method: str) -> None:
    response = Client().generic(method, "/v1/memory.get", b'{"memory_key":"k"}', "application/json")
    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert detail(response)["code"] == "METHOD_NOT_ALLOWED"
    assert "Set-Cookie" not in response


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;charset=UTF-8", ""]
)
def test_json_is_taken_by_its_content_type_or_none(post: Post, kind: str) -> None:
    assert post("memory.get", b'{"memory_key":"k"}', kind).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_another_content_type_is_415(post: Post, kind: str) -> None:
    response = post("memory.get", b'{"memory_key":"k"}', kind)
    assert response.status_code == 415
    assert detail(response)["code"] == "UNSUPPORTED_MEDIA_TYPE"


# Request ids


@pytest.mark.parametrize("given", ["a", "A-b_c.9", "x" * 64])
def test_a_request_id_is_taken_echoed_and_kept_in_the_audit(cast: Cast, given: str) -> None:
    reply = cast.call("memory.set", {"memory_key": "k", "value": 1}, HTTP_X_REQUEST_ID=given)
    assert reply.headers["X-Request-ID"] == given
    assert AuditEvent.objects.get(target="k").request_id == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\u00e9", "a/b", "abc\n", "a,b"])
def test_a_malformed_request_id_is_replaced(cast: Cast, given: str) -> None:
    reply = cast.call("memory.get", {}, HTTP_X_REQUEST_ID=given)
    made = reply.headers["X-Request-ID"]
    assert made != given and len(made) == 32
    assert reply.detail["request_id"] == made


# Logs


def test_refusals_do_not_fill_the_log(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cast.call("memory.get", {})
        cast.call("nothing.here", {})
        cast.call("memory.get", {"memory_key": "k"}, by="loom_wrong")
        cast.call("memory.delete", {"memory_key": "k"}, by="viewer")
        Client().get("/v1/memory.get")
        Client().post("/v1/nowhere/at/all")
    assert caplog.records == []


def test_secrets_stand_in_no_log_and_no_answer(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    token = cast.tokens["mate"]
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    with caplog.at_level(logging.DEBUG):
        answers = [cast.call("memory.get", {"memory_key": "k"}, by=by).body for by in (token, wrong)]
        answers.append(cast.call("ops.whoami", {}).body)
    for text in (json.dumps(answers), caplog.text):
        assert token.split("_", 2)[2][:20] not in text


# Who calls


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic dTpw", "loom_a_b", "Token x", "Bearer x y"]
)
def test_a_header_without_a_token_never_counts_as_a_local_call(owner_of_dev: None, header: str) -> None:
    response = Client().post(
        "/v1/ops.whoami", b"{}", content_type="application/json", HTTP_AUTHORIZATION=header
    )
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.fixture
def owner_of_dev(db: None) -> None:
    """The owner of a machine in single-user mode, with his namespace."""
    User.objects.create_superuser("local-owner")
    Namespace.objects.create(org=Org.objects.create(slug="dev"), slug="local")


def local(**headers: str) -> HttpResponse:
    meta: dict[str, Any] = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1:8321", **headers}
    response: Any = Client().post("/v1/ops.whoami", b"{}", content_type="application/json", **meta)
    return response  # type: ignore[no-any-return]


def test_a_plain_local_call_acts_for_the_owner_as_a_writer(owner_of_dev: None) -> None:
    found = json.loads(local().content)
    assert (found["org"], found["namespace"], found["principal"]) == ("dev", "local", "local-owner")
    assert (found["role"], found["role_ceiling"], found["single_user"]) == ("writer", "writer", True)
    assert found["token_prefix"] is None


@pytest.mark.parametrize(
    "headers",
    [
        {"REMOTE_ADDR": "192.168.1.7"},
        {"HTTP_HOST": "evil.example"},
        {"HTTP_HOST": "evil.example:8321"},
        {"HTTP_ORIGIN": "http://evil.example"},
        {"HTTP_ORIGIN": "http://127.0.0.1:3000"},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_X_FORWARDED_FOR": "10.0.0.1"},
        {"HTTP_X_FORWARDED_HOST": "evil.example"},
        {"HTTP_X_FORWARDED_PROTO": "https"},
        {"HTTP_X_REAL_IP": "10.0.0.1"},
        {"HTTP_FORWARDED": "for=10.0.0.1"},
        {"HTTP_VIA": "1.1 proxy"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_call_that_may_come_from_elsewhere_needs_a_token(
    owner_of_dev: None, headers: dict[str, str]
) -> None:
    response = local(**headers)
    assert response.status_code == 401
    assert detail(response)["code"] == "UNAUTHENTICATED"


def test_a_server_on_another_address_has_no_local_owner(owner_of_dev: None, settings: Settings) -> None:
    settings.LOOM_SINGLE_USER = False
    assert local().status_code == 401


def test_the_local_owner_loosens_no_lock(owner_of_dev: None) -> None:
    meta: dict[str, Any] = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1:8321"}
    raw = b'{"memory_key":"k","reason":"because"}'
    response = Client().post("/v1/memory.unlock", raw, content_type="application/json", **meta)
    assert response.status_code == 403
    assert "console" in detail(response)["message"]


# Probes


def test_health_needs_no_database_no_token_and_no_host(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    response = Client().get("/v1/health", HTTP_HOST="10.1.2.3")
    assert response.status_code == 200 and json.loads(response.content) == {"status": "ok"}
    assert "Set-Cookie" not in response


def test_readiness_names_what_is_missing(db: None) -> None:
    response = Client().get("/v1/ready")
    assert response.status_code == 503
    assert json.loads(response.content) == {
        "status": "not ready",
        "database": "ok",
        "migrations": "ok",
        "worker": "not heard from",
    }


def test_readiness_is_there_once_a_worker_was_heard_from(db: None) -> None:
    from governance.services import worker_heartbeat

    worker_heartbeat()
    response = Client().get("/v1/ready")
    assert response.status_code == 200 and json.loads(response.content)["status"] == "ready"
