"""Does the search find the evidence? LoCoMo (Maharana et al. 2024): long conversations, questions, the
turns that answer them.

Each conversation is loaded through the API into a namespace of its own, a turn a memory. Measured is
recall@10 of the evidence turns, the mean over the questions of categories 1-4 (5 is unanswerable), for each
search mode, beside BM25 in memory over the same turns. Nothing is random; the order of the questions is
that of the file.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bm25 import BM25
from benchmarks.common import call, data_file, percentile, print_table

TOP_K = 10
BATCH = 250
MODES = ("keyword", "semantic", "hybrid")
CATEGORIES = {1: "multi-hop", 2: "time", 3: "open", 4: "single-hop"}
KEYWORD_SLACK = 0.01
HYBRID_GAIN = 0.01
# Of a sentence model from a local folder; LOOM_EMBEDDER is taken to be what the server was started with.
MODEL_GAIN = 0.04
MODELS = ("fastembed", "sentence-transformers")
P95_MS = 50.0

Search = Callable[[str], list[str]]


def run(client: httpx.Client, data_dir: Path | None) -> dict[str, Any]:
    """Recall by mode and category, latency in milliseconds at the client, and whether the bars are met."""
    conversations = json.loads(data_file(data_dir, "locomo_dev.json").read_text())
    recalls: dict[str, list[tuple[int, float]]] = {}
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    degraded: set[str] = set()
    started = time.perf_counter()
    for conversation in conversations:
        load(client, conversation)
    loading = time.perf_counter() - started

    for conversation in conversations:
        ways: dict[str, Search] = {
            "bm25": _in_memory(conversation, stopwords=True),
            "bm25 with stopwords": _in_memory(conversation, stopwords=False),
        }
        for mode in MODES:
            ways[mode] = _served(client, conversation, mode, seconds[mode], degraded)
        for name, search in ways.items():
            recalls.setdefault(name, []).extend(evaluate(conversation, search))

    overall = {name: _mean([recall for _, recall in found]) for name, found in recalls.items()}
    by_category = {
        name: {
            label: _mean([recall for c, recall in found if c == category])
            for category, label in CATEGORIES.items()
        }
        for name, found in recalls.items()
    }
    latency = {
        mode: {"p50_ms": percentile(values, 50) * 1000, "p95_ms": percentile(values, 95) * 1000}
        for mode, values in seconds.items()
    }
    gain = MODEL_GAIN if os.environ.get("LOOM_EMBEDDER") in MODELS else HYBRID_GAIN
    baseline = max(overall["bm25"], overall["bm25 with stopwords"])
    questions = len(recalls["bm25"])
    print_table(
        f"LoCoMo turn recall@{TOP_K}, {len(conversations)} conversations, {questions} questions",
        ["", "all", *CATEGORIES.values(), "p50 ms", "p95 ms"],
        [
            [name, overall[name], *by_category[name].values(), *latency.get(name, {"": "", " ": ""}).values()]
            for name in overall
        ],
    )
    if degraded:
        print(f"degraded answers: {', '.join(sorted(degraded))}")
    return {
        "questions": questions,
        "turns": sum(len(conversation["turns"]) for conversation in conversations),
        "load_seconds": loading,
        "recall_at_10": overall,
        "by_category": by_category,
        "latency": latency,
        "degraded": sorted(degraded),
        "bars": {
            f"keyword >= BM25 - {KEYWORD_SLACK}": overall["keyword"] >= baseline - KEYWORD_SLACK,
            f"hybrid >= BM25 + {gain}": overall["hybrid"] >= baseline + gain,
            f"p95 < {P95_MS:.0f} ms": all(values["p95_ms"] < P95_MS for values in latency.values()),
            "nothing degraded": not degraded,
        },
    }


def turn_text(turn: dict[str, Any]) -> str:
    """What was said, by whom, and what a picture sent with it shows."""
    caption = turn.get("image_caption")
    return f"{turn['speaker']}: {turn['text']}" + (f" [{caption}]" if caption else "")


def namespace_of(conversation: dict[str, Any]) -> str:
    """One namespace a conversation."""
    return f"locomo-{conversation['conversation']}"


def load(client: httpx.Client, conversation: dict[str, Any]) -> None:
    """A memory for each turn, its key the turn's id. Loading again changes nothing."""
    turns = conversation["turns"]
    for start in range(0, len(turns), BATCH):
        items = [
            {"memory_key": turn["id"], "value": turn_text(turn)} for turn in turns[start : start + BATCH]
        ]
        call(client, "memory.set_many", namespace=namespace_of(conversation), items=items)


def evaluate(conversation: dict[str, Any], search: Search) -> list[tuple[int, float]]:
    """(category, share of the evidence among the turns found) for each answerable question."""
    found = []
    for question in conversation["questions"]:
        if question["category"] in CATEGORIES:
            evidence = set(question["evidence"])
            hits = evidence.intersection(search(question["question"])[:TOP_K])
            found.append((question["category"], len(hits) / len(evidence)))
    return found


def _in_memory(conversation: dict[str, Any], *, stopwords: bool) -> Search:
    ids = [turn["id"] for turn in conversation["turns"]]
    index = BM25([turn_text(turn) for turn in conversation["turns"]], stopwords=stopwords)
    return lambda question: [ids[number] for number in index.search(question, TOP_K)]


def _served(
    client: httpx.Client, conversation: dict[str, Any], mode: str, seconds: list[float], degraded: set[str]
) -> Search:
    namespace = namespace_of(conversation)

    def search(question: str) -> list[str]:
        started = time.perf_counter()
        answer = call(client, "memory.search", query=question, top_k=TOP_K, mode=mode, namespace=namespace)
        seconds.append(time.perf_counter() - started)
        degraded.update(answer.get("degraded") or ())
        return [row["memory_key"] for row in answer["results"]]

    return search


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
