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


def _counted(number: int, noun: str, nouns: str = "") -> str:
    many = nouns or f"{noun}s"
    return f"{number} {noun}" if number == 1 else f"{number} {many}" if number else f"No {many}"


def _where(row: Body) -> str:
    """Whose a row is, as far as it says so: one key may stand in several places."""
    named = [("namespace", "namespace"), ("agent", "agent"), ("user_id", "user"), ("session_id", "session")]
    parts = [f"{word} {row[name]}" for name, word in named if row.get(name) not in (None, "", "-")]
    return f" in {', '.join(parts)}" if parts else ""


def _by(row: Body) -> str:
    return f"{row.get('memory_key')}{_where(row)}"


def _more(body: Body) -> list[str]:
    return [f"More follow: cursor {_json(body['next_cursor'])}."] if body.get("next_cursor") else []


def _search(body: Body, given: Body) -> str:
    hits = body.get("results") or []
    lines = [f"{_counted(len(hits), 'hit')} for {_plain(given.get('query', ''))!r}."]
    if body.get("abstain"):
        lines.append(str(body.get("abstain_reason") or "The hits are weak."))
    for number, hit in enumerate(hits, 1):
        text = _plain(hit["value"]) if hit.get("value") is not None else str(hit.get("excerpt") or "")
        near = hit.get("similarity")
        score = f", similarity {near:.2f}" if isinstance(near, int | float) else ""
        lines.append(f"{number}. {_by(hit)} (v{hit.get('version')}{score}): {text}")
    if body.get("namespaces_skipped"):
        lines.append(f"Not searched: {', '.join(body['namespaces_skipped'])}.")
    return "\n".join(lines)


def _get(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("found"):
        return f"Nothing is stored under {key}."
    version = f"version {body['version']}" if body.get("version") is not None else ""
    if body.get("unchanged"):
        return f"{key} is unchanged{', ' if version else ''}{version}."
    lock = body.get("lock") or {}
    locked = f" Locked {lock['mode']}: {lock.get('reason')}." if lock.get("mode") else ""
    held = " Held: its content may not end." if body.get("held") else ""
    said = ", ".join(filter(None, (version, str(body.get("status") or ""))))
    head = f"{key}{_where(body)}{f' ({said})' if said else ''}"
    asked = given.get("fields")
    if asked is None or "value" in asked:
        return f"{head}: {_plain(body.get('value'))}{locked}{held}"
    shown = {name: body.get(name) for name in asked if name not in ("version", "status")}
    return f"{head}: {_json(shown)}{locked}{held}" if shown else f"{head}.{locked}{held}"


def _list(body: Body, given: Body) -> str:
    rows = body.get("memories") or []
    lines = [
        f"- {_by(row)} (v{row.get('version')})"
        + (f": {_plain(row['value'])}" if row.get("value") is not None or given.get("include_values") else "")
        for row in rows
    ]
    return "\n".join([_counted(len(rows), "memory", "memories") + ".", *lines, *_more(body)])


def _history(body: Body, given: Body) -> str:
    if not body.get("found"):
        return f"Nothing was ever stored under {_key(body, given)}."
    rows = body.get("versions") or []
    lines = [f"{_key(body, given)}, {body.get('status')}: {_counted(len(rows), 'version')}, newest first."]
    for row in rows:
        why = f" ({row['reason']})" if row.get("reason") else ""
        said = f"{row.get('kind')} by {row.get('by') or 'the server'} at {row.get('at')}{why}"
        lines.append(f"- v{row.get('version')}, {said}: {_plain(row.get('value'))}")
    return "\n".join([*lines, *_more(body)])


def _stored(body: Body, given: Body) -> str:
    key, version = _key(body, given), body.get("version")
    if body.get("noop"):
        return f"{key} already holds exactly this, version {version}; nothing has changed."
    revived = (
        " It had ended before (deleted, stale or expired) and lives again." if body.get("revived") else ""
    )
    same = f" The same content is also under {body['duplicate_of']}." if body.get("duplicate_of") else ""
    if body.get("dry_run"):
        revived = revived and " It has ended and would live again."
        return f"{key} would be stored as version {version}.{revived}{same}"
    return f"Stored {key}, version {version}.{revived}{same}"


def _many(body: Body, given: Body) -> str:
    verb = "would be stored" if body.get("dry_run") else "stored"
    lines = [f"{_counted(body.get('stored') or 0, 'item')} {verb}, {body.get('refused') or 0} refused."]
    for row in body.get("results") or []:
        fault = row.get("error") or row.get("detail")
        if isinstance(fault, dict):
            lines.append(f"- {row.get('memory_key')}: {fault.get('code')}: {fault.get('message')}")
        elif fault:
            lines.append(f"- {row.get('memory_key')}: {_plain(fault)}")
        else:
            same = ", unchanged" if row.get("noop") else ""
            lines.append(f"- {row.get('memory_key')} (v{row.get('version')}{same})")
    return "\n".join(lines)


def _update(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("updated"):
        return f"Not updated: nothing is stored under {key} ({body.get('reason') or 'not_found'})."
    if body.get("noop"):
        return f"{key} is so already, version {body.get('version')}; nothing has changed."
    if body.get("dry_run"):
        return f"{key} would become version {body.get('version')}."
    return f"Updated {key}, version {body.get('version')}."


def _delete(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("found"):
        return f"Nothing is stored under {key}; there is nothing to delete."
    until = f" until {body['recoverable_until']}" if body.get("recoverable_until") else ""
    if body.get("noop") or not body.get("tombstoned"):
        return f"{key} was deleted already; nothing has changed. It can be restored{until}."
    if body.get("dry_run"):
        return f"{key} would be deleted; it could be restored{until}."
    return f"Deleted {key}; it can be restored{until}."


def _restore(body: Body, given: Body) -> str:
    key = _key(body, given)
    if not body.get("restored", True):
        return f"{key} was not restored; it is {body.get('status')}, version {body.get('version')}."
    return f"Restored {key}; it is {body.get('status')}, version {body.get('version')}."


def _lock(body: Body, given: Body) -> str:
    until = f"until {body['until']}" if body.get("until") else "until an admin loosens it"
    verb = "is locked" if body.get("changed", True) else "was locked so already: it stays"
    return f"{_key(body, given)} {verb} {body.get('mode')} {until}. Reason: {body.get('reason')}"


def _unlock(body: Body, given: Body) -> str:
    if not body.get("changed", True):
        return f"{_key(body, given)} had no lock; nothing has changed."
    return f"{_key(body, given)} is no longer locked; it was {body.get('mode_before')}."


def _pin(body: Body, given: Body) -> str:
    key, state = _key(body, given), "pinned" if body.get("pinned") else "not pinned"
    whose = f" by {body['pinned_by']}" if body.get("pinned_by") else ""
    if not body.get("changed", True):
        return f"{key} was {state} already{whose}, version {body.get('version')}; nothing has changed."
    now = "now" if body.get("pinned") else "no longer"
    return f"{key} is {now} pinned{whose}, version {body.get('version')}."


def _hold(body: Body, given: Body) -> str:
    key, matter, changed = _key(body, given), body.get("matter"), body.get("changed", True)
    holds = f"it has {_counted(body.get('holds') or 0, 'hold').lower()}"
    return (
        f"{key} is held for {matter}; {holds}."
        if changed
        else f"{key} was held for {matter} already; nothing has changed, {holds}."
    )


def _release(body: Body, given: Body) -> str:
    key, matter = _key(body, given), body.get("matter")
    holds = f"it has {_counted(body.get('holds') or 0, 'hold').lower()}"
    if not body.get("changed", True):
        return f"{key} had no hold for {matter}; nothing has changed, {holds}."
    return f"The hold on {key} for {matter} is released; {holds}."


def _locks(body: Body, given: Body) -> str:
    rows = body.get("locks") or []
    lines = [_counted(len(rows), "memory", "memories") + " locked or held."]
    for row in rows:
        until = f" until {row['until']}" if row.get("until") else ""
        said = (
            [f"{row['mode']}{until} by {row.get('locked_by')}: {row.get('reason')}"]
            if row.get("mode")
            else []
        )
        said += [
            f"held for {hold.get('matter')}: {hold.get('reason')}"
            if isinstance(hold, dict)
            else f"held: {hold}"
            for hold in row.get("holds") or []
        ]
        lines.append(f"- {_by(row)}: {'; '.join(said)}")
    return "\n".join([*lines, *_more(body)])


def _applied(body: Body, given: Body) -> str:
    rows = body.get("rows") or []
    refused = [row for row in rows if row.get("outcome") == "refused"]
    done = sum(row.get("outcome") in ("applied", "would_apply") for row in rows)
    verb = "would do it to" if body.get("dry_run") else "done to"
    lines = [f"{body.get('action')}, {_counted(body.get('matched') or 0, 'match', 'matches').lower()}: "]
    lines[0] += f"{verb} {done}, refused {len(refused)}."
    for row in rows:
        why = f": {row['why']}" if row.get("why") else ""
        lines.append(f"- {_by(row)} (v{row.get('version')}) {str(row.get('outcome')).replace('_', ' ')}{why}")
    if body.get("dry_run") and done:
        lines.append("Send it with dry_run false to do it.")
    return "\n".join(lines)


def _governed(body: Body, given: Body) -> str:
    rows = body.get("affected") or []
    refused = [row for row in rows if row.get("refused")]
    verb = "would change" if body.get("dry_run") else "changed"
    lines = [f"{body.get('action')}: {verb} {len(rows) - len(refused)}, refused {len(refused)}."]
    for row in rows:
        name = f"- {row.get('id')} {_plain(row.get('title') or '')}".rstrip()
        lines.append(
            f"{name}: refused, {row.get('why')}"
            if row.get("refused")
            else f"{name}: {row.get('previous_status')} to {row.get('new_status')}"
        )
    if body.get("dry_run") and body.get("expected_versions"):
        expected = _json(body["expected_versions"])
        lines.append(f"For the real run: expected_versions {expected}, confirm_destructive true.")
    return "\n".join(lines)


def _promoted(body: Body, given: Body) -> str:
    key, where = _key(body, given), f"namespace {body.get('namespace')}, version {body.get('version')}"
    if not body.get("changed", True):
        return f"{key} stands in {where} already with this content; nothing has changed."
    return f"{key} {'would be' if body.get('dry_run') else 'is now'} shared in {where}."


def _consolidated(body: Body, given: Body) -> str:
    old = ", ".join(str(row.get("memory_key")) for row in body.get("superseded") or []) or "nothing"
    verb = "would take" if body.get("dry_run") else "takes"
    return f"{_key(body, given)}, version {body.get('version')}, {verb} the place of {old}."


def _redacted(body: Body, given: Body) -> str:
    key, version = _key(body, given), body.get("version")
    if body.get("dry_run"):
        return f"the content of {key} would be erased in every version; no way back."
    return f"The content of {key} is erased in every version, version {version}; no way back."


def _appended(body: Body, given: Body) -> str:
    where = _where({"namespace": body.get("namespace")})
    return f"Appended turn {body.get('seq')} to session {body.get('session_id')}{where}."


def _turn(row: Body) -> str:
    return f"{row.get('seq')}. {row.get('role')}: {row.get('content')}"


def _turns(body: Body, given: Body) -> str:
    rows = body.get("turns") or []
    if not body.get("found"):
        return f"No session {body.get('session_id')} is kept."
    head = f"Session {body.get('session_id')}: {_counted(len(rows), 'turn').lower()}."
    return "\n".join([head, *(_turn(row) for row in rows), *_more(body)])


def _sessions(body: Body, given: Body) -> str:
    rows = body.get("sessions") or []
    lines = [
        f"- {row.get('session_id')}{_where({**row, 'session_id': None})}: "
        f"{_counted(row.get('turns') or 0, 'turn').lower()}, last at {row.get('last_at')}"
        for row in rows
    ]
    return "\n".join([_counted(len(rows), "session") + ".", *lines, *_more(body)])


def _raw_hits(body: Body, given: Body) -> str:
    hits = body.get("results") or []
    lines = [
        f"- session {hit.get('session_id')}{_where({**hit, 'session_id': None})}, {_turn(hit)}"
        for hit in hits
    ]
    return "\n".join([f"{_counted(len(hits), 'turn')} for {_plain(given.get('query', ''))!r}.", *lines])


def _pack(body: Body, given: Body) -> str:
    left = f"\n{body['omitted']} more did not fit." if body.get("omitted") else ""
    return f"{body.get('text') or 'Nothing is remembered of this.'}{left}"


def _plan(body: Body, given: Body) -> str:
    rows = _counted(body.get("rows") or 0, "row").lower()
    effect = f" ({body['effect']})" if body.get("effect") else ""
    lines = [f"Plan {body.get('plan_id')}: {body.get('action')}{effect} of {rows}, {body.get('state')}."]
    decision = body.get("decision") or {}
    if decision.get("by"):
        said = f": {decision['comment']}" if decision.get("comment") else ""
        lines.append(f"Decided by {decision['by']} at {decision.get('at')}{said}.")
    if body.get("failure"):
        lines.append(f"It failed: {body['failure'].get('message')}")
    if body.get("moved_count"):
        lines.append(f"{body['moved_count']} moved since it was shown, so nothing was changed:")
        lines += [f"- {_json(line)}" for line in body.get("moved") or []]
        lines += [
            f"- {row.get('id')} {row.get('key')}: {_json(row['moved'])}"
            for row in body.get("targets") or []
            if row.get("moved")
        ]
    if body.get("refreshed_by"):
        lines.append(f"Plan {body['refreshed_by']} asks for it anew.")
    if body.get("state") == "pending":
        lines.append(f"Open until {body.get('expires_at')}. A person decides: {body.get('review_url')}")
    for row in body.get("targets") or []:
        end = f"to {row.get('planned')}" if row.get("changes") else f"left: {row.get('why') or 'so already'}"
        lines.append(f"- {row.get('id')} {row.get('key')} v{row.get('version')}, {row.get('status')} {end}")
    return "\n".join([*lines, *_more(body)])


def _plans(body: Body, given: Body) -> str:
    rows = body.get("plans") or []
    lines = [
        f"- plan {row.get('plan_id')}: {row.get('action')} of {row.get('rows')} rows by "
        f"{row.get('requested_by')}, {row.get('state')}"
        for row in rows
    ]
    return "\n".join([_counted(len(rows), "plan") + ".", *lines, *_more(body)])


def _withdrawn(body: Body, given: Body) -> str:
    return f"Plan {body.get('plan_id')} is {body.get('state')}; nothing was changed by it."


_SENTENCES: dict[str, Callable[[Body, Body], str]] = {
    "context.pack": _pack,
    "hold.add": _hold,
    "hold.release": _release,
    "lock.list": _locks,
    "memory.apply": _applied,
    "memory.clear": _applied,
    "memory.consolidate": _consolidated,
    "memory.delete": _delete,
    "memory.get": _get,
    "memory.govern": _governed,
    "memory.history": _history,
    "memory.list": _list,
    "memory.lock": _lock,
    "memory.pin": _pin,
    "memory.promote": _promoted,
    "memory.redact": _redacted,
    "memory.restore": _restore,
    "memory.search": _search,
    "memory.set": _stored,
    "memory.set_many": _many,
    "memory.unlock": _unlock,
    "memory.unpin": _pin,
    "memory.update": _update,
    "plan.get": _plan,
    "plan.list": _plans,
    "plan.withdraw": _withdrawn,
    "raw.append": _appended,
    "raw.get": _turns,
    "raw.list_sessions": _sessions,
    "raw.search": _raw_hits,
}


def outcome(op: Op, given: Body, body: Body) -> str:
    """What happened, in a sentence, with what an agent needs of the answer."""
    if body.get("state") == "pending_review":
        text = "Nothing has changed yet: a person must approve."
        if body.get("plan_id"):
            text += f" Plan {body['plan_id']}."
        if body.get("plan_expires_at"):
            text += f" It is open until {body['plan_expires_at']}; plan.get tells what was decided."
        if body.get("review_url"):
            text += f" Tell the person where: {body['review_url']}"
    elif op.name in _SENTENCES:
        text = _SENTENCES[op.name](body, given)
    else:
        text = f"{op.name}: {_json(_present(body))}"
    if body.get("needs_review"):
        text += "\nThe real run needs a person: it answers 202 with a plan, and changes nothing until then."
    if body.get("dry_run"):
        text = f"Dry run, nothing changed: {text}"
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
