"""Instants as the wire shows them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(instant: datetime | None) -> str | None:
    """ISO 8601 in UTC with a trailing Z; None stays None."""
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
