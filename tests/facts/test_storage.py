"""What can never be false in the tables, whatever writes to them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError, transaction

from facts.selectors import now
from tests.conftest import Cast
from tests.facts.facts import correct, remember
from tests.memories.helpers import sql

pytestmark = pytest.mark.django_db

COPY = (
    "INSERT INTO facts_version (lineage_id, namespace_id, owner, value, value_sha256, value_key, valid, "
    "known, from_is_date, to_is_date, kind, sources, source_class, principal, token_prefix, agent, reason, "
    "request_id) "
    "SELECT lineage_id, namespace_id, owner, '\"other\"', {sha}, {key}, {valid}, {known}, true, true, "
    "'remember', '[]', 'pack', 'x', '', '', '', '' FROM facts_version WHERE id = %s"
)


def copy(fact_id: str, **columns: str) -> None:
    """A version like that one, past the gateway."""
    given = {"valid": "valid", "known": "known", "sha": "value_sha256", "key": "value_key", **columns}
    with transaction.atomic():
        sql(COPY.format(**given), [fact_id])


def test_two_believed_versions_never_overlap(cast: Cast) -> None:
    fact_id = remember(cast, validFrom="2024-01-01", validTo="2025-01-01")["factId"]
    for valid in ("valid", "'(,)'", "'[2024-12-31,)'", "'(,2024-01-02)'", "'[2024-05-01,2024-05-02)'"):
        with pytest.raises(DatabaseError, match="fact_versions_never_overlap"):
            copy(fact_id, valid=f"{valid}::tstzrange" if valid != "valid" else valid)
    copy(fact_id, valid="'[2025-01-01,)'::tstzrange")
    copy(fact_id, valid="'(,2024-01-01)'::tstzrange")


def test_of_many_only_the_same_value_excludes_itself(cast: Cast) -> None:
    fact_id = remember(cast, "French", cardinality="many")["factId"]
    with pytest.raises(DatabaseError, match="fact_versions_never_overlap"):
        copy(fact_id)
    copy(fact_id, sha="sha256('x')", key="sha256('x')")


def test_a_value_key_that_does_not_fit_the_cardinality_is_refused(cast: Cast) -> None:
    fact_id = remember(cast)["factId"]
    with pytest.raises(DatabaseError, match="does not fit its lineage"):
        copy(fact_id, key="value_sha256")


@pytest.mark.parametrize("column", ["valid", "known"])
@pytest.mark.parametrize(
    "period", ["empty", "[2024-01-01,2024-01-01)", "[2024-01-01,infinity)", "[-infinity,)"]
)
def test_no_period_is_empty_or_ends_at_the_value_infinity(cast: Cast, column: str, period: str) -> None:
    fact_id = remember(cast, validFrom="2030-01-01")["factId"]
    free = {"valid": "'[2000-01-01,2001-01-01)'::tstzrange", column: f"'{period}'::tstzrange"}
    with pytest.raises(DatabaseError, match="fact_(valid|known|bounds)"):
        copy(fact_id, **free)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts_version SET value = '1' WHERE id = %s",
        "UPDATE facts_version SET valid = '[2024-01-01,)' WHERE id = %s",
        "UPDATE facts_version SET owner = 'x' WHERE id = %s",
        "UPDATE facts_version SET known = tstzrange(lower(known) - interval '1 day', NULL) WHERE id = %s",
        "UPDATE facts_version SET known = known WHERE id = %s",
        "DELETE FROM facts_version WHERE id = %s",
    ],
)
def test_a_version_is_never_edited_and_never_deleted(cast: Cast, statement: str) -> None:
    fact_id = remember(cast)["factId"]
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        sql(statement, [fact_id])


def test_the_end_of_belief_is_set_once(cast: Cast) -> None:
    fact_id = remember(cast)["factId"]
    correct(cast, fact_id, "Bolt", kind="wrong")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        sql(
            "UPDATE facts_version SET known = tstzrange(lower(known), clock_timestamp()) WHERE id = %s",
            [fact_id],
        )
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        sql("UPDATE facts_version SET known = tstzrange(lower(known), NULL) WHERE id = %s", [fact_id])


@pytest.mark.parametrize(
    "change", ["subject = 'x'", "owner = 'x'", "cardinality = 'many'", "last_known_at = '2000-01-01'"]
)
def test_a_fact_keeps_its_identity(cast: Cast, change: str) -> None:
    line = remember(cast)["lineageId"]
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        sql(f"UPDATE facts_lineage SET {change} WHERE id = %s", [line])
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        sql("DELETE FROM facts_lineage WHERE id = %s", [line])


def test_a_clock_that_goes_back_between_two_writes_leaves_them_in_order(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    ahead = now() + timedelta(hours=1)
    # As if the write before had been made while the clock was an hour ahead.
    sql("UPDATE facts_lineage SET last_known_at = %s WHERE id = %s", [ahead, made["lineageId"]])
    done = correct(cast, made["factId"], "Bolt", kind="wrong")
    again = correct(cast, done["factId"], "Cargo", kind="wrong")
    starts = [row[0] for row in sql("SELECT lower(known) FROM facts_version ORDER BY id")]
    assert starts[1] == ahead + timedelta(microseconds=1) and starts[2] == ahead + timedelta(microseconds=2)
    assert cast.run("fact.recall", {})["facts"][0]["factId"] == again["factId"]


def test_the_rest_of_a_version_is_written_at_the_very_time_at_which_it_was_closed(cast: Cast) -> None:
    made = remember(cast, validFrom="2020-01-01")
    correct(cast, made["factId"], "Bolt", validFrom="2022-01-01")
    closed, *fresh = sql("SELECT upper(known), lower(known) FROM facts_version ORDER BY id")
    assert {row[1] for row in fresh} == {closed[0]} and len(fresh) == 2
