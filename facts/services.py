"""The one way that facts change: remember, correct, retract, share.

Write order: the lineage's row is locked first, and only then is the known time taken from the clock, forced
to be later than the last one of that lineage. The start of the transaction would be wrong: a transaction that
began earlier can finish later. Versions are never edited: closing one means ending its known period and
writing the rest of it as a copy, at the same known time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from django.db import IntegrityError, connection, transaction

from facts import index, selectors
from facts.models import SHARED, Cardinality, Kind
from facts.periods import Bound, Period, Refitted, earlier, refit
from facts.selectors import Fact, me, refuse_other
from facts.words import folded, sha_of_word
from governance.clock import iso
from governance.locks import LockState, locked
from governance.patterns import CATALOGUE_VERSION
from loomsite.ops import AuditEntry, Context, Effect, OpError, invalid, not_found
from memories.services import LOCK_IN_FORCE, canonical

# So many versions in the way are looked at and named.
NAMED = 20
# A fact that is shared between the look and its lock is opened anew; more than so often nobody shares one.
TRIES = 5
NOT_CORRECTABLE = (
    "This fact cannot be corrected by you: remember a new fact instead, with visibility private, or ask a "
    "reviewer, who corrects it on its page in the console."
)


@dataclass(frozen=True)
class Line:
    """A lineage as it stood when its row lock was taken."""

    id: int
    namespace_id: int
    owner: str
    subject: str
    attribute: str
    cardinality: str
    version: int
    lock: LockState

    def key_of(self, value_sha256: bytes) -> bytes:
        """What makes values stand side by side here: nothing for `one`."""
        return value_sha256 if self.cardinality == Cardinality.MANY else b""


@dataclass(frozen=True)
class Draft:
    """A version that is about to be written."""

    line: Line
    owner: str
    value: Any
    period: Period
    kind: str
    sources: tuple[str, ...] = ()
    confidence: float | None = None
    replaced: dict[str, Any] | None = None
    made_from: int | None = None
    source_class: str = ""
    # A copy of another version's text is indexed as that one is.
    same_text: bool = False


def value_sha256(value: Any) -> bytes:
    """SHA-256 of the value's canonical JSON: equal values have equal ones."""
    return hashlib.sha256(canonical(value).encode()).digest()


class Writer:
    """The writes of one call, in the namespace that `ctx` stands in."""

    def __init__(self, ctx: Context, vector: np.ndarray[Any, Any] | None, source_class: str) -> None:
        assert ctx.namespace_id is not None  # noqa: S101 - the pipeline made or found it
        self.ctx = ctx
        self.namespace_id: int = ctx.namespace_id
        self.vector = vector
        self.source_class = source_class
        self.user = me(ctx)

    # Finding and locking

    def locked(self, ids: Sequence[int]) -> dict[int, Line]:
        """The lineages with their rows locked, in id order."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {LINE} FROM facts_lineage m WHERE m.id = ANY(%s) ORDER BY m.id FOR UPDATE",  # noqa: S608
                [sorted(set(ids))],
            )
            return {row[0]: line_from(row) for row in cursor.fetchall()}

    def find(self, owner: str, subject: str, attribute: str) -> int | None:
        """The id of the owner's lineage under subject and attribute, or None."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM facts_lineage WHERE namespace_id = %s AND subject_sha256 = %s "
                "AND attribute_sha256 = %s AND owner = %s",
                [self.namespace_id, sha_of_word(subject), sha_of_word(attribute), owner],
            )
            row = cursor.fetchone()
        return None if row is None else row[0]

    def open(self, owner: str, subject: str, attribute: str, cardinality: str) -> int:
        """The id of that lineage, made where there is none."""
        for _ in range(TRIES):
            found = self.find(owner, subject, attribute)
            if found is not None:
                return found
            self._make(owner, subject, attribute, cardinality)
        raise OpError("BUSY", "The fact is being moved by others; try again.", retry_after_s=1)

    def _make(self, owner: str, subject: str, attribute: str, cardinality: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO facts_lineage (namespace_id, owner, subject, attribute, subject_sha256, "
                "attribute_sha256, cardinality, status, version, lock_mode, lock_reason, locked_by, "
                "screened_with) VALUES (%s, %s, %s, %s, %s, %s, %s, 'active', 0, 'none', '', '', %s) "
                "ON CONFLICT DO NOTHING",
                [
                    self.namespace_id, owner, subject.strip(), attribute.strip(), sha_of_word(subject),
                    sha_of_word(attribute), cardinality, CATALOGUE_VERSION,
                ],
            )  # fmt: skip

    def believed(
        self,
        line: Line,
        key: bytes | None = None,
        over: Period | None = None,
        most: int | None = None,
        seen: bool = False,
    ) -> list[Fact]:
        """What the lineage holds now, by start; read after its row lock was taken.

        `key`: only what stands under this `value_key`, all of a fact with one value at a time. `over`: only
        what overlaps it. `most`: no more than so many. `seen`: only what the caller sees.
        """
        where = "v.lineage_id = %s AND upper_inf(v.known)"
        params: list[Any] = [line.id]
        if seen:
            where, params = f"{where} AND v.owner = ANY(%s)", [*params, [SHARED, self.user]]
        if key is not None:
            where, params = f"{where} AND v.value_key = %s", [*params, key]
        if over is not None:
            where, params = f"{where} AND v.valid && tstzrange(%s, %s)", [*params, *over.instants]
        return selectors.fetch(where, [*params, most], "ORDER BY lower(v.valid) NULLS FIRST, v.id LIMIT %s")

    def hides(self, line: Line) -> bool:
        """True when the lineage has versions, believed or not, that this caller cannot see."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM facts_version WHERE lineage_id = %s AND owner <> '-' "
                "AND owner <> %s)",
                [line.id, self.user],
            )
            return bool(cursor.fetchone()[0])

    # Judging

    def require(self, line: Line, effect: Effect, fact_id: int | None) -> None:
        """OpError 423 when the lineage's lock refuses the effect."""
        if line.lock.refuses(effect):
            name = f"fact:{fact_id}" if fact_id is not None else f"{line.subject} {line.attribute}"
            raise locked(line.lock, effect, self.ctx.op.name, name, line.id)

    def require_room(self, line: Line, draft: Draft, but: int | None = None, seen: bool = False) -> None:
        """OpError 409 when another believed version stands where the draft would.

        `seen`: only versions that the caller sees are asked.
        """
        key = line.key_of(value_sha256(draft.value))
        there = [fact for fact in self.believed(line, key, draft.period, NAMED, seen) if fact.id != but]
        if not there:
            return
        way_out = (
            "remember it with visibility private, or ask a reviewer"
            if self.hides(line)
            else "use memory_correct (fact.correct) with that factId: kind changed when the world changed, "
            "wrong when it was never right"
        )
        told = "; ".join(f"{fact.id} {said(fact)} {fact.period}" for fact in there[:5])
        raise refuse_other(
            "FACT_CONFLICT",
            f"{line.subject} {line.attribute}: another believed value overlaps this period: {told}. Nothing "
            f"was stored; {way_out}.",
            [fact for fact in there if fact.owner in (SHARED, self.user)],
            lineageId=str(line.id),
        )

    # Writing

    def tick(self, lines: Sequence[Line]) -> datetime:
        """The known time of this write, later than any before in these lineages; counts their versions up."""
        ids = [line.id for line in lines]
        with connection.cursor() as cursor:
            cursor.execute(
                "WITH t AS MATERIALIZED (SELECT greatest(clock_timestamp(), "
                "max(last_known_at) + interval '1 microsecond') AS at FROM facts_lineage WHERE id = ANY(%s)) "
                "UPDATE facts_lineage l SET last_known_at = t.at, version = l.version + 1 FROM t "
                "WHERE l.id = ANY(%s) RETURNING t.at",
                [ids, ids],
            )
            return cursor.fetchone()[0]  # type: ignore[no-any-return]

    def close(self, facts: Sequence[Fact], at: datetime) -> None:
        """End the belief in these versions."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE facts_version SET known = tstzrange(lower(known), %s) WHERE id = ANY(%s)",
                [at, [fact.id for fact in facts]],
            )

    def insert(self, draft: Draft, at: datetime) -> Fact:
        """Write one version and its place in the search index."""
        ctx, line, sha = self.ctx, draft.line, value_sha256(draft.value)
        start, end = draft.period.start, draft.period.end
        source_class = draft.source_class or self.source_class
        agent = ctx.agent or ctx.caller.bound_agent or ""
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO facts_version (lineage_id, namespace_id, owner, value, value_sha256, value_key, "
                "valid, known, from_is_date, to_is_date, kind, made_from_id, replaced, sources, confidence, "
                "source_class, principal, token_prefix, agent, reason, request_id) VALUES (%s, %s, %s, %s, "
                "%s, %s, tstzrange(%s, %s), tstzrange(%s, NULL), %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
                "%s, %s, %s) "
                "RETURNING id",
                [
                    line.id, line.namespace_id, draft.owner, json.dumps(draft.value), sha, line.key_of(sha),
                    None if start is None else start.instant, None if end is None else end.instant, at,
                    start is None or start.is_date, end is None or end.is_date, draft.kind, draft.made_from,
                    None if draft.replaced is None else json.dumps(draft.replaced),
                    json.dumps(draft.sources), draft.confidence, source_class, ctx.caller.principal,
                    ctx.caller.token_prefix, agent, ctx.reason, ctx.request_id,
                ],
            )  # fmt: skip
            fact_id = cursor.fetchone()[0]
        fact = Fact(
            fact_id, line.id, line.subject, line.attribute, draft.owner, draft.value, sha, line.key_of(sha),
            draft.period, at, None, draft.kind, draft.replaced, draft.sources, draft.confidence, source_class,
            ctx.caller.principal, ctx.caller.token_prefix, agent, ctx.reason, ctx.request_id, draft.made_from,
            False,
        )  # fmt: skip
        if draft.same_text and draft.made_from is not None:
            return replace(fact, held=index.copy(ctx, draft.made_from, fact, line.namespace_id))
        return replace(fact, held=index.add(ctx, fact, line.namespace_id, self.vector))

    def take_back(self, fact: Fact, at: datetime) -> None:
        """Keep who took a version back and why, for its history."""
        ctx = self.ctx
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO facts_retraction (version_id, at, principal, token_prefix, agent, reason, "
                "request_id) VALUES (%s, %s, %s, %s, %s, %s, %s)",
                [
                    fact.id, at, ctx.caller.principal, ctx.caller.token_prefix,
                    ctx.agent or ctx.caller.bound_agent or "", ctx.reason, ctx.request_id,
                ],
            )  # fmt: skip

    def note(self, fact: Fact, before: Fact | None, version: int) -> None:
        """Leave the audit row of a write."""
        self.ctx.record(
            AuditEntry(
                target=f"fact:{fact.id}",
                before_version=version,
                after_version=version + 1,
                before_sha256=before.value_sha256.hex() if before else "",
                after_sha256=fact.value_sha256.hex(),
                reason=self.ctx.reason,
                detail={
                    "lineage_id": str(fact.lineage_id), "kind": fact.kind,
                    "before": None if before is None else str(before.id),
                },
            )
        )  # fmt: skip


LINE = f"""m.id, m.namespace_id, m.owner, m.subject, m.attribute, m.cardinality, m.version,
  CASE WHEN {LOCK_IN_FORCE} THEN m.lock_mode ELSE 'none' END, m.lock_reason, m.lock_until, m.locked_by,
  m.locked_at, m.holds"""


def line_from(row: Sequence[Any]) -> Line:
    """A Line from the columns of `LINE`."""
    (
        id_, namespace_id, owner, subject, attribute, cardinality, version,
        mode, reason, until, by, at, holds,
    ) = row  # fmt: skip
    lock = LockState(holds=holds)
    if mode != "none":
        lock = LockState(mode, reason, until, by, at, holds)
    return Line(id_, namespace_id, owner, subject, attribute, cardinality, version, lock)


def said(fact: Fact) -> str:
    """What a version says, for a message; a text that waits for a reader is not repeated in one."""
    return "says what waits for a reader" if fact.held else f"says {short(fact.value)}"


def short(value: Any) -> str:
    """The value's JSON in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def _merged(have: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*have, *more)))


# Remember


@dataclass(frozen=True)
class Remembered:
    """A fact as asked for."""

    subject: str
    attribute: str
    value: Any
    period: Period
    owner: str
    cardinality: str | None = None
    sources: tuple[str, ...] = ()
    confidence: float | None = None


def fact_remember(writer: Writer, ask: Remembered) -> tuple[Fact, bool]:
    """Store a value over a period: (the version that holds it, unchanged).

    Raises OpError 409 FACT_CONFLICT when another believed value overlaps, or when the cardinality is not the
    declared one; 409 NOT_CORRECTABLE where versions stand that the caller cannot see; 423.
    """
    line_id = writer.open(ask.owner, ask.subject, ask.attribute, ask.cardinality or Cardinality.ONE)
    line = writer.locked([line_id])[line_id]
    if line.owner != ask.owner:
        # It was shared between the look and the lock; the private fact is now one that nobody has yet.
        return fact_remember(writer, ask)
    if ask.cardinality is not None and ask.cardinality != line.cardinality:
        raise OpError(
            "FACT_CONFLICT",
            f"{line.subject} {line.attribute} was declared with cardinality {line.cardinality}; leave "
            "cardinality out, or use another attribute. Nothing was stored.",
            lineageId=str(line.id),
            cardinality=line.cardinality,
        )
    draft = Draft(line, ask.owner, ask.value, ask.period, Kind.REMEMBER, ask.sources, ask.confidence)
    sha = value_sha256(ask.value)
    same = next(
        (
            fact
            for fact in writer.believed(line, line.key_of(sha), ask.period, NAMED)
            if fact.owner == ask.owner and fact.value_sha256 == sha and fact.period.same(ask.period)
        ),
        None,
    )
    if same is not None:
        confidence = same.confidence if ask.confidence is None else ask.confidence
        sources = _merged(same.sources, ask.sources)
        if sources == same.sources and confidence == same.confidence:
            return same, True
        _require_whole(writer, line)
        writer.require(line, Effect.VALUE, same.id)
        return _rewritten(writer, same, line, Kind.MERGE, sources=sources, confidence=confidence), False
    writer.require_room(line, draft, seen=True)
    _require_whole(writer, line)
    if line.version:
        there = writer.believed(line, most=1)
        writer.require(line, Effect.VALUE, there[0].id if there else None)
    fact = writer.insert(draft, writer.tick([line]))
    writer.note(fact, None, line.version)
    return fact, False


def _require_whole(writer: Writer, line: Line) -> None:
    """OpError 409 where versions stand that the caller cannot see; it tells nothing about them."""
    if writer.hides(line):
        raise OpError("NOT_CORRECTABLE", NOT_CORRECTABLE)


def _rewritten(writer: Writer, fact: Fact, line: Line, kind: str, **changes: Any) -> Fact:
    """The same value and period as a new version with other circumstances."""
    at = writer.tick([line])
    writer.close([fact], at)
    draft = Draft(
        line, fact.owner, fact.value, fact.period, kind, fact.sources, fact.confidence, fact.replaced,
        fact.id, fact.source_class, same_text=True,
    )  # fmt: skip
    fresh = writer.insert(replace(draft, **changes), at)
    writer.note(fresh, fact, line.version)
    return fresh


# Correct


@dataclass(frozen=True)
class Correction:
    """A correction as asked for."""

    fact_id: int
    value: Any
    kind: str = "changed"
    start: Bound | None = None
    end: Bound | None = None
    subject: str | None = None
    attribute: str | None = None
    sources: tuple[str, ...] | None = None
    expected_version: int | None = None


@dataclass(frozen=True)
class Corrected:
    """What became of a correction: the version that holds now, and the one it replaced with its new dates."""

    fact: Fact
    before: Fact
    # The period of the old value that is still believed; None for none.
    left: Fact | None
    kept_dates: tuple[str, ...] = ()
    unchanged: bool = False
    version: int = 0


def fact_correct(writer: Writer, ask: Correction, lineage_id: int) -> Corrected:
    """Correct one version. `lineage_id` is where the fact was found.

    Raises OpError 400 for dates that do not fit, 404, 409 SUPERSEDED, NOT_CORRECTABLE, VERSION_CONFLICT or
    FACT_CONFLICT, 423.
    """
    line, home = _lines(writer, ask, lineage_id)
    fact = _standing(writer, line, ask.fact_id, ask.expected_version)
    elsewhere = home.id != line.id
    if not elsewhere and _is_same(fact, ask):
        return Corrected(fact, fact, fact, unchanged=True, version=line.version)
    # What moves to another subject or attribute is no longer there: to the fact it leaves, that is an end.
    writer.require(line, Effect.EXISTENCE if elsewhere else Effect.VALUE, fact.id)
    if elsewhere:
        _require_whole(writer, home)
        writer.require(home, Effect.VALUE, None)
    sha = value_sha256(ask.value)
    same_value = sha == fact.value_sha256
    kept: tuple[str, ...] = ()
    if ask.kind == "changed":
        period, rest = _changed(writer, line, fact, ask)
    else:
        period, kept = _wrong(fact, ask, [] if elsewhere else _neighbours(writer, line, fact, ask))
        rest = None
    sources = ask.sources if ask.sources is not None else (fact.sources if same_value else ())
    at_kind = Kind.CHANGED if ask.kind == "changed" else Kind.WRONG
    draft = Draft(
        home, fact.owner, ask.value, period, at_kind, sources, fact.confidence if same_value else None,
        made_from=fact.id, same_text=same_value and not elsewhere,
    )  # fmt: skip
    writer.require_room(home, draft, but=fact.id)
    at = writer.tick([line] if not elsewhere else [line, home])
    writer.close([fact], at)
    replaced = {"value": fact.value, "kind": ask.kind, "reason": writer.ctx.reason, "at": iso(at)}
    left = None
    if rest is not None:
        left = writer.insert(
            Draft(
                line, fact.owner, fact.value, rest, Kind.CLIP, fact.sources, fact.confidence, fact.replaced,
                fact.id, fact.source_class, same_text=True,
            ),
            at,
        )  # fmt: skip
    fresh = writer.insert(replace(draft, replaced=replaced), at)
    writer.note(fresh, fact, home.version)
    return Corrected(fresh, replace(fact, known_to=at), left, kept, version=home.version + 1)


def _lines(writer: Writer, ask: Correction, lineage_id: int) -> tuple[Line, Line]:
    """The fact's lineage and the one that the new version goes to, both locked in id order."""
    with connection.cursor() as cursor:
        # None of this ever changes, so it is read before the lock: which rows to lock depends on it.
        cursor.execute(
            "SELECT l.subject, l.attribute, l.cardinality, v.owner FROM facts_version v "
            "JOIN facts_lineage l ON l.id = v.lineage_id WHERE v.id = %s",
            [ask.fact_id],
        )
        subject, attribute, cardinality, owner = cursor.fetchone()
    wanted = (subject if ask.subject is None else ask.subject,
              attribute if ask.attribute is None else ask.attribute)  # fmt: skip
    if tuple(map(folded, wanted)) == (folded(subject), folded(attribute)):
        line = writer.locked([lineage_id])[lineage_id]
        return line, line
    for _ in range(TRIES):
        home_id = writer.open(owner, *wanted, cardinality)
        lines = writer.locked([lineage_id, home_id])
        if lines[home_id].owner == owner:
            return lines[lineage_id], lines[home_id]
        # It was shared between the look and the lock; under these words nobody has a private one yet.
    raise OpError("BUSY", "The fact is being moved by others; try again.", retry_after_s=1)


def _standing(writer: Writer, line: Line, fact_id: int, expected_version: int | None) -> Fact:
    """The version that is asked about, believed and whole to the caller; read after the row lock."""
    (fact,) = selectors.fetch("v.id = %s", [fact_id])
    if fact.owner not in (SHARED, writer.user):
        raise not_found(selectors.NO_SUCH_FACT)
    _require_whole(writer, line)
    if not fact.believed:
        raise _superseded(writer, line, fact)
    if expected_version is not None and expected_version != line.version:
        raise OpError(
            "VERSION_CONFLICT",
            f"fact:{fact_id} has moved on to version {line.version}; fact.history shows what happened since "
            f"{expected_version}.",
            factId=str(fact_id), expected=expected_version, current=line.version,
        )  # fmt: skip
    return fact


def _superseded(writer: Writer, line: Line, fact: Fact) -> OpError:
    now_there = writer.believed(line, over=fact.period, most=NAMED)
    if not now_there:
        moved = selectors.fetch("v.made_from_id = %s AND upper_inf(v.known)", [fact.id])
        now_there = [other for other in moved if other.owner in (SHARED, writer.user)]
    told = ", ".join(str(other.id) for other in now_there[:5])
    way_out = (
        f"correct the one that holds now: {told}" if told else "nothing holds over its period; remember anew"
    )
    return refuse_other(
        "SUPERSEDED",
        f"fact:{fact.id} is no longer believed; {way_out}.",
        now_there,
        factId=str(fact.id),
        factIds=[str(other.id) for other in now_there],
    )


def _is_same(fact: Fact, ask: Correction) -> bool:
    """The same value, dates and sources. The shortest `changed` names no date, so it is never that."""
    if ask.kind == "changed" and ask.start is None:
        return False
    if value_sha256(ask.value) != fact.value_sha256:
        return False
    if ask.sources is not None and set(ask.sources) != set(fact.sources):
        return False
    start, end = fact.period.start, fact.period.end
    same_start = ask.start is None or (start is not None and start.instant == ask.start.instant)
    same_end = ask.end is None or (end is not None and end.instant == ask.end.instant)
    return same_start and same_end


def _changed(writer: Writer, line: Line, fact: Fact, ask: Correction) -> tuple[Period, Period]:
    """The period of the new value, and what stays of the old one."""
    day, start, end = ask.start, fact.period.start, fact.period.end
    if day is None:
        raise OpError(
            "VALID_FROM_REQUIRED",
            f"validFrom: since when is it so? Send the day from which the new value holds, for example "
            f'{{"factId": "{fact.id}", "value": {short(ask.value)}, "validFrom": "2026-01-31"}}. If the old '
            'value was never right, send "kind": "wrong" instead, which needs no date.',
            errors=[{"path": "validFrom", "message": "is required with kind=changed", "type": "missing"}],
        )
    if start is not None and day.instant == start.instant:
        raise invalid(
            "validFrom",
            f"{day} is where this version starts, so nothing of it would be left: use kind=wrong.",
            factId=str(fact.id),
        )
    if start is not None and day.instant < start.instant:
        there = [
            other
            for other in writer.believed(line, fact.value_key, Period(day, start), NAMED)
            if other.period.holds(day.instant)
        ]
        hint = (
            f"at {day} it is {there[0].id} that holds and {said(there[0])}; correct that one"
            if there
            else f"no version holds at {day}; remember a new fact for the time before, or use kind=wrong "
            "with this validFrom if the date itself is wrong"
        )
        raise refuse_other(
            "INVALID_ARGUMENT",
            f"validFrom: {day} is before this version starts ({start}): {hint}.",
            there,
            errors=[{"path": "validFrom", "message": "is before the version starts", "type": "value_error"}],
        )
    if end is not None and day.instant >= end.instant:
        raise invalid(
            "validFrom",
            f"that version had already ended (on {end}) by {day}; remember a new fact.",
            factId=str(fact.id),
        )
    if ask.end is not None and ask.end.instant <= day.instant:
        raise invalid("validTo", f"{ask.end} is not after validFrom, {day}.")
    if ask.end is not None and end is not None and ask.end.instant > end.instant:
        writer.ctx.advisories.append(f"validTo: cut to {end}, where the corrected version ends")
    return Period(day, earlier(ask.end, end)), Period(start, day)


def _neighbours(writer: Writer, line: Line, fact: Fact, ask: Correction) -> list[Period]:
    """The other periods of the lineage, where a date is given; of `many`, those of the same value."""
    if ask.start is None and ask.end is None:
        return []
    return [other.period for other in writer.believed(line, fact.value_key) if other.id != fact.id]


def _wrong(fact: Fact, ask: Correction, neighbours: Sequence[Period]) -> tuple[Period, tuple[str, ...]]:
    """The period of the value that was right all along, and the dates that stayed."""
    try:
        found = refit(fact.period, ask.start, ask.end, neighbours)
    except ValueError as error:
        given = "validFrom" if ask.start is not None else "validTo"
        raise invalid(given, f"{error}: the version holds {fact.period}; send the other date too.") from error
    if not isinstance(found, Refitted):
        given = "validTo" if ask.start is None or (ask.end and _follows(found, fact.period)) else "validFrom"
        raise invalid(
            given,
            f"would cross the neighbour that holds {found}; correct that one first, or give a date up to it.",
        )
    return found.period, found.kept


def _follows(one: Period, other: Period) -> bool:
    return one.start is not None and other.end is not None and one.start.instant >= other.end.instant


# Retract and share


def fact_retract(
    writer: Writer, fact_id: int, lineage_id: int, kind: str, end: Bound | None
) -> tuple[Fact, Fact | None, Line]:
    """End a fact without a successor: (the version as it was, what stays of it, the lineage as it was).

    Raises OpError 400, 404, 409 SUPERSEDED or NOT_CORRECTABLE, 423.
    """
    line = writer.locked([lineage_id])[lineage_id]
    fact = _standing(writer, line, fact_id, None)
    writer.require(line, Effect.EXISTENCE, fact.id)
    rest = None
    if kind == "ended":
        rest = _ended(fact, end)
    at = writer.tick([line])
    writer.close([fact], at)
    left = None
    if rest is not None:
        left = writer.insert(
            Draft(
                line, fact.owner, fact.value, rest, Kind.ENDED, fact.sources, fact.confidence, fact.replaced,
                fact.id, fact.source_class, same_text=True,
            ),
            at,
        )  # fmt: skip
    else:
        writer.take_back(fact, at)
    writer.note(left or fact, fact, line.version)
    return replace(fact, known_to=at), left, line


def _ended(fact: Fact, end: Bound | None) -> Period:
    if end is None:
        raise invalid("validTo", "is required with kind=ended: when did it end?", "missing")
    if fact.period.start is not None and end.instant <= fact.period.start.instant:
        raise invalid(
            "validTo",
            f"{end} is not after the start of this version, {fact.period.start}: if it never held, use "
            "kind=wrong.",
        )
    if fact.period.end is not None and end.instant >= fact.period.end.instant:
        raise invalid("validTo", f"that version had already ended, on {fact.period.end}.")
    return Period(fact.period.start, end)


def fact_share(writer: Writer, fact_id: int, lineage_id: int) -> tuple[list[Fact], Fact, int]:
    """Share a private fact: (the versions that everybody sees now, the one that was named, the version).

    What is believed over current and future time becomes shared; older versions stay the owner's. Raises
    OpError 404, 409 FACT_CONFLICT when a shared fact stands there, 423.
    """
    line = writer.locked([lineage_id])[lineage_id]
    fact = _standing(writer, line, fact_id, None)
    if fact.owner == SHARED:
        return [], fact, line.version
    instant = selectors.now()
    moving = [
        other
        for other in writer.believed(line)
        if other.owner == writer.user and (other.period.end is None or other.period.end.instant > instant)
    ]
    if not moving:
        raise OpError(
            "INVALID_TRANSITION",
            "Nothing of this fact holds now or later, and what is over stays private; remember it anew with "
            "visibility shared.",
            factId=str(fact_id),
        )
    if line.owner != SHARED:
        _require_nothing_shared(writer, line)
    writer.require(line, Effect.VALUE, fact.id)
    at = writer.tick([line])
    if line.owner != SHARED:
        _let_everybody_own(writer, line)
    writer.close(moving, at)
    fresh = []
    for other in moving:
        sources = tuple(source for source in other.sources if index.is_public_source(writer.ctx, source))
        # What a private version replaced is not for everybody.
        draft = Draft(
            line, SHARED, other.value, other.period, Kind.SHARE, sources, other.confidence, None, other.id,
            other.source_class, same_text=True,
        )  # fmt: skip
        fresh.append(writer.insert(draft, at))
    named = next((new for new, old in zip(fresh, moving, strict=True) if old.id == fact_id), fresh[0])
    writer.note(named, fact, line.version)
    return fresh, named, line.version + 1


def _let_everybody_own(writer: Writer, line: Line) -> None:
    """Move the lineage. OpError 409 where a shared one was made since the look: the key refuses a second."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE facts_lineage SET owner = %s WHERE id = %s", [SHARED, line.id])
    except IntegrityError:
        _require_nothing_shared(writer, line)
        raise


def _require_nothing_shared(writer: Writer, line: Line) -> None:
    there = writer.find(SHARED, line.subject, line.attribute)
    if there is None:
        return
    shared = selectors.fetch(
        "v.lineage_id = %s AND v.owner = %s",
        [there, SHARED],
        "ORDER BY upper_inf(v.known) DESC, v.id DESC LIMIT 1",
    )
    raise refuse_other(
        "FACT_CONFLICT",
        f"{line.subject} {line.attribute}: a shared fact is there already; correct that one, or keep yours "
        "private.",
        shared,
        factId=str(shared[0].id) if shared else None,
    )
