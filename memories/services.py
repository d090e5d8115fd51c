"""The one write gateway: every change of a memory, from whatever door or sweep, goes through here.

`Gateway` locks rows, judges locks, pins and expected versions, writes the row and its version, keeps the
two search indexes right, and leaves the audit row; the pipeline gives it one transaction. What comes any
other way meets the trigger `loom_guard_memory`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from django.conf import settings
from django.db import connection, transaction

from governance import review
from governance import services as governance
from governance.clock import iso
from governance.copying import copy_lines, copy_rows, term_field
from governance.locks import RANK, LockState, compare, locked, quoted, require_plain
from governance.models import Namespace
from governance.patterns import CATALOGUE_VERSION
from loomsite.ops import AuditEntry, Context, Effect, OpError, invalid, not_found
from memories.analysis import flatten, search_text, term_frequencies, title
from memories.embedders import EmbedderUnavailable, get_embedder
from memories.models import OnExpire, Status
from memories.nodes import Guarded, finder
from memories.planning import target
from memories.screening import Spans, advise, screen, screened_text, text_sha256, texts_beside, write_flags
from memories.text_config import language_of
from memories.vectors import Embedded, Part, embed_texts, write_vectors

STRIPES = 16
# Rows that one statement of a bulk change takes.
MANY = 1000
# From so many rows on a call writes by COPY.
BULK = 8
_VERSION_COLUMNS = (
    "memory_id, version, kind, status, value, content_sha256, memory_type, tags, metadata, confidence, "
    "pinned, expires_at, on_expire, source_class, source_trace, principal, token_prefix, agent, reason, "
    "request_id, at"
)
_NEW_COLUMNS = (
    "id, created_at, updated_at, governed, version, lock_mode, lock_reason, locked_by, namespace_id, agent, "
    "user_id, session_id, memory_key, value, content_sha256, memory_type, tags, metadata, confidence, "
    "pinned, pinned_by, expires_at, on_expire, source_class, source_trace, doc_len, status, promoted_from, "
    "held, screened_with"
)
FILL_JOB = "embedding.fill"
# Shorter texts than this say too little alone; their key then speaks for them too.
SHORT_TEXT = 32


@dataclass(frozen=True)
class Identity:
    """The exact tuple that, with namespace and key, names one lineage. "-" means none."""

    agent: str = "-"
    user_id: str = "-"
    session_id: str = "-"

    @classmethod
    def of(cls, ctx: Context) -> Identity:
        """The tuple that this call addresses: what was said, else what the token is bound to, else none."""
        return cls(
            ctx.agent or ctx.caller.bound_agent or "-",
            ctx.user_id or ctx.caller.bound_user or "-",
            ctx.session_id or "-",
        )


@dataclass(frozen=True)
class State:
    """What a version keeps. A write is a new State; equal states are a no-op.

    JSON is compared as canonical text (the value by its hash), because Python holds 1, 1.0 and True equal.
    """

    value: Any = field(compare=False)
    content_sha256: str
    memory_type: str = "semantic"
    tags: tuple[str, ...] = ()
    metadata: str = "{}"
    confidence: float | None = None
    pinned: bool = False
    expires_at: datetime | None = None
    on_expire: str = OnExpire.TOMBSTONE
    status: str = Status.ACTIVE
    source_class: str = "local_tool_output"
    source_trace: str = ""


@dataclass(frozen=True)
class Row:
    """A lineage as it stood when its row lock was taken; clocks judged by the database."""

    id: int
    key: str
    identity: Identity
    version: int
    state: State
    lock: LockState
    governed: bool
    pinned_by: str
    overdue: bool
    """The expiry has fallen due, nothing defers it, and no sweep has come by yet."""
    doc_len: int | None
    updated_at: datetime
    held: bool = False
    """Flagged by screening, and not read by a person yet."""

    @property
    def status(self) -> str:
        """The status as reads show it: what is overdue has ended already, swept or not."""
        return _ended(self.state) if self.overdue else self.state.status

    @property
    def served(self) -> bool:
        """True when reads show it by default."""
        return self.status == Status.ACTIVE

    @property
    def table(self) -> str:
        """Where the lock is kept."""
        return "memories_memory"

    @property
    def content_sha256(self) -> str:
        """SHA-256 of the present content."""
        return self.state.content_sha256


def _ended(state: State) -> str:
    """What an expiry makes of the memory."""
    return Status.STALE if state.on_expire == OnExpire.STALE else Status.DELETED


LOCK_IN_FORCE = "(m.lock_mode <> 'none' AND (m.lock_until IS NULL OR m.lock_until > clock_timestamp()))"
GUARDED = f"({LOCK_IN_FORCE} OR m.holds > 0)"
ROW = f"""m.id, m.memory_key, m.agent, m.user_id, m.session_id, m.version, m.value, m.content_sha256,
  m.memory_type, m.tags, m.metadata, m.confidence, m.pinned, m.expires_at, m.on_expire, m.status,
  m.source_class, m.source_trace, m.governed, m.pinned_by, m.doc_len, m.updated_at,
  CASE WHEN {LOCK_IN_FORCE} THEN m.lock_mode ELSE 'none' END, m.lock_reason, m.lock_until, m.locked_by,
  m.locked_at, m.holds, coalesce(m.expires_at <= clock_timestamp(), false) AND NOT {GUARDED}, m.held"""


def row_from(columns: Sequence[Any]) -> Row:
    """A Row from the columns of `ROW`."""
    (
        id_, key, agent, user_id, session_id, version, value, sha, memory_type, tags, metadata, confidence,
        pinned, expires_at, on_expire, status, source_class, source_trace, governed, pinned_by, doc_len,
        updated_at, lock_mode, lock_reason, lock_until, locked_by, locked_at, holds, overdue, held,
    ) = columns  # fmt: skip
    lock = LockState(holds=holds)
    if lock_mode != "none":
        lock = LockState(lock_mode, lock_reason, lock_until, locked_by, locked_at, holds)
    state = State(
        value=None if value is None else json.loads(value),
        content_sha256=sha,
        memory_type=memory_type,
        tags=tuple(tags),
        metadata=metadata if metadata == "{}" else canonical(json.loads(metadata)),
        confidence=confidence,
        pinned=pinned,
        expires_at=expires_at,
        on_expire=on_expire,
        status=status,
        source_class=source_class,
        source_trace=source_trace,
    )
    identity = Identity(agent, user_id, session_id)
    return Row(
        id_, key, identity, version, state, lock, governed, pinned_by,
        overdue and status == Status.ACTIVE, doc_len, updated_at, held,
    )  # fmt: skip


VALUE_COLUMN = 6


def titled(columns: Sequence[Any], *, keep_value: bool) -> tuple[Row, str]:
    """A Row and its title; without its value where the change does not need it, so that many fit in memory.

    A row that an expiry has overtaken keeps it: its end is a version that is still to be written.
    """
    row = row_from(columns)
    name = title(row.state.value, row.key)
    if keep_value or row.overdue:
        return row, name
    return row_from([*columns[:VALUE_COLUMN], None, *columns[VALUE_COLUMN + 1 :]]), name


def canonical(value: Any) -> str:
    """Canonical JSON: sorted names, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_sha256(value: Any) -> str:
    """SHA-256 of the value's canonical JSON in UTF-8."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def hash_bucket(key: str) -> int:
    """One of 64 buckets, the same in every process."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 64


def embedding_text(key: str, value: Any) -> str:
    """The text whose meaning is indexed: the value's own, with the key where it says little."""
    text = flatten(value)
    return text if len(text) >= SHORT_TEXT else search_text(key, value, ())


def embed_all(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Part]] | None:
    """Vectors by content, computed before the transaction opens; None when no embedding can be had now."""
    try:
        return embed_texts(embedding_text(key, value) for key, value in pairs)
    except EmbedderUnavailable:
        return None


@dataclass(frozen=True)
class _Managed:
    """Keys whose content another app writes."""

    prefix: str
    said: str
    # Memory ops may delete, expire and restore the row; only its content belongs to the other app.
    may_end: bool


_MANAGED: list[_Managed] = []


def manage_keys(prefix: str, said: str, *, may_end: bool) -> None:
    """Reserve the keys that begin with `prefix` for an app above; `said` names the ops to use instead.

    With `may_end` the memory ops that end or restore a row still serve it.
    """
    if not any(managed.prefix == prefix for managed in _MANAGED):
        _MANAGED.append(_Managed(prefix, said, may_end))


manage_keys("fact:", "belong to facts; use fact.remember, fact.correct or fact.retract.", may_end=False)


def is_managed(key: str) -> bool:
    """Whether an app above writes what stands under this key."""
    return any(key.startswith(managed.prefix) for managed in _MANAGED)


def refuse_managed(key: str, *, ends: bool = False) -> None:
    """409 MANAGED_KEY for a key of another app; `ends` says that the call only ends or restores the row."""
    for managed in _MANAGED:
        if key.startswith(managed.prefix) and not (ends and managed.may_end):
            raise OpError("MANAGED_KEY", f"Keys beginning `{managed.prefix}` {managed.said}", memory_key=key)


class Gateway:
    """The writes of one call. `flush` must run before the transaction ends.

    `manages` is the prefix of the keys that the caller's app writes (`manage_keys`); the content of other
    managed keys is refused.
    """

    def __init__(
        self,
        ctx: Context,
        vectors: dict[str, list[Part]] | None = None,
        *,
        manages: str | None = None,
    ) -> None:
        assert ctx.namespace_id is not None  # noqa: S101 - the pipeline made or found it
        self.ctx = ctx
        self.namespace_id: int = ctx.namespace_id
        self.vectors = vectors
        # What the audit says besides of every write through this gateway.
        self.note: dict[str, str] = {}
        self._manages = manages
        # By key: what is about to stand beside a memory and is screened with it.
        self.beside: dict[str, str] = {}
        # Of a batch: ids for new lineages, rows that are not in the table yet, and what other rows say.
        self._reserved: list[int] = []
        self._reserved_at: datetime | None = None
        self._new: dict[int, list[Any]] = {}
        self._known: Known | None = None
        self._reset()

    def _reset(self) -> None:
        # By memory id: a batch may write one key twice, and only its last text is indexed.
        self._versions: list[list[Any]] = []
        self._postings: dict[int, tuple[list[str], list[int], int]] = {}
        self._active: dict[int, bool] = {}
        self._flipped: set[int] = set()
        self._reindexed: set[int] = set()
        self._flags: dict[int, tuple[str, Spans]] = {}
        self._embeddings: dict[int, tuple[list[Part] | None, str]] = {}
        self._docs = 0
        self._terms = 0

    # Finding and locking rows

    def exact(self, keys: Sequence[tuple[str, Identity]]) -> dict[tuple[str, Identity], Row]:
        """The live lineages of exactly these tuples, their rows locked in id order."""
        wanted = set(keys)
        names = list({key for key, _ in keys})
        with connection.cursor() as cursor:
            if len(wanted) == 1:
                (key, who) = keys[0]
                cursor.execute(
                    f"SELECT {ROW} FROM memories_memory m WHERE m.namespace_id = %s AND m.memory_key = %s "  # noqa: S608
                    "AND m.agent = %s AND m.user_id = %s AND m.session_id = %s AND m.status <> 'redacted' "
                    "FOR UPDATE",
                    [self.namespace_id, key, who.agent, who.user_id, who.session_id],
                )
            else:
                cursor.execute(
                    f"SELECT {ROW} FROM memories_memory m WHERE m.id IN (SELECT id FROM memories_memory "  # noqa: S608
                    "WHERE namespace_id = %s AND memory_key = ANY(%s) AND status <> 'redacted' "
                    "AND (memory_key, agent, user_id, session_id) IN "
                    "(SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]))) "
                    "ORDER BY m.id FOR UPDATE",
                    [
                        self.namespace_id, names,
                        [k for k, _ in wanted], [w.agent for _, w in wanted],
                        [w.user_id for _, w in wanted], [w.session_id for _, w in wanted],
                    ],
                )  # fmt: skip
            rows = [row_from(columns) for columns in cursor.fetchall()]
        return {(row.key, row.identity): row for row in rows}

    def queue(self, keys: Sequence[str]) -> None:
        """Wait until no other batch writes one of these keys; held until the transaction ends.

        Two batches may each see a row of the other's as new and lock the rest in another order, which the
        order of ids cannot prevent. Keys fall into 64 buckets, so that a batch of any size holds few locks.
        """
        buckets = sorted({hash_bucket(key) for key in keys})
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_advisory_xact_lock(%s, b)) FROM (SELECT unnest(%s::int[]) AS b) buckets",
                [self.namespace_id % 2**31, buckets],
            )

    def by_key(self, key: str, statuses: Sequence[str], *, first: Sequence[str] = ()) -> Row | None:
        """The lineage that a call by key means, locked: the exact tuple, else the only one; see `choose`.

        Only rows of these statuses count. Where the exact tuple has none, those in a status of `first` go
        before the rest: a tombstone beside it does not make a key ambiguous.
        """
        return self.by_keys([key], statuses, first=first)[key]

    def by_keys(
        self, keys: Sequence[str], statuses: Sequence[str], *, first: Sequence[str] = ()
    ) -> dict[str, Row | None]:
        """`by_key` for several keys, all rows locked in id order."""
        from memories.selectors import choose, scope

        where, params = scope(self.ctx)
        found: dict[str, list[Row]] = {key: [] for key in keys}
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {ROW} FROM memories_memory m WHERE {where} AND m.memory_key = ANY(%s) "  # noqa: S608
                "AND m.status <> 'redacted' ORDER BY m.id FOR UPDATE",
                [*params, list(found)],
            )
            for row in map(row_from, cursor.fetchall()):
                if row.status in statuses:
                    found[row.key].append(row)
        exact = Identity.of(self.ctx)
        for key, rows in found.items():
            if not any(row.identity == exact for row in rows):
                found[key] = [row for row in rows if row.status in first] or rows
        return {key: choose(self.ctx, key, rows) for key, rows in found.items()}

    def batch(self, requests: Sequence[SetRequest], rows: dict[tuple[str, Identity], Row]) -> None:
        """Prepare to write these in bulk: one look at the other rows, and ids for what is new.

        New rows are then kept back until `flush`, or until a statement needs to see them.
        """
        fresh = {(r.key, r.who) for r in requests if (r.key, r.who) not in rows}
        if len(fresh) < BULK:
            return
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT nextval('loom_node_id'), clock_timestamp() FROM generate_series(1, %s)", [len(fresh)]
            )
            found = cursor.fetchall()
        self._reserved = [id_ for id_, _ in reversed(found)]
        self._reserved_at = found[0][1]
        self._known = known(self, requests)

    @property
    def looked_up(self) -> Known | None:
        """What `batch` found, as long as it holds."""
        return self._known

    def settle_new(self) -> None:
        """Store the rows that were kept back.

        One that another transaction made meanwhile is a serialization failure: the pipeline runs the call
        again, and then sees it.
        """
        if not self._new:
            return
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                copy_rows(cursor, "memories_memory", _NEW_COLUMNS, self._new.values())
        except psycopg.errors.UniqueViolation:
            with connection.cursor() as cursor:
                cursor.execute(
                    "DO $$ BEGIN RAISE EXCEPTION 'a memory of this batch was made meanwhile' "
                    "USING ERRCODE = '40001'; END $$"
                )
        self._new = {}

    def now(self) -> datetime:
        """The database's present instant."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            return cursor.fetchone()[0]  # type: ignore[no-any-return]

    # Writing

    def write(self, row: Row | None, key: str, who: Identity, state: State, kind: str, **options: Any) -> Row:
        """Write `state` as the lineage's next version and return the new row; equal states change nothing.

        Options: `promoted_from` of a new lineage; `reason`, `governed`, `canonical_key` of a next version.

        Raises OpError 423 when the row's lock refuses an effect of the change, and 409 when the content
        belongs to another app.
        """
        self._require_own(row, key, state)
        if row is None:
            fresh = self._insert(key, who, state, kind, **options)
            if fresh is not None:
                return fresh
            # Another transaction made the lineage while we looked; the op judges it anew.
            made = self.exact([(key, who)]).get((key, who))
            if made is None:
                raise OpError("BUSY", f"{key} is being changed by others; try again.", retry_after_s=1)
            raise MadeMeanwhile(made)
        if state == row.state:
            return row
        self._require_unlocked(row, state)
        return self._update(row, state, kind, **options)

    def require(self, row: Row, state: State) -> None:
        """OpError 423 or 409 when the row may not become `state`."""
        self._require_own(row, row.key, state)
        if state != row.state:
            self._require_unlocked(row, state)

    def _require_own(self, row: Row | None, key: str, state: State) -> None:
        if self._manages is None or not key.startswith(self._manages):
            keeps = row is not None and _kept(row.state) == _kept(state)
            refuse_managed(key, ends=keeps and state.status != Status.SUPERSEDED)

    def _require_unlocked(self, row: Row, state: State) -> None:
        for effect in effects_of(row.state, state):
            if row.lock.refuses(effect):
                raise locked(row.lock, effect, self.ctx.op.name, row.key, row.id)

    def write_many(
        self, changes: Sequence[tuple[Row, State]], kind: str, *, governed: bool = False
    ) -> dict[int, Row]:
        """`write` for many rows whose status, expiry or confidence moves and nothing else; the rows by id.

        A few statements for each thousand rows, and no value passes through this process. Rows that an
        expiry has overtaken are to be materialised before. Raises OpError as `write` does.
        """
        for row, state in changes:
            self.require(row, state)
        fresh = {row.id: row for row, _ in changes}
        moved = [(row, state) for row, state in changes if state != row.state]
        for first in range(0, len(moved), MANY):
            fresh |= self._update_many(moved[first : first + MANY], kind, governed)
        return fresh

    def _update_many(self, moved: Sequence[tuple[Row, State]], kind: str, governed: bool) -> dict[int, Row]:
        ctx = self.ctx
        ids = [row.id for row, _ in moved]
        with connection.cursor() as cursor:
            cursor.execute(
                """UPDATE memories_memory m SET status = c.status, expires_at = c.expires_at,
                     on_expire = c.on_expire, confidence = c.confidence, governed = %s,
                     canonical_key = CASE WHEN c.status = 'active' THEN '' ELSE m.canonical_key END,
                     version = m.version + 1, updated_at = clock_timestamp()
                   FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[], %s::text[], %s::float8[])
                     AS c (id, status, expires_at, on_expire, confidence)
                   WHERE m.id = c.id RETURNING m.id, m.version, m.updated_at""",
                [
                    governed, ids, [str(s.status) for _, s in moved], [s.expires_at for _, s in moved],
                    [str(s.on_expire) for _, s in moved], [s.confidence for _, s in moved],
                ],
            )  # fmt: skip
            now = {id_: rest for id_, *rest in cursor.fetchall()}
            cursor.execute(
                """INSERT INTO memories_memoryversion (memory_id, version, kind, status, value,
                     content_sha256, memory_type, tags, metadata, confidence, pinned, expires_at, on_expire,
                     source_class, source_trace, at, principal, token_prefix, agent, reason, request_id)
                   SELECT id, version, %s, status, value, content_sha256, memory_type, tags, metadata,
                     confidence, pinned, expires_at, on_expire, source_class, source_trace, updated_at,
                     %s, %s, %s, %s, %s
                   FROM memories_memory WHERE id = ANY(%s) ORDER BY id""",
                [
                    kind, ctx.caller.principal, ctx.caller.token_prefix,
                    ctx.agent or ctx.caller.bound_agent or "", ctx.reason, ctx.request_id, ids,
                ],
            )  # fmt: skip
        fresh = {}
        for row, state in moved:
            version, updated_at = now[row.id]
            after = replace(row, version=version, state=state, governed=governed, updated_at=updated_at)
            self._record(after, row, kind, ctx.reason)
            self._count(row, after)
            fresh[row.id] = after
        return fresh

    def materialize_expiry(self, row: Row) -> Row:
        """Write what an overdue expiry means, so that the history keeps the gap before the next version."""
        if not row.overdue:
            return row
        return self._update(row, replace(row.state, status=_ended(row.state)), "expire", reason="expired")

    def settle(self, row: Row) -> Row:
        """The row with its end written down, before a guard that would defer it as if it were to come."""
        if row.overdue:
            row = self.materialize_expiry(row)
            self.flush()
        return row

    def _insert(
        self, key: str, who: Identity, state: State, kind: str, promoted_from: int | None = None
    ) -> Row | None:
        language = language_of(self.namespace_id)
        terms, counts, length = term_frequencies(search_text(key, state.value, state.tags), language)
        text = _screened(key, state, self.beside.get(key, ""))
        found = screen(text)
        pinned_by = self.ctx.caller.principal if state.pinned else ""
        made = self._made(
            [
                self.namespace_id, who.agent, who.user_id, who.session_id, key, json.dumps(state.value),
                state.content_sha256, state.memory_type, list(state.tags), state.metadata,
                state.confidence, state.pinned, pinned_by, state.expires_at, state.on_expire,
                state.source_class, state.source_trace, length, state.status, promoted_from,
                bool(found), CATALOGUE_VERSION,
            ]
        )  # fmt: skip
        if made is None:
            return None
        row = Row(made[0], key, who, 1, state, LockState(), False, pinned_by, False, length, made[1])
        self._flag(row, text, found)
        self._note(row, None, kind, "")
        self._postings[row.id] = (terms, counts, length)
        self._count(None, row)
        self._embed(row)
        return row

    def _made(self, columns: list[Any]) -> tuple[int, datetime] | None:
        """(id, instant) of a new row with these columns, stored now or kept back for `settle_new`."""
        if self._reserved and self._reserved_at is not None:
            id_, at = self._reserved.pop(), self._reserved_at
            self._new[id_] = [id_, at, at, False, 1, "none", "", "", *columns]
            if self._known is not None:
                self._known.add(id_, columns[4], columns[6])
            return id_, at
        with connection.cursor() as cursor:
            cursor.execute(
                """INSERT INTO memories_memory (namespace_id, agent, user_id, session_id, memory_key, value,
                     content_sha256, memory_type, tags, metadata, confidence, pinned, pinned_by, expires_at,
                     on_expire, source_class, source_trace, doc_len, status, promoted_from, held,
                     screened_with, governed, created_at, updated_at, version, lock_mode, lock_reason,
                     locked_by)
                   VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
                     %s, false, clock_timestamp(), clock_timestamp(), 1, 'none', '', '')
                   ON CONFLICT DO NOTHING RETURNING id, updated_at""",
                columns,
            )
            row: tuple[int, datetime] | None = cursor.fetchone()
        return row

    def _update(
        self,
        row: Row,
        state: State,
        kind: str,
        reason: str = "",
        governed: bool = False,
        canonical_key: str = "",
    ) -> Row:
        self.settle_new()
        # What was looked up beforehand no longer holds for sure.
        self._known = None
        old = row.state
        length = row.doc_len
        text_moved = (state.content_sha256, state.tags) != (old.content_sha256, old.tags)
        screens = text_moved or (state.metadata, state.source_trace) != (old.metadata, old.source_trace)
        held: bool | None = None
        if text_moved:
            language = language_of(self.namespace_id)
            terms, counts, length = term_frequencies(search_text(row.key, state.value, state.tags), language)
        if screens:
            beside = self.beside.get(row.key)
            if beside is None:
                beside = texts_beside({row.id: row.key}).get(row.id, "")
            text = _screened(row.key, state, beside)
            found = screen(text)
            held = bool(found)
        if state.pinned:
            pinned_by = row.pinned_by if old.pinned else self.ctx.caller.principal
        else:
            pinned_by = ""
        with connection.cursor() as cursor:
            cursor.execute(
                """UPDATE memories_memory SET value = %s, content_sha256 = %s, memory_type = %s, tags = %s,
                     metadata = %s, confidence = %s, pinned = %s, pinned_by = %s, expires_at = %s,
                     on_expire = %s, source_class = %s, source_trace = %s, status = %s, governed = %s,
                     canonical_key = CASE WHEN %s = 'active' THEN ''
                       ELSE coalesce(nullif(%s, ''), canonical_key) END,
                     doc_len = %s, held = coalesce(%s, held),
                     screened_with = CASE WHEN %s THEN %s ELSE screened_with END, version = version + 1,
                     updated_at = clock_timestamp()
                   WHERE id = %s RETURNING version, updated_at""",
                [
                    json.dumps(state.value), state.content_sha256, state.memory_type, list(state.tags),
                    state.metadata, state.confidence, state.pinned, pinned_by, state.expires_at,
                    state.on_expire, state.source_class, state.source_trace, state.status, governed,
                    state.status, canonical_key, length, held, screens, CATALOGUE_VERSION, row.id,
                ],
            )  # fmt: skip
            version, updated_at = cursor.fetchone()
        fresh = replace(
            row, version=version, state=state, governed=governed, pinned_by=pinned_by, overdue=False,
            doc_len=length, updated_at=updated_at,
        )  # fmt: skip
        self._note(fresh, row, kind, reason)
        if text_moved:
            self._reindexed.add(row.id)
            self._postings[row.id] = (terms, counts, length or 0)
        if screens:
            self._flag(row, text, found, anew=True)
        self._count(row, fresh)
        if state.content_sha256 != old.content_sha256:
            self._embed(fresh)
        return fresh

    def _flag(self, row: Row, text: str, found: Spans, *, anew: bool = False) -> None:
        if found or anew:
            self._flags[row.id] = (text_sha256(text), found)
        advise(self.ctx, row.key, found)

    def _note(self, row: Row, before: Row | None, kind: str, reason: str) -> None:
        ctx, state = self.ctx, row.state
        why = reason or ctx.reason
        self._versions.append(
            [
                row.id, row.version, kind, state.status, json.dumps(state.value), state.content_sha256,
                state.memory_type, list(state.tags), state.metadata, state.confidence,
                state.pinned, state.expires_at, state.on_expire, state.source_class, state.source_trace,
                ctx.caller.principal, ctx.caller.token_prefix, ctx.agent or ctx.caller.bound_agent or "",
                why, ctx.request_id, row.updated_at,
            ]
        )  # fmt: skip
        self._record(row, before, kind, why)

    def _record(self, row: Row, before: Row | None, kind: str, why: str) -> None:
        state = row.state
        self.ctx.record(
            AuditEntry(
                target=row.key,
                before_version=before.version if before else None,
                after_version=row.version,
                before_sha256=before.state.content_sha256 if before else "",
                after_sha256=state.content_sha256,
                reason=why,
                detail={"memory_id": str(row.id), "kind": kind, "status": state.status, **self.note},
            )
        )

    def _count(self, before: Row | None, after: Row) -> None:
        """Move the corpus statistics from what the row counted for to what it counts for now."""
        was = before is not None and before.state.status == Status.ACTIVE
        active = after.state.status == Status.ACTIVE
        if before is not None and was:
            self._docs -= 1
            self._terms -= before.doc_len or 0
        if active:
            self._docs += 1
            self._terms += after.doc_len or 0
        if was != active:
            self._flipped.add(after.id)
        self._active[after.id] = active

    def _embed(self, row: Row) -> None:
        parts = None if self.vectors is None else self.vectors[embedding_text(row.key, row.state.value)]
        self._embeddings[row.id] = (parts, row.state.content_sha256)

    def flush(self) -> None:
        """Write rows, versions, postings, vectors and statistics that the writes of this call left."""
        self.settle_new()
        with connection.cursor() as cursor:
            if len(self._versions) >= BULK:
                copy_rows(cursor, "memories_memoryversion", _VERSION_COLUMNS, self._versions)
            elif self._versions:
                marks = "(" + ",".join(["%s"] * len(self._versions[0])) + ")"
                cursor.execute(
                    f"INSERT INTO memories_memoryversion ({_VERSION_COLUMNS}) VALUES "  # noqa: S608
                    + ",".join([marks] * len(self._versions)),
                    [value for version in self._versions for value in version],
                )
            # What is taken back needs no index, and an index refuses nothing; it is most of the work.
            if not (self.ctx.is_dry_run or self.ctx.review is not None):
                self._flush_postings(cursor)
            self._flush_embeddings(cursor)
            if self._flags:
                write_flags(cursor, self._flags)
            if self._docs or self._terms:
                cursor.execute(
                    "INSERT INTO memories_corpusstripe AS s (namespace_id, stripe, docs, terms) "
                    "VALUES (%s, pg_backend_pid() %% %s, %s, %s) ON CONFLICT (namespace_id, stripe) "
                    "DO UPDATE SET docs = s.docs + excluded.docs, terms = s.terms + excluded.terms",
                    [self.namespace_id, STRIPES, self._docs, self._terms],
                )
        self._reset()

    def _flush_postings(self, cursor: Any) -> None:
        flipped = [id_ for id_ in self._flipped if id_ not in self._postings]
        if flipped:
            cursor.execute(
                "UPDATE memories_posting p SET active = f.active FROM unnest(%s::bigint[], %s::bool[]) "
                "AS f (id, active) WHERE p.memory_id = f.id AND p.active <> f.active",
                [flipped, [self._active[id_] for id_ in flipped]],
            )
        if self._reindexed:
            cursor.execute("DELETE FROM memories_posting WHERE memory_id = ANY(%s)", [list(self._reindexed)])
        if len(self._postings) >= BULK:
            # The bulk of a batch, hence spelt out.
            copy_lines(
                cursor, "memories_posting", "namespace_id, memory_id, term, tf, doc_len, active",
                (
                    f"{self.namespace_id}\t{id_}\t{term_field(term)}\t{count}\t{length}\t{self._active[id_]}\n"
                    for id_, (terms, counts, length) in self._postings.items()
                    for term, count in zip(terms, counts, strict=True)
                ),
            )  # fmt: skip
            return
        rows = [
            (id_, term, count, length, self._active[id_])
            for id_, (terms, counts, length) in self._postings.items()
            for term, count in zip(terms, counts, strict=True)
        ]
        if rows:
            cursor.execute(
                "INSERT INTO memories_posting (namespace_id, memory_id, term, tf, doc_len, active) "
                "SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::bool[])",
                [self.namespace_id, *map(list, zip(*rows, strict=True))],
            )

    def _flush_embeddings(self, cursor: Any) -> None:
        missing = [id_ for id_, (parts, _) in self._embeddings.items() if parts is None]
        # The old vectors, of whatever embedder, would be found for a text that is no longer there.
        gone = [id_ for id_ in self._embeddings if id_ in self._reindexed]
        if gone:
            cursor.execute("DELETE FROM memories_embedding WHERE memory_id = ANY(%s)", [gone])
        rows = [
            Embedded(id_, self.namespace_id, sha, parts)
            for id_, (parts, sha) in self._embeddings.items()
            if parts
        ]
        if rows:
            write_vectors(cursor, get_embedder().name, rows, replace=False)
        if missing:
            self.ctx.degraded.append("embedding")
            governance.job_create(ctx=self.ctx, kind=FILL_JOB, input={"memory_ids": missing})


def _screened(key: str, state: State, beside: str) -> str:
    metadata = {} if state.metadata == "{}" else json.loads(state.metadata)
    return screened_text(key, state.value, state.tags, metadata, state.source_trace, beside)


class MadeMeanwhile(Exception):
    """The lineage appeared between the look and the insert; the op judges it anew."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.key)
        self.row = row


def effects_of(old: State, new: State) -> list[Effect]:
    """What a change does to a governed row; the weightiest effect first."""
    effects = []
    if new.status != old.status and new.status != Status.ACTIVE:
        effects.append(Effect.EXISTENCE)
    if _kept(old) != _kept(new) or (new.status != old.status and new.status == Status.ACTIVE):
        effects.append(Effect.VALUE)
    if (old.expires_at, old.on_expire) != (new.expires_at, new.on_expire):
        later = new.expires_at is None or (old.expires_at is not None and new.expires_at >= old.expires_at)
        moved = new.expires_at != old.expires_at
        effects.append(Effect.EXPIRY_LATER if later and moved else Effect.EXPIRY_EARLIER)
    return effects


def _kept(state: State) -> tuple[Any, ...]:
    return (
        state.content_sha256, state.memory_type, state.tags, state.metadata, state.confidence, state.pinned,
        state.source_class, state.source_trace,
    )  # fmt: skip


# Ops


@dataclass(frozen=True)
class SetRequest:
    """One `memory.set`, as asked: `given` names the fields that the caller sent."""

    key: str
    who: Identity
    value: Any
    given: frozenset[str]
    memory_type: str | None = None
    tags: tuple[str, ...] | None = None
    metadata: str | None = None
    confidence: float | None = None
    ttl_seconds: int | None = None
    clear_expiry: bool = False
    on_expire: str | None = None
    pinned: bool | None = None
    if_match_sha256: str | None = None
    source_class: str = "local_tool_output"
    source_trace: str | None = None


def memory_set(gate: Gateway, request: SetRequest, row: Row | None) -> tuple[dict[str, Any], Row]:
    """Set one key: a new lineage, a next version, a revival, or a no-op; the answer, and the row as it is."""
    try:
        return _memory_set(gate, request, row)
    except MadeMeanwhile as made:
        return _memory_set(gate, request, made.row)


def _memory_set(gate: Gateway, request: SetRequest, row: Row | None) -> tuple[dict[str, Any], Row]:
    refuse_managed(request.key)
    sha = content_sha256(request.value)
    if row is not None and row.governed and row.state.status in _RETIRED:
        raise OpError(
            "GOVERNED_KEY",
            f"{request.key} was {row.state.status} by governance, and a save does not revive it. "
            "A reviewer restores it in the console.",
            memory_key=request.key,
            memory_id=str(row.id),
            status=row.state.status,
        )
    if request.if_match_sha256 is not None:
        current = row.state.content_sha256 if row is not None and row.served else None
        if current != request.if_match_sha256:
            raise _moved(request.key, row, request.if_match_sha256)
    pinned, duplicate = _others(gate, request.key, request.who, row, sha, request.pinned is False)
    if pinned is not None:
        raise pinned_conflict(gate.ctx, request.key, pinned, request.value)
    # Only now, when nothing refuses the call any more, may it write what an expiry left to be written.
    row = gate.materialize_expiry(row) if row is not None else None
    fresh = gate.write(row, request.key, request.who, _wanted(gate, request, row, sha), "set")
    result = {
        "memory_key": fresh.key,
        "memory_id": str(fresh.id),
        "namespace": gate.ctx.namespace,
        "version": fresh.version,
        "content_sha256": fresh.state.content_sha256,
        "status": fresh.state.status,
        "pinned": fresh.state.pinned,
        "noop": fresh is row,
        "revived": row is not None and row.state.status != Status.ACTIVE,
        "duplicate_of": duplicate,
    }
    return result, fresh


_RETIRED = frozenset({Status.DELETED, Status.REJECTED, Status.ARCHIVED})


def _moved(key: str, row: Row | None, expected: str) -> OpError:
    shown = row if row is not None and row.served else None
    return OpError(
        "VERSION_CONFLICT",
        f"{key} is not what it was when you read it; read it again with memory.get and decide anew.",
        memory_key=key,
        expected_sha256=expected,
        current_sha256=shown.state.content_sha256 if shown else None,
        current_version=shown.version if shown else None,
    )


def _wanted(gate: Gateway, request: SetRequest, row: Row | None, sha: str) -> State:
    """The state that the request asks for: what it omits keeps its value, null clears."""
    base = row.state if row is not None else State(value=None, content_sha256="")
    given = request.given
    expires_at = _ahead(gate, base)
    if request.clear_expiry or ("ttl_seconds" in given and request.ttl_seconds is None):
        expires_at = None
    elif request.ttl_seconds is not None:
        expires_at = gate.now() + timedelta(seconds=request.ttl_seconds)
    return State(
        value=request.value,
        content_sha256=sha,
        memory_type=request.memory_type or base.memory_type,
        tags=(request.tags or ()) if "tags" in given else base.tags,
        metadata=(request.metadata or "{}") if "metadata" in given else base.metadata,
        confidence=request.confidence if "confidence" in given else base.confidence,
        # A pin ends with the state that it kept ahead.
        pinned=base.pinned and base.status == Status.ACTIVE if request.pinned is None else request.pinned,
        expires_at=expires_at,
        on_expire=request.on_expire or base.on_expire,
        status=Status.ACTIVE,
        # A repeated save of the same content must stay a no-op: the source moves with the content only.
        source_class=base.source_class if sha == base.content_sha256 else request.source_class,
        source_trace=base.source_trace if request.source_trace is None else request.source_trace,
    )


def _ahead(gate: Gateway, state: State) -> datetime | None:
    """The expiry that a memory keeps: one that has passed would end at once what is brought back."""
    if state.status == Status.ACTIVE or state.expires_at is None or state.expires_at > gate.now():
        return state.expires_at
    return None


class Pin(NamedTuple):
    """A pinned memory that stands against a write."""

    id: int
    by: str
    value: Any
    # Flagged, and read by nobody yet: its text is not handed on.
    held: bool


def _others(
    gate: Gateway, key: str, who: Identity, row: Row | None, sha: str, unpins: bool = False
) -> tuple[Pin | None, str | None]:
    """What other rows have to say to a write of content `sha`, in one look.

    The pinned value of this key, visible to the writer, that the write would contradict (or unpin); and
    another visible key with the same content, which is said and not merged.
    """
    from memories.selectors import SERVED, scope

    if gate.looked_up is not None:
        return _judged(row, gate.looked_up.pin(key, row, sha), sha, gate, unpins), gate.looked_up.twin(
            key, sha
        )
    gate.settle_new()
    where, params = scope(gate.ctx, named=False)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""(SELECT true, m.id, m.pinned_by, m.value, m.held, NULL FROM memories_memory m
                 WHERE m.namespace_id = %s AND m.memory_key = %s AND m.pinned AND {SERVED} AND m.id <> %s
                   AND m.agent IN ('-', %s) AND m.user_id IN ('-', %s) AND m.session_id IN ('-', %s)
                   AND m.content_sha256 <> %s ORDER BY m.id LIMIT 1)
                UNION ALL
                (SELECT false, NULL, NULL, NULL, false, m.memory_key FROM memories_memory m
                 WHERE {where} AND m.content_sha256 = %s AND {SERVED} AND m.memory_key <> %s
                 ORDER BY m.id LIMIT 1)""",  # noqa: S608 - fragments are constant
            [
                gate.namespace_id, key, row.id if row else 0, who.agent, who.user_id, who.session_id, sha,
                *params, sha, key,
            ],
        )  # fmt: skip
        found = {is_pin: rest for is_pin, *rest in cursor.fetchall()}
    duplicate = found[False][4] if False in found else None
    pin = None
    if True in found:
        id_, by, value, held, _ = found[True]
        pin = Pin(id_, by, json.loads(value), held)
    return _judged(row, pin, sha, gate, unpins), duplicate


def _judged(row: Row | None, pin: Pin | None, sha: str, gate: Gateway, unpins: bool) -> Pin | None:
    """The pin that stands against the write, of the row's own and that of another row under its key."""
    if row is not None and row.state.pinned and row.served:
        # The row's own pin decides; another one under this key does not bind the writer who holds it.
        same = row.state.content_sha256 == sha and not unpins
        mine = row.pinned_by == gate.ctx.caller.principal or same
        return None if mine else Pin(row.id, row.pinned_by, row.state.value, row.held)
    return pin


class Known:
    """What other rows have to say to every item of a batch; see `_others`, which asks for one."""

    def __init__(
        self, pins: list[tuple[int, str, str, str, str, bool]], twins: dict[tuple[str, str], str]
    ) -> None:
        self._pins = pins
        self._twins = twins
        # Of rows of the batch itself: (key, id) by content.
        self._own: dict[str, list[str]] = {}

    def add(self, id_: int, key: str, sha: str) -> None:
        """A new row of the batch."""
        self._own.setdefault(sha, []).append(key)

    def pin(self, key: str, row: Row | None, sha: str) -> Pin | None:
        """The pinned value under this key that a write of `sha` would contradict."""
        own = row.id if row else 0
        for id_, name, by, value, content, held in self._pins:
            if name == key and id_ != own and content != sha:
                return Pin(id_, by, json.loads(value), held)
        return None

    def twin(self, key: str, sha: str) -> str | None:
        """Another key with this content; the oldest."""
        if (key, sha) in self._twins:
            return self._twins[key, sha]
        return next((other for other in self._own.get(sha, ()) if other != key), None)


def known(gate: Gateway, requests: Sequence[SetRequest]) -> Known:
    """One look for all items of a batch, which all write under one identity."""
    from memories.selectors import SERVED, scope

    who = requests[0].who
    keys = list({request.key for request in requests})
    wanted = list({(request.key, content_sha256(request.value)) for request in requests})
    where, params = scope(gate.ctx, named=False)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT m.id, m.memory_key, m.pinned_by, m.value, m.content_sha256, m.held
                FROM memories_memory m
                WHERE m.namespace_id = %s AND m.memory_key = ANY(%s) AND m.pinned AND {SERVED}
                  AND m.agent IN ('-', %s) AND m.user_id IN ('-', %s) AND m.session_id IN ('-', %s)
                ORDER BY m.id""",  # noqa: S608 - fragments are constant
            [gate.namespace_id, keys, who.agent, who.user_id, who.session_id],
        )
        pins = cursor.fetchall()
        cursor.execute(
            f"""SELECT w.key, w.sha, twin.memory_key
                FROM unnest(%s::text[], %s::text[]) AS w (key, sha)
                CROSS JOIN LATERAL (
                  SELECT m.memory_key FROM memories_memory m
                  WHERE {where} AND m.content_sha256 = w.sha AND {SERVED} AND m.memory_key <> w.key
                  ORDER BY m.id LIMIT 1) twin""",  # noqa: S608 - fragments are constant
            [[key for key, _ in wanted], [sha for _, sha in wanted], *params],
        )
        twins = {(key, sha): other for key, sha, other in cursor.fetchall()}
    return Known(pins, twins)


def pinned_conflict(ctx: Context, key: str, pin: Pin, offered: Any) -> OpError:
    """409 with both values, and the way out for this caller."""
    memory_id, by, value, held = pin
    if content_sha256(value) == content_sha256(offered):
        why = f"{key} is pinned by {by or 'another writer'}, who unpins it (memory.unpin), as an admin may"
    elif by == ctx.caller.principal:
        why = (
            f"{key} is pinned with another value, by you under another agent, user or session. Change that "
            "one, or unpin it first (memory.unpin)"
        )
    else:
        why = (
            f"{key} is pinned by {by or 'another writer'} with another value. Ask them, or store yours under "
            "another key"
        )
    return OpError(
        "PINNED_CONFLICT",
        f"{why}; nothing was stored.",
        memory_key=key,
        memory_id=str(memory_id),
        pinned_by=by,
        pinned_value=None if held else value,
        held=held,
        offered_value=offered,
    )


def memory_update(
    gate: Gateway, key: str, value: Any, if_match_sha256: str | None, source_class: str
) -> tuple[Row | None, bool]:
    """Replace the value of a memory that exists; (row, changed), or (None, False) when there is none.

    `source_class` is where the new value comes from; another value takes no trust over from the old one.
    """
    refuse_managed(key)
    row = gate.by_key(key, (Status.ACTIVE,))
    if row is None:
        if if_match_sha256 is not None:
            raise _moved(key, None, if_match_sha256)
        return None, False
    if if_match_sha256 is not None and row.state.content_sha256 != if_match_sha256:
        raise _moved(key, row, if_match_sha256)
    sha = content_sha256(value)
    pin, _ = _others(gate, key, row.identity, row, sha)
    if pin is not None and sha != row.state.content_sha256:
        raise pinned_conflict(gate.ctx, key, pin, value)
    state = row.state
    if sha != state.content_sha256:
        state = replace(state, value=value, content_sha256=sha, source_class=source_class)
    fresh = gate.write(row, row.key, row.identity, state, "update")
    return fresh, fresh is not row


def memory_delete(gate: Gateway, key: str) -> tuple[Row | None, bool]:
    """Tombstone a memory; (row, changed). A deleted key is a no-op."""
    refuse_managed(key, ends=True)
    row = gate.by_key(key, (*_DELETABLE, Status.DELETED), first=_DELETABLE)
    if row is None:
        return None, False
    fresh = gate.materialize_expiry(row)
    if fresh.state.status == Status.DELETED:
        return fresh, False
    state = replace(fresh.state, status=Status.DELETED)
    gone = gate.write(fresh, row.key, row.identity, state, "delete")
    review.consider(gate.ctx, "memory.delete", lambda: [target(row, Status.DELETED)])
    return gone, True


_DELETABLE = (Status.ACTIVE, Status.STALE, Status.SUPERSEDED)
# Ends that only a person undoes, whoever brought them about.
_REVIEWED = (Status.STALE, Status.REJECTED, Status.ARCHIVED)


def recoverable_until(row: Row) -> datetime:
    """Until when a tombstone can be restored."""
    return row.updated_at + timedelta(days=settings.LOOM_TOMBSTONE_DAYS)


_ENDED = (Status.DELETED, *_REVIEWED)


def memory_restore(gate: Gateway, key: str) -> tuple[Row, bool]:
    """Bring back what stood before a memory ended, as a new version; an active memory is a no-op.

    Anybody who may write undoes an ordinary tombstone; what governance did goes to review. Raises OpError
    404, and 423 when a lock or hold guards the row as it stands.
    """
    refuse_managed(key, ends=True)
    row = gate.by_key(key, (*_ENDED, Status.ACTIVE), first=_ENDED)
    if row is None:
        raise not_found(f"{key}: nothing ended stands under this key; memory.history shows its versions.")
    if row.served:
        return row, False
    found, row = row, gate.materialize_expiry(row)
    if row.state.status == Status.DELETED and gate.now() >= recoverable_until(row):
        raise not_found(f"{key}: its time to be restored ended on {iso(recoverable_until(row))}.")
    status = _status_before(row)
    state = replace(row.state, status=status)
    if status == Status.ACTIVE:
        state = replace(state, expires_at=_ahead(gate, row.state))
    governed = status in (Status.REJECTED, Status.ARCHIVED)
    fresh = gate.write(row, row.key, row.identity, state, "restore", governed=governed)
    if (row.governed or row.state.status in _REVIEWED) and review.consider(
        gate.ctx, "memory.restore", lambda: [target(found, status)]
    ):
        return found, True
    return fresh, True


def _status_before(row: Row) -> str:
    """The status from which a memory came to its present one; a restore goes one step back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT status, kind FROM memories_memoryversion WHERE memory_id = %s AND version > ("
            "SELECT coalesce(max(version), 0) FROM memories_memoryversion WHERE memory_id = %s "
            "AND status = 'active') ORDER BY version",
            [row.id, row.id],
        )
        steps = [str(Status.ACTIVE)]
        for status, kind in cursor.fetchall():
            if kind == "restore" and len(steps) > 1:
                steps.pop()
            elif status != steps[-1]:
                steps.append(status)
    return steps[-2] if len(steps) > 1 else steps[-1]


@dataclass(frozen=True)
class LockRequest:
    """A lock as asked; `until` is absolute by now."""

    mode: str
    reason: str
    until: datetime | None


def lock_until(gate: Gateway, until: datetime | None, ttl_seconds: int | None) -> datetime | None:
    """The end of a lock by the database clock. OpError 400 for an end that has passed."""
    if ttl_seconds is not None:
        return gate.now() + timedelta(seconds=ttl_seconds)
    if until is not None and until <= gate.now():
        raise invalid("until", "lies in the past by the server's clock; give a later one, or none.")
    return until


def guarded_row(gate: Gateway, key: str, statuses: Sequence[str]) -> Row | Guarded:
    """The row that a key of the lock and hold ops means, locked: a memory, or what an app above has there.

    Raises OpError 404.
    """
    find = finder(key)
    row = gate.by_key(key, statuses) if find is None else find(gate.ctx, key)
    if row is None:
        where = "memory.list shows the keys" if find is None else "fact.recall shows the facts and their ids"
        raise not_found(f"{key}: no such {'memory' if find is None else 'fact'} here; {where}.")
    return row


def memory_lock(gate: Gateway, key: str, request: LockRequest) -> tuple[Row | Guarded, bool]:
    """Lock a memory or a fact, or tighten its lock; (row, changed).

    Raises OpError 404 for a key that is not there, 403 for anything weaker than the lock in force.
    """
    statuses = tuple(s for s in Status.values if s not in (Status.DELETED, Status.REDACTED))
    row = guarded_row(gate, key, statuses)
    if isinstance(row, Row):
        row = gate.settle(row)
    state, changed = lock_row(gate, row, request)
    return replace(row, lock=state), changed


def lock_row(gate: Gateway, row: Row | Guarded, request: LockRequest) -> tuple[LockState, bool]:
    """Lock a row that is locked already against other transactions; (its lock, changed).

    OpError 403 for a weaker lock, 400 for a reason that reads like an order to an agent.
    """
    require_plain(request.reason)
    old = row.lock
    if old.mode != "none":
        by_mode, by_end = compare(request.mode, request.until, old.mode, old.until)
        if by_mode < 0 or by_end < 0:
            raise OpError(
                "FORBIDDEN",
                f"{row.key} is locked {old.mode} until {iso(old.until) or 'it is loosened'}; a lock is only "
                "tightened here. An admin of the namespace loosens it in the console under Locks.",
                memory_key=row.key, mode=old.mode, reason=old.reason, until=iso(old.until),
            )  # fmt: skip
        if by_mode == 0 and by_end == 0:
            return old, False
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {row.table} SET lock_mode = %s, lock_reason = %s, lock_until = %s, locked_by = %s, "  # noqa: S608
            "locked_at = clock_timestamp() WHERE id = %s RETURNING locked_at",
            [request.mode, request.reason, request.until, gate.ctx.caller.principal, row.id],
        )
        locked_at = cursor.fetchone()[0]
    state = LockState(
        request.mode, request.reason, request.until, gate.ctx.caller.principal, locked_at, old.holds
    )
    _record_lock(gate, row, state, request.reason)
    return state, True


def memory_unlock(
    gate: Gateway, key: str, reason: str, locked_at: datetime | None = None, effect: str = ""
) -> tuple[Row | Guarded, bool]:
    """Take a lock away; (row as it was, changed). The pipeline has checked that an admin asks.

    `effect` is what a plan of it says besides.
    `locked_at` names the lock that was seen: OpError 409 when a tighter one has taken its place since.
    """
    row = guarded_row(gate, key, tuple(s for s in Status.values if s != Status.REDACTED))
    if row.lock.mode == "none":
        return row, False
    if locked_at is not None and locked_at != row.lock.locked_at:
        raise OpError(
            "VERSION_CONFLICT",
            f"{key} was locked anew since you looked: {row.lock.mode}, {quoted(row.lock.reason)}. Look at it "
            "again.",
            memory_key=key,
            locked_at=iso(row.lock.locked_at),
        )
    with connection.cursor() as cursor:
        # The trigger lets a lock in force be loosened for this row only, and only in this transaction.
        cursor.execute("SELECT set_config('loom.loosen', %s, true)", [str(row.id)])
        cursor.execute(
            f"UPDATE {row.table} SET lock_mode = 'none', lock_reason = '', lock_until = NULL, "  # noqa: S608
            "locked_by = '', locked_at = NULL WHERE id = %s",
            [row.id],
        )
        cursor.execute("SELECT set_config('loom.loosen', '', true)")
    _record_lock(gate, row, LockState(), reason)
    review.consider(gate.ctx, "memory.unlock", lambda: [target(row, "lock loosened")], effect=effect)
    return row, True


def refused_entry(key: str, error: OpError) -> AuditEntry:
    """The audit row of one refused row within a call that goes on."""
    return AuditEntry(
        target=key,
        outcome="refused",
        detail={"code": error.code, "blocked": error.fields.get("blocked"), "memory_key": key},
    )


def _record_lock(gate: Gateway, row: Row | Guarded, state: LockState, reason: str) -> None:
    gate.ctx.record(
        AuditEntry(
            target=row.key,
            before_version=row.version,
            after_version=row.version,
            before_sha256=row.content_sha256,
            after_sha256=row.content_sha256,
            reason=reason,
            detail={
                "memory_id": str(row.id),
                "lock_before": {"mode": row.lock.mode, "until": iso(row.lock.until)},
                "lock_after": {"mode": state.mode, "until": iso(state.until)},
            },
        )
    )


def expire_due(limit: int = 500) -> int:
    """Apply `on_expire` to what is overdue, namespace by namespace; how many memories were swept.

    A lock in force defers it: the row stays, served, until the lock ends or is loosened.
    """
    from governance import audit

    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT m.namespace_id FROM memories_memory m WHERE m.status = 'active' "  # noqa: S608
            f"AND m.expires_at <= clock_timestamp() AND NOT {GUARDED} LIMIT 1000"
        )
        namespace_ids = [row[0] for row in cursor.fetchall()]
    swept = 0
    for namespace in Namespace.objects.select_related("org").filter(pk__in=namespace_ids):
        with transaction.atomic():
            ctx = governance.system_context(org=namespace.org, namespace=namespace, op_name="memory.expire")
            gate = Gateway(ctx)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT {ROW} FROM memories_memory m WHERE m.namespace_id = %s "  # noqa: S608
                    f"AND m.status = 'active' AND m.expires_at <= clock_timestamp() AND NOT {GUARDED} "
                    "ORDER BY m.id LIMIT %s FOR UPDATE SKIP LOCKED",
                    [namespace.pk, limit],
                )
                rows = [row_from(columns) for columns in cursor.fetchall()]
            for row in rows:
                gate.materialize_expiry(row)
            gate.flush()
            audit.append(ctx, ctx.audit)
            swept += len(rows)
    return swept


PURGE_OP = "memory.purge"


def purge_due(limit: int = 200) -> int:
    """Blank the tombstones whose time to be restored is over, namespace by namespace; how many went.

    A purged row is over, as a redacted one is: hashes and a marker stay, and the next `set` on its key opens
    a new lineage. A lock or a hold defers it. Rows of other apps (`manage_keys`) are left to them, and the
    raw archive is not touched.
    """
    from django.db import transaction

    from governance import audit

    due = (
        "m.status = 'deleted' AND m.updated_at <= clock_timestamp() - make_interval(days => %(days)s) "
        f"AND NOT {GUARDED} AND NOT (m.memory_key ^@ ANY(%(managed)s))"
    )
    given: dict[str, Any] = {
        "days": settings.LOOM_TOMBSTONE_DAYS, "managed": [managed.prefix for managed in _MANAGED],
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT namespace_id FROM (SELECT m.namespace_id FROM memories_memory m WHERE {due} "  # noqa: S608
            "ORDER BY m.updated_at LIMIT 1000) d",
            given,
        )
        namespace_ids = [row[0] for row in cursor.fetchall()]
    purged = 0
    for namespace in Namespace.objects.select_related("org").filter(pk__in=namespace_ids):
        with transaction.atomic():
            ctx = governance.system_context(org=namespace.org, namespace=namespace, op_name=PURGE_OP)
            gate = Gateway(ctx)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT {ROW} FROM memories_memory m WHERE m.namespace_id = %(space)s AND {due} "  # noqa: S608
                    "ORDER BY m.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED",
                    {**given, "space": namespace.pk, "limit": limit},
                )
                rows = [row_from(columns) for columns in cursor.fetchall()]
            for row in rows:
                state = replace(row.state, status=Status.REDACTED, pinned=False)
                gate.write(
                    row, row.key, row.identity, state, "purge",
                    reason=f"{settings.LOOM_TOMBSTONE_DAYS} days after its deletion", governed=True,
                )  # fmt: skip
            gate.flush()
            with connection.cursor() as cursor:
                ids = [row.id for row in rows]
                cursor.execute("SELECT count(loom_erase_memory(id)) FROM unnest(%s::bigint[]) AS id", [ids])
            audit.append(ctx, ctx.audit)
            purged += len(rows)
    return purged


def lock_rank(mode: str) -> int:
    """How firm a mode is; none is 0."""
    return RANK[mode]
