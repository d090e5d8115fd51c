"""The baseline of the retrieval benchmark: BM25 in memory, written apart from the product's own.

Tokens are runs of word characters in lower case, stemmed by Snowball. k1 = 1.2, b = 0.75, idf as in Lucene.
With stopwords taken out it is a good deal stronger, if the list has the words that questions are made of:
the list is that of Lucene's EnglishAnalyzer and those.
"""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from snowballstemmer.english_stemmer import EnglishStemmer

STOPWORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with "
    "what when where which who whom whose why how do does did has have had can could would should "
    "i me my you your he him his she her we us our them its am were been being from than so".split()
)


class BM25:
    """An index over texts; ids are their positions."""

    def __init__(
        self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75, stopwords: bool = True
    ) -> None:
        self._stemmer = EnglishStemmer()
        self._stopwords = STOPWORDS if stopwords else frozenset()
        documents = [self.tokens(text) for text in texts]
        average = sum(map(len, documents)) / max(len(documents), 1)
        occurrences: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, tokens in enumerate(documents):
            norm = k1 * (1 - b + b * len(tokens) / average)
            for token, count in Counter(tokens).items():
                occurrences[token].append((number, count * (k1 + 1) / (count + norm)))
        self._postings = {
            token: [
                (number, gain * math.log(1 + (len(documents) - len(found) + 0.5) / (len(found) + 0.5)))
                for number, gain in found
            ]
            for token, found in occurrences.items()
        }

    def tokens(self, text: str) -> list[str]:
        """Stems of the words of a text, without stopwords."""
        words = re.findall(r"\w+", text.lower())
        return [self._stemmer.stemWord(word) for word in words if word not in self._stopwords]

    def search(self, query: str, top_k: int = 10) -> list[int]:
        """Positions of the best texts, best first; equal scores in order of position."""
        scores: dict[int, float] = defaultdict(float)
        for token in dict.fromkeys(self.tokens(query)):
            for number, gain in self._postings.get(token, ()):
                scores[number] += gain
        return heapq.nsmallest(top_k, scores, key=lambda number: (-scores[number], number))
