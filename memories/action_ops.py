"""Ops on the standing of memories: pins, holds, bulk actions, promotion, consolidation, governed actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from governance import review
from governance.clock import iso
from governance.patterns import CATALOGUE
from loomsite.ops import (
    AgentText,
    Context,
    Effect,
    OpInput,
    OpOutput,
    ReviewedOutput,
    Role,
    Selector,
    WriteInput,
    invalid,
    limits,
    op,
)
from loomsite.ops.schema import Count, Identity, Instant, Key, Number, Prefix, Reason, Tags, field_fault
from memories import actions, selectors, services
from memories.actions import Application, GovernRequest, Selection
from memories.nodes import Guarded
from memories.ops import (
    MemoryType,
    NonEmptyTags,
    OnExpireName,
    Query,
    Share,
    TtlSeconds,
    Value,
    capped_source,
    not_blank,
)
from memories.planning import target
from memories.services import Gateway, LockRequest, Row, SetRequest

MAX_ROWS = 10_000
NeededReason = Annotated[Reason, AfterValidator(not_blank)]
_KEY = Field(description="The name of the memory within its namespace.")
_WHY = Field(description="Why; kept in the history and in the audit.")


# Pins


class PinInput(WriteInput):
    """Which memory."""

    memory_key: Key = _KEY


class PinOutput(OpOutput):
    """The memory's pin."""

    memory_key: str
    memory_id: str
    pinned: bool
    pinned_by: str | None = None
    version: int
    changed: bool = Field(description="False when it was so already.")


def _pin(ctx: Context, key: str, pinned: bool) -> dict[str, Any]:
    gate = Gateway(ctx)
    row, changed = actions.memory_pin(gate, key, pinned)
    gate.flush()
    return {
        "memory_key": row.key,
        "memory_id": str(row.id),
        "pinned": row.state.pinned,
        "pinned_by": row.pinned_by or None,
        "version": row.version,
        "changed": changed,
    }


@op(
    "memory.pin",
    input=PinInput,
    output=PinOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.VALUE}),
    idempotent=True,
    toolset="core",
    summary="Keep a value ahead of conflicting writes by others.",
    text=AgentText(
        what="Pins a memory: from then on a write of another value by anybody else answers 409 "
        "PINNED_CONFLICT and stores nothing. Whoever pinned it may change it. 404: no such memory under "
        "exactly this identity. 423 LOCKED: it is read_only. Undo: memory.unpin.",
        when='"This one is authoritative", "others should not override this".',
        when_not="To stop every change, your own included (memory.lock).",
        args="memory_key; agent, user_id and session_id name the exact row.",
    ),
)
def memory_pin(ctx: Context, data: PinInput) -> dict[str, Any]:
    """Pin one key."""
    return _pin(ctx, data.memory_key, True)


@op(
    "memory.unpin",
    input=PinInput,
    output=PinOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.VALUE}),
    idempotent=True,
    summary="Take a pin away.",
    text=AgentText(
        what="Unpins a memory. 403: somebody else pinned it; they, or an admin in the console, unpin it. "
        "Undo: memory.pin.",
        when='"Others may change it again."',
        when_not="To change a value that you pinned yourself (memory.set does).",
        args="memory_key.",
    ),
)
def memory_unpin(ctx: Context, data: PinInput) -> dict[str, Any]:
    """Unpin one key."""
    return _pin(ctx, data.memory_key, False)


# Holds


class HoldInput(WriteInput):
    """Which memory, for which matter, and why."""

    memory_key: Key = _KEY
    matter: Identity = Field(description="The case or request that the hold belongs to.")
    reason: NeededReason = _WHY


class HoldOutput(ReviewedOutput):
    """How many holds stand now."""

    memory_key: str
    memory_id: str
    matter: str
    holds: int
    changed: bool = Field(description="False when it was so already.")


def _held(row: Row | Guarded, matter: str, changed: bool) -> dict[str, Any]:
    return {
        "memory_key": row.key, "memory_id": str(row.id), "matter": matter, "holds": row.lock.holds,
        "changed": changed,
    }  # fmt: skip


@op(
    "hold.add",
    input=HoldInput,
    output=HoldOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.LOCK}),
    idempotent=True,
    summary="Put a memory under a legal hold.",
    text=AgentText(
        what="Keeps a memory from being deleted, retired or expired while a matter is open; its value may "
        "still change. Holds have no end and stand beside the lock. You cannot undo it: an admin releases a "
        "hold in the console. 404: no such key here.",
        when='Only when somebody asks for it: "legal wants this kept", "do not delete, case 12-34".',
        when_not="To keep a value from changing (memory.lock with read_only).",
        args="memory_key, matter and reason are needed.",
    ),
)
def hold_add(ctx: Context, data: HoldInput) -> dict[str, Any]:
    """Place one hold."""
    row, changed = actions.hold_add(Gateway(ctx), data.memory_key, data.matter, data.reason.strip())
    return _held(row, data.matter, changed)


@op(
    "hold.release",
    input=HoldInput,
    output=HoldOutput,
    role=Role.ADMIN,
    kind="write",
    effects=frozenset({Effect.LOCK}),
    destructive=True,
    idempotent=True,
    toolset="by_name",
    reviewed=True,
    planned_from=Role.WRITER,
    summary="Release a legal hold. An admin does this in the console; no token may.",
    text=AgentText(
        what="Releases the hold of one matter. 403 for every token: an admin of the namespace does it in the "
        "console under Locks.",
        when="Never by an agent: tell the person where holds are released.",
        when_not="To get around a hold.",
        args="memory_key, matter and reason.",
    ),
)
def hold_release(ctx: Context, data: HoldInput) -> dict[str, Any]:
    """Release one hold."""
    row, changed = actions.hold_release(Gateway(ctx), data.memory_key, data.matter, data.reason.strip())
    if ctx.review is not None:
        waiting = replace(row, lock=replace(row.lock, holds=row.lock.holds + 1))
        return _held(waiting, data.matter, False)
    return _held(row, data.matter, changed)


class LockListInput(OpInput):
    """Which page."""

    limit: Count = Field(50, ge=1, le=limits.PAGE, description="Memories a page.")
    cursor: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="next_cursor of the page before."
    )


class LockListOutput(OpOutput):
    """Locks and holds in force."""

    locks: list[dict[str, Any]] = Field(
        description="memory_key, memory_id, mode, reason, until, locked_by, locked_at, holds[] each."
    )
    next_cursor: str | None = None


@op(
    "lock.list",
    input=LockListInput,
    output=LockListOutput,
    role=Role.VIEWER,
    kind="read",
    idempotent=True,
    summary="Every lock and hold in force.",
    text=AgentText(
        what="Lists memories with a lock or a hold in force, who placed it and why. Changes nothing.",
        when='"What is locked here?", after a 423.',
        when_not="For one memory (memory.get shows its lock).",
        args="limit and cursor.",
    ),
)
def lock_list(ctx: Context, data: LockListInput) -> dict[str, Any]:
    """List what is guarded."""
    page, following = selectors.lock_list(ctx, data.limit, data.cursor)
    return {"locks": page, "next_cursor": following}


# Apply and clear


class Filter(Selector):
    """Every field that is given must hold; at least one is needed."""

    memory_type: MemoryType | None = Field(None, description="Only this type.")
    tags_any: NonEmptyTags | None = Field(None, description="At least one of these tags.")
    tags_all: NonEmptyTags | None = Field(None, description="All of these tags.")
    key_prefix: Annotated[Prefix, Field(min_length=1)] | None = Field(
        None, description="Keys that begin so, taken literally."
    )
    created_before: Instant | None = Field(None, description="Made before this instant.")
    created_after: Instant | None = Field(None, description="Made at or after this instant.")
    confidence_lte: Share | None = Field(None, description="Confidence at most this.")
    source_trace: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="Exactly this source."
    )

    @model_validator(mode="after")
    def _not_empty(self) -> Filter:
        if not any(value is not None for value in self.__dict__.values()):
            raise ValueError("must name at least one field; an empty filter would match everything")
        return self


class SearchSelector(Selector):
    """What a search finds."""

    query: Query = Field(description="A question or words; taken as plain text.")


class ExpireBlock(Selector):
    """When, and what then."""

    ttl_seconds: TtlSeconds | None = Field(None, description="Seconds from now.")
    until: Instant | None = Field(None, description="At this instant, with a zone.")
    on_expire: OnExpireName = Field("tombstone", description="tombstone or stale.")

    @model_validator(mode="after")
    def _one(self) -> ExpireBlock:
        if (self.ttl_seconds is None) == (self.until is None):
            raise field_fault("until", "send exactly one of until and ttl_seconds")
        return self


class LockBlock(Selector):
    """How firmly, and until when."""

    mode: Literal["read_only", "no_delete"] = Field("read_only", description="read_only or no_delete.")
    until: Instant | None = Field(None, description="End of the lock, with a zone.")
    ttl_seconds: TtlSeconds | None = Field(None, description="Length in seconds. Neither: until loosened.")

    @model_validator(mode="after")
    def _one_end(self) -> LockBlock:
        if self.until is not None and self.ttl_seconds is not None:
            raise field_fault("until", "says when the lock ends, as ttl_seconds does; send one, or neither")
        return self


class LabelBlock(Selector):
    """Which tags, and how."""

    tags: Tags = Field(description="The tags.")
    mode: Literal["add", "replace", "remove"] = Field("add", description="add, replace or remove.")


class DemoteBlock(Selector):
    """By how much the confidence falls."""

    confidence_factor: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        None, description="Multiply by this, from 0 up to 1."
    )
    confidence_delta: Annotated[Number, Field(ge=-1, lt=0)] | None = Field(
        None, description="Add this, below 0."
    )

    @model_validator(mode="after")
    def _one(self) -> DemoteBlock:
        if (self.confidence_factor is None) == (self.confidence_delta is None):
            raise field_fault(
                "confidence_factor", "send exactly one of confidence_factor and confidence_delta"
            )
        return self


class ApplyInput(WriteInput):
    """Which memories, and what is done to each."""

    keys: Annotated[list[Key], Field(min_length=1, max_length=MAX_ROWS)] | None = Field(
        None, description="These keys."
    )
    filter: Filter | None = Field(None, description="What matches all its fields.")
    search: SearchSelector | None = Field(None, description="What a search finds.")
    action: Literal["delete", "expire", "lock", "label", "demote"] = Field(description="What is done.")
    expire: ExpireBlock | None = Field(None, description="For the action expire.")
    lock: LockBlock | None = Field(None, description="For the action lock.")
    label: LabelBlock | None = Field(None, description="For the action label.")
    demote: DemoteBlock | None = Field(None, description="For the action demote.")
    reason: NeededReason = _WHY
    limit: Annotated[Count, Field(ge=1, le=MAX_ROWS)] | None = Field(
        None, description="Memories at most; needed with filter and search. With keys, no more may be named."
    )
    dry_run: bool = Field(True, description="True, the default: tell what would happen. False: do it.")

    @model_validator(mode="after")
    def _one_selector_one_block(self) -> ApplyInput:
        chosen = [name for name in ("keys", "filter", "search") if getattr(self, name) is not None]
        if len(chosen) != 1:
            raise ValueError(f"exactly one of keys, filter and search is needed; there are {len(chosen)}")
        if chosen != ["keys"] and self.limit is None:
            raise field_fault("limit", f"is needed with {chosen[0]}, from 1 to {MAX_ROWS}")
        if chosen == ["keys"] and self.limit is not None and len(set(self.keys or ())) > self.limit:
            raise field_fault("limit", f"is {self.limit}, and {len(set(self.keys or ()))} keys are named")
        blocks = [name for name in ("expire", "lock", "label", "demote") if getattr(self, name) is not None]
        wanted = [] if self.action == "delete" else [self.action]
        if blocks != wanted:
            raise field_fault(
                "action", f"{self.action} goes with {', '.join(wanted) or 'no'} block; there are {blocks}"
            )
        return self


class ApplyOutput(ReviewedOutput):
    """What became, or would become, of each memory."""

    action: str
    dry_run: bool
    matched: int
    state: str = Field(description="previewed, applied, or pending_review: a person decides, see plan.get.")
    rows: list[dict[str, Any]] = Field(
        description="memory_key, memory_id, version, outcome (would_apply, applied, refused), why each."
    )


def _told(ctx: Context, rows: list[dict[str, Any]], before: Sequence[Row]) -> list[dict[str, Any]]:
    if review.state(ctx) == "applied":
        return rows
    for row, was in zip(rows, before, strict=True):
        if row["outcome"] == "applied":
            row["outcome"] = "would_apply"
        if not ctx.is_dry_run:
            row["version"] = was.version
    return rows


_BECOMES = {
    "delete": "deleted",
    "clear": "deleted",
    "lock": "locked",
    "label": "labelled",
    "demote": "demoted",
}


def _planned(
    rows: Sequence[Row], titles: Mapping[int, str], results: Sequence[dict[str, Any]], action: str
) -> list[review.Target]:
    """Each row as it stood, with what the action makes of it or why it does not."""
    planned = _BECOMES.get(action, "expires")
    return [
        target(
            row,
            planned if line["outcome"] == "applied" else "left as it is",
            title=titles[row.id],
            changes=line["outcome"] == "applied" and (action == "lock" or line["version"] != row.version),
            why=line["why"] or "",
        )
        for row, line in zip(rows, results, strict=True)
    ]


def _effect(data: ApplyInput) -> str:
    """What a plan says of the action's block."""
    if data.expire is not None:
        seconds, until = data.expire.ttl_seconds, data.expire.until
        when = f"{seconds} s after it is applied" if until is None else f"at {iso(until)}"
        return f"expires {when}, then {data.expire.on_expire}"
    if data.lock is not None:
        seconds, until = data.lock.ttl_seconds, data.lock.until
        when = f"for {seconds} s after it is applied" if seconds is not None else f"until {iso(until)}"
        return f"{data.lock.mode} {when if seconds or until else 'until loosened'}"
    if data.label is not None:
        return f"{data.label.mode} {', '.join(data.label.tags)}"
    if data.demote is not None:
        factor, delta = data.demote.confidence_factor, data.demote.confidence_delta
        return f"confidence x {factor}" if factor is not None else f"confidence {delta}"
    return ""


@op(
    "memory.apply",
    input=ApplyInput,
    output=ApplyOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset(
        {Effect.VALUE, Effect.EXPIRY_EARLIER, Effect.EXPIRY_LATER, Effect.EXISTENCE, Effect.LOCK}
    ),
    destructive=True,
    prepare=lambda ctx, data: (
        actions.found_by(ctx, data.search.query, data.limit)
        if data.search is not None and ctx.plan is None
        else None
    ),
    reviewed=True,
    summary="Do one thing to many memories: delete, expire, lock, label or demote.",
    text=AgentText(
        what="Does one action to each memory that is named, filtered or found. A dry run (the default) tells "
        "what would happen to each and changes nothing. A locked memory is refused in its row and the others "
        "go on. Deleting or expiring more than 25 at once needs a person: 202 pending_review with a plan_id, "
        "which plan.get follows. Undo: memory.restore for deletes, memory.apply for the rest; a lock you "
        "cannot undo.",
        when='"Delete everything under tmp/", "label all notes of the outage", "lock these".',
        when_not="For one memory (memory.delete, memory.lock, memory.set).",
        args="Exactly one of keys, filter, search; action with its block; reason; limit with filter and "
        "search. dry_run is true unless you say false.",
    ),
)
def memory_apply(ctx: Context, data: ApplyInput) -> dict[str, Any]:
    """Apply one action to many."""
    gate = Gateway(ctx)
    selection = Selection(
        keys=data.keys,
        filter=data.filter.model_dump(exclude_none=True) if data.filter else None,
        found=ctx.prepared,
        limit=data.limit or MAX_ROWS,
    )
    what = _application(gate, data)
    rows, titles = actions.select(gate, selection, keep_values=data.action == "label")
    results = actions.memory_apply(gate, rows, what)
    review.consider(
        ctx,
        review.apply_action(ctx, data.action, len(rows)),
        lambda: _planned(rows, titles, results, data.action),
        effect=_effect(data),
    )
    gate.flush()
    return {
        "action": data.action,
        "dry_run": data.dry_run,
        "matched": len(rows),
        "state": review.state(ctx),
        "rows": _told(ctx, results, rows),
    }


def _application(gate: Gateway, data: ApplyInput) -> Application:
    what = Application(data.action)
    if data.expire is not None:
        until = services.lock_until(gate, data.expire.until, data.expire.ttl_seconds)
        what = replace(what, expires_at=until, on_expire=data.expire.on_expire)
    if data.lock is not None:
        until = services.lock_until(gate, data.lock.until, data.lock.ttl_seconds)
        what = replace(what, lock=LockRequest(data.lock.mode, data.reason.strip(), until))
    if data.label is not None:
        what = replace(what, tags=tuple(dict.fromkeys(data.label.tags)), tag_mode=data.label.mode)
    if data.demote is not None:
        what = replace(
            what,
            confidence_factor=data.demote.confidence_factor,
            confidence_delta=data.demote.confidence_delta,
        )
    return what


class ClearInput(WriteInput):
    """Which memories to tombstone for good measure."""

    filter: Filter = Field(description="What matches all its fields.")
    reason: NeededReason = _WHY
    dry_run: bool = Field(True, description="True, the default: tell what would happen. False: do it.")


@op(
    "memory.clear",
    input=ClearInput,
    output=ApplyOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.EXISTENCE}),
    destructive=True,
    reviewed=True,
    summary="Tombstone everything that matches a filter; a person decides.",
    text=AgentText(
        what="Retires what matches: unlike a delete, a later save does not revive it (409 GOVERNED_KEY), and "
        "only a reviewer restores it. A dry run (the default) lists what would go. The real run needs a "
        "person: it answers 202 pending_review with a plan_id, and plan.get tells what was decided. Locked "
        "memories are refused one by one.",
        when='"Clean out everything about project X."',
        when_not="For a few memories that may come back (memory.apply with delete).",
        args="filter with at least one field; reason; dry_run is true unless you say false.",
    ),
)
def memory_clear(ctx: Context, data: ClearInput) -> dict[str, Any]:
    """Retire what matches."""
    gate = Gateway(ctx)
    chosen = Selection(filter=data.filter.model_dump(exclude_none=True), limit=MAX_ROWS + 1)
    rows, titles = actions.select(gate, chosen, keep_values=False)
    if len(rows) > MAX_ROWS:
        rows = rows[:MAX_ROWS]
        ctx.advisories.append(f"filter: more than {MAX_ROWS} memories match; call again for the rest")
    results = actions.memory_apply(gate, rows, Application("clear"))
    review.consider(ctx, "memory.clear", lambda: _planned(rows, titles, results, "clear"))
    gate.flush()
    return {
        "action": "clear",
        "dry_run": data.dry_run,
        "matched": len(rows),
        "state": review.state(ctx),
        "rows": _told(ctx, results, rows),
    }


# Promote and consolidate


class PromoteInput(WriteInput):
    """Which memory, and with whom it is shared."""

    memory_key: Key = _KEY
    to: Identity = Field(
        "namespace", description='"namespace": everybody in this one. Else the name of another namespace.'
    )
    dry_run: bool = Field(False, description="Judge everything, change nothing.")


class PromoteOutput(OpOutput):
    """The shared lineage."""

    memory_key: str
    memory_id: str = Field(description="Of the shared memory.")
    promoted_from: str = Field(description="memory_id of the memory that was shared.")
    namespace: str
    version: int
    changed: bool = Field(description="False when it stands there already with the same content.")
    dry_run: bool = False


@op(
    "memory.promote",
    input=PromoteInput,
    output=PromoteOutput,
    role=Role.WRITER,
    kind="write",
    idempotent=True,
    toolset="core",
    prepare=lambda ctx, data: actions.promotion_vectors(ctx, data.memory_key),
    summary="Share a private or session memory with the namespace, or with another one.",
    text=AgentText(
        what="Copies a memory that belongs to an agent, user or session into a lineage of its own that "
        "belongs to nobody in particular, so that everybody there sees it. The original stays. 409 "
        "VERSION_CONFLICT: the key stands there with other content. 404: no such memory, or a namespace that "
        "you may not write. Undo: memory.delete of the shared one.",
        when='"Everybody should know this", "share it with the team".',
        when_not="To make a new memory (memory.set); to keep others from changing it (memory.pin).",
        args="memory_key; agent, user_id or session_id of the private one; to: left out for this namespace.",
    ),
)
def memory_promote(ctx: Context, data: PromoteInput) -> dict[str, Any]:
    """Share one key."""
    gate = Gateway(ctx, ctx.prepared)
    target = gate
    if data.to not in ("namespace", ctx.namespace):
        target = Gateway(actions.elsewhere(ctx, data.to), ctx.prepared)
    source, row, changed = actions.memory_promote(gate, data.memory_key, target)
    target.flush()
    return {
        "memory_key": row.key,
        "memory_id": str(row.id),
        "promoted_from": str(source.id),
        "namespace": target.ctx.namespace,
        "version": row.version,
        "changed": changed,
        "dry_run": data.dry_run,
    }


class ConsolidateInput(WriteInput):
    """Which memories become one."""

    keys: Annotated[list[Key], Field(min_length=2, max_length=500)] = Field(
        description="The memories that are replaced; two at least."
    )
    into: Key = Field(description="The key of the one that stands in their place; may be one of them.")
    value: Value = Field(description="Its value: any JSON, up to 256 KiB.")
    dry_run: bool = Field(False, description="Judge everything, change nothing.")


class ConsolidateOutput(ReviewedOutput):
    """The canonical memory, and what it replaced."""

    memory_key: str
    memory_id: str
    version: int
    superseded: list[dict[str, Any]] = Field(description="memory_key, memory_id, version each.")
    dry_run: bool = False


@op(
    "memory.consolidate",
    input=ConsolidateInput,
    output=ConsolidateOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.VALUE, Effect.EXISTENCE}),
    destructive=True,
    prepare=lambda ctx, data: services.embed_all([(data.into, data.value)]),
    reviewed=True,
    summary="Put one memory in the place of several.",
    text=AgentText(
        what="Stores a value under `into` and marks the other memories superseded, naming it. They leave "
        "search and reads; memory.get with follow leads on. 423 LOCKED, 409 PINNED_CONFLICT: a source or "
        "the target is guarded, or pinned by another; nothing was changed. 404: a key is not there. Undo: "
        "memory.set on a source revives it.",
        when='"These say the same, make one of them."',
        when_not="To throw memories away (memory.delete).",
        args="keys (two or more), into and value are needed.",
    ),
)
def memory_consolidate(ctx: Context, data: ConsolidateInput) -> dict[str, Any]:
    """Make one of many."""
    if len({*data.keys} - {data.into}) < 1 or len({*data.keys}) < 2:
        raise invalid("keys", "must name two different memories at least.")
    gate = Gateway(ctx, ctx.prepared)
    who = services.Identity.of(ctx)

    def store(row: Row | None) -> tuple[Row | None, Row]:
        if row is None:
            row = gate.exact([(data.into, who)]).get((data.into, who))
        request = SetRequest(
            key=data.into, who=row.identity if row else who, value=data.value, given=frozenset({"value"}),
            source_class=capped_source(ctx, None),
        )  # fmt: skip
        return row, services.memory_set(gate, request, row)[1]

    canonical, superseded = actions.memory_consolidate(gate, data.keys, data.into, data.value, store)
    gate.flush()
    return {
        "memory_key": canonical.key,
        "memory_id": str(canonical.id),
        "version": canonical.version,
        "superseded": [
            {"memory_key": row.key, "memory_id": str(row.id), "version": row.version} for row in superseded
        ],
        "dry_run": data.dry_run,
        "state": review.state(ctx),
    }


# Redact


class RedactInput(WriteInput):
    """Which memory goes for good, and why."""

    memory_key: Key = _KEY
    reason: NeededReason = _WHY
    dry_run: bool = Field(False, description="Judge everything, change nothing.")


class RedactOutput(ReviewedOutput):
    """The marker that stays."""

    memory_key: str
    memory_id: str
    version: int = Field(description="Of the marker; as it would be while a person decides.")
    status: str
    dry_run: bool = False


@op(
    "memory.redact",
    input=RedactInput,
    output=RedactOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.EXISTENCE}),
    destructive=True,
    reviewed=True,
    summary="Take a memory's content out of every version for good; a person decides.",
    text=AgentText(
        what="Blanks every version, vector and index of a memory; hashes and a marker stay. It cannot be "
        "undone. A person decides: 202 pending_review with a plan_id, which plan.get follows. 423 LOCKED: a "
        "lock or a hold guards it.",
        when='"That must not be kept anywhere": a secret or personal data that was stored.',
        when_not="For what may come back (memory.delete).",
        args="memory_key and reason.",
    ),
)
def memory_redact(ctx: Context, data: RedactInput) -> dict[str, Any]:
    """Redact one key."""
    gate = Gateway(ctx)
    row = actions.memory_redact(gate, data.memory_key)
    gate.flush()
    return {
        "memory_key": row.key, "memory_id": str(row.id), "version": row.version,
        "status": row.status, "dry_run": data.dry_run, "state": review.state(ctx),
    }  # fmt: skip


# Govern


def _id(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a memory_id, as a string or a number")
    text = str(value).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 0 < int(text) < 2**63):
        raise ValueError("must be a memory_id, as a string or a number")
    return int(text)


MemoryId = Annotated[int, BeforeValidator(_id)]


class GovernInput(WriteInput):
    """A governed action on exactly these memories."""

    ids: Annotated[list[MemoryId], Field(min_length=1, max_length=MAX_ROWS)] = Field(
        description="memory_ids, as strings or numbers; for acknowledge-pattern also factIds."
    )
    action: Literal["delete", "reject", "stale", "archive", "redact", "acknowledge-pattern"] = Field(
        description="What becomes of them."
    )
    actor: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="A note on who asks; the real actor is the token's."
    )
    project: Identity | None = Field(
        None, description="The namespace that is meant; `namespace` says the same."
    )
    dry_run: bool = Field(False, description="True: show what would happen, and the expected_versions.")
    expected_versions: Annotated[dict[str, Count], Field(max_length=MAX_ROWS)] | None = Field(
        None, description="The version that each id had in the dry run; exactly the ids."
    )
    confirm_destructive: bool = Field(False, description="A real run needs true.")
    acknowledge_pattern: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="The pattern that was read, for acknowledge-pattern."
    )

    @model_validator(mode="after")
    def _one_namespace(self) -> GovernInput:
        if self.project is not None:
            if self.namespace not in (None, self.project):
                raise field_fault("project", "says another namespace than `namespace`; send one of them")
            self.namespace = self.project
        return self

    @model_validator(mode="after")
    def _pattern(self) -> GovernInput:
        if (self.action == "acknowledge-pattern") != (self.acknowledge_pattern is not None):
            raise field_fault(
                "acknowledge_pattern", "goes with the action acknowledge-pattern, which needs it"
            )
        if self.acknowledge_pattern is not None and self.acknowledge_pattern not in CATALOGUE:
            raise field_fault("acknowledge_pattern", f"is none of {', '.join(sorted(CATALOGUE))}")
        return self


class GovernOutput(ReviewedOutput):
    """What became, or would become, of each memory."""

    action: str
    reason: str | None = None
    dry_run: bool
    affected: list[dict[str, Any]] = Field(
        description="id, title, previous_status, new_status, version, lock, refused, why each."
    )
    expected_versions: dict[str, int] = Field(description="Ready to send with the real run.")
    state: str = Field(description="previewed, applied, or pending_review: a person decides, see plan.get.")


@op(
    "memory.govern",
    input=GovernInput,
    output=GovernOutput,
    role=Role.WRITER,
    kind="write",
    effects=frozenset({Effect.EXISTENCE}),
    destructive=True,
    tool="govern_memory",
    toolset="core",
    reviewed=True,
    summary="Retire memories under governance: dry run first, then confirmed, all or nothing.",
    text=AgentText(
        what="Makes memories stale, archived, rejected, deleted or redacted, all or nothing. dry_run shows "
        "each with its lock and answers expected_versions. The real run needs confirm_destructive, a reason "
        "and exactly those versions: 400 says what is missing, 409 VERSION_CONFLICT what moved, 423 LOCKED "
        "what is guarded, 404 which ids are not here. stale and archive are done at once; the others need a "
        "person: 202 pending_review with a plan_id, which plan.get follows. A retired memory is not revived "
        "by a save.",
        when='"Retire these", "that note is wrong, reject it", after looking at a dry run.',
        when_not="To delete one memory that may come back (memory.delete).",
        args="ids and action are needed. First dry_run true, then the same call with its expected_versions, "
        "confirm_destructive true and a reason.",
    ),
)
def memory_govern(ctx: Context, data: GovernInput) -> dict[str, Any]:
    """Govern these ids."""
    expected = None
    if data.expected_versions is not None:
        expected = {}
        for name, version in data.expected_versions.items():
            try:
                expected[_id(name)] = version
            except ValueError as error:
                raise invalid(f"expected_versions.{name[:40]}", f"{error}.") from error
    if data.actor:
        ctx.advisories.append("actor: kept as a note; the audit names the token's principal")
    gate = Gateway(ctx)
    body = actions.memory_govern(
        gate,
        GovernRequest(
            ids=sorted(set(data.ids)),
            action=data.action,
            reason=(data.reason or "").strip(),
            dry_run=data.dry_run,
            expected_versions=expected,
            confirmed=data.confirm_destructive,
            pattern=data.acknowledge_pattern,
            actor=data.actor or "",
        ),
    )
    gate.flush()
    return body
