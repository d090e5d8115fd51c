"""The graph as numbers for the SVG template: boxes, paths, widths, classes. Pure.

Success is shown twice, by colour and by a mark in the label (percent), so that it can be read without
colour; the width of an edge grows with the logarithm of its traversals.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from procedures.counting import Count, Tally, smoothed
from procedures.graph import Edge, Graph, Node, proven_path
from procedures.layout import Position, layout

COLUMN, ROW = 216, 104
BOX_WIDTH, BOX_HEIGHT = 176, 52
MARGIN = 24
LABEL_CHARS = 24
LINES = 2
MAX_WIDTH = 9.0
BANDS = ((0.8, "good"), (0.6, "fair"), (0.0, "poor"))


@dataclass(frozen=True)
class Box:
    """A node as drawn; x and y are of its top left corner."""

    id: str
    x: float
    y: float
    lines: list[str]
    figures: str
    kind: str
    css: str
    title: str


@dataclass(frozen=True)
class Line:
    """An edge as drawn."""

    src: str
    dst: str
    path: str
    width: float
    css: str
    title: str
    sign: str = ""
    """What happened to it between two revisions, at (x, y)."""
    x: float = 0
    y: float = 0


@dataclass(frozen=True)
class Row:
    """An edge or node of the table under the picture."""

    what: str
    label: str
    count: Count
    rate: float | None
    marks: list[str]


@dataclass(frozen=True)
class Picture:
    """Everything the templates show of a graph."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[Line]
    nodes: list[Row]
    edges: list[Row]
    undeclared: list[Row]


def band(count: Count) -> str:
    """The class of a smoothed success rate; `none` before the first traversal."""
    if not count.total:
        return "none"
    rate = smoothed(count.total, count.ok)
    return next(name for least, name in BANDS if rate >= least)


def width_of(total: int, most: int) -> float:
    """The width of an edge in pixels: 1.5 for none, up to `MAX_WIDTH` for the most traversed."""
    if not total:
        return 1.5
    return round(1.5 + (MAX_WIDTH - 1.5) * math.log1p(total) / math.log1p(max(most, 1)), 2)


def picture(
    graph: Graph, tally: Tally, dead_ends: Collection[str] = (), fail_prone: Collection[str] = ()
) -> Picture:
    """The drawing of a graph with what its runs did."""
    placed = layout([(edge.src, edge.dst) for edge in graph.edges], [node.id for node in graph.nodes])
    middle = MARGIN + placed.columns * COLUMN + BOX_WIDTH / 2
    path = proven_path(graph, tally)
    proven = set(path)
    steps = set(zip(path, path[1:], strict=False))
    most = max((tally.edge(*pair).total for pair in graph.pairs), default=0)

    def corner(place: Position) -> tuple[float, float]:
        return middle + place.column * COLUMN - BOX_WIDTH / 2, MARGIN + place.layer * ROW

    boxes, node_rows = [], []
    for node in graph.nodes:
        count = tally.node(node.id)
        marks = _marks(node.id in proven, node.id in dead_ends, node.id in fail_prone)
        x, y = corner(placed.positions[node.id])
        title = f"{node.words}\n{_figures(count)}" + (f"\ntool {node.tool}" if node.tool else "")
        css = " ".join(["node", node.kind, band(count), *(mark.replace(" ", "-") for mark in marks)])
        boxes.append(
            Box(node.id, round(x, 1), round(y, 1), wrapped(node.words), _short(count), node.kind, css, title)
        )
        node_rows.append(Row(node.id, node.words, count, _rate(count), marks))
    lines, edge_rows = [], []
    for edge in dict.fromkeys((edge.src, edge.dst) for edge in graph.edges):
        src, dst = edge
        count = tally.edge(src, dst)
        marks = _marks(edge in steps, dst in dead_ends or src in dead_ends, False)
        css = " ".join(["edge", band(count), *(mark.replace(" ", "-") for mark in marks)])
        back = placed.positions[dst].layer <= placed.positions[src].layer
        bends = [corner(place) for place in placed.bends.get(edge, ())]
        way = _way(corner(placed.positions[src]), corner(placed.positions[dst]), bends, back)
        title = f"{src} to {dst}: {_figures(count)}"
        lines.append(Line(src, dst, way, width_of(count.total, most), css, title))
        edge_rows.append(Row(f"{src} → {dst}", "", count, _rate(count), marks))
    extra = sorted(
        (pair for pair in tally.edges() if pair not in graph.pairs),
        key=lambda pair: (-tally.edge(*pair).total, pair),
    )
    # Heaviest last, so that they lie on top.
    lines.sort(key=lambda line: line.width)
    return Picture(
        width=math.ceil(2 * middle),
        height=2 * MARGIN + (placed.layers - 1) * ROW + BOX_HEIGHT,
        boxes=boxes,
        lines=lines,
        nodes=node_rows,
        edges=sorted(edge_rows, key=lambda row: -row.count.total),
        undeclared=[
            Row(f"{src} → {dst}", "", tally.edge(src, dst), _rate(tally.edge(src, dst)), [])
            for src, dst in extra
        ]
        + ([Row("all others", "", Count(total=tally.other_edges), None, [])] if tally.other_edges else []),
    )


# A difference

SIGNS = {"added": "+ added", "removed": "− removed", "changed": "~ changed", "same": ""}


def picture_of_difference(before: Graph, after: Graph) -> Picture:
    """Both graphs in one drawing: what was added, removed and changed has a class and says so in words."""
    nodes = [*after.nodes, *(node for node in before.nodes if node.id not in after.by_id)]
    pairs = list(dict.fromkeys((edge.src, edge.dst) for edge in (*after.edges, *before.edges)))
    placed = layout(pairs, [node.id for node in nodes])
    middle = MARGIN + placed.columns * COLUMN + BOX_WIDTH / 2

    def corner(place: Position) -> tuple[float, float]:
        return middle + place.column * COLUMN - BOX_WIDTH / 2, MARGIN + place.layer * ROW

    boxes = []
    for node in nodes:
        word = _changed(before.by_id.get(node.id), after.by_id.get(node.id))
        x, y = corner(placed.positions[node.id])
        title = f"{node.words}\n{SIGNS[word] or 'the same in both'}"
        css = f"node {node.kind} {word}"
        boxes.append(
            Box(node.id, round(x, 1), round(y, 1), wrapped(node.words), SIGNS[word], node.kind, css, title)
        )
    had, has = _edges_by_pair(before), _edges_by_pair(after)
    lines = []
    for src, dst in pairs:
        word = _changed(had.get((src, dst)), has.get((src, dst)))
        start, end = corner(placed.positions[src]), corner(placed.positions[dst])
        back = placed.positions[dst].layer <= placed.positions[src].layer
        bends = [corner(place) for place in placed.bends.get((src, dst), ())]
        x, y = _halfway(start, end, bends, back)
        lines.append(
            Line(
                src, dst, _way(start, end, bends, back), 1.5 if word == "same" else 3, f"edge {word}",
                f"{src} to {dst}: {SIGNS[word] or 'the same in both'}", SIGNS[word][:1], round(x), round(y),
            )
        )  # fmt: skip
    return Picture(
        width=math.ceil(2 * middle),
        height=2 * MARGIN + (placed.layers - 1) * ROW + BOX_HEIGHT,
        boxes=boxes,
        lines=lines,
        nodes=[],
        edges=[],
        undeclared=[],
    )


def _changed(was: Node | set[Edge] | None, now: Node | set[Edge] | None) -> str:
    if was is None:
        return "added"
    if now is None:
        return "removed"
    return "same" if was == now else "changed"


def _edges_by_pair(graph: Graph) -> dict[tuple[str, str], set[Edge]]:
    found: dict[tuple[str, str], set[Edge]] = {}
    for edge in graph.edges:
        found.setdefault((edge.src, edge.dst), set()).add(edge)
    return found


def _halfway(
    start: tuple[float, float], end: tuple[float, float], bends: list[tuple[float, float]], back: bool
) -> tuple[float, float]:
    """A place on the curve of `_way`, near its middle."""
    if back:
        half = (start[1] + end[1] + BOX_HEIGHT) / 2
        return max(start[0], end[0]) + BOX_WIDTH + 26, half
    if bends:
        x, y = bends[len(bends) // 2]
        return x + BOX_WIDTH / 2, y + BOX_HEIGHT / 2
    return (start[0] + end[0] + BOX_WIDTH) / 2, (start[1] + BOX_HEIGHT + end[1]) / 2


def _marks(proven: bool, dead: bool, prone: bool) -> list[str]:
    return [word for word, holds in (("proven", proven), ("dead end", dead), ("fail-prone", prone)) if holds]


def _rate(count: Count) -> float | None:
    return smoothed(count.total, count.ok) * 100 if count.total else None


def _figures(count: Count) -> str:
    if not count.total:
        return "no traversal"
    return f"{count.total} traversals, {count.ok} in runs that succeeded"


def _short(count: Count) -> str:
    return f"{count.total}× · {smoothed(count.total, count.ok):.0%} ok" if count.total else "not used"


def wrapped(text: str) -> list[str]:
    """A label in `LINES` lines of `LABEL_CHARS` characters at most, cut with an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= LABEL_CHARS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    cut = [line if len(line) <= LABEL_CHARS else f"{line[: LABEL_CHARS - 1]}…" for line in lines]
    if len(cut) > LINES:
        cut = [*cut[: LINES - 1], f"{cut[LINES - 1][: LABEL_CHARS - 1]}…"]
    return cut


def _way(
    start: tuple[float, float], end: tuple[float, float], bends: list[tuple[float, float]], back: bool
) -> str:
    """A curve from box to box; a back edge leaves and arrives at the side."""
    if back:
        x1, y1 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
        x2, y2 = end[0] + BOX_WIDTH, end[1] + BOX_HEIGHT / 2
        out = max(x1, x2) + 34
        return f"M{x1:.0f} {y1:.0f}C{out:.0f} {y1:.0f} {out:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    points = [(start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT)]
    points += [(x + BOX_WIDTH / 2, y + BOX_HEIGHT / 2) for x, y in bends]
    points.append((end[0] + BOX_WIDTH / 2, end[1] - 3))
    text = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False):
        half = (y1 + y2) / 2
        text += f"C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2:.0f}"
    return text
