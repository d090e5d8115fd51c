"""memory.search: filters inside both legs, any text as a query, and nothing that the caller may not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loomsite.ops import Role
from memories import search
from memories.embedders import embed_query, get_embedder
from memories.models import Embedding, Memory
from memories.search_sql import Plan, statement
from tests.conftest import Cast
from tests.memories.helpers import govern, nothing_changes, pass_expiry, sql

MODES = ["hybrid", "keyword", "semantic"]


def put(cast: Cast, by: str = "mate", /, **items: Any) -> None:
    body = [
        {"memory_key": key, **(item if isinstance(item, dict) else {"value": item})}
        for key, item in items.items()
    ]
    cast.run("memory.set_many", {"items": body}, by=by)


def found(cast: Cast, query: str, by: str = "mate", **body: Any) -> list[str]:
    return [
        hit["memory_key"] for hit in cast.run("memory.search", {"query": query, **body}, by=by)["results"]
    ]


def test_a_hit_tells_what_it_is_and_why(cast: Cast) -> None:
    put(
        cast,
        plum={"value": "plums are in the fridge", "tags": ["food"]},
        train={"value": "the train leaves at nine"},
    )
    answer = cast.call("memory.search", {"query": "plums in the fridge", "explain": True})
    hit = answer["results"][0]
    assert set(hit) == {
        "memory_key", "memory_id", "namespace", "value", "similarity", "keyword_rank", "rank_score",
        "version", "tags", "pinned", "status", "created_at", "updated_at", "source_class", "agent", "user_id",
        "session_id", "explain",
    }  # fmt: skip
    assert (hit["memory_key"], hit["value"], hit["namespace"]) == ("plum", "plums are in the fridge", "team")
    assert (hit["keyword_rank"], hit["rank_score"], hit["status"], hit["tags"]) == (
        1,
        1.0,
        "active",
        ["food"],
    )
    assert set(hit["explain"]) == {
        "keyword_score", "keyword_share", "similarity_share", "weight", "pin", "recency", "coverage",
    }  # fmt: skip
    assert (answer["abstain"], answer["namespaces_searched"], answer["namespaces_skipped"]) == (
        False,
        ["team"],
        [],
    )


def test_a_long_value_comes_as_an_excerpt_around_the_words(cast: Cast) -> None:
    put(
        cast,
        long="filler words here " * 300 + "the plum is hidden there " + "more filler words " * 300,
        short="plum",
    )
    by_key = {hit["memory_key"]: hit for hit in cast.run("memory.search", {"query": "plum"})["results"]}
    assert "value" not in by_key["long"] and "plum" in by_key["long"]["excerpt"]
    assert len(by_key["long"]["excerpt"]) <= 400
    assert by_key["short"]["value"] == "plum" and "excerpt" not in by_key["short"]


@pytest.mark.parametrize("value", [0, False, "", [], {}, None])
def test_a_falsy_value_is_shown_as_it_is(cast: Cast, value: Any) -> None:
    put(cast, **{"plum/count": {"value": value}})
    (hit,) = cast.run("memory.search", {"query": "plum count"})["results"]
    assert hit["value"] == value and type(hit["value"]) is type(value)


def test_nothing_near_is_advice_to_abstain_and_the_results_stay(cast: Cast) -> None:
    assert cast.run("memory.search", {"query": "anything"})["abstain"] is True
    put(cast, a="the cat sat on the mat")
    answer = cast.run("memory.search", {"query": "quarterly revenue forecast"})
    assert answer["abstain"] is True and answer["abstain_reason"]
    assert [hit["memory_key"] for hit in answer["results"]] == ["a"]


@pytest.mark.parametrize("mode", MODES)
def test_every_filter_holds_in_every_mode(cast: Cast, mode: str) -> None:
    put(
        cast,
        **{
            "a/1": {"value": "plum one", "tags": ["x"], "memory_type": "note"},
            "a/2": {"value": "plum two", "tags": ["y"]},
            "b/1": {"value": "plum three", "tags": ["x", "y"]},
        },
    )
    instant = cast.run("memory.get", {"memory_key": "a/1"})["created_at"]
    cast.run("memory.set", {"memory_key": "late", "value": "plum four"})

    def keys(**filters: Any) -> set[str]:
        return set(found(cast, "plum", mode=mode, **filters))

    assert keys() == {"a/1", "a/2", "b/1", "late"}
    assert keys(tags=["x"]) == {"a/1", "b/1"}
    assert keys(memory_type="note") == {"a/1"}
    assert keys(key_prefix="a/") == {"a/1", "a/2"}
    assert keys(tags=["y"], key_prefix="b") == {"b/1"}
    assert keys(created_before=instant) == set()
    assert keys(created_after=instant) == {"a/1", "a/2", "b/1", "late"}
    late = cast.run("memory.get", {"memory_key": "late"})["created_at"]
    assert keys(created_after=late) == {"late"}
    assert keys(created_before=late) == {"a/1", "a/2", "b/1"}
    assert keys(agent="nobody") == set()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pattern", ["100%_", "%", "*", "(x)", "a,b|c", "\\", "a_b"])
def test_prefixes_and_tags_are_literal(cast: Cast, pattern: str, mode: str) -> None:
    put(cast, **{f"{pattern}-key": {"value": "plum", "tags": [pattern]}, "100xy": "plum", "axb": "plum"})
    assert found(cast, "plum", mode=mode, key_prefix=pattern) == [f"{pattern}-key"]
    assert found(cast, "plum", mode=mode, tags=[pattern]) == [f"{pattern}-key"]


@pytest.mark.parametrize("mode", MODES)
def test_only_what_the_caller_may_see_is_found(cast: Cast, mode: str) -> None:
    bound = cast.token(agent="a")
    put(cast, shared="plum")
    cast.run("memory.set", {"memory_key": "own", "value": "plum"}, by=bound)
    cast.run("memory.set", {"memory_key": "b's", "value": "plum", "agent": "b"})
    put(cast, "stranger", foreign="plum")
    assert set(found(cast, "plum", bound, mode=mode)) == {"own", "shared"}
    assert set(found(cast, "plum", bound, mode=mode, agent="*")) == {"own", "shared"}
    assert set(found(cast, "plum", bound, mode=mode, agent="a")) == {"own"}
    assert set(found(cast, "plum", mode=mode)) == {"own", "shared", "b's"}
    assert found(cast, "plum", "stranger", mode=mode, namespace_scope="all_mine") == ["foreign"]
    assert set(found(cast, "plum", bound, mode=mode, namespace_scope="all_mine")) == {"own", "shared"}


@pytest.mark.parametrize("mode", MODES)
def test_statuses_are_searched_by_name_only(cast: Cast, mode: str) -> None:
    put(
        cast,
        **{
            key: "plum"
            for key in ("active", "stale", "archived", "superseded", "rejected", "gone", "redacted")
        },
    )
    put(
        cast,
        ended={"value": "plum", "ttl_seconds": 60},
        spent={"value": "plum", "ttl_seconds": 60, "on_expire": "stale"},
    )
    for status in ("stale", "archived", "superseded", "rejected", "redacted"):
        govern(status, status)
    cast.run("memory.delete", {"memory_key": "gone"})
    pass_expiry()

    def keys(*statuses: str, by: str = "mate") -> set[str]:
        return set(found(cast, "plum", by, mode=mode, include_status=list(statuses)))

    assert set(found(cast, "plum", mode=mode)) == {"active"}
    assert keys("active") == {"active"}
    assert keys("stale", by="viewer") == {"stale", "spent"}
    assert keys("deleted") == {"gone", "ended"}
    assert keys("active", "archived", "superseded", "rejected") == {
        "active",
        "archived",
        "superseded",
        "rejected",
    }
    hits = cast.run("memory.search", {"query": "plum", "mode": mode, "include_status": ["deleted", "stale"]})
    statuses = {hit["memory_key"]: hit["status"] for hit in hits["results"]}
    assert statuses == {"gone": "deleted", "ended": "deleted", "stale": "stale", "spent": "stale"}
    refused = cast.run("memory.search", {"query": "plum", "include_status": ["deleted"]}, by="viewer")
    assert refused.status == 403
    assert cast.run("memory.search", {"query": "plum", "include_status": ["redacted"]}).status == 400


def test_min_similarity_is_a_floor_for_every_hit(cast: Cast) -> None:
    put(
        cast,
        near="plums are in the fridge",
        far="the train to Lisbon leaves at nine",
        word="fridge magnets of Lisbon",
    )
    everything = cast.run("memory.search", {"query": "plums in the fridge"})["results"]
    middle = sorted(hit["similarity"] for hit in everything)[1]
    some = cast.run("memory.search", {"query": "plums in the fridge", "min_similarity": middle - 1e-4})[
        "results"
    ]
    assert [hit["memory_key"] for hit in some] == [
        hit["memory_key"] for hit in everything if hit["similarity"] >= middle - 1e-4
    ]
    assert len(some) == 2
    assert found(cast, "plums in the fridge", min_similarity=1) == []
    assert cast.run("memory.search", {"query": "x", "mode": "keyword", "min_similarity": 0.1}).status == 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": ""},
        {"query": " \n"},
        {"query": "x" * 16_001},
        {"query": 5},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 201},
        {"top_k": 10**9},
        {"tags": []},
        {"include_status": []},
        {"include_status": ["everything"]},
        {"mode": "magic"},
        {"namespace_scope": "everyone"},
        {"created_after": "2026-01-01T00:00:00"},
        {"min_similarity": 1.5},
        {"min_similarity": True},
        {"agent": ""},
        {"user_id": " "},
        {"memory_type": ""},
    ],
)
def test_bounds_and_empty_filters_are_400_naming_the_field(cast: Cast, wrong: dict[str, Any]) -> None:
    put(cast, k="plum")
    refused = cast.call("memory.search", {"query": "plum", **wrong})
    assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT")
    assert next(iter(wrong)) in refused.detail["message"]


def test_an_empty_call_is_400_and_finds_nothing(cast: Cast) -> None:
    assert cast.call("memory.search", {}).status == 400


ODD = [
    "a", "x & y | !z", '"unclosed', "AND OR NOT", "' OR 1=1 --", "()[]{}*?", "%", "_", "\\", ":*", "<->",
    "the", "🦊",
    "👩‍👩‍👧‍👦", "日本語の検索", "한국어", "ไทย", "עברית",
    "\u200b\u200d", "ﷺ", "a" * 16_000, "1e999", "NaN",
    "\x01\x02", "a\u0000b", "%s %(x)s {0} {filters}", "$1 $$", "é", "é",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("query", ODD, ids=range(len(ODD)))
def test_what_people_type_is_data(cast: Cast, query: str, mode: str) -> None:
    put(cast, k="plum")
    assert cast.call("memory.search", {"query": query, "mode": mode}).status == 200


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(min_size=1, max_size=60), mode=st.sampled_from(MODES))
def test_no_text_at_all_raises(cast: Cast, query: str, mode: str) -> None:
    answer = cast.run("memory.search", {"query": query, "mode": mode})
    assert answer.status == 200 or (answer.status == 400 and answer.code == "INVALID_ARGUMENT")


def test_a_lone_surrogate_is_400_naming_the_field(cast: Cast) -> None:
    refused = cast.call("memory.search", rb'{"query": "\ud83d"}')
    assert (refused.status, refused.detail["errors"][0]["path"]) == (400, "query")


def test_text_without_spaces_is_found_by_a_part_of_it(cast: Cast) -> None:
    put(cast, jp="明日は東京で会議があります", other="plum")
    assert found(cast, "東京", mode="keyword") == ["jp"]


def test_the_two_forms_of_a_letter_find_each_other(cast: Cast) -> None:
    put(cast, k="cafe\u0301 au lait")
    assert found(cast, "caf\u00e9", mode="keyword") == ["k"]


def test_all_mine_searches_twenty_namespaces_and_names_the_rest(cast: Cast) -> None:
    for n in range(22):
        cast.namespace(f"ns{n:02d}", mate=Role.VIEWER)
    cast.namespace("foreign", owner=Role.ADMIN)
    answer = cast.run("memory.search", {"query": "plum", "namespace_scope": "all_mine"})
    assert answer["namespaces_searched"][0] == "team"
    assert len(answer["namespaces_searched"]) == 20
    assert answer["namespaces_skipped"] == ["ns19", "ns20", "ns21"]
    assert "foreign" not in str(answer.body)


def test_all_mine_stays_within_the_tokens_namespaces(cast: Cast) -> None:
    cast.namespace("side", mate=Role.WRITER)
    cast.run("memory.set", {"memory_key": "k", "value": "plum", "namespace": "side"})
    put(cast, here="plum")
    narrow = cast.token(namespaces=["team"])
    answer = cast.run("memory.search", {"query": "plum", "namespace_scope": "all_mine"}, by=narrow)
    assert [hit["memory_key"] for hit in answer["results"]] == ["here"]
    assert (answer["namespaces_searched"], answer["namespaces_skipped"]) == (["team"], [])
    wide = cast.run("memory.search", {"query": "plum", "namespace_scope": "all_mine"})
    assert {(hit["namespace"], hit["memory_key"]) for hit in wide["results"]} == {
        ("side", "k"),
        ("team", "here"),
    }


def test_a_namespace_that_does_not_exist_yet_is_searched_as_empty(cast: Cast) -> None:
    answer = cast.run("memory.search", {"query": "plum", "namespace": "new"}, by="owner")
    assert (answer["results"], answer["abstain"], answer["namespaces_searched"]) == ([], True, [])


def test_a_search_changes_nothing(cast: Cast) -> None:
    put(cast, a="plum", b={"value": "plum", "ttl_seconds": 60})
    pass_expiry()
    with nothing_changes():
        found(cast, "plum", namespace_scope="all_mine", explain=True)


def test_an_edit_is_found_by_its_new_words_and_not_by_its_old_ones(cast: Cast) -> None:
    put(cast, k="plum", other="kettle")
    put(cast, k="violin")
    assert found(cast, "plum", mode="keyword") == []
    assert found(cast, "violin", mode="keyword") == ["k"]
    assert found(cast, "violin concert", mode="semantic")[0] == "k"


def test_tags_and_keys_are_searched_too(cast: Cast) -> None:
    put(cast, **{"deploy/window": {"value": 1, "tags": ["ops"]}, "other": {"value": 2}})
    assert found(cast, "deploy", mode="keyword") == ["deploy/window"]
    assert found(cast, "ops", mode="keyword") == ["deploy/window"]
    cast.run("memory.set", {"memory_key": "deploy/window", "value": 1, "tags": []})
    assert found(cast, "ops", mode="keyword") == []


def many(cast: Cast, namespace_id: int, prefix: str, count: int, near: float) -> None:
    """Fast rows for size: one common term, and vectors around `near` times the query's."""
    sql(
        """WITH made AS (
             INSERT INTO memories_memory (namespace_id, agent, user_id, session_id, memory_key, value,
               content_sha256, memory_type, tags, metadata, pinned, pinned_by, on_expire, source_class,
               source_trace, governed, doc_len, status, version, lock_mode, lock_reason, locked_by)
             SELECT %s, '-', '-', '-', %s || n, to_jsonb('plum ' || n), md5(n::text), 'semantic',
               CASE WHEN n %% 1000 = 7 THEN ARRAY['rare'] ELSE ARRAY[]::varchar[] END, '{}', false, '',
               'tombstone', 'local_tool_output', '', false, 2, 'active', 1, 'none', '', ''
             FROM generate_series(1, %s) n RETURNING id, namespace_id),
           posted AS (
             INSERT INTO memories_posting (namespace_id, memory_id, term, tf, doc_len, active)
             SELECT namespace_id, id, 'plum', 1, 2, true FROM made),
           counted AS (
             INSERT INTO memories_corpusstripe (namespace_id, stripe, docs, terms)
             SELECT namespace_id, 99, count(*), 2 * count(*) FROM made GROUP BY 1)
           INSERT INTO memories_embedding (memory_id, namespace_id, embedder, dim, vector, content_sha256,
             in_graph)
           SELECT id, namespace_id, %s, 256, (
             SELECT array_agg(%s * q + (random() - 0.5) * 0.2 + id * 0 ORDER BY place)
             FROM unnest(%s::float8[]) WITH ORDINALITY AS query (q, place))::halfvec, '', true
           FROM made""",
        [
            namespace_id, prefix, count, get_embedder().name, near,
            [float(x) for x in embed_query("plum")],
        ],
    )  # fmt: skip


@pytest.fixture
def twenty_thousand(cast: Cast) -> Cast:
    """20,000 rows of `team`, all nearer to "plum" than the 60 of `side`; the graph over all of them."""
    ((index,),) = sql("SELECT indexdef FROM pg_indexes WHERE indexname = 'embedding_wordllama'")
    side = cast.namespace("side", mate=Role.WRITER)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("DROP INDEX embedding_wordllama")  # building it at once is faster than row by row
    sql("SELECT setseed(0.5)")
    many(cast, cast.team.pk, "a", 20_000, 1.0)
    many(cast, side.pk, "b", 60, -0.5)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql(index)
    sql("ANALYZE memories_memory, memories_embedding, memories_posting")
    return cast


def test_beside_twenty_thousand_rows_a_small_tenant_and_a_rare_tag_get_all_their_hits(
    twenty_thousand: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = twenty_thousand
    sql("UPDATE memories_memory SET tags = ARRAY['needle'] WHERE memory_key = 'a4321'")
    exact = found(cast, "plum", mode="semantic", top_k=20)
    for limit in (search.EXACT_LIMIT, 10):  # the exact scan, then the graph
        monkeypatch.setattr(search, "EXACT_LIMIT", limit)
        for mode in MODES:
            assert len(found(cast, "plum", mode=mode, top_k=20, namespace="side")) == 20, (limit, mode)
            assert len(found(cast, "plum", mode=mode, top_k=50, tags=["rare"])) == 20, (limit, mode)
            assert found(cast, "plum", mode=mode, tags=["needle"]) == ["a4321"], (limit, mode)
            assert found(cast, "plum", mode=mode, key_prefix="a4321") == ["a4321"], (limit, mode)
    asked: list[Plan] = []
    monkeypatch.setattr(search, "statement", lambda plan: asked.append(plan) or statement(plan))
    near = found(cast, "plum", mode="semantic", top_k=20)
    assert [plan.graph for plan in asked] == [get_embedder().name]  # once, and by the graph
    assert "embedding_wordllama" in "\n".join(line for (line,) in explain([cast.team.pk]))
    assert len(near) == 20
    assert len(set(near) & set(exact)) >= 19


def explain(namespaces: list[int]) -> list[tuple[str]]:
    """The plan of the approximate semantic leg over these namespaces."""
    filters = "m.namespace_id = ANY(%(namespaces)s) AND m.status = 'active'"
    vector = "[" + ",".join(str(float(x)) for x in embed_query("plum")) + "]"
    params = {
        "namespaces": namespaces, "pool": 100, "reach": 200, "top_k": 20, "weight": 1.0, "digits": 9,
        "vector": vector, "embedder": get_embedder().name, "dim": 256, "min_similarity": None,
        "value_bytes": 2048, "pin": 0, "recency": 0, "recency_seconds": 1,
    }  # fmt: skip
    plan = Plan(filters, semantic=True, graph=get_embedder().name, dim=256)
    return sql("EXPLAIN " + statement(plan), params)


def test_vectors_of_another_embedder_or_dimension_never_crash_a_search(cast: Cast) -> None:
    put(cast, a="plum", b="plum tree", c="plum jam")
    sql(
        "UPDATE memories_embedding SET embedder = 'other', dim = 3, vector = '[1,2,3]' WHERE memory_id = %s",
        [Memory.objects.get(memory_key="a").pk],
    )
    hits = cast.run("memory.search", {"query": "plum"})["results"]
    assert {hit["memory_key"] for hit in hits} == {"a", "b", "c"}
    assert next(hit for hit in hits if hit["memory_key"] == "a")["similarity"] is None
    assert found(cast, "plum", mode="semantic", min_similarity=-1) == found(cast, "plum", mode="semantic")
    cast.run("memory.set", {"memory_key": "a", "value": "plum cake"})
    assert Embedding.objects.get(memory__memory_key="a").dim == 256


def test_an_empty_text_is_found_by_its_key(cast: Cast) -> None:
    put(cast, k="", other="plum")
    assert found(cast, "k", mode="keyword") == ["k"]


def test_a_stored_vector_is_of_length_one(cast: Cast) -> None:
    put(cast, k="plums are in the fridge")
    vector = np.array(Embedding.objects.get().vector)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-2)


def test_one_search_costs_few_statements(cast: Cast, django_assert_max_num_queries: Any) -> None:
    put(cast, k="plum")
    with django_assert_max_num_queries(3):
        found(cast, "plum")
    with django_assert_max_num_queries(3):
        found(cast, "plum", mode="keyword")
