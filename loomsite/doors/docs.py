"""/v1/docs and /v1/openapi.json: the reference, served offline and made from the registry."""

from __future__ import annotations

import json
from functools import cache

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from loomsite import VERSION
from loomsite.ops import CODES, all_ops, openapi, reference


@cache
def _openapi_bytes() -> bytes:
    return json.dumps(openapi.document(), ensure_ascii=False).encode()


@require_safe
def openapi_json(request: HttpRequest) -> HttpResponse:
    """The OpenAPI 3.1 document."""
    return HttpResponse(_openapi_bytes(), content_type="application/json")


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Every op with arguments, answer and refusals, on one page; no script, nothing from elsewhere."""
    ops = [
        {
            "op": op,
            "role": op.role.label,
            "effects": ", ".join(sorted(op.effects)),
            "place": reference.handler_place(op),
            "arguments": reference.input_rows(op),
            "answer": reference.output_rows(op),
            "codes": reference.code_rows(op),
        }
        for op in all_ops()
    ]
    context = {"ops": ops, "codes": CODES.items(), "version": VERSION}
    return render(request, "docs/reference.html", context)
