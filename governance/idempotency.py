"""Stored answers: the same key and body is answered once and replayed after that."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.conf import settings
from django.db import connection

from loomsite.ops import Context, OpError, invalid


def body_digest(ctx: Context, payload: dict[str, Any]) -> bytes:
    """SHA-256 of the call's canonical JSON and of what the token fills in.

    Two tokens of one principal may have other defaults: the same body then means another row.
    """
    caller = ctx.caller
    filled = [ctx.namespace, ctx.agent, ctx.user_id, ctx.session_id, caller.bound_agent, caller.bound_user]
    text = json.dumps([payload, filled], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).digest()


def check_key(key: str) -> str:
    """The key, when it is 1 to 255 printable ASCII characters; OpError 400 otherwise."""
    if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise invalid("Idempotency-Key", "must be 1 to 255 printable ASCII characters.")
    return key


def claim(ctx: Context, key: str, digest: bytes) -> dict[str, Any] | None:
    """Claim the key for this transaction; the stored answer when somebody already did.

    A concurrent twin waits here for the first to commit and then gets its answer; when the first
    rolled back, the twin runs. Raises OpError 409 when the key was used with another body.
    """
    scope = [ctx.caller.org_id, ctx.caller.principal_id, ctx.op.name, key]
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO governance_idempotencykey AS k
                 (org_id, principal_id, op, key, body_sha256, created_at)
               VALUES (%s, %s, %s, %s, %s, statement_timestamp())
               ON CONFLICT ON CONSTRAINT idempotency_key_of_principal DO UPDATE
                 SET body_sha256 = excluded.body_sha256, status = NULL, answer = NULL,
                     created_at = excluded.created_at
                 WHERE k.created_at < statement_timestamp() - make_interval(hours => %s)
               RETURNING id""",
            [*scope, digest, settings.LOOM_IDEMPOTENCY_HOURS],
        )
        if cursor.fetchone():
            return None
    answer = stored(ctx, key, digest)
    if answer is None:
        raise OpError("BUSY", "The idempotency key was released meanwhile; try again.", retry_after_s=1)
    return answer


def stored(ctx: Context, key: str, digest: bytes) -> dict[str, Any] | None:
    """The answer that is kept under the key, None when there is none.

    Raises OpError 409 when the key was used with another body, or its answer was erased.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT body_sha256, status, answer FROM governance_idempotencykey "
            "WHERE org_id = %s AND principal_id = %s AND op = %s AND key = %s "
            "AND created_at >= statement_timestamp() - make_interval(hours => %s)",
            [
                ctx.caller.org_id, ctx.caller.principal_id, ctx.op.name, key,
                settings.LOOM_IDEMPOTENCY_HOURS,
            ],
        )  # fmt: skip
        row = cursor.fetchone()
    if row is None:
        return None
    if bytes(row[0]) != digest:
        raise OpError(
            "IDEMPOTENCY_CONFLICT",
            "This Idempotency-Key was used with another body; use a fresh key for a new call.",
        )
    if row[1] is None:
        raise OpError(
            "IDEMPOTENCY_CONFLICT", "The stored answer of this Idempotency-Key was erased; use a fresh key."
        )
    answer = row[2]
    return {"status": row[1], "body": json.loads(answer) if isinstance(answer, str) else answer}


def store(ctx: Context, key: str, status: int, body: dict[str, Any]) -> None:
    """Keep the answer beside the claim, in the same transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE governance_idempotencykey SET status = %s, answer = %s, namespace_id = %s "
            "WHERE org_id = %s AND principal_id = %s AND op = %s AND key = %s",
            [
                status,
                json.dumps(body),
                ctx.namespace_id,
                ctx.caller.org_id,
                ctx.caller.principal_id,
                ctx.op.name,
                key,
            ],
        )
