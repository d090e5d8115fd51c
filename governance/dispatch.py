"""Running an op's handler inside the caller's transaction, the same for a door's call and for a plan."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from pydantic import ValidationError

from loomsite.ops import Context
from loomsite.ops.schema import OpInput


def handled(ctx: Context, data: OpInput) -> dict[str, Any]:
    """The handler's answer. Of an op that may wait for a person, what it did is taken back where it has to
    (`ctx.review` is set then), so that every refusal of a real run has come first."""
    if not ctx.op.reviewed:
        return ctx.op.handler(ctx, data)
    records, callbacks, degraded = len(ctx.audit), len(ctx.on_commit), len(ctx.degraded)
    with transaction.atomic():
        body = ctx.op.handler(ctx, data)
        if ctx.review is not None:
            transaction.set_rollback(True)
    if ctx.review is not None:
        del ctx.audit[records:], ctx.on_commit[callbacks:], ctx.degraded[degraded:]
    return body


def check_output(ctx: Context, body: dict[str, Any]) -> None:
    """RuntimeError for an answer outside of the op's declared output."""
    try:
        ctx.op.output.model_validate(body)
    except ValidationError as error:
        raise RuntimeError(f"{ctx.op.name} answered outside its declared output: {error}") from error
