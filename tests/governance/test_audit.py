"""The chain: what it keeps, and that nobody can change it unseen."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from governance import audit
from governance.models import AuditEvent, AuditHead, Org
from governance.services import system_context
from loomsite.ops import AuditEntry
from tests.conftest import Cast
from tests.governance.conftest import at_once

pytestmark = pytest.mark.usefixtures("anchor")
real_commits = pytest.mark.django_db(transaction=True)


def verify(org: Org) -> audit.Report:
    return audit.verify(org.pk, org.slug)


def fault(org: Org) -> str:
    found = verify(org).fault
    assert found is not None, "nothing was found"
    return found.what


def append(org: Org, *details: dict[str, Any]) -> None:
    with transaction.atomic():
        ctx = system_context(org=org, namespace=None, op_name="test.op")
        audit.append(ctx, [AuditEntry(target=f"t{i}", detail=detail) for i, detail in enumerate(details)])


@contextmanager
def tampering() -> Iterator[Any]:
    """A cursor for whom the triggers are off: somebody with the rights of a superuser."""
    with connection.cursor() as cursor:
        for table in ("governance_auditevent", "governance_audithead"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        try:
            yield cursor
        finally:
            for table in ("governance_auditevent", "governance_audithead"):
                cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


# What is kept


def test_a_row_says_who_did_what_on_whose_word(cast: Cast) -> None:
    token = cast.token("mate", agent="scout")
    body = {"memory_key": "k", "value": 1, "reason": "because", "run_id": "run-7", "session_id": "s1"}
    reply = cast.run("memory.set", body, by=token, request_id="req-1")
    event = AuditEvent.objects.get()
    assert (event.op, event.target, event.outcome, event.reason) == ("memory.set", "k", "applied", "because")
    assert (event.principal, event.token_prefix, event.agent) == ("mate", token.split("_")[1], "scout")
    assert (event.session_id, event.run_id, event.request_id) == ("s1", "run-7", "req-1")
    assert (event.namespace, event.org_id, event.door) == ("team", cast.org.pk, "rest")
    assert (event.before_version, event.after_version) == (None, 1)
    assert event.after_sha256 == reply["content_sha256"] and event.before_sha256 == ""


@pytest.mark.parametrize(
    ("op", "body", "by", "code"),
    [
        ("memory.delete", {"memory_key": "k"}, "viewer", "FORBIDDEN"),
        ("memory.unlock", {"memory_key": "k", "reason": "r"}, "owner", "FORBIDDEN"),
        ("memory.delete", {"memory_key": "k"}, "mate", "LOCKED"),
        ("memory.set", {"memory_key": "k", "value": 2}, "mate", "LOCKED"),
        ("memory.lock", {"memory_key": "k", "reason": "r", "ttl_seconds": 5}, "mate", "FORBIDDEN"),
    ],
)
def test_a_refused_destructive_or_locked_call_leaves_a_row(
    cast: Cast, op: str, body: dict[str, Any], by: str, code: str
) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "reason": "r"})
    before = AuditEvent.objects.count()
    reply = cast.run(op, body, by=by, request_id="refused-1")
    assert reply.code == code
    event = AuditEvent.objects.order_by("-seq")[0]
    assert AuditEvent.objects.count() == before + 1
    assert (event.op, event.target, event.outcome, event.principal) == (op, "k", "refused", by)
    assert event.detail["code"] == code and event.request_id == "refused-1"
    assert verify(cast.org).fault is None


def test_other_refusals_leave_no_row(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k"})
    cast.run("memory.set", {"memory_key": "k", "value": 1}, by="viewer")
    cast.run("memory.delete", {"memory_key": "k"}, by="nobody")
    cast.run("memory.get", {"memory_key": "k", "namespace": "vault"})
    assert not AuditEvent.objects.exists()


def test_a_call_that_changes_nothing_leaves_no_row(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    before = AuditEvent.objects.count()
    assert cast.run("memory.set", {"memory_key": "k", "value": 1})["noop"] is True
    assert cast.run("memory.delete", {"memory_key": "absent"})["found"] is False
    assert AuditEvent.objects.count() == before


def test_organisations_have_chains_of_their_own(cast: Cast) -> None:
    for by in ("mate", "stranger", "mate"):
        cast.run("memory.set", {"memory_key": by, "value": random.random()}, by=by)
    assert list(AuditHead.objects.order_by("seq").values_list("seq", flat=True)) == [1, 2]
    assert verify(cast.org) == audit.Report("acme", 2, None)
    assert verify(cast.elsewhere.org) == audit.Report("elsewhere", 1, None)


@pytest.mark.parametrize(
    "detail",
    [
        {"n": [0, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 10**400]},
        {"f": [0.0, -0.0, 1.0, 1e16, 1e17, 1e22, 1e300, 1.7976931348623157e308, 5e-324, 0.1, 1 / 3]},
        {"b": [True, False, None], "e": [{}, [], ""]},
        {"t": "caf\u00e9 e\u0301 \u0130 \U0001f600 \u2028 \ufffd \\u0041 \" ' \\ / \t\n\r\x7f"},
        {"nested": {"b": {"a": [1.0, {"z": 1, "a": 2e5}]}, "\u00e9": 1, "": 2, "A": 3, "a": 4}},
        {1: "a key that is a number", "tuple": (1, 2.0, ("x",))},
        {},
    ],
    ids=["integers", "floats", "constants", "text", "nested", "not quite JSON", "nothing"],
)  # fmt: skip
def test_every_detail_comes_back_as_it_was_hashed(cast: Cast, detail: dict[Any, Any]) -> None:
    append(cast.org, detail, detail)
    assert verify(cast.org) == audit.Report("acme", 2, None)


def test_random_details_come_back_as_they_were_hashed(cast: Cast) -> None:
    seeded = random.Random(7)
    floats = [seeded.uniform(-1, 1) * 10.0 ** seeded.randint(-320, 308) for _ in range(2000)]
    append(cast.org, {"f": floats}, {"f": [float(round(number)) for number in floats]})
    assert verify(cast.org).fault is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_never_hashed(cast: Cast, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        append(cast.org, {"n": value})


def test_a_reader_in_another_zone_computes_the_same_hash(cast: Cast) -> None:
    append(cast.org, {"a": 1})
    event = AuditEvent.objects.values(*audit._COLUMNS).get()
    moved = {**event, "at": event["at"].astimezone(ZoneInfo("America/St_Johns"))}
    assert audit.canonical(event) == audit.canonical(moved)
    assert audit.link(bytes(32), event) == bytes(event["hash"])


@real_commits
def test_eight_writers_at_once_keep_the_chain_whole(cast: Cast) -> None:
    def write(i: int) -> set[int]:
        bodies = [{"memory_key": f"k{i}-{n}", "value": n} for n in range(6)]
        return {cast.run("memory.set", body).status for body in bodies}

    assert set().union(*at_once(8, write)) == {200}
    assert verify(cast.org) == audit.Report("acme", 48, None)
    assert list(AuditEvent.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, 49))


# What cannot be done


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE governance_auditevent SET reason = 'another'",
        "UPDATE governance_auditevent SET reason = reason",
        "DELETE FROM governance_auditevent",
        "DELETE FROM governance_auditevent WHERE seq = 1",
    ],
)
def test_a_row_is_neither_changed_nor_deleted(cast: Cast, statement: str) -> None:
    append(cast.org, {})
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement)
    assert verify(cast.org).events == 1


@real_commits
def test_the_table_is_not_emptied(cast: Cast) -> None:
    append(cast.org, {})
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL loom.allow_truncate = off")
            cursor.execute("TRUNCATE governance_auditevent CASCADE")
    assert AuditEvent.objects.count() == 1


def test_the_orm_meets_the_trigger_too(cast: Cast) -> None:
    append(cast.org, {})
    for attempt in (
        lambda: AuditEvent.objects.update(outcome="applied"),
        lambda: AuditEvent.objects.all().delete(),
        lambda: AuditEvent.objects.get().save(),
        lambda: AuditEvent.objects.get().delete(),
    ):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            attempt()


# What is seen when it was done nevertheless


@real_commits
@pytest.mark.parametrize(
    "change",
    [
        "reason = 'another'", "principal = 'somebody'", "at = at + interval '1 microsecond'", "seq = seq",
        "outcome = 'refused'", "detail = '{\"x\": 2}'", "target = ''", "after_version = 7", "namespace = 'b'",
    ],
)  # fmt: skip
def test_a_changed_row_is_named(cast: Cast, change: str) -> None:
    append(cast.org, {"x": 1}, {"x": 1}, {"x": 1})
    with tampering() as cursor:
        cursor.execute(f"UPDATE governance_auditevent SET {change} WHERE seq = 2")
    if change == "seq = seq":
        assert verify(cast.org) == audit.Report("acme", 3, None)
    else:
        assert fault(cast.org) == "row 2 was changed"


@real_commits
def test_a_changed_row_with_a_fresh_hash_is_seen_where_the_chain_goes_on(cast: Cast) -> None:
    append(cast.org, {"x": 1}, {"x": 1}, {"x": 1})
    with tampering() as cursor:
        cursor.execute("UPDATE governance_auditevent SET reason = 'another' WHERE seq = 2")
        event = AuditEvent.objects.values(*audit._COLUMNS).get(seq=2)
        fresh = audit.link(bytes(event["prev_hash"]), event)
        cursor.execute("UPDATE governance_auditevent SET hash = %s WHERE seq = 2", [fresh])
    assert fault(cast.org) == "row 3 does not follow row 2"


@real_commits
def test_a_chain_that_was_computed_anew_differs_from_its_anchors(cast: Cast) -> None:
    append(cast.org, {"x": 1})
    append(cast.org, {"x": 2})
    with tampering() as cursor:
        cursor.execute("UPDATE governance_auditevent SET reason = 'another' WHERE seq = 1")
        head = audit.GENESIS
        for seq in (1, 2):
            event = AuditEvent.objects.values(*audit._COLUMNS).get(seq=seq)
            event["prev_hash"] = head
            previous, head = head, audit.link(head, event)
            cursor.execute(
                "UPDATE governance_auditevent SET prev_hash = %s, hash = %s WHERE seq = %s",
                [previous, head, seq],
            )
        cursor.execute("UPDATE governance_audithead SET hash = %s", [head])
    assert fault(cast.org) == "row 1 differs from the head anchored then"


@real_commits
@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_deleted_row_is_named(cast: Cast, seq: int) -> None:
    append(cast.org, *[{"x": i} for i in range(4)])
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq = %s", [seq])
    assert fault(cast.org) == f"row {seq} is missing"


@real_commits
def test_a_deleted_row_is_seen_when_the_others_move_up(cast: Cast) -> None:
    append(cast.org, *[{"x": i} for i in range(4)])
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq = 2")
        for seq in (3, 4):
            cursor.execute("UPDATE governance_auditevent SET seq = seq - 1 WHERE seq = %s", [seq])
    assert fault(cast.org) == "row 2 does not follow row 1"


@real_commits
def test_reordered_rows_are_seen(cast: Cast) -> None:
    append(cast.org, *[{"x": i} for i in range(4)])
    with tampering() as cursor:
        for before, after in ((2, 99), (3, 2), (99, 3)):
            cursor.execute("UPDATE governance_auditevent SET seq = %s WHERE seq = %s", [after, before])
    assert fault(cast.org) == "row 2 does not follow row 1"


@real_commits
def test_a_row_before_the_first_is_seen(cast: Cast) -> None:
    append(cast.org, {})
    with tampering() as cursor:
        names = ", ".join(name for name in audit._COLUMNS if name != "seq")
        cursor.execute(
            f"INSERT INTO governance_auditevent (seq, {names}) SELECT 0, {names} FROM governance_auditevent"
        )
    assert fault(cast.org) == "row 0 stands before the first row"


@real_commits
def test_a_cut_tail_is_seen_by_the_head(cast: Cast) -> None:
    append(cast.org, *[{"x": i} for i in range(4)])
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq > 2")
    assert fault(cast.org) == "rows 3 to 4 are missing at the end"


@real_commits
def test_a_cut_tail_is_seen_by_the_anchor_when_the_head_was_rolled_back_too(cast: Cast, anchor: Path) -> None:
    for i in range(4):
        append(cast.org, {"x": i})
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq > 2")
        cursor.execute(
            "UPDATE governance_audithead h SET seq = 2, "
            "hash = (SELECT hash FROM governance_auditevent e WHERE e.seq = 2 AND e.org_id = h.org_id)"
        )
    assert fault(cast.org) == "rows 3 to 4 are missing at the end"
    anchor.unlink()
    assert verify(cast.org).fault is None  # it is the anchor that knew


@real_commits
def test_a_whole_chain_that_is_gone_is_seen_by_the_anchor(cast: Cast) -> None:
    append(cast.org, {})
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent")
        cursor.execute("DELETE FROM governance_audithead")
    assert fault(cast.org) == "rows 1 to 1 are missing at the end"


@real_commits
def test_a_head_that_was_changed_is_seen(cast: Cast) -> None:
    append(cast.org, {})
    with tampering():
        AuditHead.objects.update(hash=bytes(32))
    assert fault(cast.org) == "the head does not match row 1"


@real_commits
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE governance_audithead SET seq = seq - 1",
        "UPDATE governance_audithead SET hash = decode(repeat('00', 32), 'hex')",
        "DELETE FROM governance_audithead",
    ],
)
def test_the_head_only_moves_forward_and_never_goes(cast: Cast, statement: str) -> None:
    append(cast.org, {})
    with pytest.raises(DatabaseError, match="forward|append-only"), connection.cursor() as cursor:
        cursor.execute(statement)


@real_commits
def test_verifying_while_others_write_finds_no_fault(cast: Cast) -> None:
    done = threading.Event()

    def write() -> None:
        try:
            while not done.is_set():
                append(cast.org, {"x": 1})
        finally:
            connection.close()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        reports = [verify(cast.org) for _ in range(25)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert [report.fault for report in reports if report.fault is not None] == []
    assert reports[-1].events > reports[0].events


@real_commits
def test_truncate_is_refused_outside_a_test_database_whatever_a_session_sets(cast: Cast) -> None:
    # The setting is on in this database; its name is what lets the suite empty it.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('loom_append_only'::regproc)")
        assert "starts_with(current_database(), 'test_')" in cursor.fetchone()[0]


# The anchor


@real_commits
def test_the_head_is_anchored_after_each_commit_and_not_for_what_rolled_back(
    cast: Cast, anchor: Path
) -> None:
    append(cast.org, {}, {})
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append(cast.org, {})
        raise ZeroDivisionError
    with transaction.atomic():
        append(cast.org, {})
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            append(cast.org, {})
            raise ZeroDivisionError
        assert len(anchor.read_text().splitlines()) == 1  # not before the outer commit
    heads = [json.loads(line) for line in anchor.read_text().splitlines()]
    assert [(head["org"], head["seq"]) for head in heads] == [(cast.org.pk, 2), (cast.org.pk, 3)]
    assert heads[-1]["hash"] == bytes(AuditHead.objects.get(org=cast.org).hash).hex()
    assert anchor.stat().st_mode & 0o777 == 0o600


@real_commits
def test_a_disk_that_takes_no_anchor_does_not_fail_the_write(
    cast: Cast, anchor: Path, caplog: pytest.LogCaptureFixture
) -> None:
    anchor.mkdir()
    with caplog.at_level(logging.ERROR):
        assert cast.run("memory.set", {"memory_key": "k", "value": 1}).status == 200
    assert "not anchored" in caplog.text
    anchor.rmdir()
    assert verify(cast.org).events == 1


@real_commits
def test_a_line_that_a_crash_tore_costs_that_line_only(
    cast: Cast, anchor: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(cast.org, {})
    whole = anchor.read_text()
    anchor.write_text(whole[:20])  # no line break: the machine stopped here
    append(cast.org, {})
    anchor.write_text(anchor.read_text() + "not a line of ours\n" + '{"org": 1')
    assert verify(cast.org).fault is None
    assert set(audit._anchored(anchor, cast.org.pk)) == {2}
    assert "line 2 holds no head" in caplog.text


@real_commits
def test_the_sweep_writes_each_moved_head_to_the_log_once(
    cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    append(cast.org, {})
    with caplog.at_level(logging.INFO, logger="loomsite.audit"):
        audit.log_heads()
        audit.log_heads()
    head = bytes(AuditHead.objects.get(org=cast.org).hash).hex()
    assert [head in record.getMessage() for record in caplog.records].count(True) == 1


# The command


@real_commits
def test_the_command_says_that_all_is_well(cast: Cast, capsys: pytest.CaptureFixture[str]) -> None:
    append(cast.org, {}, {})
    append(cast.elsewhere.org, {})
    call_command("verify_audit")
    assert capsys.readouterr().out == (
        "acme: 2 rows, chain and head intact\nelsewhere: 1 rows, chain and head intact\n"
    )


@real_commits
def test_the_command_names_the_fault_and_fails(cast: Cast, capsys: pytest.CaptureFixture[str]) -> None:
    append(cast.org, {}, {}, {})
    append(cast.elsewhere.org, {})
    with tampering() as cursor:
        cursor.execute("DELETE FROM governance_auditevent WHERE seq = 2 AND org_id = %s", [cast.org.pk])
    with pytest.raises(SystemExit) as ended:
        call_command("verify_audit")
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "acme: BROKEN after 1 good rows: row 2 is missing" in out and "elsewhere: 1 rows" in out
    call_command("verify_audit", org="elsewhere")
    with pytest.raises(SystemExit):
        call_command("verify_audit", org="acme")


def test_the_command_knows_no_other_organisation(cast: Cast) -> None:
    from django.core.management.base import CommandError

    with pytest.raises(CommandError, match="no organisation"):
        call_command("verify_audit", org="nobody")
