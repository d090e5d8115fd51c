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
_BY_FIELD = {
    "if_match_sha256": "VERSION_CONFLICT",
    "expected_versions": "VERSION_CONFLICT",
    "confirm_destructive": "CONFIRM_REQUIRED",
    "valid_from": "VALID_FROM_REQUIRED",
}
_BY_EFFECT = {
    Effect.VALUE: ("GOVERNED_KEY", "PINNED_CONFLICT", "MANAGED_KEY", "LOCKED"),
    Effect.EXPIRY_EARLIER: ("LOCKED",),
    Effect.EXPIRY_LATER: ("LOCKED",),
    Effect.EXISTENCE: ("GOVERNED_KEY", "MANAGED_KEY", "INVALID_TRANSITION", "LOCKED"),
    Effect.LOCK: (),
    Effect.NONE: (),
}
_BY_APP = {
    "fact": ("FACT_CONFLICT", "SUPERSEDED", "NOT_CORRECTABLE"),
    "plan": ("INVALID_TRANSITION",),
    "procedure": ("REVISION_PENDING", "REJECTED_TOPOLOGY", "USE_REVISE"),
}


def specific_codes(op: Op) -> tuple[str, ...]:
    """The codes that tell this op apart from a mere lookup, in the order of `CODES`."""
    codes = {code for name, code in _BY_FIELD.items() if name in op.fields}
    codes.update(code for effect in op.effects for code in _BY_EFFECT[effect])
    codes.update(_BY_APP.get(op.name.split(".", 1)[0], ()))
    if "memory_key" in op.fields:
        codes.add("AMBIGUOUS_KEY")
    if "expected_versions" in op.fields:
        codes.add("EXPECTED_VERSIONS")
    if not op.is_read:
        codes.add("IDEMPOTENCY_CONFLICT")
    if op.after_commit is not None:
        codes.add("NO_WORKER")
    return tuple(code for code in CODES if code in codes)


def codes_of(op: Op) -> tuple[str, ...]:
    """Every code that an HTTP call of this op can answer with, in the order of `CODES`."""
    known = {*ANY_CALL, *HTTP_ONLY, *specific_codes(op)}
    return tuple(code for code in CODES if code in known)
