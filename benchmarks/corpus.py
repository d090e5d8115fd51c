"""Made-up memories of any number, seeded: words drawn by Zipf's law, as long as notes of agents are.

Real text is not needed to time statements; what matters is how often terms recur, for that decides how
many rows a query touches. The rank-frequency exponent 1 and a vocabulary that grows with the corpus are the
usual description of English text (Zipf 1935, Heaps 1978).
"""

import itertools
import random
from collections.abc import Iterator, Sequence

from benchmarks.common import SEED

_SUBJECTS = "deploy release billing invoice search index cache queue worker token login session report chart"
_VERBS = "moved failed passed blocked approved restarted renamed dropped measured planned merged reverted"
_SOUNDS = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ra", "se", "ti", "vo", "wu", "za", "no")


def vocabulary(size: int) -> list[str]:
    """`size` distinct words, the commonest first: some of a team's own, the rest pronounceable."""
    made = ("".join(parts) for length in (2, 3, 4) for parts in itertools.product(_SOUNDS, repeat=length))
    words = [*_SUBJECTS.split(), *_VERBS.split()]
    words.extend(itertools.islice(made, max(0, size - len(words))))
    return words[:size]


class Corpus:
    """Texts and queries over one vocabulary; the same seed gives the same ones in the same order."""

    def __init__(self, words: int = 8_000, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._words = vocabulary(words)
        self._weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(words)))

    def text(self, low: int = 8, high: int = 40) -> str:
        """A note of `low` to `high` words."""
        return " ".join(self._draw(self._random.randint(low, high)))

    def query(self) -> str:
        """A question of four to eight words."""
        return " ".join(self._draw(self._random.randint(4, 8)))

    def _draw(self, count: int) -> Sequence[str]:
        return self._random.choices(self._words, cum_weights=self._weights, k=count)


def key_of(number: int) -> str:
    """The key of the memory with this number."""
    return f"note/{number:07d}"


def items(count: int, batch: int) -> Iterator[list[dict[str, str]]]:
    """`count` memories for memory.set_many, in lists of `batch`."""
    corpus = Corpus()
    numbers = iter(range(count))
    while chunk := list(itertools.islice(numbers, batch)):
        yield [{"memory_key": key_of(number), "value": corpus.text()} for number in chunk]
