"""What apps above memories bring into its ops: things that can be locked, and things that can be a source.

Memories, facts and procedures draw their ids from one sequence, so `node:<id>` names one thing and the lists
of several apps can be merged by id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from governance.locks import LockState
from loomsite.ops import Context


@dataclass(frozen=True)
class Guarded:
    """A governed row of another app, its row lock taken. `table` has the columns of `Lockable`."""

    table: str
    id: int
    key: str
    version: int
    content_sha256: str
    lock: LockState
    # As plans name it: the kind, the id that its key names, a few words of it, its status.
    kind: str = ""
    node_id: int = 0
    title: str = ""
    status: str = ""


# The row that a key means, locked, or None where there is none for this caller.
Finder = Callable[[Context, str], Guarded | None]
# Rows with a lock or hold in force and an id below the given one, the latest first, as lock.list shows them.
Lister = Callable[[Context, int | None, int], list[dict[str, Any]]]
# Which of these ids the caller sees in these namespaces as this user ("-" for none), and whether privately.
Seer = Callable[[Context, Sequence[int], str, Sequence[int]], dict[int, bool]]
# `memory.govern` with acknowledge-pattern on rows of the app: its answer, or None where the ids are others'.
Reader = Callable[[Context, Any], dict[str, Any] | None]
_readers: list[Reader] = []
_finders: dict[str, Finder] = {}
_listers: list[Lister] = []
_seers: list[Seer] = []


def register(*, prefix: str, find: Finder, guarded: Lister, seen: Seer) -> None:
    """Let the lock and hold ops find keys that begin so, and sources name the app's rows. Once per prefix."""
    if prefix in _finders:
        return
    _finders[prefix] = find
    _listers.append(guarded)
    _seers.append(seen)


def register_reader(reader: Reader) -> None:
    """Let `memory.govern` acknowledge patterns in the app's texts. Called once, when the app is ready."""
    if reader not in _readers:
        _readers.append(reader)


def acknowledged_elsewhere(ctx: Context, request: Any) -> dict[str, Any] | None:
    """The answer of the app above whose rows a `GovernRequest` names; None when it names memories."""
    return next((body for reader in _readers if (body := reader(ctx, request)) is not None), None)


def finder(key: str) -> Finder | None:
    """Who looks up a key; None for the memories themselves."""
    return next((find for prefix, find in _finders.items() if key.startswith(prefix)), None)


def guarded_elsewhere(ctx: Context, before: int | None, limit: int) -> list[dict[str, Any]]:
    """What the apps above have under locks and holds."""
    return [row for lister in _listers for row in lister(ctx, before, limit)]


def seen(ctx: Context, ids: Sequence[int], user: str, namespaces: Sequence[int]) -> dict[int, bool]:
    """The ids that name something this caller sees; the value tells whether others may not."""
    bound = ctx.caller.bound_agent
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, (m.agent, m.user_id, m.session_id) <> ('-', '-', '-') FROM memories_memory m "
            "WHERE m.id = ANY(%s) AND m.namespace_id = ANY(%s) AND m.user_id = ANY(%s) "
            "AND (%s::text IS NULL OR m.agent IN ('-', %s)) AND m.status NOT IN ('deleted', 'redacted')",
            [list(ids), list(namespaces), ["-", user], bound, bound],
        )
        found = dict(cursor.fetchall())
    for seer in _seers:
        found |= seer(ctx, ids, user, namespaces)
    return found
