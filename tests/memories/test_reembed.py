"""manage.py reembed: another embedder while the old one serves, stopped and resumed, and its graph."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from memories import graph, reembed, search
from memories.embedders import WordLlamaEmbedder, get_embedder, reset_embedder
from tests.conftest import Cast
from tests.memories.helpers import sql
from tests.memories.test_embedders import Endpoint
from tests.procedures.helpers import RECIPE

pytestmark = pytest.mark.django_db(transaction=True)
wordllama = WordLlamaEmbedder()
DIM = 32
OLD = wordllama.name


class Other:
    """An embedder of 32 dimensions behind an endpoint, which a process may be set to or not."""

    def __init__(self) -> None:
        self.endpoint = Endpoint()
        self.endpoint.answer = self._answer
        self.calls_left = 10_000
        self._settings = override_settings(
            LOOM_EMBEDDER="openai", LOOM_EMBEDDER_URL=self.endpoint.url, LOOM_EMBEDDER_MODEL="small"
        )
        self._on = False

    def _answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.calls_left -= 1
        if self.calls_left < 0:
            return 400, {}
        rows = wordllama.embed(body["input"])[:, :DIM]
        return 200, {"data": [{"index": i, "embedding": list(map(float, r))} for i, r in enumerate(rows)]}

    def __enter__(self) -> Other:
        """This process is now one that was started with the new setting."""
        self._settings.enable()
        self._on = True
        reset_embedder()
        return self

    def __exit__(self, *_: object) -> None:
        if self._on:
            self._settings.disable()
        self._on = False
        reset_embedder()


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.__exit__()
    made.endpoint.close()


def run(*arguments: str) -> str:
    """The command's words, on both streams."""
    out = io.StringIO()
    call_command("reembed", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def put(cast: Cast, count: int = 3) -> None:
    items = [{"memory_key": f"k{i}", "value": f"plum number {i} is in the fridge"} for i in range(count)]
    cast.run("memory.set_many", {"items": items})


def everything(cast: Cast) -> None:
    """A memory, a fact and a procedure."""
    put(cast, 1)
    cast.run("fact.remember", {"subject": "Ada", "attribute": "city", "value": "Lisbon"})
    cast.run("procedure.add", RECIPE)


def search_of(cast: Cast, query: str = "plum in the fridge", **body: Any) -> Any:
    return cast.call("memory.search", {"query": query, **body})


def embedders(table: str = "memories_embedding") -> dict[str, int]:
    return dict(sql(f"SELECT embedder, count(*) FROM {table} GROUP BY 1"))


def test_memories_facts_and_procedures_are_embedded_anew_and_the_old_vectors_stay(
    cast: Cast, other: Other
) -> None:
    everything(cast)
    with other:
        words = run()
        new = get_embedder().name
    for kind in ("memories", "facts", "procedures"):
        assert f"{kind}: " in words
    for table in ("memories_embedding", "facts_factembedding", "procedures_situation"):
        found = embedders(table)
        assert set(found) == {OLD, new} and found[OLD] == found[new], table
    # The server, which was not restarted yet, compares the old ones and misses nothing.
    answer = search_of(cast, mode="semantic")
    assert "degraded" not in answer.body or answer["degraded"] == []
    assert answer["results"][0]["similarity"] is not None


def test_a_server_that_was_restarted_first_finds_by_words_and_says_what_is_missing(
    cast: Cast, other: Other
) -> None:
    put(cast)
    with other:
        answer = search_of(cast)
        assert answer["degraded"] == ["reembed"]
        assert {hit["memory_key"] for hit in answer["results"]} == {"k0", "k1", "k2"}
        assert {hit["similarity"] for hit in answer["results"]} == {None}
        assert search_of(cast, mode="semantic").status == 200
        run()
        answer = search_of(cast, mode="semantic")
        assert not answer.body.get("degraded")
        assert all(hit["similarity"] is not None for hit in answer["results"])


def test_a_stopped_run_goes_on_where_it_was(
    cast: Cast, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reembed, "BATCH", 2)
    put(cast, 7)
    with other:
        other.calls_left = 3
        with pytest.raises(CommandError, match="run it again to go on"):
            run()
        name = get_embedder().name
        other.calls_left = 10_000
        reset_embedder()
        stored = embedders()[name]
        assert 0 < stored < 7
        assert search_of(cast)["degraded"] == ["reembed"]
        before = sql("SELECT memory_id, xmin::text FROM memories_embedding WHERE embedder = %s", [name])
        words = run()
        assert embedders()[name] == 7
        assert f"memories: {7 - stored} embedded" in words
        # Nothing was done twice.
        assert set(before) <= set(sql("SELECT memory_id, xmin::text FROM memories_embedding"))


def test_what_is_written_during_a_pass_is_embedded_by_the_next(
    cast: Cast, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cast)
    step = reembed._Memories.step
    late: list[int] = []

    def step_then_write(self: Any, embedder: Any, after: int, limit: int) -> tuple[int | None, int]:
        done = step(self, embedder, after, limit)
        if not late:
            late.append(1)
            # A server with the old setting goes on writing, also over what has been embedded.
            other.__exit__()
            cast.run("memory.set", {"memory_key": "k0", "value": "a kettle"})
            other.__enter__()
        return done

    monkeypatch.setattr(reembed._Memories, "step", step_then_write)
    with other:
        run()
        assert embedders()[get_embedder().name] == 3
        assert reembed.missing(get_embedder().name)["memories"] == 0


def test_prune_deletes_what_has_a_successor_and_nothing_else(cast: Cast, other: Other) -> None:
    everything(cast)
    with other:
        name = get_embedder().name
        assert "vectors of other embedders deleted" in run("--prune")
        assert set(embedders()) == set(embedders("facts_factembedding")) == {name}
        assert set(embedders("procedures_situation")) == {name}
    put(cast, 2)  # an old server writes one more; k0 is as it was
    assert embedders() == {OLD: 1, name: 2}


def test_check_counts_and_changes_nothing(cast: Cast, other: Other) -> None:
    put(cast)
    with other:
        assert "memories: 3 without a vector" in run("--check")
        assert set(embedders()) == {OLD}


def test_the_new_vectors_get_a_graph_of_their_own_and_the_search_uses_it(
    cast: Cast, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (graph, search):
        monkeypatch.setattr(module, "EXACT_LIMIT", 20)
    put(cast, 60)
    with other:
        run()
        name = get_embedder().name
        assert graph.has_index(name, DIM)
        assert sql("SELECT count(*) FROM memories_embedding WHERE embedder = %s AND in_graph", [name]) == [
            (60,)
        ]
        assert len(search_of(cast, mode="semantic", top_k=50)["results"]) == 50
        run("--prune")
    # Back to the default: its graph is still there, and the other's is dropped with its vectors.
    run("--prune")
    assert set(embedders()) == {OLD}
    assert not graph.has_index(name, DIM)
    assert graph.has_index(OLD, 256)


def test_an_edit_takes_the_vectors_of_every_embedder_with_it(cast: Cast, other: Other) -> None:
    put(cast, 1)
    with other:
        run()
    cast.run("memory.set", {"memory_key": "k0", "value": "a train to Lisbon"})
    assert embedders() == {OLD: 1}


def test_reembed_without_an_embedder_is_refused(cast: Cast) -> None:
    with override_settings(LOOM_EMBEDDER="none"):
        reset_embedder()
        with pytest.raises(CommandError, match="name another"):
            run()
    reset_embedder()


# The graph behind the writes


def test_a_write_stays_outside_the_graph_until_the_worker_moves_it_and_is_found_all_along(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (graph, search):
        monkeypatch.setattr(module, "EXACT_LIMIT", 5)
    put(cast, 30)
    assert sql("SELECT count(*) FROM memories_embedding WHERE in_graph") == [(0,)]
    assert graph.build_and_graft(5.0) == 30
    put(cast, 31)  # the last is new
    assert sql("SELECT count(*) FROM memories_embedding WHERE NOT in_graph") == [(1,)]
    hits = search_of(cast, "plum number 30", mode="semantic", top_k=31)["results"]
    assert len(hits) == 31 and hits[0]["memory_key"] == "k30"
    assert graph.build_and_graft(5.0) == 1
    assert [h["memory_key"] for h in search_of(cast, "plum number 30", mode="semantic", top_k=31)["results"]][
        0
    ] == "k30"


def test_a_small_namespace_never_enters_the_graph(cast: Cast) -> None:
    put(cast, 10)
    assert graph.build_and_graft(5.0) == 0
    assert sql("SELECT count(*) FROM memories_embedding WHERE in_graph") == [(0,)]


def test_vectors_too_long_for_an_index_are_left_to_the_exact_scan(cast: Cast) -> None:
    assert not graph.make_index("long", graph.MAX_DIM + 1)
    assert graph.graft(1.0, "long", graph.MAX_DIM + 1) == 0
