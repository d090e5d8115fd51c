"""How well `procedure.match` finds: top-1, recall@3 and the share of false matches, by floor.

20 procedures and 80 situations of our own (`benchmarks.situations`). The floor is chosen on one half of the
situations (every other one) and shown on the other. It compares vectors as `procedure.match` does, without a
server: what is stored by `embed`, what is asked by `embed_query`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.common import print_table
from benchmarks.situations import ASKED, PROCEDURES

SERVER = False
FLOORS = [round(0.10 + 0.02 * step, 2) for step in range(21)]


def run(_client: httpx.Client | None, _data_dir: Path | None) -> dict[str, Any]:
    """Figures at the chosen floor on either half, and at every floor tried."""
    from memories.embedders import WordLlamaEmbedder
    from procedures.ranking import floor_of

    embedder = WordLlamaEmbedder()
    stored = embedder.embed(list(PROCEDURES.values()))
    names = list(PROCEDURES)
    asked = np.stack([embedder.embed_query(text) for text, _ in ASKED])
    near = asked @ stored.T
    right = [names.index(name) if name is not None else None for _, name in ASKED]
    chosen_on, shown_on = range(0, len(ASKED), 2), range(1, len(ASKED), 2)
    tried = {floor: figures(near, right, chosen_on, floor) for floor in FLOORS}
    # Of equals the lowest, which misses least.
    best = max(FLOORS, key=lambda floor: (round(score(tried[floor]), 6), -floor))
    in_use = floor_of(embedder.name)
    rows = []
    for label, part in (("chosen on", chosen_on), ("shown on", shown_on)):
        for floor in sorted({best, in_use}):
            found = figures(near, right, part, floor)
            rows.append([f"{label}, floor {floor:.2f}", len(part), *found.values()])
    print_table(
        f"Match over {len(names)} procedures ({embedder.name}); best floor {best:.2f}, in use {in_use:.2f}",
        ["half", "situations", "top-1", "recall@3", "false matches"],
        rows,
    )
    shown = figures(near, right, shown_on, in_use)
    return {
        "embedder": embedder.name,
        "best_floor": best,
        "floor_in_use": in_use,
        "by_floor": {str(floor): found for floor, found in tried.items()},
        "shown": shown,
        "bars": {
            f"the floor in use ({in_use}) is the one that the chosen half gives ({best})": in_use == best
        },
    }


def figures(near: Any, right: Sequence[int | None], part: range, floor: float) -> dict[str, float]:
    """top-1 and recall@3 over situations with a procedure; false matches over those without one."""
    first = third = false = 0
    fitting = [i for i in part if right[i] is not None]
    others = [i for i in part if right[i] is None]
    for i in fitting:
        order = [j for j in np.argsort(-near[i], kind="stable") if near[i, j] >= floor]
        first += bool(order) and order[0] == right[i]
        third += right[i] in order[:3]
    for i in others:
        false += bool((near[i] >= floor).any())
    return {
        "top1": first / len(fitting), "recall3": third / len(fitting), "false_matches": false / len(others)
    }  # fmt: skip


def score(found: dict[str, float]) -> float:
    """What the floor is chosen by: a wrong answer costs as much as a missing one."""
    return found["top1"] - found["false_matches"]
