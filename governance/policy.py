"""Who may: the decisions that need no database."""

from __future__ import annotations

from loomsite.ops import Context, Effect, Op, OpError, Role, invalid

CONSOLE_ONLY = Role.REVIEWER


def require_role(op: Op, role: Role, *, by_token: bool) -> None:
    """403 when the caller may read here and not do this; reviewers and admins act in the console."""
    if role >= op.role:
        return
    if op.role >= CONSOLE_ONLY and by_token:
        raise OpError(
            "FORBIDDEN",
            f"{op.name} needs the role {op.role.label}, which no token carries. "
            f"A person with that role does it in the console.",
            needs=op.role.label,
        )
    raise OpError(
        "FORBIDDEN",
        f"{op.name} needs the role {op.role.label} here; this caller has {role.label}. "
        "An admin of the namespace grants roles in the console.",
        needs=op.role.label,
        has=role.label,
    )


def audits_refusal(op: Op, error: OpError) -> bool:
    """Refused destructive and locked calls leave a row; other refusals do not."""
    if op.is_read or not 400 <= error.status < 500 or error.code == "RATE_LIMITED":
        return False
    loosens = Effect.LOCK in op.effects and error.code == "FORBIDDEN"
    return op.destructive or loosens or error.code == "LOCKED"


def narrow(ctx: Context, name: str, asked: str | None, bound: str | None) -> str | None:
    """The identity field of this call: what was asked, within what the token covers.

    None on reads means any that the token covers. Raises OpError 404 outside of it, 400 for "*" on a
    write.
    """
    if asked == "*":
        if not ctx.op.is_read:
            raise invalid(name, '"*" is for reads; a write names one, or "-" for none.')
        return None
    if bound is not None and asked not in (None, bound, "-"):
        raise OpError("NOT_FOUND", f"{name}: this token does not cover that value; see ops.whoami.")
    return asked
