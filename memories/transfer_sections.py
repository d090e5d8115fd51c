"""What a namespace's file holds of memories: lineages, versions, the raw archive, the audit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from django.db import connection
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from governance import audit
from governance import services as governance
from governance.clock import iso
from governance.models import LOCK_MODES, SOURCE_CLASSES, Namespace
from memories.analysis import search_text, term_frequencies
from memories.embedders import get_embedder
from memories.models import OnExpire, Status
from memories.services import FILL_JOB
from memories.text_config import language_of
from memories.transfer import IMPORT_OP, Import, Line, Row, TransferError, section

FETCH = 50
JOB_IDS = 1_000
SEQUENCE_MARGIN = 1_000


def among(*values: str) -> AfterValidator:
    """A validator for text that must be one of these."""

    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        return value

    return AfterValidator(check)


def _node(value: Any) -> int:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 19:
        raise ValueError("must be an id as a decimal string")
    if not 0 < int(value) < 2**63:
        raise ValueError("must be an id of 64 bits")
    return int(value)


NodeId = Annotated[int, BeforeValidator(_node)]
Count = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Text16 = Annotated[str, Field(max_length=16)]
Text32 = Annotated[str, Field(max_length=32)]
Text64 = Annotated[str, Field(max_length=64)]
Text128 = Annotated[str, Field(max_length=128)]
Text150 = Annotated[str, Field(max_length=150)]
Text256 = Annotated[str, Field(max_length=256)]
Text512 = Annotated[str, Field(max_length=512)]
Text600 = Annotated[str, Field(max_length=600)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
StatusName = Annotated[str, among(*Status.values)]
SourceClass = Annotated[str, among(*SOURCE_CLASSES)]
LockMode = Annotated[str, among(*LOCK_MODES)]
AfterExpiry = Annotated[str, among(*OnExpire.values)]
RowT = TypeVar("RowT", bound="FileRow")


class FileRow(BaseModel):
    """A row of a file; what it does not declare is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def parsed(model: type[RowT], lines: Sequence[Line]) -> list[tuple[Line, RowT]]:
    """The lines as rows of that model. TransferError naming the first that is none."""
    rows = []
    for line in lines:
        try:
            rows.append((line, model.model_validate(line.row)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "row"
            raise TransferError(f"line {line.number} is damaged: {place}: {first['msg']}") from error
    return rows


def stream(statement: str, params: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The statement's rows by a cursor of the server, a few at a time."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement, list(params))
        while rows := cursor.fetchmany(FETCH):
            yield from rows


def in_groups(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows in lists of at most FETCH."""
    group: list[tuple[Any, ...]] = []
    for row in rows:
        group.append(row)
        if len(group) == FETCH:
            yield group
            group = []
    if group:
        yield group


def insert(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], tail: str = "") -> list[Any]:
    """Insert rows in their order; what `tail` returns."""
    if not rows:
        return []
    marks = "(" + ",".join(["%s"] * len(columns)) + ")"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608 - names are constants here
            + ",".join([marks] * len(rows))
            + tail,
            [item for row in rows for item in row],
        )
        return cursor.fetchall() if tail else []


def _exists(table: str, namespace: Namespace) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT EXISTS (SELECT FROM {table} WHERE namespace_id = %s)",  # noqa: S608 - constants
            [namespace.pk],
        )
        return bool(cursor.fetchone()[0])


def _with_value(row: Row, name: str, stored: str | None) -> Row:
    """SQL's NULL, which a redacted value is, is an absent name; JSON's null is null."""
    return row if stored is None else {**row, name: json.loads(stored)}


# Memories


class HoldRow(FileRow):
    """A hold, standing or released."""

    target: Text600
    matter: Text256
    reason: str
    placed_by: Text150
    placed_at: AwareDatetime
    released_at: AwareDatetime | None
    released_by: Text150
    release_reason: str


class FlagRow(FileRow):
    """A pattern that was found, and who has read it."""

    pattern: Text64
    spans: list[tuple[int, int]]
    content_sha256: Sha256
    catalogue: Text32
    found_at: AwareDatetime
    acknowledged_by: Text150
    acknowledged_at: AwareDatetime | None
    acknowledge_reason: str


class LockRow(FileRow):
    """A lock as it stands, in force or ended."""

    mode: LockMode
    reason: str
    until: AwareDatetime | None
    locked_by: Text150
    locked_at: AwareDatetime | None


class MemoryRow(FileRow):
    """A lineage: identity, present state, lock, holds, flags."""

    memory_id: NodeId
    memory_key: Text512
    agent: Text128
    user_id: Text128
    session_id: Text128
    version: Count
    status: StatusName
    governed: bool
    value: Any = None
    content_sha256: Text64
    memory_type: Text64
    tags: list[Text128]
    metadata: dict[str, Any]
    confidence: Annotated[float, Field(ge=0, le=1)] | None
    pinned: bool
    pinned_by: Text150
    expires_at: AwareDatetime | None
    on_expire: AfterExpiry
    source_class: SourceClass
    source_trace: Text512
    promoted_from: NodeId | None
    canonical_key: Text512
    created_at: AwareDatetime
    updated_at: AwareDatetime
    lock: LockRow
    holds: list[HoldRow]
    held: bool
    screened_with: Text32
    flags: list[FlagRow]

    @model_validator(mode="after")
    def _whole(self) -> MemoryRow:
        """What can never be false in stored data is not believed of a file either."""
        has_value = "value" in self.model_fields_set
        if (self.status == Status.REDACTED) == has_value:
            raise ValueError("a redacted memory has no value, and every other one has")
        if self.status == Status.REDACTED and self.flags:
            raise ValueError("a redacted memory has no flags")
        if self.held != any(flag.acknowledged_at is None for flag in self.flags):
            raise ValueError("held says whether a flag waits for a reader")
        return self


_HOLD = (
    "target", "matter", "reason", "placed_by", "placed_at", "released_at", "released_by", "release_reason",
)  # fmt: skip
_FLAG = (
    "pattern", "spans", "content_sha256", "catalogue", "found_at", "acknowledged_by", "acknowledged_at",
    "acknowledge_reason",
)  # fmt: skip
_MEMORY = (
    "id", "memory_key", "agent", "user_id", "session_id", "version", "status", "governed", "value",
    "content_sha256", "memory_type", "tags", "metadata", "confidence", "pinned", "pinned_by", "expires_at",
    "on_expire", "source_class", "source_trace", "promoted_from", "canonical_key", "created_at", "updated_at",
    "lock_mode", "lock_reason", "lock_until", "locked_by", "locked_at", "held", "screened_with",
)  # fmt: skip


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value


def _beside(
    table: str, id_column: str, names: Sequence[str], ids: Sequence[int], order: str
) -> dict[int, list[Row]]:
    """Rows beside memories, by memory id."""
    found: dict[int, list[Row]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {id_column}, {', '.join(names)} FROM {table} WHERE {id_column} = ANY(%s) "  # noqa: S608
            f"ORDER BY {id_column}, {order}",
            [list(ids)],
        )
        for memory_id, *values in cursor.fetchall():
            row = {name: _plain(value) for name, value in zip(names, values, strict=True)}
            if "spans" in row:
                row["spans"] = json.loads(row["spans"])
            found.setdefault(memory_id, []).append(row)
    return found


@section("memories", order=10)
class Memories:
    """Lineages with their locks, holds, flags and acknowledgements; postings and statistics are made anew."""

    def __init__(self) -> None:
        self._docs = 0
        self._terms = 0
        self._to_embed: list[int] = []

    def has_rows(self, namespace: Namespace) -> bool:
        """True when there is any lineage or hold."""
        return _exists("memories_memory", namespace) or _exists("governance_hold", namespace)

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By id."""
        rows = stream(
            f"SELECT {', '.join(_MEMORY)} FROM memories_memory WHERE namespace_id = %s ORDER BY id",  # noqa: S608
            [namespace.pk],
        )
        for group in in_groups(rows):
            ids = [row[0] for row in group]
            holds = _beside("governance_hold", "node_id", _HOLD, ids, "placed_at, id")
            flags = _beside("memories_flag", "memory_id", _FLAG, ids, "pattern")
            for row in group:
                yield self._exported(row, holds.get(row[0], []), flags.get(row[0], []))

    def _exported(self, columns: Sequence[Any], holds: list[Row], flags: list[Row]) -> Row:
        stored = dict(zip(_MEMORY, columns, strict=True))
        lock = {
            "mode": stored["lock_mode"],
            "reason": stored["lock_reason"],
            "until": iso(stored["lock_until"]),
            "locked_by": stored["locked_by"],
            "locked_at": iso(stored["locked_at"]),
        }
        promoted_from = stored["promoted_from"]
        row: Row = {"memory_id": str(stored["id"])}
        for name in _MEMORY[1:24]:
            if name != "value":
                row[name] = _plain(stored[name])
        row |= {
            "metadata": json.loads(stored["metadata"]),
            "promoted_from": None if promoted_from is None else str(promoted_from),
            "lock": lock,
            "holds": holds,
            "held": stored["held"],
            "screened_with": stored["screened_with"],
            "flags": flags,
        }
        return _with_value(row, "value", stored["value"])

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store lineages under their own ids, with postings for all that have a value."""
        rows = [row for _, row in parsed(MemoryRow, lines)]
        self._free(rows)
        stored, postings = [], []
        for row in rows:
            length = None
            if row.status != Status.REDACTED:
                terms, counts, length = term_frequencies(
                    search_text(row.memory_key, row.value, row.tags), language_of(run.namespace.pk)
                )
                active = row.status == Status.ACTIVE
                postings += [
                    (run.namespace.pk, row.memory_id, term, count, length, active)
                    for term, count in zip(terms, counts, strict=True)
                ]
                self._docs += active
                self._terms += length * active
                self._to_embed.append(row.memory_id)
            stored.append(self._stored(run, row, length))
        insert("memories_memory", (*_MEMORY, "namespace_id", "holds", "doc_len"), stored)
        self._beside(run, rows)
        with connection.cursor() as cursor:
            if postings:
                columns = list(map(list, zip(*postings, strict=True)))
                cursor.execute(
                    "INSERT INTO memories_posting (namespace_id, memory_id, term, tf, doc_len, active) "
                    "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::int[], "
                    "%s::bool[])",
                    columns,
                )
        if len(self._to_embed) >= JOB_IDS:
            self._embed(run)

    def _free(self, rows: Sequence[MemoryRow]) -> None:
        """Refuse ids that are taken, and keep the sequence from giving out those that come in."""
        ids = [row.memory_id for row in rows]
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM memories_memory WHERE id = ANY(%s) ORDER BY id LIMIT 20", [ids])
            taken = [str(row[0]) for row in cursor.fetchall()]
            if taken:
                raise TransferError(
                    f"memory ids are taken in this database: {', '.join(taken)}. Other rows may name them, "
                    "so they are not given anew; import into another database."
                )
            # The margin: writers that draw ids between the look and the step stay ahead of it.
            cursor.execute(
                "SELECT setval('loom_node_id', %s) FROM loom_node_id WHERE last_value <= %s",
                [max(ids) + SEQUENCE_MARGIN, max(ids)],
            )

    def _stored(self, run: Import, row: MemoryRow, length: int | None) -> list[Any]:
        value = json.dumps(row.value) if "value" in row.model_fields_set else None
        return [
            row.memory_id, row.memory_key, row.agent, row.user_id, row.session_id, row.version, row.status,
            row.governed, value, row.content_sha256, row.memory_type, row.tags, json.dumps(row.metadata),
            row.confidence, row.pinned, row.pinned_by, row.expires_at, row.on_expire, row.source_class,
            row.source_trace, row.promoted_from, row.canonical_key, row.created_at, row.updated_at,
            row.lock.mode, row.lock.reason, row.lock.until, row.lock.locked_by, row.lock.locked_at, row.held,
            row.screened_with, run.namespace.pk, sum(hold.released_at is None for hold in row.holds), length,
        ]  # fmt: skip

    def _beside(self, run: Import, rows: Sequence[MemoryRow]) -> None:
        insert(
            "governance_hold",
            (*_HOLD, "org_id", "namespace_id", "node_id"),
            [
                [
                    *(getattr(hold, name) for name in _HOLD),
                    run.namespace.org_id,
                    run.namespace.pk,
                    row.memory_id,
                ]
                for row in rows
                for hold in row.holds
            ],
        )
        insert(
            "memories_flag",
            (*_FLAG, "memory_id"),
            [
                [
                    *(json.dumps(flag.spans) if name == "spans" else getattr(flag, name) for name in _FLAG),
                    row.memory_id,
                ]
                for row in rows
                for flag in row.flags
            ],
        )

    def _embed(self, run: Import) -> None:
        """Vectors are made by a job: they differ by embedder and are no part of the file."""
        if self._to_embed and get_embedder().name != "none":
            governance.job_create(ctx=run.ctx, kind=FILL_JOB, input={"memory_ids": self._to_embed})
        self._to_embed = []

    def finish(self, run: Import) -> None:
        """The corpus statistics, and vectors for the rest."""
        if run.counts["memories"]:
            self._embed(run)
            insert(
                "memories_corpusstripe AS s",
                ("namespace_id", "stripe", "docs", "terms"),
                [[run.namespace.pk, 0, self._docs, self._terms]],
                " ON CONFLICT (namespace_id, stripe) DO UPDATE SET docs = s.docs + excluded.docs, "
                "terms = s.terms + excluded.terms RETURNING docs",
            )


# Versions

_VERSION = (
    "memory_id", "version", "kind", "status", "value", "content_sha256", "memory_type", "tags", "metadata",
    "confidence", "pinned", "expires_at", "on_expire", "source_class", "source_trace", "principal",
    "token_prefix", "agent", "reason", "request_id", "at",
)  # fmt: skip


class VersionRow(FileRow):
    """One version of a lineage."""

    memory_id: NodeId
    version: Count
    kind: Text32
    status: StatusName
    value: Any = None
    content_sha256: Text64
    memory_type: Text64
    tags: list[Text128]
    metadata: dict[str, Any]
    confidence: float | None
    pinned: bool
    expires_at: AwareDatetime | None
    on_expire: AfterExpiry
    source_class: SourceClass
    source_trace: Text512
    principal: Text150
    token_prefix: Text16
    agent: Text128
    reason: str
    request_id: Text64
    at: AwareDatetime


@section("versions", order=20)
class Versions:
    """The history of every lineage."""

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a lineage."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By lineage and version."""
        names = ", ".join(f"v.{name}" for name in _VERSION)
        for columns in stream(
            f"SELECT {names} FROM memories_memoryversion v JOIN memories_memory m ON m.id = v.memory_id "  # noqa: S608
            "WHERE m.namespace_id = %s ORDER BY v.memory_id, v.version",
            [namespace.pk],
        ):
            stored = dict(zip(_VERSION, columns, strict=True))
            value = stored.pop("value")
            row = {name: _plain(item) for name, item in stored.items()}
            row |= {"memory_id": str(row["memory_id"]), "metadata": json.loads(row["metadata"])}
            yield _with_value(row, "value", value)

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store versions of lineages that came with this file."""
        rows = [row for _, row in parsed(VersionRow, lines)]
        ids = {row.memory_id for row in rows}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM memories_memory WHERE id = ANY(%s) AND namespace_id = %s",
                [list(ids), run.namespace.pk],
            )
            unknown = ids - {row[0] for row in cursor.fetchall()}
        if unknown:
            raise TransferError(
                f"lines {lines[0].number} to {lines[-1].number}: versions of memories that the file does not "
                f"hold: {', '.join(map(str, sorted(unknown)[:20]))}"
            )
        insert(
            "memories_memoryversion",
            _VERSION,
            [[self._stored(row, name) for name in _VERSION] for row in rows],
        )

    def _stored(self, row: VersionRow, name: str) -> Any:
        if name == "value":
            return json.dumps(row.value) if "value" in row.model_fields_set else None
        return json.dumps(row.metadata) if name == "metadata" else getattr(row, name)

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""


# The raw archive


class SessionRow(FileRow):
    """A conversation; how many turns it has follows from them."""

    session_id: Text128
    agent: Text128
    user_id: Text128
    first_at: AwareDatetime
    last_at: AwareDatetime


_SESSION = ("session_id", "agent", "user_id", "first_at", "last_at")


@section("raw_sessions", order=30)
class RawSessions:
    """The conversations of the raw archive."""

    def has_rows(self, namespace: Namespace) -> bool:
        """True when there is any."""
        return _exists("memories_rawsession", namespace)

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """In the order in which they began."""
        for columns in stream(
            f"SELECT {', '.join(_SESSION)} FROM memories_rawsession WHERE namespace_id = %s ORDER BY id",  # noqa: S608
            [namespace.pk],
        ):
            yield {name: _plain(item) for name, item in zip(_SESSION, columns, strict=True)}

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store conversations, still without turns."""
        insert(
            "memories_rawsession",
            (*_SESSION, "namespace_id", "turns", "terms"),
            [
                [*(getattr(row, name) for name in _SESSION), run.namespace.pk, 0, 0]
                for _, row in parsed(SessionRow, lines)
            ],
        )

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""


_TURN = ("seq", "role", "content", "occurred_at", "source_class", "principal", "token_prefix", "created_at")
SessionName = tuple[str, str, str]


class TurnRow(FileRow):
    """One turn."""

    session_id: Text128
    agent: Text128
    user_id: Text128
    seq: Count
    role: Text64
    content: str
    occurred_at: AwareDatetime | None
    source_class: SourceClass
    principal: Text150
    token_prefix: Text16
    created_at: AwareDatetime

    @property
    def session(self) -> SessionName:
        """The conversation that it belongs to."""
        return self.session_id, self.agent, self.user_id


@section("raw_turns", order=31)
class RawTurns:
    """The turns, in the order in which they were appended; their postings are made anew."""

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a conversation."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """In the order of their appending, whatever the conversation."""
        names = ", ".join(f"t.{name}" for name in _TURN)
        for session_id, agent, user_id, *columns in stream(
            f"SELECT s.session_id, s.agent, s.user_id, {names} FROM memories_rawturn t "  # noqa: S608
            "JOIN memories_rawsession s ON s.id = t.session_id WHERE s.namespace_id = %s ORDER BY t.id",
            [namespace.pk],
        ):
            row = {name: _plain(item) for name, item in zip(_TURN, columns, strict=True)}
            yield {"session_id": session_id, "agent": agent, "user_id": user_id, **row}

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store turns at the end of their conversations."""
        rows = parsed(TurnRow, lines)
        known = self._sessions(run.namespace, {row.session for _, row in rows})
        stored, words = [], []
        for line, row in rows:
            if row.session not in known:
                raise TransferError(f"line {line.number} is damaged: a turn of an unknown conversation")
            pk, turns, terms = known[row.session]
            if row.seq != turns + 1:
                raise TransferError(f"line {line.number} is damaged: turn {row.seq} follows turn {turns}")
            analysed = term_frequencies(row.content)
            words.append(analysed)
            known[row.session] = (pk, turns + 1, terms + analysed[2])
            stored.append([*(getattr(row, name) for name in _TURN), pk, run.namespace.pk, analysed[2]])
        made = insert(
            "memories_rawturn", (*_TURN, "session_id", "namespace_id", "doc_len"), stored, " RETURNING id"
        )
        self._index(run.namespace, [row[0] for row in made], words)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE memories_rawsession s SET turns = n.turns, terms = n.terms "
                "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS n (id, turns, terms) "
                "WHERE s.id = n.id",
                list(map(list, zip(*known.values(), strict=True))),
            )

    def _sessions(
        self, namespace: Namespace, names: set[SessionName]
    ) -> dict[SessionName, tuple[int, int, int]]:
        columns = list(map(list, zip(*names, strict=True)))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT session_id, agent, user_id, id, turns, terms FROM memories_rawsession "
                "WHERE namespace_id = %s AND (session_id, agent, user_id) IN "
                "(SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))",
                [namespace.pk, *columns],
            )
            return {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in cursor.fetchall()}

    def _index(
        self, namespace: Namespace, ids: Sequence[int], words: Sequence[tuple[list[str], list[int], int]]
    ) -> None:
        rows = [
            (namespace.pk, term, turn, count, length)
            for turn, (terms, counts, length) in zip(ids, words, strict=True)
            for term, count in zip(terms, counts, strict=True)
        ]
        if rows:
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO memories_rawposting (namespace_id, term, turn_id, tf, doc_len) "
                    "SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::int[], %s::int[])",
                    list(map(list, zip(*rows, strict=True))),
                )

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""


# The audit


class AuditRow(FileRow):
    """An audit row with its links of the chain that it was written in."""

    org_id: int
    seq: int
    at: AwareDatetime
    namespace: str
    principal: str
    token_prefix: str
    agent: str
    user_id: str
    session_id: str
    run_id: str
    door: str
    op: str
    target: str
    before_version: int | None
    after_version: int | None
    before_sha256: str
    after_sha256: str
    reason: str
    request_id: str
    outcome: str
    detail: dict[str, Any]
    prev_hash: Sha256
    hash: Sha256


_AUDIT = tuple(AuditRow.model_fields)


@section("audit", order=90)
class Audit:
    """The audit rows of the namespace, for the record.

    An import does not forge them into this database's chain: they are kept beside it, each still provable by
    its own hash. That a file was imported is a row of the chain, and of this database alone.
    """

    def has_rows(self, namespace: Namespace) -> bool:
        """True when an import has been here before; the chain's own rows do not count."""
        return _exists("governance_importedaudit", namespace)

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """What was imported first, then this database's own rows in the order of their chain."""
        for (text,) in stream(
            "SELECT row FROM governance_importedaudit WHERE namespace_id = %s ORDER BY id", [namespace.pk]
        ):
            yield json.loads(text)
        for columns in stream(
            f"SELECT {', '.join(_AUDIT)} FROM governance_auditevent "  # noqa: S608
            "WHERE org_id = %s AND namespace = %s AND op <> %s ORDER BY seq",
            [namespace.org_id, namespace.slug, IMPORT_OP],
        ):
            row = {name: _plain(item) for name, item in zip(_AUDIT, columns, strict=True)}
            yield row | {
                "detail": json.loads(row["detail"]),
                "prev_hash": bytes(row["prev_hash"]).hex(),
                "hash": bytes(row["hash"]).hex(),
            }

    def load(self, run: Import, lines: list[Line]) -> None:
        """Keep rows as they came; one whose hash is not its own is damaged."""
        for line, row in parsed(AuditRow, lines):
            if audit.link(bytes.fromhex(row.prev_hash), row.model_dump()).hex() != row.hash:
                raise TransferError(f"line {line.number} is damaged: the audit row is not what was hashed")
        insert(
            "governance_importedaudit",
            ("namespace_id", "row"),
            [[run.namespace.pk, json.dumps(line.row, ensure_ascii=False)] for line in lines],
        )

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""
