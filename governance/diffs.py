"""Line diffs of stored values, bounded: a reader needs the change, not a minute of computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_LINES = 2_000
MAX_SHOWN = 400
MAX_WIDTH = 2_000
CONTEXT = 3


@dataclass(frozen=True)
class DiffLine:
    """One line: `sign` is "+", "-", " " or "…" (left out)."""

    sign: str
    text: str

    @property
    def kind(self) -> str:
        """The class its row has."""
        return {"+": "add", "-": "del", "…": "gap"}.get(self.sign, "same")


def diff(old: str, new: str, shown: int = MAX_SHOWN) -> list[DiffLine]:
    """What changed from `old` to `new`, line by line with context; [] for equal texts.

    At most `shown` lines; what does not fit, or is too large to compare, is said in a "…" line.
    """
    if old == new:
        return []
    before, after = old.splitlines(), new.splitlines()
    if len(before) > MAX_LINES or len(after) > MAX_LINES:
        text = f"too large to compare here: {len(before):,} lines before, {len(after):,} after"
        return [DiffLine("…", text)]
    lines = _lines(before, after)
    if len(lines) > shown:
        lines = [*lines[:shown], DiffLine("…", f"{len(lines) - shown:,} more lines")]
    return lines


def _lines(before: Sequence[str], after: Sequence[str]) -> list[DiffLine]:
    lines: list[DiffLine] = []
    matcher = SequenceMatcher(None, before, after, autojunk=len(before) + len(after) > 400)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if number or group[0][1] > 0:
            lines.append(DiffLine("…", f"line {group[0][3] + 1}"))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [DiffLine(" ", _cut(line)) for line in before[i1:i2]]
            else:
                lines += [DiffLine("-", _cut(line)) for line in before[i1:i2]]
                lines += [DiffLine("+", _cut(line)) for line in after[j1:j2]]
    return lines


def _cut(line: str) -> str:
    if len(line) <= MAX_WIDTH:
        return line
    return f"{line[:MAX_WIDTH]} … ({len(line) - MAX_WIDTH:,} more characters)"
