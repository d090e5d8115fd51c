"""Reads over the audit for ops."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Any

from django.db import connection

from governance.clock import iso
from loomsite.ops import Context, invalid

_SHOWN = (
    "seq", "at", "op", "target", "outcome", "principal", "token_prefix", "door", "agent", "user_id",
    "session_id", "run_id", "before_version", "after_version", "before_sha256", "after_sha256", "reason",
    "request_id", "detail", "hash",
)  # fmt: skip


def audit_list(
    ctx: Context,
    exact: dict[str, str],
    *,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    cursor: str | None,
) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of the call's namespace that equal `exact` in those columns, newest first, and the next cursor."""
    parts = ["org_id = %s", "namespace = %s"]
    params: list[Any] = [ctx.caller.org_id, ctx.namespace]
    place = _decode(cursor) if cursor else None
    for name, value in exact.items():
        parts.append(f"{name} = %s")
        params.append(value)
    for condition, bound in (("at >= %s", since), ("at < %s", until), ("seq < %s", place)):
        if bound is not None:
            parts.append(condition)
            params.append(bound)
    with connection.cursor() as db:
        db.execute(
            f"SELECT {', '.join(_SHOWN)} FROM governance_auditevent WHERE {' AND '.join(parts)} "  # noqa: S608
            "ORDER BY seq DESC LIMIT %s",
            [*params, limit + 1],
        )
        rows = [dict(zip(_SHOWN, row, strict=True)) for row in db.fetchall()]
    for row in rows:
        row |= {
            "at": iso(row["at"]), "detail": json.loads(row["detail"]), "hash": bytes(row["hash"]).hex()
        }  # fmt: skip
    return rows[:limit], _encode(rows[limit - 1]["seq"]) if len(rows) > limit else None


def _encode(seq: int) -> str:
    return base64.urlsafe_b64encode(str(seq).encode()).decode().rstrip("=")


def _decode(cursor: str) -> int:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        seq = int(text) if text.isascii() and text.isdigit() else 0
    except (binascii.Error, ValueError) as error:
        raise invalid("cursor", "is not one that this op answered.") from error
    if not 0 < seq < 2**63:
        raise invalid("cursor", "is not one that this op answered.")
    return seq
