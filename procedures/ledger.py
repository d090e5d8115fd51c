"""Reads of the run ledger: counters straight from its rows, kept up to date as it grows.

The ledger only grows, and its numbers follow the order of the commits (`services.run_record` numbers a run
under the procedure's row lock). So a process counts each row once and later only what came after it: a read
costs what is new since the last one. A process that has not yet seen a procedure counts its whole ledger
once (about two seconds for 100,000 runs of 12 nodes).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import connection

from memories.screening import screen
from procedures import graph as graphs
from procedures.counting import Declared, Tally

KEPT = 256
"""Procedures whose counters a process keeps."""
NAMES_KEPT = 200_000
"""Names in all kept counters together, some 60 MB; the least recently read procedures go first."""
BATCH = 20_000
NOTES_KEPT = 50
"""Failure notes kept for each declared source, the newest; no call asks for more."""
Died = tuple[str | None, str]
"""The last transition of a failed run; the source is None when its path has one node."""


@dataclass
class Counters:
    """What a procedure's ledger holds up to run `seq`."""

    seq: int = 0
    by_revision: dict[int, Tally] = field(default_factory=dict)
    agents: dict[str, list[int]] = field(default_factory=dict)
    died: dict[str | None, deque[tuple[int, str]]] = field(default_factory=dict)
    declared: dict[int, Declared] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size(self) -> int:
        """Names held."""
        return sum(tally.size for tally in list(self.by_revision.values()))

    def tally(self, revisions: Collection[int] | None = None) -> Tally:
        """The tally of these revisions (all when None). Statistics follow node ids across revisions."""
        chosen = [
            tally for number, tally in self.by_revision.items() if revisions is None or number in revisions
        ]
        if len(chosen) == 1:
            return chosen[0]
        merged = Tally()
        for tally in chosen:
            merged.merge(tally)
        return merged


_kept: OrderedDict[int, Counters] = OrderedDict()
_kept_lock = threading.Lock()


@contextmanager
def counted(procedure_id: int) -> Iterator[Counters]:
    """The counters of a procedure up to the ledger's present end; they stand still inside the block."""
    with _kept_lock:
        found = _kept.setdefault(procedure_id, Counters())
        _kept.move_to_end(procedure_id)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    with found.lock:
        _catch_up(procedure_id, found)
        _make_room(procedure_id)
        yield found


def _make_room(procedure_id: int) -> None:
    with _kept_lock:
        held = sum(counters.size for counters in _kept.values())
        for id_ in [id_ for id_ in _kept if id_ != procedure_id]:
            if held <= NAMES_KEPT:
                return
            held -= _kept.pop(id_).size


def _declared(procedure_id: int, revision: int) -> Declared:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT graph FROM procedures_revision WHERE procedure_id = %s AND number = %s",
            [procedure_id, revision],
        )
        return graphs.read(json.loads(cursor.fetchone()[0])).declared


def _catch_up(procedure_id: int, found: Counters) -> None:
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT seq, revision, to_json(path)::text, ok, agent, "
                "NOT ok AND note <> '' AND NOT note_held "
                "FROM procedures_run WHERE procedure_id = %s AND seq > %s ORDER BY seq LIMIT %s",
                [procedure_id, found.seq, BATCH],
            )
            rows = cursor.fetchall()
        for seq, revision, text, ok, agent, told in rows:
            # As JSON, which is read several times faster than an array.
            path = json.loads(text)
            tally = found.by_revision.get(revision)
            if tally is None:
                found.declared[revision] = _declared(procedure_id, revision)
                tally = found.by_revision[revision] = Tally(declared=found.declared[revision])
            tally.add(path, ok)
            seen = found.agents.setdefault(agent, [0, 0])
            seen[0] += 1
            seen[1] += ok
            if told and path:
                src = path[-2] if len(path) > 1 else None
                ids = found.declared[revision].ids
                # Only declared nodes lie ahead of anybody; a flagged name is not repeated to other runs.
                if (src is None or src in ids) and (path[-1] in ids or not screen(path[-1])):
                    found.died.setdefault(src, deque(maxlen=NOTES_KEPT)).append((seq, path[-1]))
            found.seq = seq
        if len(rows) < BATCH:
            return


def forget() -> None:
    """Count anew at the next read; for tests that put the tables back."""
    with _kept_lock:
        _kept.clear()
