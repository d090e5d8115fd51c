"""The tamper-evident audit: one hash chain per organisation, its head anchored outside the database.

Each event's hash is SHA-256(previous hash || canonical JSON of the event). The chain's lock is taken
last and once per transaction, for it is the one row that every write of an organisation needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from governance.copying import copy_rows
from loomsite.ops import AuditEntry, Context

log = logging.getLogger("loomsite.audit")
# From so many rows on they are written by COPY.
BULK = 8
GENESIS = bytes(32)
_COLUMNS = (
    "org_id", "seq", "at", "namespace", "principal", "token_prefix", "agent", "user_id", "session_id",
    "run_id", "door", "op", "target", "before_version", "after_version", "before_sha256", "after_sha256",
    "reason", "request_id", "outcome", "detail", "prev_hash", "hash",
)  # fmt: skip
_HASHED = _COLUMNS[:-2]


def canonical(event: dict[str, Any]) -> bytes:
    """The bytes that are hashed: sorted keys, no spaces, UTF-8, instants in UTC microseconds.

    Numbers are written as what they are worth, for jsonb keeps the worth of a number and not its
    spelling: 1e16 comes back as 10000000000000000, 1.0 may come back as 1, -0.0 as 0.
    """
    plain = {name: event[name] for name in _HASHED}
    plain["at"] = plain["at"].astimezone(UTC).isoformat(timespec="microseconds")
    plain["detail"] = _by_worth(plain["detail"])
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _by_worth(value: Any) -> Any:
    if isinstance(value, float):
        exact = Decimal(repr(value))
        return int(exact) if exact == exact.to_integral_value() else value
    if isinstance(value, dict):
        return {name: _by_worth(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_by_worth(item) for item in value]
    return value


def link(previous: bytes, event: dict[str, Any]) -> bytes:
    """The hash of `event` standing after `previous` (32 bytes)."""
    return hashlib.sha256(previous + canonical(event)).digest()


def append(ctx: Context, entries: Sequence[AuditEntry]) -> None:
    """Write `entries` at the end of the organisation's chain, inside the caller's transaction.

    Call it last: the head stays locked until the commit.
    """
    if not entries:
        return
    org_id = ctx.caller.org_id
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, hash, clock_timestamp() FROM governance_audithead WHERE org_id = %s FOR UPDATE",
            [org_id],
        )
        row = cursor.fetchone()
        if row is None:
            cursor.execute(
                "INSERT INTO governance_audithead (org_id, seq, hash) VALUES (%s, 0, %s) "
                "ON CONFLICT DO NOTHING",
                [org_id, GENESIS],
            )
            cursor.execute(
                "SELECT seq, hash, clock_timestamp() FROM governance_audithead WHERE org_id = %s FOR UPDATE",
                [org_id],
            )
            row = cursor.fetchone()
        seq, head, now = row[0], bytes(row[1]), row[2]
        rows: list[list[Any]] = []
        for entry in entries:
            seq += 1
            event = _event(ctx, entry, seq, now)
            # Hash what the database will give back: tuples as lists, keys as strings.
            detail = json.dumps(event["detail"], allow_nan=False)
            event["detail"] = json.loads(detail)
            event["prev_hash"] = head
            head = event["hash"] = link(head, event)
            event["detail"] = detail
            rows.append([event[name] for name in _COLUMNS])
        if len(rows) >= BULK:
            cursor.execute(
                "UPDATE governance_audithead SET seq = %s, hash = %s WHERE org_id = %s", [seq, head, org_id]
            )
            copy_rows(cursor, "governance_auditevent", ",".join(_COLUMNS), rows)
        else:
            _insert(cursor, rows, [seq, head, org_id])
    # Robust: what is committed must not be answered as a failure.
    transaction.on_commit(lambda: anchor(org_id, seq, head), robust=True)


def _insert(cursor: Any, rows: list[list[Any]], head: list[Any]) -> None:
    """A few rows and the new head (seq, hash, org) in one statement."""
    marks = "(" + ",".join(["%s"] * len(_COLUMNS)) + ")"
    cursor.execute(
        "WITH head AS (UPDATE governance_audithead SET seq = %s, hash = %s WHERE org_id = %s) "  # noqa: S608
        f"INSERT INTO governance_auditevent ({','.join(_COLUMNS)}) VALUES " + ",".join([marks] * len(rows)),
        [*head, *(value for row in rows for value in row)],
    )


def _event(ctx: Context, entry: AuditEntry, seq: int, now: datetime) -> dict[str, Any]:
    caller = ctx.caller
    return {
        "org_id": caller.org_id,
        "seq": seq,
        "at": now,
        "namespace": ctx.namespace,
        "principal": caller.principal,
        "token_prefix": caller.token_prefix,
        "agent": ctx.agent or caller.bound_agent or "",
        "user_id": ctx.user_id or caller.bound_user or "",
        "session_id": ctx.session_id or "",
        "run_id": ctx.run_id,
        "door": str(caller.door),
        "op": entry.op or ctx.op.name,
        "target": entry.target[:600],
        "before_version": entry.before_version,
        "after_version": entry.after_version,
        "before_sha256": entry.before_sha256,
        "after_sha256": entry.after_sha256,
        "reason": entry.reason or ctx.reason,
        "request_id": ctx.request_id,
        "outcome": entry.outcome,
        "detail": entry.detail,
    }


def anchor(org_id: int, seq: int, head: bytes) -> None:
    """Note the head outside the database, so that a cut tail is seen.

    One short line by O_APPEND: writers of several processes do not tear each other's lines. The file is kept
    small by `thin_anchors`. A write
    that was committed must not fail over its anchor, so a failing disk is logged and not raised.
    """
    line = _anchor_line(org_id, seq, head)
    try:
        handle = _opened_anchor(settings.LOOM_AUDIT_ANCHOR, fcntl.LOCK_SH)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError as error:
        log.error("audit head not anchored in %s: %s; %s", settings.LOOM_AUDIT_ANCHOR, error, line.strip())


def _anchor_line(org_id: int, seq: int, head: bytes) -> str:
    return json.dumps({"org": org_id, "seq": seq, "hash": head.hex()}) + "\n"


def _opened_anchor(path: Path, lock: int) -> int:
    """The anchor file opened for appending and locked: shared by writers, alone by whoever thins it out.

    A file that was replaced between the opening and the lock is not the one; it is opened anew.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(handle, lock)
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


# Of each organisation the newest anchors are kept whole, and of the older ones some in each doubling of the
# distance: a few hundred lines however long the chain.
ANCHORS_NEWEST = 256
ANCHORS_PER_DOUBLING = 8
THIN_BYTES = 4 * 1024 * 1024
_thinned_to = 0


def thin_anchors(limit: int = THIN_BYTES) -> int:
    """Drop anchors that newer ones stand for, once the file is larger than `limit` bytes; how many went.

    An anchor covers every row up to it, because each hash covers the one before: with the newest alone a
    change anywhere is seen, and older ones only tell better where. That holds for an anchor made before the
    change, so only what agrees with the database *now* is dropped: an anchor that disagrees is evidence and
    stays for ever. The file is replaced whole and no line that is appended meanwhile is lost.
    """
    global _thinned_to
    path = settings.LOOM_AUDIT_ANCHOR
    try:
        if path.stat().st_size <= max(limit, 2 * _thinned_to):
            return 0
    except FileNotFoundError:
        return 0
    handle = _opened_anchor(path, fcntl.LOCK_EX)
    try:
        noted: dict[int, dict[int, set[bytes]]] = {}
        total = 0
        for org_id, seq, head in _anchors(path):
            noted.setdefault(org_id, {}).setdefault(seq, set()).add(head)
            total += 1
        kept = [line for org_id, heads in sorted(noted.items()) for line in _kept_anchors(org_id, heads)]
        fresh = path.with_name(f"{path.name}.thinning")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _thinned_to = path.stat().st_size
    finally:
        os.close(handle)
    log.info("audit anchors thinned out: %s of %s lines kept in %s", len(kept), total, path)
    return total - len(kept)


def _kept_anchors(org_id: int, heads: dict[int, set[bytes]]) -> Iterator[str]:
    """The lines of one organisation that stay, in their order."""
    newest = max(heads)
    wanted: set[int] = set()
    buckets: set[int] = set()
    for place, seq in enumerate(sorted(heads, reverse=True)):
        bucket = int(math.log2(newest - seq + 1) * ANCHORS_PER_DOUBLING)
        if place < ANCHORS_NEWEST or bucket not in buckets:
            wanted.add(seq)
        buckets.add(bucket)
    stored = _hashes(org_id, [seq for seq in heads if seq not in wanted])
    for seq in sorted(heads):
        for head in sorted(heads[seq]):
            if seq in wanted or stored.get(seq) != head:
                yield _anchor_line(org_id, seq, head)


def _hashes(org_id: int, seqs: Sequence[int]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with connection.cursor() as cursor:
        for start in range(0, len(seqs), 10_000):
            cursor.execute(
                "SELECT seq, hash FROM governance_auditevent WHERE org_id = %s AND seq = ANY(%s)",
                [org_id, list(seqs[start : start + 10_000])],
            )
            found |= {seq: bytes(head) for seq, head in cursor.fetchall()}
    return found


_logged: dict[int, int] = {}


def log_heads() -> int:
    """Write every head that has moved since the last call to the log, a third place for it; how many."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT org_id, seq, hash FROM governance_audithead ORDER BY org_id")
        moved = [row for row in cursor.fetchall() if _logged.get(row[0]) != row[1]]
    for org_id, seq, head in moved:
        log.info("audit head org=%s seq=%s hash=%s", org_id, seq, bytes(head).hex())
        _logged[org_id] = seq
    return len(moved)


def keep_heads() -> None:
    """What the sweep does for the heads: note those that moved in the log, keep the anchor file small."""
    log_heads()
    thin_anchors()


@dataclass(frozen=True)
class Fault:
    """The first thing wrong with a chain."""

    org: str
    seq: int
    what: str


@dataclass(frozen=True)
class Report:
    """How far a chain was checked, and the first fault if there is one.

    `anchored` is the last sequence number that the anchor file knows; without one, a cut tail cannot be seen.
    """

    org: str
    events: int
    fault: Fault | None
    anchored: int = field(default=0, compare=False)


def verify(org_id: int, org: str, anchor_file: Path | None = None) -> Report:
    """Walk the organisation's chain from its first event to its head and to the anchored heads.

    `anchor_file` is another file of heads than that of the settings. The anchors are read first and the rest
    in one snapshot, for writers go on meanwhile: what was anchored by then was committed by then.
    """
    anchors = _anchored(anchor_file or settings.LOOM_AUDIT_ANCHOR, org_id)
    if connection.in_atomic_block:
        return _walk(org_id, org, anchors)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _walk(org_id, org, anchors)


def _walk(org_id: int, org: str, anchors: dict[int, set[bytes]]) -> Report:
    previous, expected = GENESIS, 1
    for event in _stream(org_id):
        seq = event["seq"]
        if seq < 1:
            return Report(org, 0, Fault(org, seq, f"row {seq} stands before the first row"))
        if seq != expected:
            return Report(org, expected - 1, Fault(org, expected, f"row {expected} is missing"))
        if bytes(event["prev_hash"]) != previous:
            return Report(org, expected - 1, Fault(org, seq, f"row {seq} does not follow row {seq - 1}"))
        if link(previous, event) != bytes(event["hash"]):
            return Report(org, expected - 1, Fault(org, seq, f"row {seq} was changed"))
        previous, expected = bytes(event["hash"]), expected + 1
        if seq in anchors and anchors[seq] != {previous}:
            return Report(org, seq, Fault(org, seq, f"row {seq} differs from the head anchored then"))
    last = expected - 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq, hash FROM governance_audithead WHERE org_id = %s", [org_id])
        row = cursor.fetchone()
    head_seq, head_hash = (row[0], bytes(row[1])) if row else (0, GENESIS)
    known = max([head_seq, *anchors])
    if known > last:
        return Report(org, last, Fault(org, last + 1, f"rows {last + 1} to {known} are missing at the end"))
    if head_hash != previous:
        return Report(org, last, Fault(org, last, f"the head does not match row {last}"))
    return Report(org, last, None, max(anchors, default=0))


def is_whole(row: dict[str, Any]) -> bool:
    """Whether an exported audit row is what its own hash says; its place in its chain is not looked at."""
    try:
        event = {**row, "at": datetime.fromisoformat(row["at"])}
        return bool(link(bytes.fromhex(row["prev_hash"]), event).hex() == row["hash"])
    except (KeyError, TypeError, ValueError):
        return False


def orphaned_anchors(known: set[int]) -> set[int]:
    """Ids of organisations whose heads were anchored and that are not among `known`: their rows are gone."""
    return {org_id for org_id in _anchored_orgs(settings.LOOM_AUDIT_ANCHOR) if org_id not in known}


def _stream(org_id: int) -> Iterator[dict[str, Any]]:
    after = -(2**63)
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {','.join(_COLUMNS)} FROM governance_auditevent "  # noqa: S608 - constant names
                "WHERE org_id = %s AND seq > %s ORDER BY seq LIMIT 2000",
                [org_id, after],
            )
            rows = cursor.fetchall()
        if not rows:
            return
        for row in rows:
            event = dict(zip(_COLUMNS, row, strict=True))
            if isinstance(event["detail"], str):
                event["detail"] = json.loads(event["detail"])
            yield event
        after = rows[-1][1]


def _anchored(path: Path, org_id: int) -> dict[int, set[bytes]]:
    """The heads anchored for this organisation, by sequence number.

    Two for one number: the tail was cut and the chain went on from there, which a later line must not cover.
    """
    heads: dict[int, set[bytes]] = {}
    for org, seq, head in _anchors(path):
        if org == org_id:
            heads.setdefault(seq, set()).add(head)
    return heads


def _anchored_orgs(path: Path) -> set[int]:
    """The organisations that the anchor file knows."""
    return {org for org, _, _ in _anchors(path)}


def _anchors(path: Path) -> Iterator[tuple[int, int, bytes]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            # A machine that stopped in the middle of a line leaves its beginning before the next one.
            noted = _noted(line[max(0, line.rfind('{"org"')) :])
            if noted is None:
                log.warning("%s line %s holds no head; skipped", path, number)
            else:
                yield noted


def _noted(line: str) -> tuple[int, int, bytes] | None:
    """(org, seq, hash) of an anchor's line, None when it is not whole."""
    try:
        noted = json.loads(line)
        return int(noted["org"]), int(noted["seq"]), bytes.fromhex(noted["hash"])
    except (ValueError, KeyError, TypeError):
        return None
