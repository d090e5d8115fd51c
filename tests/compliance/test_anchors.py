"""The anchor file stays small and still proves what it proved."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from governance import audit
from governance.models import Org
from governance.services import system_context
from loomsite.ops import AuditEntry
from tests.conftest import Cast
from tests.governance.conftest import anchor  # noqa: F401 - a fixture
from tests.governance.test_audit import append, fault, tampering, verify

pytestmark = [pytest.mark.usefixtures("anchor"), pytest.mark.django_db(transaction=True)]


def heads(path: Path) -> list[tuple[int, str]]:
    """The lines of the file."""
    return [(line["seq"], line["hash"]) for line in map(json.loads, path.read_text().splitlines())]


def grown(org: Org, path: Path, rows: int) -> None:
    """A chain of that length whose every head was anchored, without a commit for each."""
    with transaction.atomic():
        ctx = system_context(org=org, namespace=None, op_name="test.op")
        audit.append(ctx, [AuditEntry(target=f"t{number}") for number in range(rows)])
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq, hash FROM governance_auditevent WHERE org_id = %s ORDER BY seq", [org.pk])
        lines = [audit._anchor_line(org.pk, seq, bytes(head)) for seq, head in cursor.fetchall()]
    path.write_text("".join(lines))


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_thinned_to", 0)


def test_a_long_file_is_thinned_to_a_few_hundred_lines_and_verifies(cast: Cast, anchor: Path) -> None:  # noqa: F811
    grown(cast.org, anchor, 6000)
    before = heads(anchor)
    gone = audit.thin_anchors(0)
    left = heads(anchor)
    assert gone == len(before) - len(left) and len(left) < 400
    assert left[-audit.ANCHORS_NEWEST :] == before[-audit.ANCHORS_NEWEST :] and set(left) < set(before)
    assert verify(cast.org) == audit.Report("acme", 6000, None)
    assert anchor.stat().st_mode & 0o777 == 0o600
    append(cast.org, {})
    assert heads(anchor)[-1][0] == 6001 and verify(cast.org).anchored == 6001


def test_a_small_file_is_left_alone(cast: Cast, anchor: Path) -> None:  # noqa: F811
    grown(cast.org, anchor, 600)
    before = anchor.read_bytes()
    assert audit.thin_anchors() == 0 and anchor.read_bytes() == before


@pytest.mark.parametrize("seq", [1, 1000, 1500])
def test_a_chain_computed_anew_after_the_thinning_is_seen(cast: Cast, anchor: Path, seq: int) -> None:  # noqa: F811
    grown(cast.org, anchor, 1500)
    audit.thin_anchors(0)
    with tampering() as cursor:
        _forge(cursor, cast.org, seq)
    assert "differs from the head anchored then" in fault(cast.org)


def test_an_anchor_that_tells_of_a_forgery_is_never_dropped(cast: Cast, anchor: Path) -> None:  # noqa: F811
    grown(cast.org, anchor, 1500)
    with tampering() as cursor:
        _forge(cursor, cast.org, 5)
    # The forged chain goes on, and its new heads are anchored as any others.
    for _ in range(3):
        append(cast.org, {})
    assert "row 5 differs" in fault(cast.org)
    for _ in range(2):
        audit.thin_anchors(0)
        assert "row 5 differs" in fault(cast.org)


def test_a_tail_that_was_cut_and_grown_over_is_seen(cast: Cast, anchor: Path) -> None:  # noqa: F811
    for number in range(4):
        append(cast.org, {"x": number})
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq > 2")
        cursor.execute(
            "UPDATE governance_audithead h SET seq = 2, "
            "hash = (SELECT hash FROM governance_auditevent e WHERE e.seq = 2 AND e.org_id = h.org_id)"
        )
    for number in range(3):
        append(cast.org, {"y": number})
    assert fault(cast.org) == "row 3 differs from the head anchored then"
    audit.thin_anchors(0)
    assert fault(cast.org) == "row 3 differs from the head anchored then"


def test_no_line_that_is_written_meanwhile_is_lost(cast: Cast, anchor: Path) -> None:  # noqa: F811
    grown(cast.org, anchor, 2000)
    written: list[int] = []

    def write(first: int) -> None:
        for seq in range(first, first + 400):
            audit.anchor(cast.org.pk, seq, bytes(32))
            written.append(seq)

    threads = [threading.Thread(target=write, args=(10_000 * place,)) for place in (1, 2, 3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        audit._thinned_to = 0
        audit.thin_anchors(0)
    for thread in threads:
        thread.join()
    # Heads that the database does not know are evidence, so that each of them is still there.
    assert {seq for seq, _ in heads(anchor)} >= set(written) and len(written) == 1200


def _forge(cursor: Any, org: Org, first: int) -> None:
    """Change a row and compute the rest anew, as somebody with every right to the database can."""
    cursor.execute(
        "SELECT hash FROM governance_auditevent WHERE org_id = %s AND seq = %s", [org.pk, first - 1]
    )
    row = cursor.fetchone()
    previous = bytes(row[0]) if row else audit.GENESIS
    cursor.execute(
        "UPDATE governance_auditevent SET reason = 'forged' WHERE org_id = %s AND seq = %s", [org.pk, first]
    )
    last = None
    for event in list(audit._stream(org.pk)):
        if event["seq"] < first:
            continue
        fresh = audit.link(previous, event)
        cursor.execute(
            "UPDATE governance_auditevent SET prev_hash = %s, hash = %s WHERE org_id = %s AND seq = %s",
            [previous, fresh, org.pk, event["seq"]],
        )
        previous = last = fresh
    cursor.execute("UPDATE governance_audithead SET hash = %s WHERE org_id = %s", [last, org.pk])
