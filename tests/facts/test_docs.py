"""The page about facts: its example is run, its picture is the one that the console draws."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.template.loader import render_to_string

from facts.periods import Period, parse
from facts.picture import Area, picture
from facts.selectors import now
from governance.clock import iso
from tests.conftest import Cast

PAGE = Path(settings.BASE_DIR) / "docs" / "concepts" / "facts.md"
DRAWN = PAGE.with_name("employment.svg")


@pytest.mark.django_db
def test_the_worked_example_answers_as_the_page_says(cast: Cast) -> None:
    calls = re.findall(r"^```json (\S+)\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    assert len(calls) == 5
    last, before, answers = "", "", list[Any]()
    for op, text in calls:
        if op == "fact.correct":
            before = str(iso(now()))
        body = json.loads(text.replace("<the last>", last).replace("<before the last correction>", before))
        reply = cast.run(op, body)
        assert reply.status == 200, reply.body
        last = str(reply.body.get("factId", last))
        answers.append(reply.body)
    assert [[fact["value"] for fact in answer["facts"]] for answer in answers[3:]] == [["Cargo"], ["Bolt"]]


def employment() -> str:
    """The picture of the page's example."""
    told = [
        datetime(2024, 1, 10, tzinfo=UTC),
        datetime(2024, 6, 3, tzinfo=UTC),
        datetime(2025, 7, 1, tzinfo=UTC),
    ]
    start, moved = parse("2022-01-01"), parse("2024-06-01")
    areas = [
        Area("Acme", Period(start), told[0], told[1], b"a"),
        Area("Acme", Period(start, moved), told[1], None, b"a"),
        Area("Bolt", Period(moved), told[1], told[2], b"b"),
        Area("Cargo", Period(moved), told[2], None, b"c"),
    ]
    return render_to_string("admin/loom/_fact_picture.svg", {"picture": picture(areas)}).strip() + "\n"


def test_the_page_shows_the_picture_that_the_console_draws() -> None:
    assert DRAWN.read_text() == employment()


def test_areas_of_the_picture_never_overlap_and_reach_the_edges() -> None:
    start, end = parse("2022-01-01"), parse("2024-06-01")
    told = datetime(2024, 1, 1, tzinfo=UTC)
    drawn = picture([
        Area("A", Period(None, start), told, None, b"a"),
        Area("B", Period(start, end), told, None, b"b"),
        Area("A", Period(end, None), told, None, b"a"),
    ])  # fmt: skip
    first, second, third = drawn.boxes
    assert first.x == drawn.left and first.x + first.width == second.x
    assert second.x + second.width == third.x and third.x + third.width == drawn.width - 8
    assert first.tone == third.tone != second.tone
