"""Ranking: BM25, and the mix of its scores with similarities. The reference of what the search's SQL does.

Pure functions. The formula, for one query and a set of rows R (all rows that the filters let through):

    idf(t)  = ln(1 + (N - df(t) + 0.5) / (df(t) + 0.5))     N, df: over the searched namespaces
    norm(d) = k1 * (1 - b + b * length(d) / average_length)
    kw(d)   = sum over query terms t in d of  idf(t) * tf / (tf + norm(d))
    sim(d)  = inner product of the two unit vectors          no vector: 0
    K(d)    = kw(d) / max kw over R                          no match: 0
    S(d)    = max(0, sim(d)) / max sim over R                max sim <= 0: 0
    rank(d) = (1 - w) * K(d) + w * S(d)                      w: the embedder's weight
              + PIN, if pinned
              - RECENCY * min(1, age(d) / 1 year)            age: behind the newest candidate

Candidates are the `POOL` best by kw and the `POOL` best by sim, with both values exact for each. Both
maxima are those of the two legs' first rows, so a row's rank does not depend on how deep the pools are.
A pin and a later change break ties: they never lift a row over one that scores `EPSILON` more.
Order: rank, rounded to `DIGITS` decimals so that the order of a floating-point sum cannot decide a tie,
then id. Without a usable query vector w is 0.

BM25: Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", with the idf of
Lucene, which is never negative, and without the constant factor (k1 + 1), which changes no order.

Constants, measured on LoCoMo (760 questions of categories 1-4 in 5 conversations, one namespace each,
recall@10 of the evidence turns, default embedder):
- `K1`, `B` are the defaults of Anserini (0.9, 0.4), not a fit: keyword recall 0.643. Best of the grid k1
  0.6-1.2, b 0.3-0.75: 0.645; the textbook's 1.2 and 0.75 give 0.631.
- Scaling by the maximum gives 0.664 at w = 0.5 (0.657 at 0.4, 0.661 at 0.6). Min-max over the pool gives
  0.661 there and depends on the pool. Chosen on four conversations and measured on the fifth: 0.660 and
  0.666.
- `POOL`: 20, 50, 100, 200 and 1,000 give the same recall, to four digits.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

K1: Final = 0.9
B: Final = 0.4
POOL: Final = 100
"""Candidates taken from each leg; `pool_size` for a larger page."""

DIGITS: Final = 9

PIN: Final = 0.002
"""Added to the rank of a pinned memory."""

RECENCY: Final = 0.001
"""Taken from the rank of one a year older than the newest candidate, linearly less from younger ones."""

RECENCY_SECONDS: Final = 365 * 86_400

NEAR: Final = 0.46
SIMILARITY_COUNTS: Final = 0.5
"""`abstain` says that nothing is near below coverage + 0.5 * similarity = 0.46. Chosen on three conversations
of LoCoMo by the mean share of rightly judged questions with and without an answer, and shown on the other two
by `benchmarks/abstain.py`."""

WORDS_NEAR: Final = 0.15
"""The same for words alone."""

EPSILON: Final = PIN + RECENCY
"""So much better a row has to be by score to stay ahead of a pinned and newer one, whatever their pins."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Statistics of the searched namespaces; `average_length` in terms, as `term_frequencies` counts them."""

    documents: int
    average_length: float
    document_frequencies: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ranked:
    """One row of an answer. `keyword_score`: 0 without a query term. `similarity`: None without a vector."""

    id: int
    rank: float
    keyword_score: float
    similarity: float | None


def pool_size(top_k: int) -> int:
    """Candidates to take from each leg, so that `top_k` rows are found whenever so many exist."""
    return max(POOL, top_k)


def idf(documents: int, document_frequency: int) -> float:
    """Inverse document frequency, > 0. Statistics that lag behind (df > N) count as df = N."""
    rest = max(documents - document_frequency, 0)
    return math.log1p((rest + 0.5) / (document_frequency + 0.5))


def saturation(frequency: int, length: int, average_length: float, *, k1: float = K1, b: float = B) -> float:
    """How much of its idf a term earns that occurs `frequency` times in a text: in [0, 1)."""
    relative = length / average_length if average_length > 0 else 1.0
    return frequency / (frequency + k1 * (1 - b + b * relative)) if frequency else 0.0


def bm25(
    query: Iterable[str],
    frequencies: Mapping[str, int],
    length: int,
    corpus: Corpus,
    *,
    k1: float = K1,
    b: float = B,
) -> float:
    """The keyword score of one text, >= 0; 0 means that it has no term of the query."""
    return sum(
        idf(corpus.documents, corpus.document_frequencies.get(term, 0))
        * saturation(frequencies[term], length, corpus.average_length, k1=k1, b=b)
        for term in dict.fromkeys(query)
        if term in frequencies
    )


def mix(
    keyword_scores: Mapping[int, float], similarities: Mapping[int, float], weight: float
) -> list[Ranked]:
    """All candidates by the module's formula, best first.

    keyword_scores: id -> kw of the rows that have a query term. similarities: id -> sim of the rows that
    have a vector, empty for a keyword search. weight in [0, 1]: 0 is the keyword leg alone, 1 the semantic
    one. Values must be finite.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight {weight} is not in [0, 1]")
    if not similarities:
        weight = 0.0
    best_score = max(keyword_scores.values(), default=0.0)
    best_similarity = max(similarities.values(), default=0.0)

    def rank(candidate: int) -> float:
        keyword = keyword_scores.get(candidate, 0.0) / best_score if best_score > 0 else 0.0
        similarity = max(similarities.get(candidate, 0.0), 0.0)
        semantic = similarity / best_similarity if best_similarity > 0 else 0.0
        return round((1 - weight) * keyword + weight * semantic, DIGITS)

    rows = [
        Ranked(candidate, rank(candidate), keyword_scores.get(candidate, 0.0), similarities.get(candidate))
        for candidate in {**keyword_scores, **similarities}
    ]
    return sorted(rows, key=lambda row: (-row.rank, row.id))


def nothing_near(coverage: float | None, similarity: float | None, floor: float) -> bool:
    """Whether to advise the caller to abstain, from the best coverage and the best similarity of the hits.

    coverage: a hit's keyword score by what all terms of the query together are worth (the sum of their idf,
    of those that occur nowhere too), in [0, 1); None when no words were compared. similarity: None when no
    meanings were. floor: the embedder's, for meanings alone.
    """
    if coverage is None:
        return similarity is None or similarity < floor
    if similarity is None:
        return coverage < WORDS_NEAR
    return coverage + SIMILARITY_COUNTS * max(similarity, 0.0) < NEAR
