"""The OpenAPI 3.1 document, made from the registry."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pydantic.json_schema import models_json_schema

from loomsite import VERSION
from loomsite.ops.errors import CODES
from loomsite.ops.failures import codes_of
from loomsite.ops.registry import Op, all_ops

Document = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/components/schemas/{model}"
_DESCRIPTION = """\
Operations on a governed memory for AI agents. Each is called by `POST /v1/<operation>` with a JSON object and
answers with a bare JSON object. Unknown fields are served and named in `ignored_args`. A refusal answers with
`{"detail": {...}}`.
"""
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "required": False,
    "description": "Taken when it is 1 to 64 letters, digits, dots, dashes or underscores, else made; "
    "echoed, logged and audited.",
    "schema": {"type": "string"},
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes a retry safe: the same key with the same body gives the stored answer again, "
    "with another body it is 409 IDEMPOTENCY_CONFLICT.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_HEADERS: Document = {
    "X-Request-ID": {"description": "The request's id.", "schema": {"type": "string"}},
    "Server-Timing": {
        "description": "Milliseconds, in all and in the database.",
        "schema": {"type": "string"},
    },
    "Idempotent-Replayed": {"description": "`true` for a stored answer.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}},
    "Allow": {"description": "The method to use.", "schema": {"type": "string"}},
}
_DETAIL: Document = {
    "type": "object",
    "required": ["code", "message", "category", "retryable", "request_id"],
    "properties": {
        "code": {
            "type": "string",
            "enum": list(CODES),
            "description": "\n".join(f"- `{name}`: {code.meaning}" for name, code in CODES.items()),
        },
        "message": {"type": "string"},
        "category": {"type": "string", "enum": sorted({code.category for code in CODES.values()})},
        "retryable": {"type": "boolean"},
        "retry_after_s": {"type": "integer", "minimum": 0},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message", "type"],
                "properties": {
                    "path": {"type": "string"},
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                },
            },
        },
    },
    "description": "Other fields join, by code: for LOCKED `mode`, `reason`, `until`, `holds`, `blocked`.",
}


def _error(status: int, codes: list[str]) -> Document:
    headers: Document = {"X-Request-ID": _header("X-Request-ID")}
    if status in (429, 503):
        headers["Retry-After"] = _header("Retry-After")
    if status == 405:
        headers["Allow"] = _header("Allow")
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        "headers": headers,
        "content": {"application/json": {"schema": {"$ref": _REF.format(model="Refusal")}}},
    }


def _header(name: str) -> Document:
    return {"$ref": f"#/components/headers/{name}"}


def _responses(op: Op, output: Document) -> Document:
    content = {"application/json": {"schema": output}}
    names = ["X-Request-ID", "Server-Timing", *([] if op.is_read else ["Idempotent-Replayed"])]
    headers = {name: _header(name) for name in names}
    responses: Document = {"200": {"description": "Done.", "headers": headers, "content": content}}
    if not op.is_read:
        responses["202"] = {
            "description": "Nothing has changed yet: `state` says what it waits for.",
            "headers": headers,
            "content": content,
        }
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in codes_of(op):
        by_status[CODES[code].status].append(code)
    responses.update((str(status), _error(status, by_status[status])) for status in sorted(by_status))
    return responses


def _parameter(name: str) -> Document:
    return {"$ref": f"#/components/parameters/{name}"}


def _operation(op: Op, body: Document, output: Document) -> Document:
    return {
        "operationId": op.tool_name,
        "tags": [op.name.split(".", 1)[0]],
        "summary": op.summary,
        "description": str(op.text).replace("\n", "\n\n"),
        "parameters": [
            _parameter(name) for name in (("RequestId",) if op.is_read else ("RequestId", "IdempotencyKey"))
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(op, output),
        "x-role": op.role.label,
        "x-kind": op.kind,
        "x-effects": sorted(op.effects),
        "x-mcp-tool": op.tool_name,
        "x-mcp-toolset": op.toolset,
    }


def _probe(summary: str, statuses: dict[str, str]) -> Document:
    body = {"application/json": {"schema": {"type": "object"}}}
    return {
        "get": {
            "tags": ["health"],
            "summary": summary,
            "security": [],
            "responses": {
                status: {"description": said, "content": body} for status, said in statuses.items()
            },
        }
    }


def document(ops: list[Op] | None = None) -> Document:
    """The OpenAPI document of `ops`, of all by default. Plain JSON; the same for the same registry."""
    ops = all_ops() if ops is None else ops
    models = dict.fromkeys(model for op in ops for model in (op.input, op.output))
    references, shared = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas: Document = {
        "Detail": _DETAIL,
        "Refusal": {
            "type": "object",
            "required": ["detail"],
            "properties": {"detail": {"$ref": _REF.format(model="Detail")}},
        },
        **shared.get("$defs", {}),
    }
    paths: Document = {
        f"/v1/{op.name}": {
            "post": _operation(
                op, references[(op.input, "validation")], references[(op.output, "validation")]
            )
        }
        for op in ops
    }
    paths["/v1/health"] = _probe("Is the process alive? Asks no database.", {"200": "It is."})
    paths["/v1/ready"] = _probe(
        "Database, migrations and worker: can calls be served?",
        {"200": "Ready.", "503": "Not ready; says why."},
    )
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {"title": "Loomsite", "version": VERSION, "description": _DESCRIPTION},
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made in the console; not needed on this machine in single-user mode.",
                }
            },
            "parameters": {"RequestId": _REQUEST_ID, "IdempotencyKey": _IDEMPOTENCY_KEY},
            "headers": _HEADERS,
            "schemas": dict(sorted(schemas.items())),
        },
    }
