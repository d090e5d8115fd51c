"""The benchmarks of size and of abstaining: seeded, loaded by the code that writes, judged by their rules."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from typing import Any

from django.db import connection

from benchmarks import abstain, plots, scale, scale_load
from loomsite.ops import Role
from memories.models import Memory
from tests.benchmarks.conversations import CONVERSATIONS
from tests.conftest import Cast
from tests.memories.helpers import corpus, sql


def test_texts_and_tags_are_the_same_for_the_same_seed() -> None:
    assert list(scale_load.texts(None, 20, 3)) == list(scale_load.texts(None, 20, 3))
    assert list(scale_load.texts(None, 20, 3)) != list(scale_load.texts(None, 20, 4))
    source = random.Random(1)
    drawn = [scale_load.tags_of(source) for _ in range(4_000)]
    for tag, share in scale_load.TAGS.items():
        assert abs(sum(tag in tags for tags in drawn) / 4_000 - share) < 0.03


def test_what_is_loaded_in_bulk_is_what_memory_set_would_have_stored(cast: Cast) -> None:
    texts = list(scale_load.texts(None, 12, 3))
    with connection.cursor() as cursor:
        first = scale_load._first_id(cursor, 12)
        batch = [(first + i, cast.team.pk, text, ["half"]) for i, text in enumerate(texts)]
        scale_load._store(cursor, batch)
    twin = cast.namespace("twin", mate=Role.WRITER)
    for id_, _, text, tags in batch:
        cast.run(
            "memory.set", {"memory_key": f"note/{id_}", "value": text, "tags": tags, "namespace": "twin"}
        )
    for statement in (
        "SELECT memory_key, value::text, content_sha256, tags::text, doc_len, status, version "
        "FROM memories_memory m WHERE m.namespace_id = %s ORDER BY 1",
        "SELECT m.memory_key, p.term, p.tf, p.doc_len, p.active FROM memories_posting p "
        "JOIN memories_memory m ON m.id = p.memory_id WHERE p.namespace_id = %s ORDER BY 1, 2",
        "SELECT m.memory_key, e.vector::text, e.embedder, e.chunk, e.ends_at FROM memories_embedding e "
        "JOIN memories_memory m ON m.id = e.memory_id WHERE e.namespace_id = %s ORDER BY 1",
    ):
        assert sql(statement, [cast.team.pk]) == sql(statement, [twin.pk])
    assert corpus(cast.team.pk) == corpus(twin.pk)
    assert Memory.objects.count() == 24


def test_bars_of_size_compare_the_largest_with_the_smallest() -> None:
    def one(p95: float, recall: float, **more: float) -> dict[str, Any]:
        return {"latency": {"p95_ms": p95}, "recall": {"all": 1.0, "tenth": recall}, **more}

    found = {"10/1": one(10, 0.99), "20/1": one(31, 0.94, writes_per_second=250, set_many_per_second=1_999)}
    bars = scale._bars(found, [10, 20], [1])
    assert list(bars.values()) == [False, False, True, False]


def test_questions_are_asked_where_they_belong_and_where_they_do_not() -> None:
    asked = abstain.questions(CONVERSATIONS * 2)
    kinds = [kind for kind, *_ in asked]
    assert kinds.count(abstain.KINDS[0]) == kinds.count(abstain.KINDS[1]) == kinds.count(abstain.KINDS[2])
    one = {"turns": [{"speaker": "Ann"}, {"speaker": "Bob"}]}
    other = {"turns": [{"speaker": "Cleo"}, {"speaker": "Dan"}]}
    assert abstain.renamed("Did Bob call Ann's mother?", one, other) == "Did Dan call Cleo's mother?"


def test_the_threshold_is_the_one_that_parts_the_two_kinds() -> None:
    near = [abstain.Asked(abstain.KINDS[0], 0, False, 0.4, 0.6) for _ in range(5)]
    far = [abstain.Asked(abstain.KINDS[1], 0, True, 0.1, 0.4) for _ in range(5)]
    weight, threshold = abstain.best(near + far)
    assert abstain.nearness(far[0], weight) < threshold <= abstain.nearness(near[0], weight)


def test_a_picture_is_well_formed_and_holds_every_bar() -> None:
    drawn = plots.bars("Less < more & so", ["a", "b"], {"x": [1.0, 2.5], "y": [0.0, 4.0]})
    tree = ET.fromstring(drawn)
    assert tree.get("aria-label") == "Less < more & so"
    bars = [
        node for node in tree.iter("{http://www.w3.org/2000/svg}rect") if node.find("{*}title") is not None
    ]
    assert len(bars) == 4 and all(float(bar.get("height", "-1")) >= 0 for bar in bars)
