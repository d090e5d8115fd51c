"""Long texts in parts: where a text is cut so that each part has a vector of its own.

One vector for a long text is near nothing in particular. Words are counted over the whole text all the same;
only the semantic leg knows parts, and a memory counts by its nearest one.
"""

import math
from typing import Final

WHOLE: Final = 1_500
"""Up to so many characters a text is one chunk."""

CHUNK: Final = 1_000
"""Characters of a chunk, if the text is not so long that `MAX_CHUNKS` of them do not hold it. About what the
small sentence models take in: 256 tokens."""

MAX_CHUNKS: Final = 64
"""Vectors of one memory at most, which bounds what a write costs; longer texts have longer chunks."""

# In the last part of a window a cut goes to the best of these, the weightiest first.
_ENDS: Final = ("\n\n", "\n", ". ", "? ", "! ", "。", "; ", ", ", " ")
_SEEK: Final = 0.3

Span = tuple[int, int]


def chunk_spans(text: str) -> list[Span]:
    """[(start, end)] in characters, in order, without gap or overlap: text == "".join(text[s:e]).

    At least one span and at most `MAX_CHUNKS`. Cuts fall on the ends of paragraphs, lines, sentences and
    words, where there are any.
    """
    if len(text) <= WHOLE:
        return [(0, len(text))]
    spans: list[Span] = []
    start = 0
    while start < len(text):
        left = MAX_CHUNKS - len(spans)
        size = max(CHUNK, math.ceil((len(text) - start) / left))
        # A rest of a few words would be a vector that says little.
        if left == 1 or len(text) - start <= size + CHUNK // 4:
            spans.append((start, len(text)))
            break
        end = _cut(text, start, start + size)
        spans.append((start, end))
        start = end
    return spans


def _cut(text: str, start: int, end: int) -> int:
    earliest = end - int((end - start) * _SEEK)
    for mark in _ENDS:
        at = text.rfind(mark, earliest, end)
        if at >= 0:
            return at + len(mark)
    return end
