"""What the tests of facts share."""

from __future__ import annotations

from typing import Any

from tests.conftest import Cast, Reply


def remember(cast: Cast, value: Any = "Acme", by: str = "mate", **fields: Any) -> Reply:
    """Remember something, of Ada's employer where nothing else is said."""
    return cast.run(
        "fact.remember", {"subject": "Ada", "attribute": "employer", "value": value, **fields}, by
    )


def recall(cast: Cast, by: str = "mate", **fields: Any) -> list[dict[str, Any]]:
    """The facts of a recall."""
    facts: list[dict[str, Any]] = cast.run("fact.recall", fields, by)["facts"]
    return facts


def correct(cast: Cast, fact_id: str, value: Any, by: str = "mate", **fields: Any) -> Reply:
    """Correct a version."""
    return cast.run("fact.correct", {"factId": fact_id, "value": value, **fields}, by)


def timeline(cast: Cast, by: str = "mate", **fields: Any) -> list[tuple[Any, ...]]:
    """What is believed, as (value, validFrom, validTo) by start."""
    facts = recall(cast, by, **{"subject": "Ada", **fields})
    rows = [(fact["value"], fact["validFrom"], fact["validTo"]) for fact in facts]
    return sorted(rows, key=lambda row: (row[1] or "", str(row[0])))
