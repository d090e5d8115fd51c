"""Does the search know when it does not know? Questions with and without an answer in the store.

LoCoMo, a namespace a conversation. With an answer: the questions of categories 1-4, asked of their own
conversation. Without one: the same questions asked of the next conversation, as they are (whose people are
named may give it away) and with that conversation's people in place of their own (so that only the matter
can). Category 5 of LoCoMo is shown too: those questions name the wrong person for something that was said,
so that the turns they are about are there, and near; to see through them takes a reader, not a search.

Reported: precision and recall of `abstain`, "no answer here" being what is to be found, at the threshold
that the product has, and at the best one of the conversations with an even number (balanced accuracy), each
on the conversations with an odd number, which chose nothing.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.common import call, data_file, print_table
from benchmarks.harness import free_port, running, site, web
from benchmarks.retrieval import CATEGORIES, load, namespace_of

SERVER = False
KINDS = ("answered", "elsewhere, names kept", "elsewhere, names changed", "category 5")
NEGATIVE = KINDS[1:3]


class Asked(NamedTuple):
    """One question: what it is, whose conversation, and what the search said of it."""

    kind: str
    conversation: int
    abstained: bool
    coverage: float
    similarity: float


def run(_client: None, data_dir: Path | None) -> dict[str, Any]:
    """Precision and recall of abstaining, by kind of question."""
    conversations = json.loads(data_file(data_dir, "locomo_dev.json").read_text())
    with site() as where:
        port = free_port()
        with (
            running(where, web(port), port) as url,
            httpx.Client(base_url=url, headers=where.headers, timeout=120) as client,
        ):
            for conversation in conversations:
                load(client, conversation)
            asked = [line for one in questions(conversations) for line in [_ask(client, *one)]]
    held_out = [line for line in asked if line.conversation % 2]
    shown = {"product": _rates(held_out, lambda line: line.abstained)}
    weight, threshold = best([line for line in asked if not line.conversation % 2])
    shown["chosen on the others"] = _rates(held_out, lambda line: nearness(line, weight) < threshold)
    _print(shown, weight, threshold)
    return {
        "questions": {kind: sum(line.kind == kind for line in asked) for kind in KINDS},
        "held_out": shown,
        "chosen": {"similarity_weight": weight, "threshold": threshold},
        "asked": [list(line) for line in asked],
        "bars": {},
    }


def questions(conversations: list[dict[str, Any]]) -> list[tuple[str, int, str, str]]:
    """(kind, number of the conversation it belongs to, namespace to ask, question)."""
    made = []
    for number, one in enumerate(conversations):
        other = conversations[(number + 1) % len(conversations)]
        for question in one["questions"]:
            text = question["question"]
            if question["category"] in CATEGORIES:
                made.append((KINDS[0], number, namespace_of(one), text))
                made.append((KINDS[1], number, namespace_of(other), text))
                made.append((KINDS[2], number, namespace_of(other), renamed(text, one, other)))
            else:
                made.append((KINDS[3], number, namespace_of(one), text))
    return made


def people(conversation: dict[str, Any]) -> list[str]:
    """Who speaks, in the order of the first turns."""
    return list(dict.fromkeys(turn["speaker"] for turn in conversation["turns"]))


def renamed(text: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    """The question with the people of another conversation in place of its own."""
    names = dict(zip(people(one), people(other), strict=False))
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match.group()], text)


def nearness(line: Asked, weight: float) -> float:
    """One number from both legs: higher is nearer."""
    return line.coverage + weight * line.similarity


def best(lines: list[Asked]) -> tuple[float, float]:
    """The weight and threshold with the highest mean of both kinds' shares that are judged rightly."""
    good = [line for line in lines if line.kind == KINDS[0]]
    bad = [line for line in lines if line.kind in NEGATIVE]

    def score(weight: float, threshold: float) -> float:
        kept = sum(nearness(line, weight) >= threshold for line in good) / len(good)
        left = sum(nearness(line, weight) < threshold for line in bad) / len(bad)
        return kept + left

    grid = [(w / 4, t / 50) for w in range(9) for t in range(5, 80)]
    return max(grid, key=lambda pair: score(*pair))


def _ask(client: httpx.Client, kind: str, number: int, namespace: str, question: str) -> Asked:
    answer = call(client, "memory.search", query=question, namespace=namespace, explain=True)
    results = answer["results"]
    return Asked(
        kind,
        number,
        answer["abstain"],
        max((row["explain"]["coverage"] for row in results), default=0.0),
        max((row["similarity"] or 0.0 for row in results), default=0.0),
    )


def _rates(lines: list[Asked], abstains: Any) -> dict[str, Any]:
    said = {kind: [abstains(line) for line in lines if line.kind == kind] for kind in KINDS}
    rates: dict[str, Any] = {"abstained": {kind: sum(v) / len(v) if v else None for kind, v in said.items()}}
    for kind in NEGATIVE:
        right, wrong = sum(said[kind]), sum(said[KINDS[0]])
        rates[kind] = {
            "precision": right / (right + wrong) if right + wrong else None,
            "recall": right / len(said[kind]),
        }
    return rates


def _print(shown: dict[str, Any], weight: float, threshold: float) -> None:
    rows = []
    for name, rates in shown.items():
        for kind in NEGATIVE:
            rows.append([name, kind, rates[kind]["precision"], rates[kind]["recall"]])
        rows.append([name, "answered, abstained all the same", "", rates["abstained"][KINDS[0]]])
        rows.append([name, "category 5, abstained", "", rates["abstained"][KINDS[3]]])
    print_table("Abstain, held-out conversations", ["threshold", "questions", "precision", "recall"], rows)
    print(f"chosen: coverage + {weight} x similarity >= {threshold}")
