"""What a namespace's file holds of facts: lineages, versions on both axes of time, locks and holds.

Locks come after the versions, because a locked lineage takes none.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

from django.db import connection
from psycopg.types.range import TimestamptzRange
from pydantic import AwareDatetime, Field, model_validator

from facts.index import FILL_JOB, count, text_of
from facts.models import Cardinality, Kind
from facts.words import sha_of_word
from governance import services as governance
from governance.clock import iso
from governance.models import Namespace
from memories.analysis import term_frequencies
from memories.embedders import get_embedder
from memories.transfer import Import, Line, Row, TransferError, section
from memories.transfer_sections import (
    JOB_IDS,
    SEQUENCE_MARGIN,
    Count,
    FileRow,
    HoldRow,
    LockRow,
    NodeId,
    Sha256,
    SourceClass,
    Text16,
    Text32,
    Text64,
    Text128,
    Text150,
    among,
    in_groups,
    insert,
    parsed,
    stream,
)

CardinalityName = Annotated[str, among(*Cardinality.values)]
KindName = Annotated[str, among(*Kind.values)]
Share = Annotated[float, Field(ge=0, le=1)]
ACTIVE, ERASED = "active", "redacted"


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value


def _free(ids: Sequence[int]) -> None:
    """Refuse ids that are taken, and keep the sequence from giving out those that come in."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM (SELECT id FROM memories_memory UNION ALL SELECT id FROM facts_lineage "
            "UNION ALL SELECT id FROM facts_version) n WHERE id = ANY(%s) ORDER BY id LIMIT 20",
            [list(ids)],
        )
        taken = [str(row[0]) for row in cursor.fetchall()]
        if taken:
            raise TransferError(
                f"fact ids are taken in this database: {', '.join(taken)}. Other rows may name them, so they "
                "are not given anew; import into another database."
            )
        # The margin: writers that draw ids between the look and the step stay ahead of it.
        cursor.execute(
            "SELECT setval('loom_node_id', %s) FROM loom_node_id WHERE last_value <= %s",
            [max(ids) + SEQUENCE_MARGIN, max(ids)],
        )


# Lineages

_LINEAGE = (
    "id", "owner", "subject", "attribute", "cardinality", "version", "created_at", "last_known_at", "status",
    "screened_with",
)  # fmt: skip


class LineageRow(FileRow):
    """A fact: whose it is, what it is about, and its clock."""

    lineage_id: NodeId
    owner: Text128
    subject: str
    attribute: str
    cardinality: CardinalityName
    version: Count
    created_at: AwareDatetime
    last_known_at: AwareDatetime
    status: Annotated[str, among(ACTIVE, ERASED)] = ACTIVE
    screened_with: Text32 = ""

    @model_validator(mode="after")
    def _named(self) -> LineageRow:
        """Only an erased fact has no name."""
        if (self.status == ERASED) != (not self.subject and not self.attribute):
            raise ValueError("a fact has a subject and an attribute, and an erased one has neither")
        return self

    def sha_of(self, text: str) -> bytes:
        """By what a word of it is found; what was erased is found by none."""
        if self.status == ERASED:
            # As the eraser writes it.
            return hashlib.sha256(f"erased {self.lineage_id}".encode()).digest()
        return sha_of_word(text)


@section("facts", order=40)
class Facts:
    """The lineages, still without locks."""

    def has_rows(self, namespace: Namespace) -> bool:
        """True when there is any."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM facts_lineage WHERE namespace_id = %s)", [namespace.pk]
            )
            return bool(cursor.fetchone()[0])

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By id."""
        for id_, *columns in stream(
            f"SELECT {', '.join(_LINEAGE)} FROM facts_lineage WHERE namespace_id = %s ORDER BY id",  # noqa: S608
            [namespace.pk],
        ):
            rest = {name: _plain(item) for name, item in zip(_LINEAGE[1:], columns, strict=True)}
            yield {"lineage_id": str(id_), **rest}

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store lineages under their own ids; they are found by subject and attribute as they fold here."""
        rows = [row for _, row in parsed(LineageRow, lines)]
        _free([row.lineage_id for row in rows])
        insert(
            "facts_lineage",
            (
                *_LINEAGE, "namespace_id", "subject_sha256", "attribute_sha256", "lock_mode", "lock_reason",
                "locked_by",
            ),
            [
                [
                    row.lineage_id, row.owner, row.subject, row.attribute, row.cardinality, row.version,
                    row.created_at, row.last_known_at, row.status, row.screened_with, run.namespace.pk,
                    row.sha_of(row.subject), row.sha_of(row.attribute), "none", "", "",
                ]
                for row in rows
            ],
        )  # fmt: skip

    def finish(self, run: Import) -> None:
        """The memories of the file may not have taken the id of another namespace's fact."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM memories_memory m WHERE namespace_id = %s "
                "AND (EXISTS (SELECT FROM facts_lineage l WHERE l.id = m.id) "
                "OR EXISTS (SELECT FROM facts_version v WHERE v.id = m.id)) ORDER BY id LIMIT 20",
                [run.namespace.pk],
            )
            taken = [str(row[0]) for row in cursor.fetchall()]
        if taken:
            raise TransferError(
                f"memory ids are taken by facts in this database: {', '.join(taken)}; import into another "
                "database."
            )


# Versions

_VERSION = (
    "id", "lineage_id", "owner", "value", "value_sha256", "from_is_date", "to_is_date", "kind",
    "made_from_id", "replaced", "sources", "confidence", "source_class", "principal", "token_prefix", "agent",
    "reason", "request_id",
)  # fmt: skip
_PERIODS = ("valid_from", "valid_to", "known_from", "known_to")
_RETRACTION = ("at", "principal", "token_prefix", "agent", "reason", "request_id")
_FLAG = ("pattern", "spans", "catalogue", "acknowledged_by", "acknowledged_at", "acknowledge_reason")


class RetractionRow(FileRow):
    """Who took a version back without a successor, and why."""

    at: AwareDatetime
    principal: Text150
    token_prefix: Text16
    agent: Text128
    reason: str
    request_id: Text64


class FactFlagRow(FileRow):
    """A pattern that was found in a version, and who has read it."""

    pattern: Text64
    spans: list[tuple[int, int]]
    catalogue: Text32
    acknowledged_by: Text150
    acknowledged_at: AwareDatetime | None
    acknowledge_reason: str


class FactVersionRow(FileRow):
    """A value over a period, believed over another."""

    fact_id: NodeId
    lineage_id: NodeId
    owner: Text128
    value: Any
    value_sha256: Sha256
    valid_from: AwareDatetime | None
    valid_to: AwareDatetime | None
    from_is_date: bool
    to_is_date: bool
    known_from: AwareDatetime
    known_to: AwareDatetime | None
    kind: KindName
    made_from: NodeId | None
    replaced: dict[str, Any] | None
    sources: list[str]
    confidence: Share | None
    source_class: SourceClass
    principal: Text150
    token_prefix: Text16
    agent: Text128
    reason: str
    request_id: Text64
    retraction: RetractionRow | None
    flags: list[FactFlagRow]

    @model_validator(mode="after")
    def _whole(self) -> FactVersionRow:
        """What can never be false in stored data is not believed of a file either."""
        for start, end in ((self.valid_from, self.valid_to), (self.known_from, self.known_to)):
            if start is not None and end is not None and end <= start:
                raise ValueError("a period ends after it starts")
        if self.retraction is not None and self.known_to is None:
            raise ValueError("a version that was taken back is no longer believed")
        if self.made_from is not None and self.made_from >= self.fact_id:
            raise ValueError("a version is made from an earlier one")
        return self


@section("fact_versions", order=41)
class FactVersions:
    """All versions with their flags and retractions; postings and vectors are made anew."""

    def __init__(self) -> None:
        self._to_embed: list[int] = []

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a lineage."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By id, in which a version follows the one that it was made from."""
        rows = stream(
            f"SELECT {', '.join(_VERSION)}, lower(valid), upper(valid), lower(known), upper(known) "  # noqa: S608
            "FROM facts_version WHERE namespace_id = %s ORDER BY id",
            [namespace.pk],
        )
        for group in in_groups(rows):
            ids = [row[0] for row in group]
            retractions = self._beside("facts_retraction", _RETRACTION, ids, "version_id")
            flags = self._beside("facts_factflag", _FLAG, ids, "version_id, pattern")
            for columns in group:
                row = dict(zip((*_VERSION, *_PERIODS), map(_plain, columns), strict=True))
                id_, made_from = row.pop("id"), row.pop("made_from_id")
                yield {
                    "fact_id": str(id_),
                    **row,
                    "lineage_id": str(row["lineage_id"]),
                    "value": json.loads(row["value"]),
                    "value_sha256": bytes(row["value_sha256"]).hex(),
                    "made_from": None if made_from is None else str(made_from),
                    "replaced": None if row["replaced"] is None else json.loads(row["replaced"]),
                    "sources": json.loads(row["sources"]),
                    "retraction": next(iter(retractions.get(id_, [])), None),
                    "flags": flags.get(id_, []),
                }

    def _beside(
        self, table: str, names: Sequence[str], ids: Sequence[int], order: str
    ) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT version_id, {', '.join(names)} FROM {table} WHERE version_id = ANY(%s) "  # noqa: S608
                f"ORDER BY {order}",
                [list(ids)],
            )
            for version_id, *values in cursor.fetchall():
                row = {name: _plain(value) for name, value in zip(names, values, strict=True)}
                if "spans" in row:
                    row["spans"] = json.loads(row["spans"])
                found.setdefault(version_id, []).append(row)
        return found

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store versions of lineages that came with this file, each with its place in the index."""
        rows = parsed(FactVersionRow, lines)
        homes = self._homes(run.namespace, {row.lineage_id for _, row in rows})
        for line, row in rows:
            if row.lineage_id not in homes:
                raise TransferError(
                    f"line {line.number} is damaged: a version of fact {row.lineage_id}, which the file does "
                    "not hold"
                )
            if (row.known_to or row.known_from) > homes[row.lineage_id][3]:
                raise TransferError(
                    f"line {line.number} is damaged: it is younger than the last write of its fact"
                )
        self._require_origins(run.namespace, rows)
        _free([row.fact_id for _, row in rows])
        self._insert(run, [row for _, row in rows], homes)
        self._beside_stored([row for _, row in rows])
        # An erased fact has no words to be found by.
        worded = [row for _, row in rows if homes[row.lineage_id][0]]
        self._index(run.namespace, worded, homes)
        self._to_embed += [row.fact_id for row in worded]
        if len(self._to_embed) >= JOB_IDS:
            self._embed(run)

    def _homes(self, namespace: Namespace, ids: set[int]) -> dict[int, tuple[str, str, str, datetime]]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, subject, attribute, cardinality, last_known_at FROM facts_lineage "
                "WHERE id = ANY(%s) AND namespace_id = %s",
                [list(ids), namespace.pk],
            )
            return {id_: (subject, attribute, many, at) for id_, subject, attribute, many, at in cursor}

    def _require_origins(self, namespace: Namespace, rows: Sequence[tuple[Line, FactVersionRow]]) -> None:
        """TransferError for a version made from one that the file has not held before it."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM facts_version WHERE id = ANY(%s) AND namespace_id = %s",
                [[row.made_from for _, row in rows if row.made_from is not None], namespace.pk],
            )
            known = {row[0] for row in cursor.fetchall()}
        for line, row in rows:
            if row.made_from is not None and row.made_from not in known:
                raise TransferError(
                    f"line {line.number} is damaged: it is made from fact:{row.made_from}, which the file "
                    "does not hold before it"
                )
            known.add(row.fact_id)

    def _insert(
        self, run: Import, rows: Sequence[FactVersionRow], homes: dict[int, tuple[str, str, str, datetime]]
    ) -> None:
        stored = []
        for row in rows:
            sha = bytes.fromhex(row.value_sha256)
            stored.append(
                [
                    row.fact_id, row.lineage_id, row.owner, json.dumps(row.value), sha, row.from_is_date,
                    row.to_is_date, row.kind, row.made_from,
                    None if row.replaced is None else json.dumps(row.replaced), json.dumps(row.sources),
                    row.confidence, row.source_class, row.principal, row.token_prefix, row.agent, row.reason,
                    row.request_id, run.namespace.pk,
                    sha if homes[row.lineage_id][2] == Cardinality.MANY else b"",
                    TimestamptzRange(row.valid_from, row.valid_to),
                    TimestamptzRange(row.known_from, row.known_to),
                ]
            )  # fmt: skip
        insert("facts_version", (*_VERSION, "namespace_id", "value_key", "valid", "known"), stored)

    def _beside_stored(self, rows: Sequence[FactVersionRow]) -> None:
        insert(
            "facts_retraction",
            (*_RETRACTION, "version_id"),
            [
                [*(getattr(row.retraction, name) for name in _RETRACTION), row.fact_id]
                for row in rows
                if row.retraction is not None
            ],
        )
        insert(
            "facts_factflag",
            (*_FLAG, "version_id"),
            [
                [
                    *(json.dumps(flag.spans) if name == "spans" else getattr(flag, name) for name in _FLAG),
                    row.fact_id,
                ]
                for row in rows
                for flag in row.flags
            ],
        )

    def _index(
        self,
        namespace: Namespace,
        rows: Sequence[FactVersionRow],
        homes: dict[int, tuple[str, str, str, datetime]],
    ) -> None:
        postings: list[tuple[int, int, str, int, int, str]] = []
        for row in rows:
            subject, attribute, *_ = homes[row.lineage_id]
            if not subject:
                continue
            terms, counts, length = term_frequencies(text_of(subject, attribute, row.value))
            postings += [
                (namespace.pk, row.fact_id, term, many, length, row.owner)
                for term, many in zip(terms, counts, strict=True)
            ]
        with connection.cursor() as cursor:
            if postings:
                cursor.execute(
                    "INSERT INTO facts_factposting (namespace_id, version_id, term, tf, doc_len, owner) "
                    "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::int[], "
                    "%s::text[])",
                    list(map(list, zip(*postings, strict=True))),
                )
            count(cursor, namespace.pk, Counter(row.owner for row in rows))

    def _embed(self, run: Import) -> None:
        """Vectors are made by a job: they differ by embedder and are no part of the file."""
        if self._to_embed and get_embedder().name != "none":
            governance.job_create(ctx=run.ctx, kind=FILL_JOB, input={"version_ids": self._to_embed})
        self._to_embed = []

    def finish(self, run: Import) -> None:
        """Vectors for the rest."""
        self._embed(run)


# Locks and holds

_LOCK = ("lock_mode", "lock_reason", "lock_until", "locked_by", "locked_at")
_HOLD = tuple(HoldRow.model_fields)


class GuardRow(FileRow):
    """The lock and the holds of a fact that has or had any."""

    lineage_id: NodeId
    lock: LockRow
    holds: list[HoldRow]


@section("fact_locks", order=42)
class FactLocks:
    """Locks and holds of facts, standing, ended and released."""

    def __init__(self) -> None:
        self._last = 0

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a lineage."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By the id of the lineage."""
        rows = stream(
            f"SELECT id, {', '.join(_LOCK)} FROM facts_lineage l WHERE namespace_id = %s "  # noqa: S608
            "AND (lock_mode <> 'none' OR lock_reason <> '' OR lock_until IS NOT NULL OR locked_by <> '' "
            "OR locked_at IS NOT NULL OR EXISTS (SELECT FROM governance_hold h WHERE h.node_id = l.id)) "
            "ORDER BY id",
            [namespace.pk],
        )
        for group in in_groups(rows):
            holds = self._holds([row[0] for row in group])
            for id_, mode, reason, until, by, at in group:
                lock = {
                    "mode": mode,
                    "reason": reason,
                    "until": iso(until),
                    "locked_by": by,
                    "locked_at": iso(at),
                }
                yield {"lineage_id": str(id_), "lock": lock, "holds": holds.get(id_, [])}

    def _holds(self, ids: Sequence[int]) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT node_id, {', '.join(_HOLD)} FROM governance_hold WHERE node_id = ANY(%s) "  # noqa: S608
                "ORDER BY node_id, placed_at, id",
                [list(ids)],
            )
            for node_id, *values in cursor.fetchall():
                row = {name: _plain(value) for name, value in zip(_HOLD, values, strict=True)}
                found.setdefault(node_id, []).append(row)
        return found

    def load(self, run: Import, lines: list[Line]) -> None:
        """Lock lineages that came with this file, each once."""
        rows = parsed(GuardRow, lines)
        for line, row in rows:
            if row.lineage_id <= self._last:
                raise TransferError(f"line {line.number} is damaged: locks come once each, by lineage_id")
            self._last = row.lineage_id
        with connection.cursor() as cursor:
            for line, row in rows:
                lock, standing = row.lock, sum(hold.released_at is None for hold in row.holds)
                cursor.execute(
                    "UPDATE facts_lineage SET lock_mode = %s, lock_reason = %s, lock_until = %s, "
                    "locked_by = %s, locked_at = %s, holds = %s WHERE id = %s AND namespace_id = %s",
                    [
                        lock.mode, lock.reason, lock.until, lock.locked_by, lock.locked_at, standing,
                        row.lineage_id, run.namespace.pk,
                    ],
                )  # fmt: skip
                if cursor.rowcount != 1:
                    raise TransferError(
                        f"line {line.number} is damaged: a lock of fact {row.lineage_id}, which the file "
                        "does not hold"
                    )
        insert(
            "governance_hold",
            (*_HOLD, "org_id", "namespace_id", "node_id"),
            [
                [
                    *(getattr(hold, name) for name in _HOLD),
                    run.namespace.org_id,
                    run.namespace.pk,
                    row.lineage_id,
                ]
                for _, row in rows
                for hold in row.holds
            ],
        )

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""
