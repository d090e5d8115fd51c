"""The whole database in one file, as of one moment, with the heads that the audit was anchored at.

The file is a gzip stream: a header line, the anchor file, then each table as PostgreSQL's COPY text in
frames, and at the end counts and a SHA-256 over everything before. Written and read as a stream: neither
the rows nor the file are ever whole in memory. COPY's text is the same in every version of PostgreSQL, and
the tables themselves come from the migrations that the header names, so that no tool of the server is needed
and a file moves between an embedded and another server.

Left out: sessions (everybody logs in again) and the beats of workers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import Error as DatabaseFault
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader

from governance import audit, selectors, services
from governance.models import Org
from loomsite.ops import AuditEntry

FORMAT = "loomsite-backup"
VERSION = 1
FRAME_BYTES = 1024 * 1024
LINE_BYTES = 64 * 1024
# One COPY statement takes in this much: checks of foreign keys wait in memory until its end.
STATEMENT_BYTES = 64 * 1024 * 1024
LEFT_OUT = frozenset({"django_session", "governance_workerbeat", "django_migrations"})
# A database that has rows in one of these is somebody's.
TELLING = ("governance_org", "governance_user")
OP = "database.restore"
Progress = Callable[[int], Any]


class BackupError(Exception):
    """Why a backup is not made or not taken, in words for the operator."""


@dataclass(frozen=True)
class Done:
    """What a backup or a restore held."""

    rows: dict[str, int]
    sha256: str
    taken_at: str


# Looking at the schema


def tables() -> list[str]:
    """Every table of the project, those that others point to first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace "
            "AND c.relkind = 'r' ORDER BY 1"
        )
        names = [row[0] for row in cursor.fetchall() if row[0] not in LEFT_OUT]
        cursor.execute(
            "SELECT DISTINCT a.relname, b.relname FROM pg_constraint k JOIN pg_class a ON a.oid = k.conrelid "
            "JOIN pg_class b ON b.oid = k.confrelid WHERE k.contype = 'f' AND a.oid <> b.oid "
            "AND k.connamespace = 'public'::regnamespace"
        )
        needs: dict[str, set[str]] = {name: set() for name in names}
        for child, parent in cursor.fetchall():
            if child in needs and parent in needs:
                needs[child].add(parent)
    ordered: list[str] = []
    while needs:
        free = sorted(name for name, parents in needs.items() if parents <= set(ordered))
        if not free:
            raise RuntimeError(f"foreign keys in a circle: {', '.join(sorted(needs))}")
        ordered += free
        for name in free:
            del needs[name]
    return ordered


def _columns(table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [table],
        )
        return [row[0] for row in cursor.fetchall()]


def _order(table: str) -> str:
    """The columns of the primary key: rows that point to earlier ones of their own table come after them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisprimary "
            "ORDER BY array_position(i.indkey::int2[], a.attnum)",
            [table],
        )
        return ", ".join(_quoted(row[0]) for row in cursor.fetchall())


def _quoted(name: str) -> str:
    return connection.ops.quote_name(name)


def _applied() -> list[list[str]]:
    return sorted([app, name] for app, name in MigrationLoader(connection).applied_migrations)


def _sequences() -> list[tuple[str, int]]:
    """Sequences that have given out a number, and the last one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public' "
            "AND last_value IS NOT NULL ORDER BY 1"
        )
        return list(cursor.fetchall())


# Writing


class _Out:
    """The stream with a hash over every byte."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    def line(self, content: dict[str, Any]) -> None:
        self.write(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def frame(self, data: bytes | bytearray) -> None:
        self.write(b"#%d\n" % len(data))
        self.write(bytes(data))

    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def _long_transaction(*, is_snapshot: bool) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        if is_snapshot:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def backup(target: BinaryIO, progress: Progress = lambda rows: None) -> Done:
    """Write the database as it is at one moment, while others go on writing.

    The anchored heads are read first: what was anchored by then was committed by then, so that the file holds
    every row that its anchors speak of.
    """
    anchors = _anchor_bytes(settings.LOOM_AUDIT_ANCHOR)
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1, mtime=0) as packed:
        out = _Out(packed)
        with _long_transaction(is_snapshot=True):
            with connection.cursor() as cursor:
                cursor.execute("SELECT clock_timestamp(), version()")
                moment, server = cursor.fetchone()
            taken_at = moment.astimezone(UTC).isoformat()
            out.line(
                {
                    "format": FORMAT, "version": VERSION, "taken_at": taken_at, "server": server,
                    "migrations": _applied(),
                }
            )  # fmt: skip
            out.line({"anchors": len(anchors)})
            for start in range(0, len(anchors), FRAME_BYTES):
                out.frame(anchors[start : start + FRAME_BYTES])
            out.frame(b"")
            rows = {table: _dump(table, out, progress) for table in tables()}
            out.line({"sequences": dict(_sequences())})
        sha256 = out.sha256()
        out.line({"end": rows, "sha256": sha256})
    return Done(rows, sha256, taken_at)


def _dump(table: str, out: _Out, progress: Progress) -> int:
    columns = _columns(table)
    out.line({"table": table, "columns": columns})
    names, order = ", ".join(map(_quoted, columns)), _order(table)
    rows, frame = 0, bytearray()
    with connection.cursor() as cursor:
        statement = f"COPY (SELECT {names} FROM {_quoted(table)} ORDER BY {order}) TO STDOUT"  # noqa: S608
        with cast(Any, cursor).copy(statement) as copy:
            # Each block is a row, so that a frame ends with one.
            for block in copy:
                frame += block
                rows += 1
                if len(frame) >= FRAME_BYTES:
                    out.frame(frame)
                    frame.clear()
                if rows % 1000 == 0:
                    progress(1000)
    if frame:
        out.frame(frame)
    out.frame(b"")
    progress(rows % 1000)
    return rows


def _anchor_bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# Reading


class _In:
    """The stream read again, with the same hash; BackupError for what is damaged."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._before = ""

    def _read(self, read: Callable[[], bytes]) -> bytes:
        try:
            data = read()
        except (OSError, EOFError, zlib.error) as error:
            raise BackupError(f"The file is damaged or cut off: {error}") from error
        self._before = self._hash.hexdigest() if data.startswith(b'{"end"') else self._before
        self._hash.update(data)
        return data

    def line(self) -> dict[str, Any]:
        """The next line of JSON."""
        raw = self._read(lambda: cast(bytes, self._file.readline(16 * 1024 * 1024)))
        try:
            content = json.loads(raw)
        except ValueError as error:
            raise BackupError("The file is damaged or cut off: a line is no JSON.") from error
        if not isinstance(content, dict):
            raise BackupError("The file is damaged: a line is no JSON object.")
        return content

    def frames(self) -> Iterator[bytes]:
        """The frames up to the empty one."""
        while True:
            head = self._read(lambda: cast(bytes, self._file.readline(LINE_BYTES)))
            if not head.startswith(b"#") or not head.endswith(b"\n") or not head[1:-1].isdigit():
                raise BackupError("The file is damaged or cut off: a frame has no length.")
            size = int(head[1:-1])
            if not size:
                return
            data = self._read(lambda: cast(bytes, self._file.read(size)))  # noqa: B023 - read at once
            if len(data) != size:
                raise BackupError("The file is cut off within a frame.")
            yield data

    def sha256_before_end(self) -> str:
        """Of everything before the end line."""
        return self._before


@dataclass(frozen=True)
class Options:
    """How a restore may deal with what is there."""

    overwrite: bool = False
    accept_broken_audit: bool = False


def restore(source: BinaryIO, options: Options, progress: Progress = lambda rows: None) -> Done:
    """Take a backup into this database: in one transaction, all or nothing, and the audit verified before it
    is committed. The schema is made as the file has it, filled, and moved on to that of the present code.

    Raises BackupError for a damaged or unknown file, for a database or an anchor file that is not empty
    (unless `overwrite`), and for an audit that does not verify (unless `accept_broken_audit`).
    """
    with gzip.GzipFile(fileobj=source, mode="rb") as packed:
        stream = _In(packed)
        header = _header(stream)
        _require_empty(options)
        _schema_of(header)
        anchors = settings.LOOM_AUDIT_ANCHOR.with_name(f"{settings.LOOM_AUDIT_ANCHOR.name}.restoring")
        try:
            stream.line()
            _write_anchors(anchors, stream)
            with _long_transaction(is_snapshot=False):
                done = _load(stream, header, progress)
                faults = _faults(anchors)
                if faults and not options.accept_broken_audit:
                    raise BackupError(f"The audit of this backup does not verify: {'; '.join(faults)}")
            _take_over_anchors(anchors)
        finally:
            anchors.unlink(missing_ok=True)
    ContentType.objects.clear_cache()
    if selectors.migrations_pending():
        call_command("migrate", verbosity=0, interactive=False)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("ANALYZE")
        cursor.execute("RESET statement_timeout")
    _record(header, done, faults)
    return done


def _header(stream: _In) -> dict[str, Any]:
    header = stream.line()
    if header.get("format") != FORMAT:
        raise BackupError("This is no backup of Loomsite: its first line is no header of one.")
    if header.get("version") != VERSION:
        raise BackupError(f"The file has version {header.get('version')!r} of the format, not {VERSION}.")
    return header


def _require_empty(options: Options) -> None:
    known = connection.introspection.table_names()
    used = [table for table in TELLING if table in known and _has_rows(table)]
    if used and not options.overwrite:
        raise BackupError(
            "This database is not empty: it has organisations or accounts. Restore into an empty one, or say "
            "--overwrite to lose everything that it holds."
        )
    anchor = settings.LOOM_AUDIT_ANCHOR
    if _anchor_bytes(anchor) and not options.overwrite:
        raise BackupError(
            f"{anchor} is not empty: it belongs to another audit. Name an empty LOOM_HOME, or say "
            "--overwrite to put it aside."
        )


def _has_rows(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM {_quoted(table)})")  # noqa: S608 - a constant name
        return bool(cursor.fetchone()[0])


def _schema_of(header: dict[str, Any]) -> None:
    """Bring the tables to where they were when the backup was made; a file of newer code is refused."""
    wanted = {(app, name) for app, name in header["migrations"]}
    loader = MigrationLoader(connection)
    unknown = sorted(wanted - set(loader.graph.nodes))
    if unknown:
        raise BackupError(
            f"The backup was made by a newer Loomsite: this one has no migration {'.'.join(unknown[0])}."
        )
    applied = set(loader.applied_migrations)
    if applied - wanted:
        raise BackupError(
            "This database has migrations that the backup has not. Restore into a database without tables; "
            "it is moved on to the present code afterwards."
        )
    if applied == wanted:
        return
    for app in sorted({app for app, _ in wanted}):
        last = [node for node in wanted if node[0] == app]
        leaf = [n for n in last if not any(c.key in wanted for c in _children(loader, n) if c.key[0] == app)]
        for _, name in sorted(leaf):
            call_command("migrate", app, name, verbosity=0, interactive=False)


def _children(loader: MigrationLoader, node: tuple[str, str]) -> Any:
    return loader.graph.node_map[node].children


def _load(stream: _In, header: dict[str, Any], progress: Progress) -> Done:
    present = tables()
    rows: dict[str, int] = {}
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in present:
            cursor.execute(f"ALTER TABLE {_quoted(table)} DISABLE TRIGGER USER")
        known = set(connection.introspection.table_names(cursor))
        emptied = [*present, *sorted((LEFT_OUT - {"django_migrations"}) & known)]
        cursor.execute(f"TRUNCATE {', '.join(map(_quoted, emptied))}")
    while True:
        content = stream.line()
        if "sequences" in content:
            _set_sequences(content["sequences"])
            break
        table, columns = str(content.get("table")), content.get("columns")
        if table not in present or table in rows or columns != _columns(table):
            raise BackupError(f"The file is damaged: {table[:80]!r} is no table of this schema.")
        rows[table] = _fill(table, columns, stream, progress)
    end = stream.line()
    if end.get("end") != rows or end.get("sha256") != stream.sha256_before_end():
        raise BackupError("The file is damaged: what it holds is not what was counted and hashed.")
    with connection.cursor() as cursor:
        for table in present:
            cursor.execute(f"ALTER TABLE {_quoted(table)} ENABLE TRIGGER USER")
    return Done(rows, str(end["sha256"]), str(header["taken_at"]))


def _fill(table: str, columns: list[str], stream: _In, progress: Progress) -> int:
    statement = f"COPY {_quoted(table)} ({', '.join(map(_quoted, columns))}) FROM STDIN"
    frames, rows, more = stream.frames(), 0, True
    while more:
        more = False
        with connection.cursor() as cursor:
            try:
                with cast(Any, cursor).copy(statement) as copy:
                    size = 0
                    for frame in frames:
                        copy.write(frame)
                        size += len(frame)
                        if size >= STATEMENT_BYTES:
                            more = True
                            break
            except DatabaseFault as error:
                raise BackupError(f"{table} cannot be restored: {str(error).splitlines()[0]}") from error
            rows += cursor.rowcount
            progress(cursor.rowcount)
    return rows


def _set_sequences(values: dict[str, int]) -> None:
    known = {name for name, _ in _all_sequences()}
    with connection.cursor() as cursor:
        for name, value in values.items():
            if name not in known:
                raise BackupError(f"The file is damaged: {name[:80]!r} is no sequence of this schema.")
            cursor.execute("SELECT setval(%s::regclass, %s)", [_quoted(name), value])


def _all_sequences() -> list[tuple[str, int | None]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'")
        return list(cursor.fetchall())


# The audit of what was restored


def _write_anchors(path: Path, stream: _In) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        for frame in stream.frames():
            file.write(frame)
        file.flush()
        os.fsync(file.fileno())


def _faults(anchors: Path) -> list[str]:
    """What is wrong with the chains, against the anchors that came with them."""
    found = []
    for org in Org.objects.order_by("pk"):
        fault = audit.verify(org.pk, org.slug, anchors).fault
        if fault is not None:
            found.append(f"{org.slug}: {fault.what}")
    return found


def _take_over_anchors(restored: Path) -> None:
    """The anchors of the backup become this home's; those that were here are put aside, never lost."""
    anchor = settings.LOOM_AUDIT_ANCHOR
    if _anchor_bytes(anchor):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        anchor.replace(anchor.with_name(f"{anchor.stem}.before-{stamp}{anchor.suffix}"))
    restored.replace(anchor)


def _record(header: dict[str, Any], done: Done, faults: list[str]) -> None:
    """A restore is a change of everything: one row at the end of each chain."""
    detail = {"sha256": done.sha256, "taken_at": header["taken_at"], "faults": faults}
    for org in Org.objects.order_by("pk"):
        with transaction.atomic():
            ctx = services.system_context(org=org, namespace=None, op_name=OP, principal="operator")
            audit.append(ctx, [AuditEntry(target=f"org:{org.slug}", detail=detail)])
