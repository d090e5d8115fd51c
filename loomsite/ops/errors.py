"""The one table of error codes and the exception that carries them through every door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Code:
    """One error code: its HTTP status, its category, whether a retry can help, and what it means."""

    status: int
    category: str
    retryable: bool
    meaning: str


CODES: dict[str, Code] = {
    "INVALID_ARGUMENT": Code(400, "validation", False, "A field is missing, malformed or over a limit."),
    "VALID_FROM_REQUIRED": Code(400, "validation", False, "A correction needs the day from which it holds."),
    "EXPECTED_VERSIONS": Code(400, "validation", False, "expected_versions must name exactly the ids."),
    "CONFIRM_REQUIRED": Code(400, "validation", False, "A destructive call needs confirm_destructive."),
    "UNAUTHENTICATED": Code(401, "auth", False, "No valid token."),
    "FORBIDDEN": Code(403, "auth", False, "Readable, but this caller may not do this to it."),
    "NOT_FOUND": Code(404, "not_found", False, "It does not exist for this caller."),
    "UNKNOWN_OP": Code(404, "not_found", False, "No operation has this name."),
    "METHOD_NOT_ALLOWED": Code(405, "validation", False, "Operations are called by POST."),
    "VERSION_CONFLICT": Code(409, "conflict", False, "The row has moved since it was read."),
    "GOVERNED_KEY": Code(409, "conflict", False, "Governance retired the row; a save does not revive it."),
    "PINNED_CONFLICT": Code(409, "conflict", False, "Another writer pinned a different value."),
    "AMBIGUOUS_KEY": Code(409, "conflict", False, "Several writers hold this key; name one."),
    "MANAGED_KEY": Code(409, "conflict", False, "The key belongs to another kind of op."),
    "FACT_CONFLICT": Code(409, "conflict", False, "Another believed value overlaps the period."),
    "SUPERSEDED": Code(409, "conflict", False, "The version is no longer believed."),
    "NOT_CORRECTABLE": Code(409, "conflict", False, "The fact cannot be corrected by this caller."),
    "REVISION_PENDING": Code(409, "conflict", False, "A revision waits for its verdict."),
    "REJECTED_TOPOLOGY": Code(409, "conflict", False, "This graph was tried and rejected."),
    "USE_REVISE": Code(409, "conflict", False, "A procedure that has run is changed by procedure.revise."),
    "IDEMPOTENCY_CONFLICT": Code(409, "conflict", False, "The idempotency key was used with another body."),
    "INVALID_TRANSITION": Code(409, "conflict", False, "The status does not allow this change."),
    "TOO_LARGE": Code(413, "validation", False, "The body or a value is over its limit."),
    "UNSUPPORTED_MEDIA_TYPE": Code(415, "validation", False, "The body must be application/json."),
    "LOCKED": Code(423, "locked", False, "A lock or hold refuses this effect."),
    "RATE_LIMITED": Code(429, "limit", True, "Too many calls; wait and try again."),
    "INTERNAL": Code(500, "internal", False, "A fault of the server; the request id leads to its log."),
    "NO_WORKER": Code(503, "unavailable", True, "No background worker is running."),
    "BUSY": Code(503, "unavailable", True, "The server is out of a resource for the moment."),
}


class OpError(Exception):
    """A refusal with a code of `CODES`; `fields` join the `detail` object of the answer."""

    def __init__(self, code: str, message: str, *, retry_after_s: int | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.fields = fields

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return CODES[self.code].status

    def detail(self, request_id: str) -> dict[str, Any]:
        """The `detail` object that every door shows."""
        code = CODES[self.code]
        detail: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "category": code.category,
            "retryable": code.retryable,
            "request_id": request_id,
        }
        if self.retry_after_s is not None:
            detail["retry_after_s"] = self.retry_after_s
        detail.update(self.fields)
        return detail


def invalid(path: str, message: str, kind: str = "value_error", **fields: Any) -> OpError:
    """A 400 about one field, in the same shape as a validation error with many."""
    return OpError(
        "INVALID_ARGUMENT",
        f"{path}: {message}",
        errors=[{"path": path, "message": message, "type": kind}],
        **fields,
    )


def not_found(message: str) -> OpError:
    """A 404 whose text must say nothing that the caller may not know."""
    return OpError("NOT_FOUND", message)
