"""Ranking of matches: the score, the tiers among near-equals, the fallback without vectors. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from procedures.counting import smoothed

SITUATION_SHARE = 0.7
"""Of the similarity, when a goal is given; the rest is the goal's."""
NEAR = 0.8
"""A similarity of at least this share of the best is a near-equal, among which status may reorder."""
UTILITY_WEIGHT = 0.2
FLOORS = {"wordllama-l2-supercat-256-centred-30": 0.34}
"""Similarity below which nothing is a match, by embedder; chosen by `benchmarks/match.py`."""
OTHER_FLOOR = 0.3
WORD_FLOOR = 0.2
"""The floor of `word_similarity`."""
TIERS = {"template": 0, "exercised": 1, "authored": 2, "candidate": 3}


@dataclass(frozen=True)
class Candidate:
    """A procedure above the floor, as the ranking needs it."""

    id: int
    similarity: float
    status: str
    total: int
    ok: int
    tools: Collection[str] = ()


@dataclass(frozen=True)
class Ranked:
    """A candidate with its score and the parts that are shown apart from the similarity."""

    candidate: Candidate
    score: float
    tool_overlap: float
    utility: float


def floor_of(embedder: str) -> float:
    """The floor for vectors of this embedder."""
    return FLOORS.get(embedder, OTHER_FLOOR)


def status_of(*, quarantined: bool, template: bool, exercised: bool, authored: bool) -> str:
    """The one word for how far a procedure can be trusted."""
    if quarantined:
        return "quarantined"
    if template:
        return "template"
    if exercised:
        return "exercised"
    return "authored" if authored else "candidate"


def ranked(
    candidates: Iterable[Candidate],
    recent_tools: Sequence[str] = (),
    tool_boost: float = 0.2,
    utility_weight: float = UTILITY_WEIGHT,
) -> list[Ranked]:
    """Best first: near-equals of the most similar by tier and score, the rest likewise, then quarantined.

    score = similarity + tool_boost * overlap + utility_weight * utility, with overlap the share of the recent
    tools that the procedure has, and utility the smoothed success rate less one half.
    """
    recent = set(recent_tools)
    found = []
    for candidate in candidates:
        overlap = len(recent.intersection(candidate.tools)) / len(recent) if recent else 0.0
        utility = smoothed(candidate.total, candidate.ok) - 0.5
        score = candidate.similarity + tool_boost * overlap + utility_weight * utility
        found.append(Ranked(candidate, round(score, 9), overlap, utility))
    best = max((one.candidate.similarity for one in found), default=0.0)

    def place(one: Ranked) -> tuple[bool, bool, int, float, int]:
        status = one.candidate.status
        return (
            status == "quarantined",
            one.candidate.similarity < NEAR * best,
            TIERS.get(status, len(TIERS)),
            -one.score,
            one.candidate.id,
        )

    return sorted(found, key=place)


def word_similarity(asked: Collection[str], stored: Collection[str]) -> float:
    """Ochiai coefficient of two sets of terms, in [0, 1]: shared / sqrt(|a| * |b|); 0 for an empty one."""
    if not asked or not stored:
        return 0.0
    return len(set(asked) & set(stored)) / math.sqrt(len(set(asked)) * len(set(stored)))
