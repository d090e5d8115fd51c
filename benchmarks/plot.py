"""Line plots as SVG: panels side by side, a legend beneath, readable in light and in dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 360, 250
LEFT, TOP, RIGHT, BOTTOM = 46, 34, 14, 42
LEGEND = 22
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 }
.title { font-weight: 600; font-size: 13px }
.grid { stroke: #ccc; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.dashed { stroke-dasharray: 6 4 }
.back { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e6e6 } .grid { stroke: #444 } .back { fill: #161616 }
}
"""


@dataclass(frozen=True)
class Series:
    """A line; `colour` is an index of `COLOURS`."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes, from the first tick to the last."""

    title: str
    x_label: str
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    series: Sequence[Series]


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write the plot; `title` is what a screen reader says."""
    legend = panels[0].series
    rows = (len(legend) + 1) // 2
    width, height = WIDTH * len(panels), HEIGHT + LEGEND * rows + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
    ]
    for place, panel in enumerate(panels):
        parts += [f'<g transform="translate({place * WIDTH} 0)">', *_panel(panel), "</g>"]
    for place, series in enumerate(legend):
        x, y = LEFT + (place % 2) * 220, HEIGHT + 6 + LEGEND * (place // 2)
        parts += [
            f'<path {_stroke(series)} d="M{x} {y}h34"/>',
            f'<text x="{x + 42}" y="{y + 4}">{escape(series.label)}</text>',
        ]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _stroke(series: Series) -> str:
    css = "line dashed" if series.dashed else "line"
    return f'class="{css}" stroke="{COLOURS[series.colour]}"'


def _panel(panel: Panel) -> list[str]:
    low, high = panel.x_ticks[0], panel.x_ticks[-1]
    least, most = panel.y_ticks[0], panel.y_ticks[-1]
    bottom = HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(bottom - (y - least) / (most - least) * (bottom - TOP), 1)

    parts = [f'<text class="title" x="{LEFT}" y="20">{escape(panel.title)}</text>']
    for tick in panel.y_ticks:
        x, y = at(low, tick)
        parts += [
            f'<path class="grid" d="M{x} {y}H{WIDTH - RIGHT}"/>',
            f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>',
        ]
    for tick in panel.x_ticks:
        x, y = at(tick, least)
        parts += [f'<text x="{x}" y="{y + 16}" text-anchor="middle">{tick:g}</text>']
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += [f'<text x="{middle}" y="{bottom + 32}" text-anchor="middle">{escape(panel.x_label)}</text>']
    for series in panel.series:
        way = "L".join("{} {}".format(*at(x, y)) for x, y in series.points)
        parts += [f'<path {_stroke(series)} d="M{way}"/>']
    return parts
