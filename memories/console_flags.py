"""Flagged texts for people: what each pattern found, around its places, marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from governance.patterns import CATALOGUE
from memories.models import Flag, Memory
from memories.screening import screened_text, text_sha256, texts_beside

AROUND = 120
"""Characters shown on each side of a match."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a text; `is_match` where a pattern was found, `is_gap` where text is left out."""

    text: str
    is_match: bool = False
    is_gap: bool = False


@dataclass(frozen=True)
class FlagView:
    """One flag with its text around the matches."""

    pattern: str
    meaning: str
    pieces: list[Piece]
    places: int
    found_at: datetime
    acknowledged_by: str
    acknowledged_at: datetime | None
    acknowledge_reason: str

    @property
    def is_open(self) -> bool:
        """True while it waits for a reader."""
        return self.acknowledged_at is None


def flag_views(memory: Memory, flags: Sequence[Flag], most: int = 50) -> list[FlagView]:
    """The memory's flags, those that wait first, each with at most `most` matches shown."""
    if not flags:
        return []
    text = screened_text(
        memory.memory_key, memory.value, memory.tags, memory.metadata, memory.source_trace,
        texts_beside({memory.pk: memory.memory_key}).get(memory.pk, ""),
    )  # fmt: skip
    sha = text_sha256(text)
    views = [_view(flag, text, flag.content_sha256 == sha, most) for flag in flags]
    return sorted(views, key=lambda view: (not view.is_open, view.pattern))


def _view(flag: Flag, text: str, is_same: bool, most: int) -> FlagView:
    known = CATALOGUE.get(flag.pattern)
    # Spans of another text would mark the wrong words.
    spans = [(int(start), int(end)) for start, end in flag.spans] if is_same else []
    return FlagView(
        pattern=flag.pattern,
        meaning=known.meaning if known else "",
        pieces=list(marked(text, spans[:most])),
        places=len(spans),
        found_at=flag.found_at,
        acknowledged_by=flag.acknowledged_by,
        acknowledged_at=flag.acknowledged_at,
        acknowledge_reason=flag.acknowledge_reason,
    )


def marked(text: str, spans: Sequence[tuple[int, int]], around: int = AROUND) -> Iterator[Piece]:
    """`text` in pieces: the [start, end) spans as matches, what lies far from all of them left out."""
    shown = 0
    merged = _merged(spans, len(text))
    for index, (start, end) in enumerate(merged):
        begin = max(shown, start - around)
        if begin > shown:
            yield Piece("", is_gap=True)
        if begin < start:
            yield Piece(text[begin:start])
        yield Piece(text[start:end], is_match=True)
        following = merged[index + 1][0] if index + 1 < len(merged) else len(text)
        shown = min(end + around, following)
        if end < shown:
            yield Piece(text[end:shown])
    if not merged:
        shown = min(len(text), 2 * around)
        yield Piece(text[:shown])
    if shown < len(text):
        yield Piece("", is_gap=True)


def _merged(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Overlapping and touching spans as one, within the text, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((max(0, start), min(end, length)) for start, end in spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
