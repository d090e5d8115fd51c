"""`python -m benchmarks.plots`: SVG pictures of `benchmarks/results/*.json` into docs/images.

Drawn by hand of rectangles, lines and text, so that the pictures need no package and diff as text. Each takes
the colours of the page it stands on.
"""

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from benchmarks.common import RESULTS, ROOT

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT, LEFT, BASE = 640, 300, 60, 250
COLOURS = ("#2f6fb0", "#c06a1c", "#3f8f4f", "#7a5aa6")
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#222}.axis{stroke:#888}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
)


def main() -> None:
    """Draw what there are results for, and say what was drawn."""
    IMAGES.mkdir(exist_ok=True)
    for name, draw in (("scale", scale), ("retrieval", retrieval)):
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            print(f"{name}: no {path.relative_to(ROOT)}; run the benchmark first")
            continue
        stored = json.loads(path.read_text())
        target = IMAGES / f"bench-{name}.svg"
        target.write_text(draw(stored.get("result", stored)))
        print(f"written: {target.relative_to(ROOT)}")


def scale(result: dict[str, Any]) -> str:
    """Search latency (p50 and p95, milliseconds) by corpus, grouped by size and namespaces."""
    corpora = result["corpora"].values()
    groups = [f"{one['size']:,} in {one['namespaces']:,}" for one in corpora]
    series = {
        name: [one["latency"][f"{name}_ms"] for one in result["corpora"].values()] for name in ("p50", "p95")
    }
    return bars("Hybrid search by memories and namespaces, milliseconds at one client", groups, series)


def retrieval(result: dict[str, Any]) -> str:
    """Recall@10 by mode, for all questions and by kind."""
    modes = [name for name in ("bm25", "keyword", "semantic", "hybrid") if name in result["recall_at_10"]]
    kinds = list(result["by_category"][modes[0]])
    series = {
        mode: [result["recall_at_10"][mode], *(result["by_category"][mode][kind] for kind in kinds)]
        for mode in modes
    }
    return bars("LoCoMo, recall@10 of the evidence turns", ["all", *kinds], series)


def bars(title: str, groups: Sequence[str], series: dict[str, list[float]]) -> str:
    """Grouped bars with their values, as an SVG document; values must not be negative."""
    top = _round_up(max((value for values in series.values() for value in values), default=1.0))
    room = (WIDTH - LEFT - 10) / max(1, len(groups))
    width = room * 0.8 / max(1, len(series))
    height = BASE - 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{STYLE}',
        f'<text x="{LEFT}" y="18" font-weight="600">{escape(title)}</text>',
    ]
    for tick in range(5):
        value, y = top * tick / 4, BASE - height * tick / 4
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" opacity=".4"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for g, group in enumerate(groups):
        start = LEFT + room * (g + 0.1)
        for s, values in enumerate(series.values()):
            tall = height * values[g] / top
            x = start + width * s
            parts.append(
                f'<rect x="{x:.1f}" y="{BASE - tall:.1f}" width="{width * 0.92:.1f}" height="{tall:.1f}" '
                f'fill="{COLOURS[s % len(COLOURS)]}"><title>{escape(group)}: {values[g]:.3g}</title></rect>'
            )
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{BASE - tall - 3:.1f}" text-anchor="middle" '
                f'font-size="9">{values[g]:.2g}</text>'
            )
        parts.append(
            f'<text x="{start + room * 0.4:.1f}" y="{BASE + 16}" text-anchor="middle">{escape(group)}</text>'
        )
    for s, name in enumerate(series):
        x = LEFT + s * 130
        parts.append(
            f'<rect x="{x}" y="{HEIGHT - 18}" width="12" height="12" fill="{COLOURS[s % len(COLOURS)]}"/>'
        )
        parts.append(f'<text x="{x + 17}" y="{HEIGHT - 8}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value - 1e-9)


if __name__ == "__main__":
    main()
