"""What the tests of procedures share: recipes, and shorthands for the calls."""

from __future__ import annotations

from typing import Any

from tests.conftest import Cast, Reply

KEY = "procedure_roll_back"
RECIPE: dict[str, Any] = {
    "name": "Roll back",
    "situation": "A deploy made the error rate rise and has to be undone",
    "steps": ["Freeze further deploys", "Switch to the release before", "Watch the error rate"],
}


def graph(edges: str, **tools: str) -> dict[str, Any]:
    """A graph from `"a>b b>c"`; nodes in the order of their first mention, `tools` by node id."""
    pairs = [tuple(edge.split(">")) for edge in edges.split()]
    ids = list(dict.fromkeys(id_ for pair in pairs for id_ in pair))
    return {
        "nodes": [
            {"id": id_, "kind": "step", "text": f"do {id_}"} | ({"tool": tools[id_]} if id_ in tools else {})
            for id_ in ids
        ],
        "edges": [{"src": src, "dst": dst, "kind": "dep"} for src, dst in pairs],
    }


def add(cast: Cast, by: str = "mate", **more: Any) -> Reply:
    """procedure.add of RECIPE with changes."""
    return cast.run("procedure.add", {**RECIPE, **more}, by)


def record(cast: Cast, path: list[str], ok: bool = True, key: str = KEY, **more: Any) -> Reply:
    """procedure.record_run."""
    return cast.run("procedure.record_run", {"memory_key": key, "path": path, "ok": ok, **more})


def locate(cast: Cast, key: str = KEY, **more: Any) -> Reply:
    """procedure.locate."""
    return cast.run("procedure.locate", {"memory_key": key, **more})
