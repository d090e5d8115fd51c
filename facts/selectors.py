"""Reads over facts. One rule of visibility (`owners`) serves every one of them.

What is answered for a `known_at` is what was known then and nothing else: an end of belief that came later is
not shown, so that the answer never changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from facts.models import SHARED
from facts.periods import Bound, Period
from facts.words import folded, sha_of_word
from governance.clock import iso
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, OpError, Role, invalid, not_found
from memories.selectors import decode_cursor, encode_cursor

# One answer for what does not exist and for what this caller cannot see.
NO_SUCH_FACT = "factId: no such fact for this caller; fact.recall shows the facts and their ids."
HELD = "EXISTS (SELECT FROM facts_factflag f WHERE f.version_id = v.id AND f.acknowledged_at IS NULL)"
# What was replaced may be a text that waits for a reader as well.
_REPLACED_HELD = """v.replaced IS NOT NULL AND EXISTS (SELECT FROM facts_factflag f
  JOIN facts_version w ON w.id = f.version_id WHERE f.acknowledged_at IS NULL
  AND (w.id = v.made_from_id OR (w.lineage_id = v.lineage_id AND w.value = v.replaced -> 'value')))"""
COLUMNS = f"""v.id, v.lineage_id, l.subject, l.attribute, v.owner, v.value, v.value_sha256, v.value_key,
  lower(v.valid), upper(v.valid), v.from_is_date, v.to_is_date, lower(v.known), upper(v.known), v.kind,
  v.replaced, v.sources, v.confidence, v.source_class, v.principal, v.token_prefix, v.agent, v.reason,
  v.request_id, v.made_from_id, {HELD}, {_REPLACED_HELD}"""
TABLES = "facts_version v JOIN facts_lineage l ON l.id = v.lineage_id"


@dataclass(frozen=True)
class Fact:
    """A version of a fact as stored."""

    id: int
    lineage_id: int
    subject: str
    attribute: str
    owner: str
    value: Any
    value_sha256: bytes
    value_key: bytes
    period: Period
    known_from: datetime
    known_to: datetime | None
    kind: str
    replaced: dict[str, Any] | None
    sources: tuple[str, ...]
    confidence: float | None
    source_class: str
    principal: str
    token_prefix: str
    agent: str
    reason: str
    request_id: str
    made_from: int | None
    held: bool
    replaced_held: bool = False

    @property
    def believed(self) -> bool:
        """True while nothing has taken its place."""
        return self.known_to is None

    def named(self) -> dict[str, Any]:
        """The version as refusals name it."""
        told = {
            "factId": str(self.id),
            "value": self.value,
            "validFrom": text_of(self.period.start),
            "validTo": text_of(self.period.end),
        }
        # A text that waits for a reader is marked.
        return {**told, "held": True} if self.held else told


def text_of(bound: Bound | None) -> str | None:
    """The bound as printed; None for an open one."""
    return None if bound is None else str(bound)


def fact_from(row: Sequence[Any]) -> Fact:
    """A Fact from the columns of `COLUMNS`."""
    start, end, from_is_date, to_is_date = row[8:12]
    period = Period(
        None if start is None else Bound(start.astimezone(UTC), from_is_date),
        None if end is None else Bound(end.astimezone(UTC), to_is_date),
    )
    return Fact(
        id=row[0], lineage_id=row[1], subject=row[2], attribute=row[3], owner=row[4],
        value=json.loads(row[5]), value_sha256=bytes(row[6]), value_key=bytes(row[7]), period=period,
        known_from=row[12], known_to=row[13], kind=row[14],
        replaced=None if row[15] is None else json.loads(row[15]), sources=tuple(json.loads(row[16])),
        confidence=row[17], source_class=row[18], principal=row[19], token_prefix=row[20], agent=row[21],
        reason=row[22], request_id=row[23], made_from=row[24], held=row[25], replaced_held=row[26],
    )  # fmt: skip


def fetch(where: str, params: Sequence[Any], tail: str = "ORDER BY v.id") -> list[Fact]:
    """The versions that meet a constant condition over `v` and `l`."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {COLUMNS} FROM {TABLES} WHERE {where} {tail}", params)  # noqa: S608
        return [fact_from(row) for row in cursor.fetchall()]


def me(ctx: Context) -> str:
    """The user that the call acts for; "-" for none."""
    return ctx.user_id or ctx.caller.bound_user or SHARED


def owners(ctx: Context, asked: str | None = None) -> list[str] | None:
    """Whose versions the call may see: everybody's and the user's own. None: all that the token covers.

    `asked` is the user_id as the call gave it, where "*" means any.
    """
    if asked == "*" and ctx.caller.bound_user is None:
        return None
    return sorted({SHARED, me(ctx)})


def visible(column: str, mine: list[str] | None) -> tuple[str, list[Any]]:
    """A condition on an owner column, and its parameters."""
    return ("true", []) if mine is None else (f"{column} = ANY(%s)", [mine])


# Finding by id


@dataclass(frozen=True)
class Place:
    """Where a fact is, and the caller's role there."""

    fact_id: int
    lineage_id: int
    owner: str
    subject: str
    attribute: str
    namespace: str
    namespace_id: int
    role: Role


def fact_place(ctx: Context, fact_id: int, user: str | None = None) -> Place:
    """Where the fact is, looked for in every namespace that the caller can see. OpError 404.

    `user` is the user_id of a read as `owners` takes it.
    """
    seen = {row["id"]: row for row in visible_namespaces(ctx.caller)}
    clause, params = visible("v.owner", owners(ctx, user))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT v.lineage_id, v.namespace_id, v.owner, l.subject, l.attribute FROM {TABLES} "  # noqa: S608
            f"WHERE v.id = %s AND v.namespace_id = ANY(%s) AND {clause} AND l.status = 'active'",
            [fact_id, list(seen), *params],
        )
        row = cursor.fetchone()
    if row is None:
        raise not_found(NO_SUCH_FACT)
    there = seen[row[1]]
    return Place(
        fact_id, row[0], row[2], row[3], row[4], there["namespace"], row[1], Role.of(there["role"])
    )  # fmt: skip


# Recall


@dataclass(frozen=True)
class Question:
    """A recall as asked. `known_at` None: what is believed now; `valid_at` None: whatever its valid time."""

    subject: str | None = None
    attribute: str | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None
    history: bool = False
    user: str | None = None

    def mark(self, query: str) -> str:
        """What tells the cursors of this question from those of another; the known time is in the cursor."""
        words = [None if word is None else folded(word) for word in (self.subject, self.attribute)]
        asked = json.dumps([query, *words, iso(self.valid_at), self.history, self.user])
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def conditions(ctx: Context, ask: Question, known_at: datetime | None) -> tuple[str, list[Any]]:
    """The WHERE fragment over `v` and `l` of a recall, and its parameters."""
    clause, params = visible("v.owner", owners(ctx, ask.user))
    # What was erased has nothing left to say, at whatever known time.
    parts = ["v.namespace_id = %s", "l.status = 'active'", clause]
    params = [ctx.namespace_id, *params]
    for column, word in (("subject", ask.subject), ("attribute", ask.attribute)):
        if word is not None:
            parts.append(f"l.namespace_id = %s AND l.{column}_sha256 = %s")
            params += [ctx.namespace_id, sha_of_word(word)]
    if ask.history:
        if known_at is not None:
            parts.append("lower(v.known) <= %s")
            params.append(known_at)
    elif known_at is not None:
        parts.append("v.known @> %s::timestamptz")
        params.append(known_at)
    else:
        parts.append("upper_inf(v.known)")
    if ask.valid_at is not None:
        parts.append("v.valid @> %s::timestamptz")
        params.append(ask.valid_at)
    return " AND ".join(parts), params


def fact_recall(
    ctx: Context, ask: Question, limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], datetime, str | None]:
    """A page of facts, latest known first; the effective known time; the cursor of the next page.

    Later pages are read at the known time of the first, so that they are pages of one answer.
    """
    known_at, place = ask.known_at, None
    if cursor:
        mark, pinned, first, id_ = decode_cursor(cursor, str, str, str, int)
        known_at, place = pinned_at(ask, "", mark, pinned), (cursor_instant(first), id_)
    at = known_at or now()
    if ctx.namespace_id is None:
        return [], at, None
    where, params = conditions(ctx, ask, known_at)
    if place is not None:
        where += " AND (lower(v.known), v.id) < (%s::timestamptz, %s)"
        params.extend(place)
    rows = fetch(where, [*params, limit + 1], "ORDER BY lower(v.known) DESC, v.id DESC LIMIT %s")
    page = rows[:limit]
    following = None
    if len(rows) > limit:
        following = encode_cursor(ask.mark(""), iso(at), iso(page[-1].known_from), page[-1].id)
    return shown_all(page, at, ask.valid_at, known_at), at, following


def pinned_at(ask: Question, query: str, mark: str, pinned: str) -> datetime:
    """The known time of the pages before. OpError 400 where the question is not theirs."""
    if mark != ask.mark(query):
        raise invalid("cursor", "belongs to another question; send the filters of the page that answered it.")
    at = cursor_instant(pinned)
    if ask.known_at is not None and ask.known_at != at:
        raise invalid("known_at", "differs from that of the pages before; leave it out beside a cursor.")
    return at


def cursor_instant(text: str) -> datetime:
    """An instant out of a cursor. OpError 400."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError(text)
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise invalid("cursor", "is not one that this op answered.") from error


def now() -> datetime:
    """The database's present instant."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def shown_all(
    facts: Iterable[Fact], at: datetime, valid_at: datetime | None, known_at: datetime | None
) -> list[dict[str, Any]]:
    """Versions as recall answers them; `known_at` None shows every end of belief that is stored."""
    return [shown(fact, valid_at or at, known_at) for fact in facts]


def shown(fact: Fact, instant: datetime, known_at: datetime | None = None) -> dict[str, Any]:
    """A version as recall answers it; `instant` is the valid time that its state speaks of."""
    known_to = fact.known_to
    if known_at is not None and known_to is not None and known_to > known_at:
        known_to = None
    return {
        "factId": str(fact.id),
        "lineageId": str(fact.lineage_id),
        "subject": fact.subject,
        "attribute": fact.attribute,
        "value": fact.value,
        "validFrom": text_of(fact.period.start),
        "validTo": text_of(fact.period.end),
        "knownFrom": iso(fact.known_from),
        "knownTo": iso(known_to),
        "state": _state(fact.period, instant, known_to),
        "sources": list(fact.sources),
        "visibility": "shared" if fact.owner == SHARED else "private",
        "confidence": fact.confidence,
        "source_class": fact.source_class,
        "replaced": _replaced(fact),
        "held": fact.held,
    }


def _replaced(fact: Fact) -> dict[str, Any] | None:
    """What it replaced; a text that waits for a reader is marked, as the version itself would be."""
    if fact.replaced is None or not fact.replaced_held:
        return fact.replaced
    return {**fact.replaced, "held": True}


def _state(period: Period, instant: datetime, known_to: datetime | None) -> str:
    if known_to is not None:
        return "superseded"
    if period.holds(instant):
        return "current"
    return "ended" if period.end is not None and period.end.instant <= instant else "future"


# History


def fact_history(
    ctx: Context, lineages: Sequence[int], limit: int, cursor: str | None, user: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of every visible version of the lineages, oldest known first, and the next cursor."""
    clause, params = visible("v.owner", owners(ctx, user))
    where, params = f"v.lineage_id = ANY(%s) AND {clause}", [list(lineages), *params]
    if cursor:
        first, id_ = decode_cursor(cursor, str, int)
        where += " AND (lower(v.known), v.id) > (%s::timestamptz, %s)"
        params += [cursor_instant(first), id_]
    rows = fetch(where, [*params, limit + 1], "ORDER BY lower(v.known), v.id LIMIT %s")
    page, at = rows[:limit], now()
    following = encode_cursor(iso(page[-1].known_from), page[-1].id) if len(rows) > limit else None
    made_from = {fact.made_from for fact in page if fact.made_from is not None}
    with connection.cursor() as db:
        db.execute(
            f"SELECT v.id FROM facts_version v WHERE v.id = ANY(%s) AND {clause}",  # noqa: S608
            [list(made_from), *visible("v.owner", owners(ctx, user))[1]],
        )
        may_name = {row[0] for row in db.fetchall()}
        db.execute(
            "SELECT version_id, reason, principal, at FROM facts_retraction WHERE version_id = ANY(%s)",
            [[fact.id for fact in page]],
        )
        taken_back = {
            id_: {"kind": "wrong", "reason": reason, "by": by, "at": iso(when)}
            for id_, reason, by, when in db.fetchall()
        }
    return [
        shown(fact, at)
        | {
            "kind": fact.kind,
            "reason": fact.reason,
            "by": fact.principal,
            "token_prefix": fact.token_prefix,
            "agent": fact.agent,
            "request_id": fact.request_id,
            "at": iso(fact.known_from),
            "madeFrom": str(fact.made_from) if fact.made_from in may_name else None,
            "retracted": taken_back.get(fact.id),
        }
        for fact in page
    ], following


def lineages_of(ctx: Context, subject: str, attribute: str, user: str | None) -> list[int]:
    """The lineages under a subject and attribute of which the caller sees a version."""
    if ctx.namespace_id is None:
        return []
    clause, params = visible("v.owner", owners(ctx, user))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT l.id FROM facts_lineage l WHERE l.namespace_id = %s AND l.subject_sha256 = %s "  # noqa: S608
            "AND l.attribute_sha256 = %s AND EXISTS "
            f"(SELECT FROM facts_version v WHERE v.lineage_id = l.id AND {clause}) ORDER BY l.id",
            [ctx.namespace_id, sha_of_word(subject), sha_of_word(attribute), *params],
        )
        return [row[0] for row in cursor.fetchall()]


def lineage_versions(ctx: Context, lineages: Sequence[int]) -> list[dict[str, Any]]:
    """The lineages with their `version`, for `expected_version`.

    A caller from whom versions are hidden gets none: it would count them, and corrects nothing there anyway.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT l.id, l.subject, l.attribute, l.cardinality, CASE WHEN NOT EXISTS (SELECT FROM "
            "facts_version v WHERE v.lineage_id = l.id AND v.owner <> '-' AND v.owner <> %s) "
            "THEN l.version END "
            "FROM facts_lineage l WHERE l.id = ANY(%s) ORDER BY l.id",
            [me(ctx), list(lineages)],
        )
        return [
            {
                "lineageId": str(id_), "subject": subject, "attribute": attribute, "cardinality": cardinality,
                "version": version,
            }
            for id_, subject, attribute, cardinality, version in cursor.fetchall()
        ]  # fmt: skip


def refuse_other(code: str, message: str, facts: Iterable[Fact], **fields: Any) -> OpError:
    """A refusal that names versions which the caller sees."""
    return OpError(code, message, facts=[fact.named() for fact in facts], **fields)
