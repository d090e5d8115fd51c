"""The graph of a procedure: validation, derivation, digest, the proven path. Computes without the database.

Terms: an *entry* is a node without an incoming edge (the first declared node when there is none); a *back
edge* closes a cycle in a depth-first walk from the entries in declared order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from procedures.counting import Declared, Tally, smoothed

KEY_PREFIX = "procedure_"
NODE_KINDS = ("step", "memory", "consolidation", "decision")
EDGE_KINDS = ("dep", "dataflow", "branch")
MAX_NODES = 500
MAX_EDGES = 2_000
ID_CHARS = 128
TEXT_CHARS = 2_000
CONDITION_CHARS = 500
MEMORY_KEY_CHARS = 512
NAME_CHARS = 160
DEPENDENCY = 0.5
"""How clearly an edge must be taken one way before the proven path follows it backwards."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NODE_FIELDS = frozenset({"id", "kind", "text", "tool", "memory_key", "dead_end"})
_EDGE_FIELDS = frozenset({"src", "dst", "kind", "condition"})


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a graph; `place` is a path below it, such as ("nodes", 3, "id")."""

    place: tuple[str | int, ...]
    message: str


@dataclass(frozen=True)
class Node:
    """One step, decision or piece of memory. Blank strings stand for what was left out."""

    id: str
    kind: str
    text: str
    tool: str = ""
    memory_key: str = ""

    @property
    def words(self) -> str:
        """What the node says: its text, else the memory it points to, else its id."""
        return self.text or self.memory_key or self.id


@dataclass(frozen=True)
class Edge:
    """A declared transition."""

    src: str
    dst: str
    kind: str = "dep"
    condition: str = ""


@dataclass(frozen=True)
class Graph:
    """Nodes and edges in declared order; valid once `faults_of` found nothing."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Each node by its id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def order(self) -> dict[str, int]:
        """The place of each node in declared order."""
        return {node.id: place for place, node in enumerate(self.nodes)}

    @cached_property
    def successors(self) -> dict[str, list[str]]:
        """Distinct targets of each node, in the order in which their edges are declared."""
        found: dict[str, dict[str, None]] = {node.id: {} for node in self.nodes}
        for edge in self.edges:
            found[edge.src].setdefault(edge.dst)
        return {src: list(targets) for src, targets in found.items()}

    @cached_property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The declared transitions."""
        return frozenset((edge.src, edge.dst) for edge in self.edges)

    @cached_property
    def declared(self) -> Declared:
        """What a tally counts by name without a bound."""
        return Declared(frozenset(self.by_id), self.pairs)

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """Where a run may begin."""
        return entries_of([node.id for node in self.nodes], self.pairs)

    @cached_property
    def tools(self) -> dict[str, list[str]]:
        """Ids of the nodes that bear each tool, in declared order."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.tool:
                found.setdefault(node.tool, []).append(node.id)
        return found

    @cached_property
    def back_edges(self) -> frozenset[tuple[str, str]]:
        """The transitions that close a cycle."""
        return back_edges(self.entries, self.successors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of ids, kinds, texts, tools and memory keys in declared order, and sorted edges."""
        content = {
            "nodes": [[n.id, n.kind, n.text, n.tool, n.memory_key] for n in self.nodes],
            "edges": sorted([e.src, e.dst, e.kind, e.condition] for e in self.edges),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def stored(self) -> dict[str, Any]:
        """The graph as JSON, in the shape that ops take; optional fields only where they say something."""
        return {
            "nodes": [
                {"id": n.id, "kind": n.kind, "text": n.text}
                | ({"tool": n.tool} if n.tool else {})
                | ({"memory_key": n.memory_key} if n.memory_key else {})
                for n in self.nodes
            ],
            "edges": [
                {"src": e.src, "dst": e.dst, "kind": e.kind}
                | ({"condition": e.condition} if e.condition else {})
                for e in self.edges
            ],
        }

    @cached_property
    def names(self) -> str:
        """Ids, tools, memory keys and conditions, a line each: the texts that a value does not repeat."""
        lines = [text for n in self.nodes for text in (n.id, n.tool, n.memory_key)]
        lines += [edge.condition for edge in self.edges]
        return "\n".join(dict.fromkeys(line for line in lines if line))

    def resolve(self, name: str) -> str | None:
        """The node that an id, or an unambiguous tool name, means; None for anything else."""
        if name in self.by_id:
            return name
        bearers = self.tools.get(name, [])
        return bearers[0] if len(bearers) == 1 else None


def entries_of(ids: Sequence[str], pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Ids without an incoming edge; the first id when every one has (a retry from the top)."""
    entered = {dst for _, dst in pairs}
    found = tuple(id_ for id_ in ids if id_ not in entered)
    return found or tuple(ids[:1])


def back_edges(entries: Iterable[str], successors: Mapping[str, Sequence[str]]) -> frozenset[tuple[str, str]]:
    """Edges to a node that the depth-first walk from the entries is still inside of. Without recursion."""
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    inside: set[str] = set()
    for entry in entries:
        if entry in done:
            continue
        stack = [(entry, iter(successors[entry]))]
        inside.add(entry)
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                inside.discard(node)
                done.add(node)
            elif following in inside:
                found.add((node, following))
            elif following not in done:
                inside.add(following)
                stack.append((following, iter(successors[following])))
    return frozenset(found)


# Comparing


@dataclass(frozen=True)
class Difference:
    """What one graph has and another has not."""

    added: list[Node]
    removed: list[Node]
    changed: list[tuple[Node, Node]]
    """Nodes of one id that say something else now, as (before, after)."""
    added_edges: list[Edge]
    removed_edges: list[Edge]

    @property
    def is_empty(self) -> bool:
        """True when nodes and edges are the same, whatever their order."""
        return not (self.added or self.removed or self.changed or self.added_edges or self.removed_edges)


def difference(before: Graph, after: Graph) -> Difference:
    """What changed from one graph to another, in declared order; nodes are compared by their ids."""
    had, has = set(before.edges), set(after.edges)
    return Difference(
        added=[node for node in after.nodes if node.id not in before.by_id],
        removed=[node for node in before.nodes if node.id not in after.by_id],
        changed=[
            (before.by_id[node.id], node)
            for node in after.nodes
            if node.id in before.by_id and before.by_id[node.id] != node
        ],
        added_edges=[edge for edge in after.edges if edge not in had],
        removed_edges=[edge for edge in before.edges if edge not in has],
    )


# From JSON


def read(stored: Mapping[str, Any]) -> Graph:
    """A graph from JSON in which `faults_of` finds nothing; edges that are said twice count once."""
    nodes = tuple(
        Node(n["id"], n["kind"], n.get("text") or "", n.get("tool") or "", n.get("memory_key") or "")
        for n in stored["nodes"]
    )
    edges = (Edge(e["src"], e["dst"], e["kind"], e.get("condition") or "") for e in stored.get("edges") or ())
    return Graph(nodes, tuple(dict.fromkeys(edges)))


def faults_of(given: Mapping[str, Any]) -> list[Fault]:
    """Everything that is wrong with a graph as JSON, each fault with its place; [] for a valid one."""
    faults = [Fault((name,), "is not a field of a graph") for name in given if name not in ("nodes", "edges")]
    nodes = _list(given, "nodes", MAX_NODES, faults)
    edges = _list(given, "edges", MAX_EDGES, faults)
    if not nodes and not any(fault.place == ("nodes",) for fault in faults):
        faults.append(Fault(("nodes",), "must hold at least two nodes"))
    elif len(nodes) == 1:
        faults.append(
            Fault(("nodes",), "holds one node; one step is a lesson, not a procedure (memory.set keeps one)")
        )
    ids = _node_faults(nodes, faults)
    pairs = _edge_faults(edges, set(ids), faults)
    # What is too much is not walked, and what is not known cannot be walked.
    if ids and len(nodes) <= MAX_NODES and len(edges) <= MAX_EDGES:
        reached = reachable(entries_of(ids, pairs), pairs)
        faults += [
            Fault(("nodes", place), f"{node['id']!r} cannot be reached from an entry")
            for place, node in enumerate(nodes)
            if isinstance(node, dict) and node.get("id") in set(ids) and node["id"] not in reached
        ]
    return faults


def reachable(start: Iterable[str], pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Every id that can be reached from `start`, itself included."""
    targets: dict[str, list[str]] = {}
    for src, dst in pairs:
        targets.setdefault(src, []).append(dst)
    seen = set(start)
    rest = list(seen)
    while rest:
        for following in targets.get(rest.pop(), ()):
            if following not in seen:
                seen.add(following)
                rest.append(following)
    return seen


def _list(given: Mapping[str, Any], name: str, most: int, faults: list[Fault]) -> list[Any]:
    found = given.get(name, [])
    if not isinstance(found, list):
        faults.append(Fault((name,), "must be a list"))
        return []
    if len(found) > most:
        faults.append(Fault((name,), f"has {len(found)} entries; the limit is {most}"))
    return found


def _text_fault(value: Any, most: int, *, needed: bool = False, plain: bool = False) -> str | None:
    """What is wrong with a text, or None."""
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        return "is missing" if value is None else "must be a string"
    if needed and not value.strip():
        return "must not be blank"
    if len(value) > most:
        return f"has {len(value)} characters; the limit is {most}"
    if plain and _CONTROL.search(value):
        return "must not hold control characters or line breaks"
    return None


def _node_faults(nodes: Sequence[Any], faults: list[Fault]) -> list[str]:
    """Judge each node; the distinct usable ids in declared order."""
    ids: dict[str, int] = {}
    for place, node in enumerate(nodes):
        at: tuple[str | int, ...] = ("nodes", place)
        if not isinstance(node, dict):
            faults.append(Fault(at, "must be an object with id, kind and text"))
            continue
        faults += [
            Fault((*at, name), "is not a field of a node") for name in node if name not in _NODE_FIELDS
        ]
        kind = node.get("kind")
        if kind not in NODE_KINDS:
            faults.append(Fault((*at, "kind"), f"must be one of {', '.join(NODE_KINDS)}"))
        points = kind in ("memory", "consolidation") and bool(node.get("memory_key"))
        for name, most, needed, plain in (
            ("id", ID_CHARS, True, True),
            ("text", TEXT_CHARS, not points, False),
            ("tool", ID_CHARS, False, True),
            ("memory_key", MEMORY_KEY_CHARS, False, True),
        ):
            fault = _text_fault(node.get(name), most, needed=needed, plain=plain)
            if fault:
                faults.append(Fault((*at, name), fault))
            elif name == "id" and node["id"] in ids:
                faults.append(Fault((*at, "id"), f"{node['id']!r} is also the id of nodes.{ids[node['id']]}"))
            elif name == "id":
                ids[node["id"]] = place
        if not isinstance(node.get("dead_end", False), bool):
            faults.append(Fault((*at, "dead_end"), "must be true or false"))
    return list(ids)


def _edge_faults(edges: Sequence[Any], ids: set[str], faults: list[Fault]) -> list[tuple[str, str]]:
    """Judge each edge; the transitions that are usable."""
    pairs = []
    for place, edge in enumerate(edges):
        at: tuple[str | int, ...] = ("edges", place)
        if not isinstance(edge, dict):
            faults.append(Fault(at, "must be an object with src, dst and kind"))
            continue
        faults += [
            Fault((*at, name), "is not a field of an edge") for name in edge if name not in _EDGE_FIELDS
        ]
        if edge.get("kind") not in EDGE_KINDS:
            faults.append(Fault((*at, "kind"), f"must be one of {', '.join(EDGE_KINDS)}"))
        fault = _text_fault(edge.get("condition"), CONDITION_CHARS)
        if fault:
            faults.append(Fault((*at, "condition"), fault))
        ends = edge.get("src"), edge.get("dst")
        known = True
        for name, end in zip(("src", "dst"), ends, strict=True):
            if not isinstance(end, str) or end not in ids:
                said = "is missing" if end is None else f"{str(end)[:ID_CHARS]!r} is the id of no node"
                faults.append(Fault((*at, name), said))
                known = False
        if known and ends[0] == ends[1]:
            faults.append(Fault(at, f"leads from {ends[0]!r} to itself"))
        elif known:
            pairs.append((str(ends[0]), str(ends[1])))
    return pairs


def chain(steps: Sequence[str]) -> Graph:
    """The graph of a plain list of steps: `s1 -> s2 -> ...`."""
    nodes = tuple(Node(f"s{i}", "step", text) for i, text in enumerate(steps, 1))
    edges = tuple(Edge(a.id, b.id) for a, b in zip(nodes, nodes[1:], strict=False))
    return Graph(nodes, edges)


def slug(name: str) -> str:
    """A name as part of a key: case folded, runs of other than letters and digits as one `_`.

    A name without a letter or digit gives 12 hex digits of its SHA-256.
    """
    words = re.sub(r"[\W_]+", "_", name.casefold()).strip("_")
    return words or hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# The proven path


def dependency(tally: Tally, src: str, dst: str) -> float:
    """How clearly `src` precedes `dst`, in (-1, 1): (|a>b| - |b>a|) / (|a>b| + |b>a| + 1).

    The dependency measure of the Heuristics Miner (Weijters, van der Aalst and de Medeiros 2006).
    """
    there, back = tally.edge(src, dst).total, tally.edge(dst, src).total
    return (there - back) / (there + back + 1)


def proven_next(graph: Graph, tally: Tally, node: str, visited: set[str]) -> str | None:
    """Where the proven path goes on: most successful traversals, then smoothed rate, then declared order."""
    best: tuple[int, float] | None = None
    chosen = None
    for dst in graph.successors[node]:
        if dst in visited:
            continue
        if (node, dst) in graph.back_edges and dependency(tally, node, dst) < DEPENDENCY:
            continue
        count = tally.edge(node, dst)
        rank = (count.ok, smoothed(count.total, count.ok))
        if best is None or rank > best:
            best, chosen = rank, dst
    return chosen


def proven_path(graph: Graph, tally: Tally, start: str | None = None) -> list[str]:
    """Ids from `start` (else the best entry) along the edges that worked; no node twice."""
    if start is None:
        # max keeps the first of equals, which is the declared order.
        start = max(
            graph.entries, key=lambda id_: (tally.node(id_).ok, smoothed(*tally.node(id_).total_and_ok))
        )
    path, visited = [start], {start}
    while (following := proven_next(graph, tally, path[-1], visited)) is not None:
        path.append(following)
        visited.add(following)
    return path


def steps_of(graph: Graph, path: Iterable[str], dead_ends: Iterable[str] = ()) -> list[str]:
    """The words of the nodes along a path, those of dead ends left out."""
    hidden = set(dead_ends)
    return [graph.by_id[id_].words for id_ in path if id_ not in hidden]


def branches_of(graph: Graph, path: Iterable[str], dead_ends: Iterable[str] = ()) -> list[str]:
    """The words of every other node, in declared order."""
    shown = set(path) - set(dead_ends)
    return [node.words for node in graph.nodes if node.id not in shown]
