"""Which codes of `CODES` an op can answer with, derived from its declaration."""

from __future__ import annotations

from loomsite.ops.context import Effect
from loomsite.ops.errors import CODES
from loomsite.ops.registry import Op

# Any call can meet these, whatever the op.
ANY_CALL = (
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND", "TOO_LARGE", "RATE_LIMITED",
    "INTERNAL", "BUSY",
)  # fmt: skip
HTTP_ONLY = ("UNKNOWN_OP", "METHOD_NOT_ALLOWED", "UNSUPPORTED_MEDIA_TYPE")
_KEYED = ("AMBIGUOUS_KEY", "MANAGED_KEY")
_GOVERNED = ("VERSION_CONFLICT", "GOVERNED_KEY", "PINNED_CONFLICT", "INVALID_TRANSITION", "LOCKED")
_BY_FIELD = {
    "confirm_destructive": "CONFIRM_REQUIRED",
    "expected_versions": "EXPECTED_VERSIONS",
    "valid_from": "VALID_FROM_REQUIRED",
}


def changes_governed_row(op: Op) -> bool:
    """True for an op whose effects the lock matrix judges."""
    return bool(op.effects - {Effect.NONE})


def specific_codes(op: Op) -> tuple[str, ...]:
    """The codes that tell this op apart from a mere lookup, in the order of `CODES`."""
    codes: set[str] = set()
    if "memory_key" in op.fields:
        codes.update(_KEYED)
    if not op.is_read:
        codes.add("IDEMPOTENCY_CONFLICT")
    if changes_governed_row(op):
        codes.update(_GOVERNED)
    if op.after_commit is not None:
        codes.add("NO_WORKER")
    if op.name.startswith("fact."):
        codes.update(("FACT_CONFLICT", "SUPERSEDED", "NOT_CORRECTABLE"))
    if op.name.startswith("procedure."):
        codes.update(("REVISION_PENDING", "REJECTED_TOPOLOGY", "USE_REVISE"))
    codes.update(code for name, code in _BY_FIELD.items() if name in op.fields)
    return tuple(code for code in CODES if code in codes)


def codes_of(op: Op) -> tuple[str, ...]:
    """Every code that an HTTP call of this op can answer with, in the order of `CODES`."""
    known = {*ANY_CALL, *HTTP_ONLY, *specific_codes(op)}
    return tuple(code for code in CODES if code in known)
