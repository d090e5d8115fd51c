"""Where the nodes of a graph are drawn: a layered layout (Sugiyama, Tagawa and Toda 1981).

Four steps: cycles are broken at back edges; each node is put one layer below its lowest predecessor; edges
over a few layers get a narrow lane in each, so that what crosses is seen (longer ones are drawn straight, for
their lanes would push everything apart); layers are ordered by the medians of their neighbours (Eades and
Wormald 1994), down and up, and the ordering with the fewest crossings wins. Layers too wide for a screen are
broken into lines at the end. Own code of this size, because it needs no compiled dependency and 500 nodes
take a fraction of a second.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from procedures.graph import back_edges, entries_of

SWEEPS = 8
LANE = 0.15
"""Width of an edge on its way through a layer, in columns."""
WIDEST = 20
"""Columns of a line; a layer that is wider is broken into several lines, one below the other."""
LONGEST = 5
"""Layers that an edge may span and still get lanes."""


@dataclass(frozen=True)
class Position:
    """A node's place: its layer from the top, and its column (in units of a column, centred on 0)."""

    layer: int
    column: float


@dataclass(frozen=True)
class Layout:
    """Positions by node, and for each edge over several layers the columns that it passes on its way."""

    positions: dict[str, Position]
    bends: dict[tuple[str, str], list[Position]]

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return 1 + max((place.layer for place in self.positions.values()), default=-1)

    @property
    def columns(self) -> float:
        """How far the outermost places lie from the middle."""
        places = [*self.positions.values(), *(p for path in self.bends.values() for p in path)]
        return max((abs(place.column) for place in places), default=0.0)


# A node is (id, "", layer); an edge on its way through a layer is (src, dst, layer).
_Item = tuple[str, str, int]


def layout(edges: Sequence[tuple[str, str]], nodes: Sequence[str] = ()) -> Layout:
    """Positions for the ends of `edges` and for `nodes`, which also give the order of equals.

    Deterministic. Self edges and repeated edges change nothing.
    """
    ids = list(dict.fromkeys([*nodes, *(end for edge in edges for end in edge)]))
    if not ids:
        return Layout({}, {})
    pairs = [edge for edge in dict.fromkeys(edges) if edge[0] != edge[1]]
    layers = _layers(ids, pairs)
    down: dict[_Item, list[_Item]] = {}
    rows: list[list[_Item]] = [[] for _ in range(max(layers.values()) + 1)]
    for id_ in ids:
        rows[layers[id_]].append((id_, "", layers[id_]))
    routes: dict[tuple[str, str], list[_Item]] = {}
    for src, dst in pairs:
        top, bottom = (src, dst) if layers[src] <= layers[dst] else (dst, src)
        between = range(layers[top] + 1, layers[bottom])
        places: list[_Item] = [(src, dst, layer) for layer in between] if len(between) < LONGEST else []
        for place in places:
            rows[place[2]].append(place)
        route = [(top, "", layers[top]), *places, (bottom, "", layers[bottom])]
        for upper, lower in zip(route, route[1:], strict=False):
            if lower[2] - upper[2] == 1:
                down.setdefault(upper, []).append(lower)
        if places:
            routes[src, dst] = places if top == src else places[::-1]
    lines = [line for row in _ordered(rows, down) for line in _lines(row)]
    placed = {item: Position(layer, at) for layer, line in enumerate(lines) for item, at in _columns(line)}
    return Layout(
        {id_: placed[id_, "", layers[id_]] for id_ in ids},
        {edge: [placed[item] for item in items] for edge, items in routes.items()},
    )


def _lines(row: list[_Item]) -> Iterator[list[_Item]]:
    """A row in lines of at most `WIDEST` columns, as equal as can be: a whole graph has to fit a screen."""
    width = sum(LANE if item[1] else 1.0 for item in row)
    share = width / max(1, ceil(width / WIDEST))
    lines: dict[int, list[_Item]] = {}
    passed = 0.0
    for item in row:
        own = LANE if item[1] else 1.0
        lines.setdefault(int((passed + own / 2) / share), []).append(item)
        passed += own
    yield from lines.values()


def _columns(row: list[_Item]) -> Iterator[tuple[_Item, float]]:
    """The middle of each item of a row, the row's own middle being 0."""
    widths = [LANE if item[1] else 1.0 for item in row]
    at = -sum(widths) / 2
    for item, width in zip(row, widths, strict=True):
        yield item, at + width / 2
        at += width


def _layers(ids: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest way from an entry to each node, back edges left out."""
    successors: dict[str, list[str]] = {id_: [] for id_ in ids}
    for src, dst in pairs:
        successors[src].append(dst)
    # Every node is a start, so that what no entry reaches is walked too.
    back = back_edges([*entries_of(ids, pairs), *ids], successors)
    forward = [pair for pair in pairs if pair not in back]
    waiting = dict.fromkeys(ids, 0)
    for _, dst in forward:
        waiting[dst] += 1
    layer = dict.fromkeys(ids, 0)
    ready = [id_ for id_ in ids if not waiting[id_]]
    targets: dict[str, list[str]] = {id_: [] for id_ in ids}
    for src, dst in forward:
        targets[src].append(dst)
    while ready:
        src = ready.pop()
        for dst in targets[src]:
            layer[dst] = max(layer[dst], layer[src] + 1)
            waiting[dst] -= 1
            if not waiting[dst]:
                ready.append(dst)
    return layer


def _ordered(rows: list[list[_Item]], down: dict[_Item, list[_Item]]) -> list[list[_Item]]:
    """The rows with their items in an order of few crossings."""
    up: dict[_Item, list[_Item]] = {}
    for item, lowers in down.items():
        for lower in lowers:
            up.setdefault(lower, []).append(item)
    best, fewest = [list(row) for row in rows], _crossings(rows, down)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        neighbours = up if downwards else down
        turn = range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1)
        for layer in turn:
            beside = rows[layer - 1] if downwards else rows[layer + 1]
            place = {item: at for at, item in enumerate(beside)}
            rows[layer] = _by_median(rows[layer], neighbours, place)
        crossings = _crossings(rows, down)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _by_median(
    row: list[_Item], neighbours: dict[_Item, list[_Item]], place: dict[_Item, int]
) -> list[_Item]:
    keys = {}
    for at, item in enumerate(row):
        found = sorted(place[other] for other in neighbours.get(item, ()))
        middle = len(found) // 2
        if not found:
            keys[item] = float(at)
        elif len(found) % 2:
            keys[item] = float(found[middle])
        else:
            keys[item] = (found[middle - 1] + found[middle]) / 2
    return sorted(row, key=lambda item: keys[item])


def _crossings(rows: list[list[_Item]], down: dict[_Item, list[_Item]]) -> int:
    """How many pairs of edges between neighbouring layers cross."""
    crossings = 0
    for upper, lower in zip(rows, rows[1:], strict=False):
        place = {item: at for at, item in enumerate(lower)}
        met: list[int] = []
        for item in upper:
            targets = sorted(place[other] for other in down.get(item, ()))
            crossings += sum(len(met) - bisect_right(met, target) for target in targets)
            for target in targets:
                insort(met, target)
    return crossings
