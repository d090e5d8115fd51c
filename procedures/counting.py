"""Counting traversals from the paths of runs: the one definition, for reads and for evolve.

A path is an ordered list of ids. Each visit of a node counts once, each pair of neighbours counts once as a
transition; a self transition and an id that the graph does not declare are counted like any other. A run's
outcome counts for everything on its path.

What a graph declares is counted by name. Callers choose undeclared names, so of those only the first ones of
the ledger keep a name (`IDS_KEPT`, `LINKS_KEPT`, `PAIRS_KEPT`); their counts are exact, and visits of later
ones are summed in `Tally.other_nodes` and `Tally.other_edges`. Which names come first depends on the order of
the ledger alone, not on how it is divided. A name that a later revision declares is missing the visits that
an earlier revision summed so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATH_IDS = 500
"""Longer paths are cut here when they are recorded."""
IDS_KEPT = 200
"""Undeclared ids counted by name."""
LINKS_KEPT = 200
"""Transitions from or to an undeclared id counted by name."""
PAIRS_KEPT = 2_000
"""Undeclared transitions between declared nodes counted by name."""


class Declared(NamedTuple):
    """What a graph declares: ids of nodes, and transitions."""

    ids: frozenset[str]
    pairs: frozenset[tuple[str, str]]

    def link(self, pair: tuple[str, str]) -> bool:
        """Whether a transition has an undeclared end."""
        return pair[0] not in self.ids or pair[1] not in self.ids


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
    """What a set of runs did. Without `declared` every name is kept, in whatever order runs come."""

    total: int = 0
    ok: int = 0
    pathed: int = 0
    """Runs that say where they went; the others are no evidence on what is used."""
    _nodes: _Cells = field(default_factory=dict)
    _edges: _Cells = field(default_factory=dict)
    other_nodes: int = 0
    """Visits of undeclared ids that have no name here."""
    other_edges: int = 0
    """Traversals of undeclared transitions that have no name here."""
    declared: Declared | None = None

    def __post_init__(self) -> None:
        self._kept: list[int] | None = None

    def add(self, path: Sequence[str], ok: bool) -> None:
        """Count one run."""
        won = 1 if ok else 0
        self.total += 1
        self.ok += won
        self.pathed += 1 if path else 0
        pairs = list(zip(path, path[1:], strict=False))
        if self.declared is not None:
            path, pairs = self._named(self.declared, path, pairs)
        _count(self._nodes, path, won)
        _count(self._edges, pairs, won)

    def _named(
        self, declared: Declared, path: Sequence[str], pairs: list[tuple[str, str]]
    ) -> tuple[Sequence[str], list[tuple[str, str]]]:
        """What of a run is counted by name; the rest is summed."""
        if declared.ids.issuperset(path) and declared.pairs.issuperset(pairs):
            return path, pairs
        if self._kept is None:
            links = [declared.link(pair) for pair in self._edges if pair not in declared.pairs]
            ids = sum(id_ not in declared.ids for id_ in self._nodes)
            self._kept = [ids, sum(links), len(links) - sum(links)]
        kept = self._kept
        for id_ in path:
            if id_ not in self._nodes and id_ not in declared.ids and kept[0] < IDS_KEPT:
                self._nodes[id_] = [0, 0, 0, 0]
                kept[0] += 1
        for pair in pairs:
            if pair not in self._edges and pair not in declared.pairs:
                place, most = (1, LINKS_KEPT) if declared.link(pair) else (2, PAIRS_KEPT)
                if kept[place] < most:
                    self._edges[pair] = [0, 0, 0, 0]
                    kept[place] += 1
        ids_named = [id_ for id_ in path if id_ in self._nodes or id_ in declared.ids]
        pairs_named = [pair for pair in pairs if pair in self._edges or pair in declared.pairs]
        self.other_nodes += len(path) - len(ids_named)
        self.other_edges += len(pairs) - len(pairs_named)
        return ids_named, pairs_named

    @property
    def size(self) -> int:
        """Names held."""
        return len(self._nodes) + len(self._edges)

    def merge(self, other: Tally) -> None:
        """Add what another tally counted."""
        self.total += other.total
        self.ok += other.ok
        self.pathed += other.pathed
        self.other_nodes += other.other_nodes
        self.other_edges += other.other_edges
        self._kept = None
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
            self.other_nodes,
            self.other_edges,
            self.declared,
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

        `edges` is [[src, dst, total, ok, runs, runs_ok]]; `other_nodes` and `other_edges` are there if not 0.
        """
        others = {"other_nodes": self.other_nodes, "other_edges": self.other_edges}
        return {name: count for name, count in others.items() if count} | {
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
            int(stored.get("other_nodes", 0)),
            int(stored.get("other_edges", 0)),
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
