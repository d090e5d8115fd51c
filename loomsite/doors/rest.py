"""REST: one view serves every op at POST /v1/<op>; health and readiness beside it."""

from __future__ import annotations

import time
from typing import Any

from django.db import Error as DatabaseFault
from django.db import connection
from django.http import HttpRequest, HttpResponse
from pydantic_core import to_json
from rest_framework.request import Request
from rest_framework.views import APIView

from governance import pipeline, selectors
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.doors.guards import FORWARDING_HEADERS, bearer_token, is_local_call
from loomsite.ops import Door, OpError, invalid, limits
from loomsite.ops.text import parse_object


class _DatabaseTimer:
    """Adds up the time spent in database statements, for Server-Timing."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        start = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.seconds += time.perf_counter() - start


class OpView(APIView):
    """POST /v1/<op>: the body is the op's input, the answer its output."""

    http_method_names = ("post",)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Nothing to negotiate: JSON in and out, and the pipeline knows the caller."""

    def post(self, request: Request, op: str) -> HttpResponse:
        """Run the op through the pipeline."""
        started = time.perf_counter()
        timer = _DatabaseTimer()
        http: HttpRequest = request._request
        request_id = _request_id(http)
        try:
            payload = read_body(http)
        except OpError as error:
            answer = pipeline.refusal(error, request_id)
        else:
            with connection.execute_wrapper(timer):
                answer = pipeline.run(
                    op,
                    payload,
                    credentials(http),
                    request_id=request_id,
                    idempotency_key=http.META.get("HTTP_IDEMPOTENCY_KEY"),
                )
        response = respond(answer)
        total = (time.perf_counter() - started) * 1000
        response["Server-Timing"] = f"app;dur={total:.2f}, db;dur={timer.seconds * 1000:.2f}"
        return response

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:  # type: ignore[override]
        """405 in the envelope of every other error."""
        refused = OpError("METHOD_NOT_ALLOWED", "Ops are called by POST with a JSON object; see /v1/docs.")
        return respond(pipeline.refusal(refused, _request_id(request._request)))


def _request_id(http: HttpRequest) -> str:
    return pipeline.new_request_id(http.META.get("HTTP_X_REQUEST_ID"))


def read_body(http: HttpRequest) -> dict[str, Any]:
    """The request's JSON object. OpError 413, 415 or 400."""
    length = http.META.get("CONTENT_LENGTH") or ""
    if length.isdigit() and int(length) > limits.BODY_BYTES:
        raise OpError(
            "TOO_LARGE",
            f"The body has {length} bytes; the limit is {limits.BODY_BYTES}.",
            limit=limits.BODY_BYTES,
        )
    source: Any = http
    if not length and "HTTP_TRANSFER_ENCODING" in http.META:
        # A chunked body has no length, and Django would read it as empty.
        if not http.META.get("wsgi.input_terminated"):
            raise invalid("body", "came in chunks; send it whole, with a Content-Length.", "content_length")
        source = http.META["wsgi.input"]
    raw = source.read(limits.BODY_BYTES + 1)
    kind = (http.META.get("CONTENT_TYPE") or "").split(";", 1)[0].strip().lower()
    if raw and kind not in ("application/json", ""):
        raise OpError("UNSUPPORTED_MEDIA_TYPE", f"Content-Type {kind[:80]!r}: send application/json.")
    return parse_object(raw)


def credentials(http: HttpRequest) -> Credentials:
    """What the request says of its caller."""
    bearer = bearer_token(http.META.get("HTTP_AUTHORIZATION"))
    if bearer is not None:
        return Credentials(bearer=bearer, door=Door.REST)
    local = is_local_call(
        http.META.get("REMOTE_ADDR", ""),
        http.META.get("HTTP_HOST", ""),
        http.META.get("HTTP_ORIGIN"),
        any(name in http.META for name in _FORWARDED),
    )
    return Credentials(door=Door.REST, is_local=local)


_FORWARDED = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in FORWARDING_HEADERS)


def respond(answer: Answer) -> HttpResponse:
    """The answer as an HTTP response."""
    response = HttpResponse(to_json(answer.body), status=answer.status, content_type="application/json")
    for name, value in answer.headers.items():
        response[name] = value
    if answer.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="loomsite"'
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    # Django would log each refusal as a warning; a fault of the server is logged where it happens.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def no_such_address(http: HttpRequest) -> HttpResponse:
    """404 for an address under /v1/ that names no op, in the envelope of every other error."""
    refused = OpError("UNKNOWN_OP", "Nothing is served here: ops are called at /v1/<op>; see /v1/docs.")
    return respond(pipeline.refusal(refused, _request_id(http)))


def health(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. Touches no database."""
    return HttpResponse(b'{"status":"ok"}', content_type="application/json")


def ready(request: HttpRequest) -> HttpResponse:
    """Readiness: database, migrations, worker heard from; 503 names what is missing."""
    state: dict[str, Any] = {"database": "ok", "migrations": "ok", "worker": "ok"}
    try:
        pending = selectors.migrations_pending()
        worker = selectors.worker_seen() if not pending else {"alive": False}
    except DatabaseFault:
        state.update(database="unreachable", migrations="unknown", worker="unknown")
    else:
        if pending:
            state["migrations"] = f"{pending} pending"
        if not worker["alive"]:
            state["worker"] = "not heard from"
    good = all(value == "ok" for value in state.values())
    body = {"status": "ready" if good else "not ready", **state}
    return HttpResponse(to_json(body), status=200 if good else 503, content_type="application/json")
