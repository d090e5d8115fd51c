"""Long values: cut into parts that have a vector each, found by any of them, answered once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.chunks import CHUNK, MAX_CHUNKS, WHOLE, chunk_spans
from memories.embedders import get_embedder
from memories.models import Embedding
from tests.conftest import Cast
from tests.memories.helpers import sql

WORDS = "river bridge copper kettle winter harbour garden tomato railway ticket".split()


def filler(characters: int, seed: int = 1) -> str:
    """Sentences of ordinary words."""
    source = random.Random(seed)
    sentences: list[str] = []
    size = 0
    while size < characters:
        sentences.append(" ".join(source.choices(WORDS, k=9)).capitalize() + ".")
        size += len(sentences[-1]) + 1
    return " ".join(sentences)[:characters]


NEEDLE = "The quarterly audit of the observatory's telescope mirrors found a crack in the primary mirror."


def long_text(characters: int, at: float = 0.7) -> str:
    text = filler(characters)
    place = text.find(". ", int(len(text) * at)) + 2
    return text[:place] + NEEDLE + " " + text[place:]


@given(st.text(max_size=400), st.integers(1, 60))
def test_the_spans_of_any_text_cover_it_without_gap_or_overlap(piece: str, times: int) -> None:
    text = piece * times
    spans = chunk_spans(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert 1 <= len(spans) <= MAX_CHUNKS


@pytest.mark.parametrize("size", [0, 1, WHOLE, WHOLE + 1, 10_000, 200_000, 262_144, 3_000_000])
def test_a_text_of_any_length_has_a_bounded_number_of_chunks(size: int) -> None:
    spans = chunk_spans("x" * size)
    assert len(spans) == (1 if size <= WHOLE else len(spans)) <= MAX_CHUNKS
    assert max(end - start for start, end in spans) <= max(WHOLE, 1.5 * size / MAX_CHUNKS + CHUNK)


def test_cuts_fall_between_sentences() -> None:
    text = filler(20_000)
    assert all(text[:end].endswith(". ") for _, end in chunk_spans(text)[:-1])


def test_a_long_value_is_found_by_one_of_its_parts_and_the_hit_names_it(cast: Cast) -> None:
    text = long_text(30_000)
    cast.run("memory.set", {"memory_key": "long", "value": text})
    cast.run("memory.set", {"memory_key": "short", "value": "a kettle by the river"})
    for mode in ("semantic", "hybrid"):
        answer = cast.run("memory.search", {"query": "telescope mirror crack found by audit", "mode": mode})
        keys = [hit["memory_key"] for hit in answer["results"]]
        assert keys == ["long", "short"] if mode == "semantic" else keys[0] == "long"
        hit = answer["results"][0]
        assert "value" not in hit and "primary mirror" in hit["excerpt"]
        chunk = hit["chunk"]
        assert 1 < chunk["number"] <= chunk["of"] == Embedding.objects.filter(chunk__gte=0).count() - 1
        assert "telescope" in text[chunk["start"] : chunk["end"]]
        assert len(text[chunk["start"] : chunk["end"]]) <= WHOLE


def test_a_part_is_nearer_to_its_subject_than_the_whole_text_is(cast: Cast) -> None:
    text, query = long_text(60_000), "crack in the telescope mirror"
    cast.run("memory.set", {"memory_key": "long", "value": text})
    cast.run("memory.set", {"memory_key": "needle", "value": NEEDLE})
    whole = float(get_embedder().embed([text])[0] @ get_embedder().embed_query(query))
    hits = cast.run("memory.search", {"query": "crack in the telescope mirror", "mode": "semantic"})[
        "results"
    ]
    found = {hit["memory_key"]: hit["similarity"] for hit in hits}
    assert found["needle"] > found["long"] > whole + 0.02


def test_words_count_over_the_whole_of_a_long_text(cast: Cast) -> None:
    text = "Zebra first. " + filler(50_000) + " Quagga last."
    cast.run("memory.set", {"memory_key": "long", "value": text})
    cast.run("memory.set", {"memory_key": "zebra", "value": "zebra"})
    hits = cast.run("memory.search", {"query": "zebra quagga", "mode": "keyword"})["results"]
    assert [hit["memory_key"] for hit in hits] == ["long", "zebra"]
    assert sql("SELECT max(doc_len) > 5000 FROM memories_memory") == [(True,)]


def test_many_chunks_of_one_text_do_not_crowd_the_others_out(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "long", "value": (NEEDLE + " ") * 1_500})
    items = [{"memory_key": f"k{i}", "value": f"telescope number {i} has a mirror"} for i in range(120)]
    cast.run("memory.set_many", {"items": items})
    hits = cast.run("memory.search", {"query": "telescope mirror", "mode": "semantic", "top_k": 121})[
        "results"
    ]
    keys = [hit["memory_key"] for hit in hits]
    assert len(keys) == len(set(keys)) == 121


@pytest.mark.parametrize("characters", [200_000, 262_000])
def test_a_text_of_200_kb_is_stored_found_edited_and_forgotten(cast: Cast, characters: int) -> None:
    cast.run("memory.set", {"memory_key": "long", "value": long_text(characters - 200)})
    count = Embedding.objects.count()
    assert 1 < count <= MAX_CHUNKS
    hit = cast.run("memory.search", {"query": "cracked telescope mirror"})["results"][0]
    assert hit["memory_key"] == "long" and "mirror" in hit["excerpt"] and len(hit["excerpt"]) <= 320
    cast.run("memory.set", {"memory_key": "long", "value": "now it is short"})
    assert [(row.chunk, row.embedder != "") for row in Embedding.objects.all()] == [(0, True)]


def test_a_long_object_is_cut_as_it_is_written_out(cast: Cast) -> None:
    value = {"notes": filler(5_000), "zz": NEEDLE}
    cast.run("memory.set", {"memory_key": "long", "value": value})
    hit = cast.run("memory.search", {"query": "telescope mirror crack", "mode": "semantic"})["results"][0]
    assert hit["chunk"]["number"] == hit["chunk"]["of"] and "primary mirror" in hit["excerpt"]


def test_blank_stretches_have_no_vector(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "gap", "value": "plum" + " " * 20_000 + "kettle"})
    assert 1 <= Embedding.objects.count() <= 3
