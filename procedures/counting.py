"""Counting traversals from the paths of runs: the one definition, for reads and for evolve.

A path is an ordered list of ids. Each visit of a node counts once, each pair of neighbours counts once as a
transition; a self transition and an id that the graph does not declare are counted like any other. A run's
outcome counts for everything on its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATH_IDS = 500
"""Longer paths are cut here when they are recorded."""


class Count(NamedTuple):
    """Traversals, and the runs they belong to."""

    total: int = 0
    """Traversals."""
    ok: int = 0
    """Traversals in runs that succeeded."""
    runs: int = 0
    """Runs with at least one."""
    runs_ok: int = 0
    """Runs with at least one that succeeded."""

    @property
    def total_and_ok(self) -> tuple[int, int]:
        """(total, ok)."""
        return self.total, self.ok


def smoothed(total: int, ok: int) -> float:
    """Laplace's rule of succession: (ok + 1) / (total + 2)."""
    return (ok + 1) / (total + 2)


class Counts(NamedTuple):
    """Runs, and how many of them succeeded."""

    total: int = 0
    ok: int = 0

    @property
    def failed(self) -> int:
        """Runs that failed."""
        return self.total - self.ok

    @property
    def smoothed(self) -> float:
        """The smoothed success rate."""
        return smoothed(self.total, self.ok)


NONE = Count()
# By key: failed runs, successful runs, and the visits of either that were not a run's first. Most paths name
# nothing twice, and then a visit is one addition.
_Cells = dict[Any, list[int]]


@dataclass
class Tally:
    """What a set of runs did. Adding runs in any order gives the same tally."""

    total: int = 0
    ok: int = 0
    pathed: int = 0
    """Runs that say where they went; the others are no evidence on what is used."""
    _nodes: _Cells = field(default_factory=dict)
    _edges: _Cells = field(default_factory=dict)

    def add(self, path: Sequence[str], ok: bool) -> None:
        """Count one run."""
        won = 1 if ok else 0
        self.total += 1
        self.ok += won
        self.pathed += 1 if path else 0
        _count(self._nodes, path, won)
        _count(self._edges, list(zip(path, path[1:], strict=False)), won)

    def merge(self, other: Tally) -> None:
        """Add what another tally counted."""
        self.total += other.total
        self.ok += other.ok
        self.pathed += other.pathed
        for mine, theirs in ((self._nodes, other._nodes), (self._edges, other._edges)):
            for key, cell in theirs.items():
                have = mine.get(key)
                mine[key] = list(cell) if have is None else [a + b for a, b in zip(have, cell, strict=True)]

    def copy(self) -> Tally:
        """Another tally with the same counts."""
        return Tally(
            self.total,
            self.ok,
            self.pathed,
            {id_: cell.copy() for id_, cell in self._nodes.items()},
            {pair: cell.copy() for pair, cell in self._edges.items()},
        )

    @property
    def counts(self) -> Counts:
        """The runs counted, and their successes."""
        return Counts(self.total, self.ok)

    def node(self, id_: str) -> Count:
        """The visits of a node."""
        cell = self._nodes.get(id_)
        return NONE if cell is None else _count_of(cell)

    def edge(self, src: str, dst: str) -> Count:
        """The traversals of a transition."""
        cell = self._edges.get((src, dst))
        return NONE if cell is None else _count_of(cell)

    def nodes(self) -> dict[str, Count]:
        """Every visited id, declared or not."""
        return {id_: _count_of(cell) for id_, cell in self._nodes.items()}

    def edges(self) -> dict[tuple[str, str], Count]:
        """Every transition taken, declared or not."""
        return {pair: _count_of(cell) for pair, cell in self._edges.items()}

    def stored(self) -> dict[str, Any]:
        """As JSON, sorted: {total, ok, pathed, nodes: [[id, total, ok, runs, runs_ok]], edges}.

        `edges` is [[src, dst, total, ok, runs, runs_ok]].
        """
        return {
            "total": self.total,
            "ok": self.ok,
            "pathed": self.pathed,
            "nodes": sorted([id_, *count] for id_, count in self.nodes().items()),
            "edges": sorted([src, dst, *count] for (src, dst), count in self.edges().items()),
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Tally:
        """A tally from `stored`; an empty object is an empty tally."""
        return cls(
            int(stored.get("total", 0)),
            int(stored.get("ok", 0)),
            int(stored.get("pathed", 0)),
            {id_: _cell_of(count) for id_, *count in stored.get("nodes", ())},
            {(src, dst): _cell_of(count) for src, dst, *count in stored.get("edges", ())},
        )


def _count(cells: _Cells, seen: Sequence[Any], won: int) -> None:
    met = set(seen)
    if len(met) == len(seen):
        for key in seen:
            try:
                cells[key][won] += 1
            except KeyError:
                cells[key] = [1 - won, won, 0, 0]
        return
    for key in seen:
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = [0, 0, 0, 0]
        if key in met:
            met.discard(key)
            cell[won] += 1
        else:
            cell[won + 2] += 1


def _count_of(cell: Sequence[int]) -> Count:
    failed, won, failed_again, won_again = cell
    return Count(failed + won + failed_again + won_again, won + won_again, failed + won, won)


def _cell_of(count: Sequence[int]) -> list[int]:
    total, ok, runs, runs_ok = count
    return [runs - runs_ok, runs_ok, total - ok - (runs - runs_ok), ok - runs_ok]


def tally_of(runs: Iterable[tuple[Sequence[str], bool]]) -> Tally:
    """The tally of (path, ok) pairs."""
    tally = Tally()
    for path, ok in runs:
        tally.add(path, ok)
    return tally
