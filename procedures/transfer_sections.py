"""What a namespace's file holds of procedures beside their memory rows: revisions and the ledger of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from django.db import connection
from pydantic import AwareDatetime, Field

from governance import services as governance
from governance.clock import iso
from governance.models import Namespace
from memories.embedders import get_embedder
from memories.models import Status
from memories.transfer import Import, Line, Row, TransferError, section
from memories.transfer_sections import (
    Count,
    FileRow,
    NodeId,
    Sha256,
    Text16,
    Text128,
    Text150,
    among,
    insert,
    parsed,
    stream,
)
from procedures.graph import KEY_PREFIX, faults_of, read
from procedures.models import Revision
from procedures.services import EMBED_JOB

Natural = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
StateName = Annotated[str, among(*Revision.State.values)]
ERASED: dict[str, Any] = {"nodes": [], "edges": []}
"""The graph of a redacted procedure."""


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value


def _read(row: Row, names: tuple[str, ...]) -> Row:
    """What the database gives as the text of JSON."""
    return {name: None if row[name] is None else json.loads(row[name]) for name in names}


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _damaged(line: Line, why: str) -> TransferError:
    return TransferError(f"line {line.number} is damaged: {why}")


@dataclass
class _Home:
    """A procedure that came with this file, as far as its lines have been read."""

    is_redacted: bool
    revisions: frozenset[int]
    runs: int


def _homes(namespace: Namespace, ids: set[int]) -> dict[int, _Home]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.memory_id, m.status, ARRAY(SELECT r.number FROM procedures_revision r "
            "WHERE r.procedure_id = p.memory_id), (SELECT coalesce(max(u.seq), 0) FROM procedures_run u "
            "WHERE u.procedure_id = p.memory_id) FROM procedures_procedure p "
            "JOIN memories_memory m ON m.id = p.memory_id WHERE p.memory_id = ANY(%s) "
            "AND p.namespace_id = %s",
            [list(ids), namespace.pk],
        )
        return {
            id_: _Home(status == Status.REDACTED, frozenset(numbers), runs)
            for id_, status, numbers, runs in cursor.fetchall()
        }


# Procedures

_PROCEDURE = (
    "memory_id", "revision", "authored", "quarantined", "template", "tools", "dead_ends", "fail_prone",
    "runs_total", "runs_ok", "runs_folded", "last_run_at", "forked_from", "prior_revision",
    "fail_prone_edges", "evidence", "evolve_settings",
)  # fmt: skip


_PROCEDURE_JSON = ("forked_from", "fail_prone_edges", "evidence", "evolve_settings")


class RetentionRow(FileRow):
    """`folding.Retention.stored`."""

    pairs: Natural
    kept: Natural
    last_ok: bool


class EvidenceRow(FileRow):
    """What the folded runs amount to besides counters; empty before the first."""

    retention: RetentionRow | None = None


class ProcedureRow(FileRow):
    """What stands beside a memory row that is a procedure."""

    memory_id: NodeId
    revision: Count
    authored: bool
    quarantined: bool
    template: bool
    tools: list[Text128]
    dead_ends: list[Text128]
    fail_prone: list[Text128]
    runs_total: Natural
    runs_ok: Natural
    runs_folded: Natural
    last_run_at: AwareDatetime | None
    forked_from: dict[str, Any] | None
    prior_revision: Count | None
    fail_prone_edges: list[tuple[Text128, Text128]]
    evidence: EvidenceRow
    # As it stands: what is not valid any more is left out of account when it is used.
    evolve_settings: Any


@section("procedures", order=50)
class Procedures:
    """The procedures of memory rows that the file holds; the vectors of situations are made by jobs."""

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a memory row."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By id."""
        for columns in stream(
            f"SELECT {', '.join(_PROCEDURE)} FROM procedures_procedure WHERE namespace_id = %s "  # noqa: S608
            "ORDER BY memory_id",
            [namespace.pk],
        ):
            row = {name: _plain(item) for name, item in zip(_PROCEDURE, columns, strict=True)}
            yield row | {"memory_id": str(row["memory_id"])} | _read(row, _PROCEDURE_JSON)

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store procedures beside memory rows that came with this file."""
        rows = parsed(ProcedureRow, lines)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, status, value ->> 'situation' IS NOT NULL FROM memories_memory "
                "WHERE id = ANY(%s) AND namespace_id = %s AND starts_with(memory_key, %s)",
                [[row.memory_id for _, row in rows], run.namespace.pk, KEY_PREFIX],
            )
            known = {id_: (status, has_situation) for id_, status, has_situation in cursor.fetchall()}
        for line, row in rows:
            if row.memory_id not in known:
                raise _damaged(line, f"memory {row.memory_id} is no procedure of the file")
            said = (
                row.tools
                or row.dead_ends
                or row.fail_prone
                or row.fail_prone_edges
                or (row.forked_from, row.evolve_settings) != (None, None)
            )
            if known[row.memory_id][0] == Status.REDACTED and said:
                raise _damaged(line, "a redacted procedure has no tools, flags or origin")
        insert(
            "procedures_procedure",
            (*_PROCEDURE, "namespace_id"),
            [[*(self._stored(row, name) for name in _PROCEDURE), run.namespace.pk] for _, row in rows],
        )
        if get_embedder().name != "none":
            for _, row in rows:
                status, has_situation = known[row.memory_id]
                if has_situation and status != Status.REDACTED:
                    governance.job_create(ctx=run.ctx, kind=EMBED_JOB, input={"procedure_id": row.memory_id})

    def _stored(self, row: ProcedureRow, name: str) -> Any:
        value = getattr(row, name)
        if isinstance(value, EvidenceRow):
            return json.dumps(value.model_dump(exclude_unset=True))
        return _json(value) if name in _PROCEDURE_JSON else value

    def finish(self, run: Import) -> None:
        """What a procedure says of its revisions and runs must be what has come in of them."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT p.memory_id FROM procedures_procedure p LEFT JOIN LATERAL (SELECT count(*) AS total, "
                "count(*) FILTER (WHERE u.ok) AS won, count(u.folded_at) AS folded, "
                "coalesce(max(u.seq) FILTER (WHERE u.folded_at IS NOT NULL), 0) AS last "
                "FROM procedures_run u "
                "WHERE u.procedure_id = p.memory_id) n ON true WHERE p.namespace_id = %s "
                "AND (p.runs_total <> n.total OR p.runs_ok <> n.won "
                "OR p.runs_folded <> n.folded OR p.runs_folded <> n.last "
                "OR NOT EXISTS (SELECT FROM procedures_revision r WHERE r.procedure_id = p.memory_id "
                "AND r.number = p.revision AND (r.state = 'pending') = (p.prior_revision IS NOT NULL) "
                "AND (r.state <> 'pending' OR r.prior = p.prior_revision))) "
                "ORDER BY 1 LIMIT 20",
                [run.namespace.pk],
            )
            wrong = [str(row[0]) for row in cursor.fetchall()]
        if wrong:
            raise TransferError(
                "procedures whose counts or revision in force are not those of the file's runs and "
                f"revisions: {', '.join(wrong)}"
            )


# Revisions

_REVISION = (
    "procedure_id", "number", "graph", "digest", "proposed_by", "reason", "state", "counters", "opened_after",
    "opened_at", "closed_at", "prior", "restores", "baseline", "verdict",
)  # fmt: skip


_REVISION_JSON = ("graph", "counters", "baseline", "verdict")


class TallyRow(FileRow):
    """Counters as `folding.RevisionState.stored` leaves them."""

    total: Natural = 0
    ok: Natural = 0
    pathed: Natural = 0
    strikes: Natural = 0
    strike_sources: list[tuple[Text150, Text128]] = []
    ok_sources: list[tuple[Text150, Text128]] = []
    proven: bool = False
    nodes: list[tuple[str, Natural, Natural, Natural, Natural]] = []
    edges: list[tuple[str, str, Natural, Natural, Natural, Natural]] = []


class BaselineRow(FileRow):
    """`judging.Baseline.stored`."""

    total: Natural
    ok: Natural
    costs: dict[Literal["duration_ms", "steps_taken", "tokens"], tuple[Count, float]]


class CountsRow(FileRow):
    """Runs and their successes."""

    total: Natural
    ok: Natural


class GateRow(FileRow):
    """`gate.GateSettings`."""

    mode: Literal["sprt", "margin"]
    baseline: Literal["integrated", "plugin"]
    min_runs: Count
    max_runs: Count
    margin: float
    min_drop: float
    alpha: float
    beta: float
    cost_tolerance: float
    cost_min_samples: Count | None


class VerdictRow(FileRow):
    """`judging.Judgement.stored`."""

    verdict: Literal["accept", "revert"]
    reason: Literal["", "success", "cost"]
    mode: Literal["sprt", "margin"]
    by: Literal["bound", "cap", "margin"]
    llr: float | None
    bounds: tuple[float, float]
    before: CountsRow
    after: CountsRow
    cost_before: dict[str, float]
    cost_after: dict[str, float]
    cost_measure: str
    run: Count
    at: str
    settings: GateRow


class RevisionRow(FileRow):
    """One topology of a procedure with its counters."""

    procedure_id: NodeId
    number: Count
    graph: dict[str, Any]
    digest: Sha256
    proposed_by: Text150
    reason: str
    state: StateName
    counters: TallyRow
    opened_after: Natural
    opened_at: AwareDatetime
    closed_at: AwareDatetime | None
    prior: Count | None
    restores: Count | None
    baseline: BaselineRow | None
    verdict: VerdictRow | None


@section("procedure_revisions", order=51)
class Revisions:
    """The revisions of every procedure."""

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a procedure."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """By procedure and number."""
        for columns in stream(
            f"SELECT {', '.join(_REVISION)} FROM procedures_revision WHERE namespace_id = %s "  # noqa: S608
            "ORDER BY procedure_id, number",
            [namespace.pk],
        ):
            row = {name: _plain(item) for name, item in zip(_REVISION, columns, strict=True)}
            yield row | {"procedure_id": str(row["procedure_id"])} | _read(row, _REVISION_JSON)

    def load(self, run: Import, lines: list[Line]) -> None:
        """Store revisions of procedures that came with this file."""
        rows = parsed(RevisionRow, lines)
        homes = _homes(run.namespace, {row.procedure_id for _, row in rows})
        for line, row in rows:
            home = homes.get(row.procedure_id)
            if home is None:
                raise _damaged(line, f"a revision of procedure {row.procedure_id}, which the file lacks")
            self._require_graph(line, row, home.is_redacted)
        insert(
            "procedures_revision",
            (*_REVISION, "namespace_id"),
            [[*(self._stored(row, name) for name in _REVISION), run.namespace.pk] for _, row in rows],
        )

    def _require_graph(self, line: Line, row: RevisionRow, is_redacted: bool) -> None:
        if is_redacted:
            if row.graph != ERASED or row.counters.model_fields_set or row.reason:
                raise _damaged(line, "a revision of a redacted procedure has no graph, counters or reason")
            return
        faults = faults_of(row.graph)
        if faults:
            place = ".".join(map(str, ("graph", *faults[0].place)))
            raise _damaged(line, f"{place} {faults[0].message}")
        if read(row.graph).digest != row.digest:
            raise _damaged(line, "the digest is not that of the graph")

    def _stored(self, row: RevisionRow, name: str) -> Any:
        value = getattr(row, name)
        if isinstance(value, FileRow):
            return json.dumps(value.model_dump(exclude_unset=True))
        return _json(value) if name in _REVISION_JSON else value

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""


# Runs

_RUN = (
    "procedure_id", "seq", "revision", "principal", "token_prefix", "agent", "user_id", "session_id", "path",
    "ok", "note", "note_held", "steps_taken", "duration_ms", "tokens", "report_id", "answer", "at",
    "folded_at",
)  # fmt: skip


class RunRow(FileRow):
    """One reported run."""

    procedure_id: NodeId
    seq: Count
    revision: Count
    principal: Text150
    token_prefix: Text16
    agent: Text128
    user_id: Text128
    session_id: Text128
    path: list[Text128]
    ok: bool
    note: str
    note_held: bool
    steps_taken: Natural | None
    duration_ms: Natural
    tokens: Natural
    report_id: Text128 | None
    answer: dict[str, Any] | None
    at: AwareDatetime
    folded_at: AwareDatetime | None


@section("procedure_runs", order=52)
class Runs:
    """The ledger."""

    def has_rows(self, namespace: Namespace) -> bool:
        """There is none without a procedure."""
        return False

    def export(self, namespace: Namespace) -> Iterator[Row]:
        """In the order of the ledger, whatever the procedure."""
        for columns in stream(
            f"SELECT {', '.join(_RUN)} FROM procedures_run WHERE namespace_id = %s ORDER BY id",  # noqa: S608
            [namespace.pk],
        ):
            row = {name: _plain(item) for name, item in zip(_RUN, columns, strict=True)}
            answer = row["answer"]
            yield row | {
                "procedure_id": str(row["procedure_id"]),
                "answer": None if answer is None else json.loads(answer),
            }

    def load(self, run: Import, lines: list[Line]) -> None:
        """Append runs to the ledgers of procedures that came with this file, without gaps."""
        rows = parsed(RunRow, lines)
        homes = _homes(run.namespace, {row.procedure_id for _, row in rows})
        for line, row in rows:
            home = homes.get(row.procedure_id)
            if home is None:
                raise _damaged(line, f"a run of procedure {row.procedure_id}, which the file lacks")
            if row.revision not in home.revisions:
                raise _damaged(line, f"a run of revision {row.revision}, which the file lacks")
            if row.seq != home.runs + 1:
                raise _damaged(line, f"run {row.seq} follows run {home.runs}")
            if home.is_redacted:
                if row.path or row.note or row.answer is not None:
                    raise _damaged(line, "a run of a redacted procedure has no path, note or answer")
            elif (row.answer is None) != (row.report_id is None):
                raise _damaged(line, "a run has an answer if it has a report_id, and only then")
            home.runs = row.seq
        insert(
            "procedures_run",
            (*_RUN, "namespace_id"),
            [[*(self._stored(row, name) for name in _RUN), run.namespace.pk] for _, row in rows],
        )

    def _stored(self, row: RunRow, name: str) -> Any:
        if name == "answer":
            return None if row.answer is None else json.dumps(row.answer)
        return getattr(row, name)

    def finish(self, run: Import) -> None:
        """Nothing is left to do."""
