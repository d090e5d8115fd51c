"""A large corpus is searched by its rare words first, a batch is written in bulk: with the same answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from memories import graph, search, services
from memories.models import Memory, MemoryVersion, Posting
from tests.conftest import Cast
from tests.memories.helpers import history, in_threads, sql

COMMON = ("team", "plan", "week")


def corpus_of(count: int, seed: int = 3) -> list[dict[str, Any]]:
    """Texts with common words in nearly all, and rare ones in a few."""
    source = random.Random(seed)
    items = []
    for i in range(count):
        words = [word for word in COMMON if source.random() < 0.8]
        words += [f"rare{source.randint(0, count // 4)}" for _ in range(3)]
        words += ["filler"] * source.randint(0, 12)
        source.shuffle(words)
        items.append(
            {"memory_key": f"k{i:04}", "value": " ".join(words), "tags": ["few"] if i % 50 == 7 else []}
        )
    return items


def put(cast: Cast, items: list[dict[str, Any]], **body: Any) -> Any:
    return cast.run("memory.set_many", {"items": items, **body})


def hits(cast: Cast, query: str, **body: Any) -> list[tuple[str, float]]:
    answer = cast.run("memory.search", {"query": query, "mode": "keyword", **body})
    return [(hit["memory_key"], hit["rank_score"]) for hit in answer["results"]]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A corpus of some hundred counts as large."""
    for name, value in (
        ("EXACT_LIMIT", 50), ("POSTINGS_READ", 60), ("SHORTLIST", 40), ("NEWEST", 30), ("COMMON_DF", 40),
    ):  # fmt: skip
        monkeypatch.setattr(search, name, value)
    search.forget_counts()
    yield
    search.forget_counts()


@pytest.mark.parametrize("query", ["rare3 team", "rare3 rare9 team plan week", "plan rare1 rare2 rare4"])
def test_the_pruned_search_ranks_what_has_rare_words_as_the_whole_search_does(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, small_limits: None, query: str
) -> None:
    put(cast, corpus_of(400))
    taken: list[bool] = []
    statement = search.statement
    monkeypatch.setattr(search, "statement", lambda plan: taken.append(plan.pruned) or statement(plan))
    # Counted to the unit, so that both ways weigh alike; rounding is a matter of large counts.
    monkeypatch.setattr(search, "_two_digits", lambda count: count)
    rare = {
        key for word in query.split() if word.startswith("rare") for key, _ in hits(cast, word, top_k=200)
    }
    taken.clear()
    pruned = hits(cast, query)
    assert taken == [True]
    monkeypatch.setattr(search, "EXACT_LIMIT", 10_000)
    whole = hits(cast, query)
    assert taken == [True, False]
    wanted = [hit for hit in whole if hit[0] in rare]
    assert wanted and pruned[: len(wanted)] == wanted


def test_a_query_of_common_words_alone_is_answered_from_the_newest(cast: Cast, small_limits: None) -> None:
    put(cast, corpus_of(300))
    found = hits(cast, "team plan week", top_k=20)
    assert len(found) == 20
    newest = {row.memory_key for row in Memory.objects.order_by("-pk")[:60]}
    assert {key for key, _ in found} <= newest


@pytest.mark.parametrize("mode", ["keyword", "hybrid", "semantic"])
def test_a_filter_is_applied_before_the_cut_and_gets_all_its_hits(
    cast: Cast, small_limits: None, mode: str
) -> None:
    put(cast, corpus_of(500))
    asked = {"query": "team", "mode": mode, "tags": ["few"], "top_k": 50}
    wanted = {f"k{i:04}" for i in range(7, 500, 50)}
    found = {hit["memory_key"] for hit in cast.run("memory.search", asked)["results"]}
    holds = {row.memory_key for row in Memory.objects.filter(tags=["few"]) if "team" in row.value}
    assert found == (holds if mode == "keyword" else wanted)
    graph.graft(5.0)
    again = {hit["memory_key"] for hit in cast.run("memory.search", asked)["results"]}
    assert again == found


def test_counts_of_common_words_are_rounded_to_two_digits() -> None:
    assert [search._two_digits(n) for n in (7, 99, 101, 5_449, 5_451, 123_456)] == [
        7, 99, 100, 5_400, 5_500, 120_000,
    ]  # fmt: skip


def test_wildcards_in_a_prefix_or_query_are_plain_text_in_a_large_corpus(
    cast: Cast, small_limits: None
) -> None:
    put(cast, [*corpus_of(100), {"memory_key": "100%_done", "value": "team"}])
    assert [key for key, _ in hits(cast, "team", key_prefix="100%")] == ["100%_done"]
    assert hits(cast, "team", key_prefix="%") == []
    assert isinstance(hits(cast, "team% _ \\ ' -- plan"), list)


# Ties


def test_a_pin_and_a_later_change_break_ties_and_no_more(cast: Cast) -> None:
    jam = "the plum jam that stands behind the tea in the cupboard"
    put(cast, [{"memory_key": key, "value": jam} for key in ("x1", "x2", "x3")])
    put(cast, [{"memory_key": "x4", "value": "plum trees grow on the hill behind the old house"}])
    sql("UPDATE memories_memory SET updated_at = updated_at - interval '200 days' WHERE memory_key = 'x1'")
    cast.run("memory.pin", {"memory_key": "x3", "value": jam})
    answer = cast.run("memory.search", {"query": "plum trees on the hill", "explain": True})
    assert [hit["memory_key"] for hit in answer["results"]] == ["x4", "x3", "x2", "x1"]
    parts = {hit["memory_key"]: hit["explain"] for hit in answer["results"]}
    assert (parts["x3"]["pin"], parts["x2"]["pin"]) == (search.ranking.PIN, 0)
    assert -search.ranking.RECENCY < parts["x1"]["recency"] < parts["x2"]["recency"] <= 0
    for hit in answer["results"]:
        part = hit["explain"]
        total = (
            (1 - part["weight"]) * part["keyword_share"] + part["weight"] * part["similarity_share"]
            + part["pin"] + part["recency"]
        )  # fmt: skip
        assert hit["rank_score"] == pytest.approx(total, abs=1e-5)


# Batches


def test_a_batch_is_stored_as_single_writes_are(cast: Cast) -> None:
    items = corpus_of(20)
    items[3] |= {"metadata": {"a": 'q"\\\t\n'}, "confidence": 0.5, "pinned": True, "source_trace": "x\ty\\"}
    items[4] |= {
        "value": {"text": 'tab\tnew\nline "quoted" \\back', "n": [1, None, True]},
        "tags": ['a"b', "c\\d"],
    }
    items[5] |= {"ttl_seconds": 600, "on_expire": "stale"}
    put(cast, items)
    twin = cast.namespace("twin", mate=search.Role.WRITER)
    for item in items:
        cast.run("memory.set", {**item, "namespace": "twin"})
    both = []
    for space in (cast.team, twin):
        rows = {
            row.memory_key: (
                row.value, row.content_sha256, row.tags, row.metadata, row.confidence, row.pinned,
                row.pinned_by, row.on_expire, row.source_trace, row.doc_len, row.version, row.status,
            )
            for row in Memory.objects.filter(namespace=space)
        }  # fmt: skip
        versions = sorted(
            MemoryVersion.objects.filter(memory__namespace=space).values_list(
                "memory__memory_key", "version", "kind", "content_sha256", "principal", "tags", "metadata"
            ),
            key=str,
        )
        postings = sorted(
            Posting.objects.filter(namespace=space).values_list(
                "memory__memory_key", "term", "tf", "doc_len", "active"
            )
        )
        vectors = sql(
            "SELECT m.memory_key, e.vector::text, e.content_sha256, e.ends_at FROM memories_embedding e "
            "JOIN memories_memory m ON m.id = e.memory_id WHERE m.namespace_id = %s ORDER BY 1",
            [space.pk],
        )
        both.append((rows, versions, postings, vectors))
    assert both[0] == both[1]
    assert cast.run("memory.get", {"memory_key": "k0004"})["value"] == items[4]["value"]


def test_a_batch_tells_of_the_same_content_in_the_store_and_in_itself(cast: Cast) -> None:
    put(cast, [{"memory_key": "old", "value": "plum"}])
    items = [{"memory_key": f"n{i:02}", "value": "plum" if i == 2 else f"kettle {i // 2}"} for i in range(12)]
    results = put(cast, items)["results"]
    assert results[2]["duplicate_of"] == "old"
    assert results[4]["duplicate_of"] is None and results[5]["duplicate_of"] == "n04"


def test_a_batch_may_write_one_key_twice(cast: Cast) -> None:
    items = [{"memory_key": f"k{i}", "value": i} for i in range(12)]
    results = put(cast, [*items, {"memory_key": "k3", "value": "again"}])["results"]
    assert (results[3]["version"], results[12]["version"]) == (1, 2)
    assert [row["value"] for row in history(cast, "k3")] == [3, "again"]


def test_a_batch_of_new_and_known_keys_keeps_what_is_pinned(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k5", "value": "mine", "pinned": True}, by="mate")
    items = [{"memory_key": f"k{i}", "value": i} for i in range(12)]
    asked = {"items": items, "partial": True}
    results = cast.run("memory.set_many", asked, by="owner")["results"]
    assert [i for i, result in enumerate(results) if "error" in result] == [5]
    assert results[5]["error"]["code"] == "PINNED_CONFLICT"
    assert Memory.objects.count() == 12


def test_a_dry_run_of_a_batch_stores_nothing(cast: Cast) -> None:
    answer = put(cast, corpus_of(30), dry_run=True)
    assert answer["stored"] == 30 and not Memory.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_batch_and_single_writes_of_the_same_new_keys_both_succeed(cast: Cast) -> None:
    items = [{"memory_key": f"k{i}", "value": f"batch {i}"} for i in range(40)]

    def batch() -> Any:
        return put(cast, items)

    def singles() -> Any:
        return [cast.run("memory.set", {"memory_key": f"k{i}", "value": "single"}) for i in range(40)]

    in_threads(batch, singles)
    assert Memory.objects.count() == 40
    assert services.BULK < 40
    for row in Memory.objects.all():
        assert [version.version for version in row.versions.order_by("version")] == list(
            range(1, row.version + 1)
        )
