"""The embedder is down: writes go on, searches fall back to words, and a job makes up for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from governance import jobs
from governance.models import Job
from memories import embedding_fill, tasks
from memories.embedders import EmbedderUnavailable, get_embedder, reset_embedder
from memories.models import Embedding, Memory
from tests.conftest import Cast, Reply
from tests.memories.helpers import govern, sql


class Outage:
    """An endpoint that refuses connections, for as long as it is asked to."""

    def __init__(self) -> None:
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            closed = port.getsockname()[1]
        self._settings = override_settings(
            LOOM_EMBEDDER="openai",
            LOOM_EMBEDDER_URL=f"http://127.0.0.1:{closed}/v1",
            LOOM_EMBEDDER_MODEL="none",
        )
        self.on = False

    def begin(self) -> None:
        """The embedder is down from now on."""
        self._settings.enable()
        reset_embedder()
        # No rests between tries: what is tested is what comes of the failure.
        get_embedder()._backoff = 0.0  # type: ignore[attr-defined]
        self.on = True

    def end(self) -> None:
        """The default embedder is back."""
        if self.on:
            self._settings.disable()
            reset_embedder()
        self.on = False


@pytest.fixture
def outage() -> Iterator[Outage]:
    """An outage that has begun; it ends with the test at the latest."""
    down = Outage()
    down.begin()
    yield down
    down.end()


def fill() -> str:
    """Run the last job of the filling, as the worker does; the state it is left in."""
    assert jobs._HANDLERS["embedding.fill"] is tasks.fill
    sql("UPDATE governance_job SET run_after = clock_timestamp()")
    return jobs.run(Job.objects.filter(kind="embedding.fill").latest("pk").pk)


def search(cast: Cast, query: str, **body: Any) -> Reply:
    return cast.call("memory.search", {"query": query, **body})


def test_a_write_succeeds_and_says_what_is_missing(cast: Cast, outage: Outage) -> None:
    answer = cast.call("memory.set", {"memory_key": "k", "value": "plums are in the fridge"})
    assert (answer.status, answer["degraded"], answer["version"]) == (200, ["embedding"], 1)
    assert not Embedding.objects.exists()
    job = Job.objects.get()
    assert (job.kind, job.state) == ("embedding.fill", "queued")
    assert job.input == {"memory_ids": [Memory.objects.get().pk]}


@pytest.mark.parametrize("mode", ["hybrid", "semantic", "keyword"])
def test_a_search_falls_back_to_words_and_says_so(cast: Cast, outage: Outage, mode: str) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "plums are in the fridge"})
    cast.run("memory.set", {"memory_key": "other", "value": "a train"})
    answer = (
        search(cast, "plum", mode=mode, min_similarity=0.9)
        if mode != "keyword"
        else search(cast, "plum", mode=mode)
    )
    assert [hit["memory_key"] for hit in answer["results"]] == ["k"]
    assert answer["results"][0]["similarity"] is None
    if mode == "keyword":
        assert "degraded" not in answer.body
    else:
        assert answer["degraded"] == ["embedding"]
        assert answer["advisories"] == ["min_similarity: not applied, because no meanings could be compared"]


def test_once_it_is_back_the_job_restores_the_search_by_meaning(cast: Cast, outage: Outage) -> None:
    items = [
        {"memory_key": "food", "value": "plums are in the fridge"},
        {"memory_key": "train", "value": "a late train"},
    ]
    cast.run("memory.set_many", {"items": items})
    assert Job.objects.count() == 1
    outage.end()
    assert search(cast, "fruit in the refrigerator", mode="semantic")["results"] == []
    assert fill() == "done"
    assert Job.objects.get().result == {"filled": 2, "asked": 2}
    answer = search(cast, "fruit in the refrigerator", mode="semantic")
    assert [hit["memory_key"] for hit in answer["results"]] == ["food", "train"]
    assert "degraded" not in answer.body
    memory = Memory.objects.get(memory_key="food")
    stored = Embedding.objects.get(memory=memory)
    assert (stored.content_sha256, stored.embedder) == (memory.content_sha256, get_embedder().name)


def test_an_edit_during_the_outage_is_not_found_by_its_old_meaning(cast: Cast, outage: Outage) -> None:
    outage.end()
    cast.run("memory.set", {"memory_key": "k", "value": "plums are in the fridge"})
    outage.begin()
    assert cast.run("memory.update", {"memory_key": "k", "value": "the train is late"})["degraded"] == [
        "embedding"
    ]
    assert not Embedding.objects.exists()
    outage.end()
    assert search(cast, "plum", mode="semantic")["results"] == []
    assert fill() == "done"
    assert search(cast, "railway delay", mode="semantic")["results"][0]["similarity"] > 0.2


def test_what_does_not_touch_the_text_needs_no_embedder(cast: Cast, outage: Outage) -> None:
    outage.end()
    cast.run("memory.set", {"memory_key": "k", "value": "plum"})
    outage.begin()
    answer = cast.run("memory.set", {"memory_key": "k", "value": "plum", "tags": ["t"]})
    assert "degraded" not in answer.body
    assert cast.run("memory.delete", {"memory_key": "k"})["tombstoned"] is True
    assert cast.run("memory.restore", {"memory_key": "k"})["restored"] is True
    assert Embedding.objects.exists() and not Job.objects.exists()


def test_a_job_that_comes_while_it_is_still_down_waits_and_is_the_same_job(
    cast: Cast, outage: Outage
) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "plum"})
    limit = Job.objects.get().max_attempts
    assert [fill() for _ in range(limit + 2)] == ["queued"] * (limit + 2)
    job = Job.objects.get()
    assert (job.attempts, job.error[:19]) == (0, "EmbedderUnavailable")
    ((wait,),) = sql("SELECT run_after - clock_timestamp() FROM governance_job")
    assert wait.total_seconds() == pytest.approx(embedding_fill.AGAIN_AFTER_S, abs=5)
    outage.end()
    assert fill() == "done"
    assert Embedding.objects.count() == 1


def test_a_second_run_of_the_job_changes_nothing(cast: Cast, outage: Outage) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "plum"})
    outage.end()
    assert fill() == "done"
    sql("UPDATE governance_job SET state = 'queued', attempts = 0")
    before = sql("SELECT xmin::text, memory_id FROM memories_embedding")
    assert fill() == "done"
    assert sql("SELECT xmin::text, memory_id FROM memories_embedding") == before


def test_a_text_that_moved_after_the_look_is_left_to_its_own_write(
    cast: Cast, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "plums are in the fridge"})
    outage.end()
    embedder = get_embedder()
    embed = embedder.embed

    def while_another_writes(texts: Any) -> Any:
        monkeypatch.setattr(embedder, "embed", embed)
        cast.run("memory.set", {"memory_key": "k", "value": "the train is late"})
        return embed(texts)

    monkeypatch.setattr(embedder, "embed", while_another_writes)
    assert fill() == "done"
    assert Embedding.objects.get().content_sha256 == Memory.objects.get().content_sha256


def test_what_was_redacted_meanwhile_gets_no_vector(cast: Cast, outage: Outage) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "secret"})
    outage.end()
    govern("k", "redacted")
    assert fill() == "done"
    assert not Embedding.objects.exists()


def test_many_are_filled_batch_by_batch(cast: Cast, outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_fill, "BATCH", 4)
    cast.run("memory.set_many", {"items": [{"memory_key": f"k{n}", "value": f"plum {n}"} for n in range(10)]})
    outage.end()
    assert fill() == "done"
    assert Embedding.objects.count() == 10


def test_a_batch_that_writes_a_key_twice_asks_for_one_vector(cast: Cast, outage: Outage) -> None:
    cast.run("memory.set_many", {"items": [{"memory_key": "k", "value": n} for n in ("one", "two")]})
    assert Job.objects.get().input == {"memory_ids": [Memory.objects.get().pk]}


def test_a_dry_run_asks_for_nothing(cast: Cast, outage: Outage) -> None:
    answer = cast.run("memory.set", {"memory_key": "k", "value": "plum", "dry_run": True})
    assert answer["degraded"] == ["embedding"]
    assert not Job.objects.exists()


def test_the_embedder_of_these_tests_really_fails(outage: Outage) -> None:
    with pytest.raises(EmbedderUnavailable):
        get_embedder().embed(["x"])


def test_without_any_embedder_words_still_find(cast: Cast) -> None:
    with override_settings(LOOM_EMBEDDER="none"):
        reset_embedder()
        answer = cast.run("memory.set", {"memory_key": "k", "value": "plum"})
        hits = search(cast, "plum")["results"]
    reset_embedder()
    assert "degraded" not in answer.body
    assert [hit["memory_key"] for hit in hits] == ["k"]
    assert not Job.objects.exists()


def test_a_changed_embedder_serves_words_for_old_rows_and_meaning_for_new_ones(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "old", "value": "plum"})
    sql("UPDATE memories_embedding SET embedder = 'former', dim = 8, vector = '[1,0,0,0,0,0,0,0]'")
    cast.run("memory.set", {"memory_key": "new", "value": "plum cake"})
    hits = {hit["memory_key"]: hit for hit in search(cast, "plum")["results"]}
    assert hits["old"]["similarity"] is None and hits["old"]["keyword_rank"] == 1
    assert hits["new"]["similarity"] > 0
