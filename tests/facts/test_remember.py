"""fact.remember: what is stored, what is the same, and what stands in the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Cast, Reply

pytestmark = pytest.mark.django_db


def remember(cast: Cast, value: Any = "Acme", by: str = "mate", **fields: Any) -> Reply:
    """Remember something of Ada's employer."""
    return cast.run("fact.remember", {"subject": "Ada", "attribute": "employer", "value": value, **fields}, by)


def recall(cast: Cast, by: str = "mate", **fields: Any) -> list[dict[str, Any]]:
    """The facts of a recall."""
    facts: list[dict[str, Any]] = cast.run("fact.recall", fields, by)["facts"]
    return facts


def test_a_fact_is_stored_with_its_period_and_recalled_on_its_days(cast: Cast) -> None:
    made = remember(cast, validFrom="2024-01-01", validTo="2025-01-01")
    assert (made["validFrom"], made["validTo"], made["unchanged"]) == ("2024-01-01", "2025-01-01", False)
    assert [fact["value"] for fact in recall(cast, subject="ada", valid_at="2024-12-31")] == ["Acme"]
    assert recall(cast, subject="ada", valid_at="2025-01-01") == []
    (fact,) = recall(cast, subject="Ada")
    assert (fact["state"], fact["factId"], fact["lineageId"]) == ("ended", made["factId"], made["lineageId"])
