"""The ranking in SQL is the one that memories.ranking states, and its statistics are exact."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from loomsite.ops import Role
from memories import ranking, services
from memories.analysis import query_terms, search_text, term_frequencies
from memories.embedders import embed_query, get_embedder
from memories.models import Memory, Posting
from memories.services import embedding_text
from tests.conftest import Cast
from tests.memories.helpers import corpus, pass_expiry

WORDS = (
    "deploy window tuesday rollback database index vector memory agent lock plum fridge garden tomato "
    "railway ticket berlin lisbon river bridge copper kettle violin concert winter harbour"
).split()


def some_text(source: random.Random) -> str:
    # A few words are common and most are rare, as in real text.
    places = (int(source.paretovariate(0.6)) - 1 for _ in range(source.randint(1, 30)))
    return " ".join(WORDS[min(place, len(WORDS) - 1)] for place in places)


def reference(
    query: str, mode: str, namespaces: Iterable[int], allowed: set[int] | None = None
) -> list[ranking.Ranked]:
    """The ranking by the reference's own functions, over everything that is active, in plain Python."""
    rows = {row.pk: row for row in Memory.objects.filter(namespace__in=list(namespaces), status="active")}
    counted = {
        id_: term_frequencies(search_text(row.memory_key, row.value, row.tags)) for id_, row in rows.items()
    }
    frequencies: Counter[str] = Counter()
    for terms, _, _ in counted.values():
        frequencies.update(terms)
    total = sum(length for _, _, length in counted.values())
    statistics = ranking.Corpus(len(rows), total / max(len(rows), 1), frequencies)
    words = query_terms(query)
    scores: dict[int, float] = {}
    similarities: dict[int, float] = {}
    for id_, (terms, counts, length) in counted.items():
        if allowed is not None and id_ not in allowed:
            continue
        if mode != "semantic":
            score = ranking.bm25(words, dict(zip(terms, counts, strict=True)), length, statistics)
            if score > 0:
                scores[id_] = score
        if mode != "keyword":
            text = embedding_text(rows[id_].memory_key, rows[id_].value)
            stored = get_embedder().embed([text])[0].astype(np.float16).astype(np.float64)
            asked = embed_query(query).astype(np.float16).astype(np.float64)
            similarities[id_] = float(stored @ asked / (np.linalg.norm(stored) * np.linalg.norm(asked)))
    weight = 1.0 if mode == "semantic" else get_embedder().weight
    return ranking.mix(scores, similarities, weight)


def agrees(hits: list[dict[str, Any]], expected: list[ranking.Ranked]) -> None:
    """Each hit's scores are the reference's, and the order is theirs where it does not hang on a hair."""
    by_id = {row.id: row for row in expected}
    assert len(hits) == len(expected)
    for hit in hits:
        row = by_id[int(hit["memory_id"])]
        assert hit["rank_score"] == pytest.approx(row.rank, abs=2e-3)
        assert hit["explain"]["keyword_score"] == pytest.approx(row.keyword_score, abs=1e-5)
        if row.similarity is not None:
            assert hit["similarity"] == pytest.approx(row.similarity, abs=1e-3)
    places = [by_id[int(hit["memory_id"])].rank for hit in hits]
    assert all(places[i] >= places[i + 1] - 2e-3 for i in range(len(places) - 1))
    own = [(-hit["rank_score"], int(hit["memory_id"])) for hit in hits]
    assert own == sorted(own)


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "semantic"])
@pytest.mark.parametrize("seed", range(3))
def test_the_statement_ranks_as_the_reference_does(cast: Cast, mode: str, seed: int) -> None:
    source = random.Random(seed)
    items = [
        {"memory_key": f"k{n}", "value": some_text(source), "tags": [source.choice("ab")]} for n in range(60)
    ]
    cast.run("memory.set_many", {"items": items})
    for _ in range(4):
        query = some_text(source)
        answer = cast.run("memory.search", {"query": query, "mode": mode, "top_k": 60, "explain": True})
        agrees(answer["results"], reference(query, mode, [cast.team.pk]))
        tagged = set(Memory.objects.filter(tags__contains=["a"]).values_list("pk", flat=True))
        answer = cast.run(
            "memory.search", {"query": query, "mode": mode, "top_k": 60, "explain": True, "tags": ["a"]}
        )
        agrees(answer["results"], reference(query, mode, [cast.team.pk], tagged))


def test_the_keyword_scores_are_those_of_bm25_to_the_last_digits(cast: Cast) -> None:
    source = random.Random(7)
    cast.run(
        "memory.set_many", {"items": [{"memory_key": f"k{n}", "value": some_text(source)} for n in range(40)]}
    )
    query = "plum garden deploy"
    answer = cast.run("memory.search", {"query": query, "mode": "keyword", "top_k": 40, "explain": True})
    expected = reference(query, "keyword", [cast.team.pk])
    assert [int(hit["memory_id"]) for hit in answer["results"]] == [row.id for row in expected]
    for hit, row in zip(answer["results"], expected, strict=True):
        assert hit["rank_score"] == pytest.approx(row.rank, abs=1e-8)
    assert [hit["keyword_rank"] for hit in answer["results"]] == list(range(1, len(expected) + 1))


def check_statistics(cast: Cast) -> None:
    """The stripes, the postings and the lengths are what a count over the rows gives."""
    active = Memory.objects.filter(namespace=cast.team, status="active")
    lengths = [term_frequencies(search_text(m.memory_key, m.value, m.tags))[2] for m in active]
    assert corpus(cast.team.pk) == (len(lengths), sum(lengths))
    for memory in Memory.objects.filter(namespace=cast.team):
        terms, counts, length = term_frequencies(search_text(memory.memory_key, memory.value, memory.tags))
        kept = (
            Posting.objects.filter(memory=memory)
            .order_by("term")
            .values_list("term", "tf", "doc_len", "active")
        )
        is_active = memory.status == "active"
        assert sorted(kept) == sorted(
            (term, count, length, is_active) for term, count in zip(terms, counts, strict=True)
        )
        assert memory.doc_len == length


def test_statistics_stay_exact_under_any_sequence_of_writes(cast: Cast) -> None:
    source = random.Random(11)
    keys = [f"k{n}" for n in range(12)]
    for step in range(150):
        key = source.choice(keys)
        match source.randrange(8):
            case 0 | 1 | 2:
                body: dict[str, Any] = {"memory_key": key, "value": some_text(source)}
                if source.random() < 0.4:
                    body["tags"] = source.sample(WORDS, 2)
                if source.random() < 0.4:
                    body |= {"ttl_seconds": 60, "on_expire": source.choice(["stale", "tombstone"])}
                cast.run("memory.set", body)
            case 3:
                cast.run("memory.update", {"memory_key": key, "value": some_text(source)})
            case 4:
                cast.run("memory.delete", {"memory_key": key})
            case 5:
                cast.run("memory.restore", {"memory_key": key})
            case 6:
                pass_expiry(key)
                services.expire_due()
            case _:
                items = [{"memory_key": source.choice(keys), "value": some_text(source)} for _ in range(4)]
                cast.run("memory.set_many", {"items": items})
        if step % 25 == 24:
            check_statistics(cast)
            query = some_text(source)
            answer = cast.run(
                "memory.search", {"query": query, "mode": "keyword", "top_k": 50, "explain": True}
            )
            overdue = {m.pk for m in Memory.objects.filter(status="active") if not m.expires_at}
            expected = reference(query, "keyword", [cast.team.pk])
            assert {int(hit["memory_id"]) for hit in answer["results"]} >= overdue & {
                row.id for row in expected
            }
    check_statistics(cast)


def test_what_others_store_does_not_move_a_score(cast: Cast) -> None:
    body = {"query": "plum garden", "mode": "keyword", "explain": True}
    cast.run("memory.set_many", {"items": [{"memory_key": str(n), "value": f"plum {n}"} for n in range(5)]})
    before = cast.run("memory.search", body)["results"]
    side = cast.namespace("side", mate=Role.WRITER)
    for by, namespace in (("stranger", "team"), ("mate", side.slug)):
        items = [{"memory_key": str(n), "value": "plum garden " * 9} for n in range(30)]
        cast.run("memory.set_many", {"items": items, "namespace": namespace}, by=by)
    assert cast.run("memory.search", body)["results"] == before


def test_several_namespaces_are_ranked_by_their_common_statistics(cast: Cast) -> None:
    source = random.Random(3)
    side = cast.namespace("side", mate=Role.WRITER)
    for namespace in ("team", "side"):
        items = [{"memory_key": f"k{n}", "value": some_text(source)} for n in range(30)]
        cast.run("memory.set_many", {"items": items, "namespace": namespace})
    query = some_text(source)
    for mode in ("hybrid", "keyword", "semantic"):
        answer = cast.run(
            "memory.search",
            {"query": query, "mode": mode, "top_k": 60, "explain": True, "namespace_scope": "all_mine"},
        )
        agrees(answer["results"], reference(query, mode, [cast.team.pk, side.pk]))


def test_results_are_identical_for_an_identical_state(cast: Cast) -> None:
    items = [{"memory_key": f"k{n}", "value": "the very same words"} for n in range(30)]
    cast.run("memory.set_many", {"items": items})
    for mode in ("hybrid", "keyword", "semantic"):
        body = {"query": "same words", "mode": mode, "top_k": 20}
        results = [cast.run("memory.search", body)["results"] for _ in range(3)]
        assert results[0] == results[1] == results[2]
        if mode == "keyword":
            ids = [int(hit["memory_id"]) for hit in results[0]]
            assert ids == sorted(ids)
