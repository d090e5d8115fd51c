"""REST: one view serves every op at POST /v1/<op>; health and readiness beside it."""

from __future__ import annotations

import time
from typing import Any

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from pydantic_core import to_json
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from governance import pipeline, selectors
from governance.pipeline import Answer
from governance.tenancy import Credentials
from loomsite.doors.guards import is_local_call
from loomsite.ops import Door, OpError, limits
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

    def post(self, request: Request, op: str) -> HttpResponse:
        """Run the op through the pipeline."""
        started = time.perf_counter()
        timer = _DatabaseTimer()
        http: HttpRequest = request._request
        request_id = pipeline.new_request_id(http.headers.get("X-Request-ID"))
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
                    idempotency_key=http.headers.get("Idempotency-Key"),
                )
        response = respond(answer)
        total = (time.perf_counter() - started) * 1000
        response["Server-Timing"] = f"app;dur={total:.2f}, db;dur={timer.seconds * 1000:.2f}"
        return response


def read_body(http: HttpRequest) -> dict[str, Any]:
    """The request's JSON object. OpError 413, 415 or 400."""
    length = http.META.get("CONTENT_LENGTH") or "0"
    if length.isdigit() and int(length) > limits.BODY_BYTES:
        raise OpError(
            "TOO_LARGE",
            f"The body has {length} bytes; the limit is {limits.BODY_BYTES}.",
            limit=limits.BODY_BYTES,
        )
    raw = http.read(limits.BODY_BYTES + 1)
    kind = (http.META.get("CONTENT_TYPE") or "").split(";", 1)[0].strip().lower()
    if raw and kind not in ("application/json", ""):
        raise OpError("UNSUPPORTED_MEDIA_TYPE", f"Content-Type {kind[:80]!r}: send application/json.")
    return parse_object(raw)


def credentials(http: HttpRequest) -> Credentials:
    """What the request says of its caller."""
    header = http.META.get("HTTP_AUTHORIZATION", "")
    if header:
        scheme, _, bearer = header.partition(" ")
        return Credentials(bearer=bearer.strip() if scheme.lower() == "bearer" else "", door=Door.REST)
    forwarded = any(
        name in http.META for name in ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP")
    )
    local = is_local_call(
        http.META.get("REMOTE_ADDR", ""),
        http.META.get("HTTP_HOST", ""),
        http.META.get("HTTP_ORIGIN"),
        forwarded,
    )
    return Credentials(door=Door.REST, is_local=local)


def respond(answer: Answer) -> HttpResponse:
    """The answer as an HTTP response."""
    response = HttpResponse(to_json(answer.body), status=answer.status, content_type="application/json")
    for name, value in answer.headers.items():
        response[name] = value
    if answer.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="loomsite"'
    response["Cache-Control"] = "no-store"
    return response


def exception_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's own refusals (a method that is not POST) in the envelope of every other error."""
    from rest_framework.exceptions import MethodNotAllowed

    if not isinstance(error, MethodNotAllowed):
        return None
    refused = OpError("METHOD_NOT_ALLOWED", "Ops are called by POST with a JSON object; see /v1/docs.")
    request = context["request"]
    answer = pipeline.refusal(refused, pipeline.new_request_id(request.headers.get("X-Request-ID")))
    return Response(answer.body, status=answer.status, headers={"Allow": "POST", **answer.headers})


def health(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. Touches no database."""
    return HttpResponse(b'{"status":"ok"}', content_type="application/json")


def ready(request: HttpRequest) -> HttpResponse:
    """Readiness: database, migrations, worker heard from; 503 names what is missing."""
    state: dict[str, Any] = {"database": "ok", "migrations": "ok", "worker": "ok"}
    try:
        pending = selectors.migrations_pending()
        worker = selectors.worker_seen() if not pending else {"alive": False}
    except DatabaseError:
        state.update(database="unreachable", migrations="unknown", worker="unknown")
    else:
        if pending:
            state["migrations"] = f"{pending} pending"
        if not worker["alive"]:
            state["worker"] = "not heard from"
    good = all(value == "ok" for value in state.values())
    body = {"status": "ready" if good else "not ready", **state}
    return HttpResponse(to_json(body), status=200 if good else 503, content_type="application/json")
