"""The short text beside a tool's structured content: many clients show a model nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from loomsite.ops import Op, limits
from loomsite.ops.flat import flat_input

Body = dict[str, Any]
_ENVELOPE = frozenset({"ignored_args", "advisories", "degraded"})
_MOVED_ON = frozenset({"code", "message", "category", "retryable", "request_id", "errors"})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _present(body: Body) -> Body:
    return {name: item for name, item in body.items() if item is not None and name not in _ENVELOPE}


def _key(body: Body, given: Body) -> str:
    return str(body.get("memory_key") or given.get("memory_key") or "the memory")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s" if number else f"No {noun}s"


def _search(body: Body, given: Body) -> str:
    hits = body.get("results") or []
    lines = [f"{_counted(len(hits), 'hit')} for {_plain(given.get('query', ''))!r}."]
    if body.get("abstain"):
        lines.append(f"Nothing is near: {body.get('abstain_reason') or 'the hits are weak'}.")
    for number, hit in enumerate(hits, 1):
        text = _plain(hit["value"]) if hit.get("value") is not None else str(hit.get("excerpt") or "")
        near = hit.get("similarity")
        score = f", similarity {near:.2f}" if isinstance(near, int | float) else ""
        lines.append(f"{number}. {hit.get('memory_key')} (v{hit.get('version')}{score}): {text}")
    return "\n".join(lines)


def _get(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("found"):
        return f"Nothing is stored under {key}."
    if body.get("unchanged"):
        return f"{key} is unchanged, version {body.get('version')}."
    lock = body.get("lock") or {}
    locked = f" Locked {lock['mode']}: {lock.get('reason')}." if lock.get("mode") else ""
    status = f", {body['status']}" if body.get("status") else ""
    return f"{key} (version {body.get('version')}{status}): {_plain(body.get('value'))}{locked}"


def _list(body: Body, given: Body) -> str:
    rows = body.get("memories") or []
    lines = [_counted(len(rows), "memory").replace("memorys", "memories") + "."]
    lines += [
        f"- {row.get('memory_key')} (v{row.get('version')})"
        + (f": {_plain(row['value'])}" if row.get("value") is not None else "")
        for row in rows
    ]
    if body.get("next_cursor"):
        lines.append(f"More follow: cursor {_json(body['next_cursor'])}.")
    return "\n".join(lines)


def _stored(body: Body, given: Body) -> str:
    key = _key(body, given)
    if body.get("dry_run"):
        return f"A dry run: {key} would be stored as version {body.get('version')}; nothing has changed."
    if body.get("noop"):
        return f"{key} already holds exactly this, version {body.get('version')}; nothing has changed."
    revived = " It was deleted before and is back." if body.get("revived") else ""
    same = f" The same content is also under {body['duplicate_of']}." if body.get("duplicate_of") else ""
    return f"Stored {key}, version {body.get('version')}.{revived}{same}"


def _update(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("updated"):
        return f"Not updated: nothing is stored under {key} ({body.get('reason') or 'not_found'})."
    return f"Updated {key}, version {body.get('version')}."


def _delete(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("found"):
        return f"Nothing is stored under {key}; nothing was deleted."
    if not body.get("tombstoned"):
        return f"{key} was deleted already; nothing has changed."
    until = f" until {body['recoverable_until']}" if body.get("recoverable_until") else ""
    return f"Deleted {key}; it can be restored{until}."


def _lock(body: Body, given: Body) -> str:
    until = f"until {body['until']}" if body.get("until") else "until an admin loosens it"
    verb = "is locked" if body.get("changed", True) else "was locked so already: it stays"
    return f"{_key(body, given)} {verb} {body.get('mode')} {until}. Reason: {body.get('reason')}"


_SENTENCES: dict[str, Callable[[Body, Body], str]] = {
    "memory.search": _search,
    "memory.get": _get,
    "memory.list": _list,
    "memory.set": _stored,
    "memory.pin": _stored,
    "memory.update": _update,
    "memory.delete": _delete,
    "memory.lock": _lock,
}


def outcome(op: Op, given: Body, body: Body) -> str:
    """What happened, in a sentence, with what an agent needs of the answer."""
    if body.get("state") == "pending_review":
        plan = f" Plan {body['plan_id']};" if body.get("plan_id") else ""
        text = f"Nothing has changed yet: a person must approve.{plan} plan.get tells how it stands."
    elif op.name in _SENTENCES:
        text = _SENTENCES[op.name](body, given)
    else:
        text = f"{op.name}: {_json(_present(body))}"
    notes = [f"Note: {note}" for note in body.get("advisories") or []]
    if body.get("ignored_args"):
        notes.append(f"Not used: {', '.join(body['ignored_args'])}.")
    if body.get("degraded"):
        notes.append(f"Worked less well: {', '.join(body['degraded'])}.")
    return "\n".join([text, *notes])


def refusal(detail: Body) -> str:
    """A `detail` object as text: code, message, every fault, and whether to try again."""
    lines = [f"{detail['code']}: {detail['message']}"]
    faults = detail.get("errors") or []
    if len(faults) > 1:
        lines += [f"- {fault['path']}: {fault['message']}" for fault in faults]
    more = {name: item for name, item in detail.items() if name not in _MOVED_ON and item not in (None, [])}
    if more:
        lines.append(_json(more))
    lines.append(
        "Trying again can help." if detail["retryable"] else "Trying the same call again will not help."
    )
    lines.append(f"request_id {detail['request_id']}")
    return "\n".join(lines)[: limits.VALUE_BYTES]


def _argument(name: str, schema: Body, required: bool) -> str:
    kind = schema.get("type", "any JSON")
    if "enum" in schema:
        kind = " | ".join(schema["enum"])
    note = f": {schema['description']}" if schema.get("description") else ""
    return f"  {name} ({kind}{', required' if required else ''}){note}"


def help_text(query: str, ops: list[Op], *, with_arguments: bool) -> str:
    """Ops as lines, each with its arguments when they are few."""
    if not ops:
        return f"No operation matches {query[:200]!r}. Ask for help without a query to list all."
    lines = []
    for op in ops:
        lines.append(f"{op.name} ({op.kind}, {op.role.label}): {op.summary}")
        if not with_arguments:
            continue
        lines.append(f"  WHEN: {op.text.when}")
        schema = flat_input(op.input, is_write=not op.is_read)
        required = set(schema.get("required", []))
        lines += [_argument(name, item, name in required) for name, item in schema["properties"].items()]
    return "\n".join(lines)
