"""A namespace as a file of JSON Lines, out and in again.

The file: a header line, the rows of every section in order, an end line with the counts. Apps register
sections (`@section`). Both ways stream: neither the rows nor the file are ever whole in memory.

An import is one transaction into an empty namespace: all or nothing. It keeps ids, statuses, locks and holds
as they are and computes anew what is derived: postings, corpus statistics, vectors. The export of what was
imported equals the file but for the header's `exported_at`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, TypeVar

from django.db import DataError, IntegrityError, connection, transaction
from django.utils.module_loading import autodiscover_modules

from governance import audit
from governance import services as governance
from governance.clock import iso
from governance.models import Namespace, Org
from governance.patterns import CATALOGUE_VERSION
from loomsite.ops import AuditEntry, Context

FORMAT = "loomsite-namespace"
VERSION = 1
BATCH_ROWS = 200
BATCH_BYTES = 8 * 1024 * 1024
LINE_BYTES = 64 * 1024 * 1024
IMPORT_OP = "namespace.import"

Row = dict[str, Any]
Progress = Callable[[int], Any]


class TransferError(Exception):
    """Why a file is not taken, in words for the operator."""


@dataclass(frozen=True)
class Line:
    """A row of a file with the number of its line."""

    number: int
    row: Row


@dataclass
class Import:
    """An import under way."""

    namespace: Namespace
    ctx: Context
    counts: dict[str, int] = field(default_factory=dict)


class Section(Protocol):
    """One kind of rows: how they leave, and how they come in."""

    def has_rows(self, namespace: Namespace) -> bool:
        """True when the namespace has some already, so that nothing can be imported into it."""

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """The namespace's rows in an order that depends on nothing but them."""

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store a batch. TransferError for what cannot be taken."""

    def finish(self, run: Import) -> None:
        """After the last batch of all sections."""


SectionT = TypeVar("SectionT", bound=type[Any])
_sections: dict[str, tuple[int, type[Any]]] = {}


def section(name: str, order: int) -> Callable[[SectionT], SectionT]:
    """Register a class as the section `name`; the file holds sections by ascending `order`."""

    def register(made: SectionT) -> SectionT:
        if name in _sections:
            raise RuntimeError(f"two sections are called {name}")
        _sections[name] = (order, made)
        return made

    return register


def sections() -> dict[str, Section]:
    """A fresh one of every section, in the file's order. Apps declare theirs in `transfer_sections`."""
    autodiscover_modules("transfer_sections")
    ordered = sorted(_sections.items(), key=lambda item: item[1][0])
    return {name: made() for name, (_, made) in ordered}


def line_of(content: Row) -> bytes:
    """One line of a file."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _long_transaction(*, is_snapshot: bool) -> Iterator[None]:
    """One transaction without the limits that calls have; a snapshot sees one moment in every section."""
    outermost = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if is_snapshot and outermost:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def export_namespace(
    namespace: Namespace, write: Callable[[bytes], Any], progress: Progress = lambda rows: None
) -> dict[str, int]:
    """Write the namespace as it is at one moment; the rows by section."""
    counts: dict[str, int] = {}
    with _long_transaction(is_snapshot=True):
        with connection.cursor() as cursor:
            # The first query: from here on nothing that others write is seen.
            cursor.execute("SELECT clock_timestamp()")
            moment = cursor.fetchone()[0]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "org": namespace.org.slug,
            "namespace": namespace.slug,
            "exported_at": iso(moment),
            "catalogue": CATALOGUE_VERSION,
        }
        write(line_of(header))
        for name, found in sections().items():
            counts[name] = 0
            for row in found.export(namespace):
                write(line_of({"section": name, "row": row}))
                counts[name] += 1
                progress(1)
        write(line_of({"section": "end", "counts": counts}))
    return counts


@dataclass(frozen=True)
class Imported:
    """What an import took in."""

    namespace: Namespace
    sha256: str
    counts: dict[str, int]


def import_namespace(
    org: Org, slug: str, source: BinaryIO, progress: Progress = lambda rows: None
) -> Imported:
    """Take a file into the organisation's empty namespace `slug`, which is made if need be.

    Raises TransferError, and then nothing has changed.
    """
    lines = _Lines(source)
    header = _header(lines, org)
    with _long_transaction(is_snapshot=False):
        namespace, made = Namespace.objects.get_or_create(org=org, slug=slug)
        # Writers of the namespace hold a share of this row, so from here on it is ours alone.
        namespace = (
            Namespace.objects.select_related("org").select_for_update(of=("self",)).get(pk=namespace.pk)
        )
        known = sections()
        for name, found in known.items():
            if found.has_rows(namespace):
                raise TransferError(f"{namespace} is not empty: it has {name}. An import needs an empty one.")
        ctx = governance.system_context(org=org, namespace=namespace, op_name=IMPORT_OP)
        run = Import(namespace, ctx, dict.fromkeys(known, 0))
        _load(run, known, lines, progress)
        for found in known.values():
            found.finish(run)
        sha256 = lines.sha256()
        detail = {
            "sha256": sha256,
            "counts": run.counts,
            "from": f"{header['org']}/{header['namespace']}",
            "exported_at": header["exported_at"],
            "namespace_made": made,
        }
        audit.append(ctx, [*ctx.audit, AuditEntry(target=f"namespace:{slug}", op=IMPORT_OP, detail=detail)])
    return Imported(namespace, sha256, run.counts)


class _Lines:
    """The file's lines as JSON objects, numbered, with a hash over every byte."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.number = 0
        self.size = 0

    def next(self) -> Row | None:
        """The next line; None at the end. TransferError naming a damaged one."""
        raw = self._source.readline(LINE_BYTES)
        if not raw:
            return None
        self.number += 1
        self.size = len(raw)
        self._hash.update(raw)
        if not raw.endswith(b"\n"):
            raise self.damaged("it is cut off")
        try:
            content = json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"no JSON: {error}") from error
        if not isinstance(content, dict):
            raise self.damaged("no JSON object")
        return content

    def damaged(self, why: str) -> TransferError:
        """What is wrong with the line that was read last."""
        return TransferError(f"line {self.number} is damaged: {why}")

    def sha256(self) -> str:
        """Of everything read."""
        return self._hash.hexdigest()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _header(lines: _Lines, org: Org) -> Row:
    header = lines.next()
    if header is None or header.get("format") != FORMAT:
        raise TransferError("This is no export of a namespace: its first line is no header of one.")
    if header.get("version") != VERSION:
        raise TransferError(
            f"The file has version {header.get('version')!r} of the format; this Loomsite reads {VERSION}."
        )
    wanted = ("org", "namespace", "exported_at", "catalogue")
    if not all(isinstance(header.get(name), str) for name in wanted):
        raise lines.damaged(f"the header needs {', '.join(wanted)}")
    if header["org"] != org.slug:
        raise TransferError(
            f"The file is of the organisation {header['org']!r}, not of {org.slug!r}: nothing crosses from "
            "one organisation to another."
        )
    return header


def _load(run: Import, known: dict[str, Section], lines: _Lines, progress: Progress) -> None:
    order = list(known)
    place, size = 0, 0
    batch: list[Line] = []

    def flush() -> None:
        nonlocal batch, size
        if batch:
            _store(run, order[place], known[order[place]], batch)
            progress(len(batch))
        batch, size = [], 0

    while True:
        content = lines.next()
        if content is None:
            raise TransferError(
                f"The file ends after line {lines.number} without its end line: it is cut off."
            )
        name, row = content.get("section"), content.get("row")
        if name == "end":
            flush()
            if content.get("counts") != run.counts:
                raise lines.damaged(f"it counts {content.get('counts')}, and there were {run.counts}")
            break
        if name not in known or not isinstance(row, dict):
            raise lines.damaged(f"no row of {', '.join(order)}")
        if order.index(name) < place:
            raise lines.damaged(f"a row of {name} after rows of {order[place]}")
        if name != order[place] or len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            flush()
        place = order.index(name)
        batch.append(Line(lines.number, row))
        size += lines.size
        run.counts[name] += 1
    if lines.next() is not None:
        raise lines.damaged("it follows the end line")


def _store(run: Import, name: str, found: Section, batch: list[Line]) -> None:
    where = f"lines {batch[0].number} to {batch[-1].number} ({name})"
    try:
        # A savepoint: what the database refuses is told, and the whole import ends.
        with transaction.atomic():
            found.load(run, batch)
    except (IntegrityError, DataError, UnicodeEncodeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise TransferError(f"{where} cannot be stored: {reason}") from error
