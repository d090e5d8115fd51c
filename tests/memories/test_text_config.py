"""A namespace's language: German words stemmed as German, and a change while the search goes on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from memories import text_config
from memories.analysis import LANGUAGES, analyze, query_terms
from memories.models import TextConfig
from tests.conftest import Cast
from tests.memories.helpers import corpus, sql


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Changes are seen without a wait."""
    monkeypatch.setattr(text_config, "SEEN_SECONDS", 0.0)
    text_config.forget()
    yield
    text_config.forget()


def run(language: str | None = None) -> str:
    out = io.StringIO()
    more = [] if language is None else ["--language", language]
    call_command("reindex", "--org", "acme", "--namespace", "team", *more, stdout=out, stderr=out)
    return out.getvalue()


def found(cast: Cast, query: str, **body: Any) -> list[str]:
    answer = cast.run("memory.search", {"query": query, "mode": "keyword", **body})
    return [hit["memory_key"] for hit in answer["results"]]


def put(cast: Cast, **values: str) -> None:
    for key, value in values.items():
        cast.run("memory.set", {"memory_key": key, "value": value})


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_analyses_any_text(language: str) -> None:
    text = "Häuser running привет κόσμος snake_case camelCase 東京 don't U.S.A. \ud800"
    terms = analyze(text, language)
    assert terms and set(query_terms(text, [language])) <= set(terms)
    assert {"東京", "snakecas" if language == "english" else terms[0]} <= set(terms)


def test_a_language_has_its_own_stems_and_simple_has_none() -> None:
    assert analyze("verschiedene verschiedenen", "german")[0] == analyze("verschiedenen", "german")[0]
    assert analyze("verschiedene")[0] != analyze("verschiedenen")[0]
    assert analyze("собаки", "russian") == analyze("собака", "russian")
    assert analyze("running the runs", "simple") == ["running", "the", "runs"]


def test_a_namespace_is_english_until_it_is_told_otherwise(cast: Cast) -> None:
    put(cast, k="the deploys were failing")
    assert found(cast, "failed deploy") == ["k"]
    assert not TextConfig.objects.exists()


def test_reindex_gives_old_and_new_rows_the_new_language(cast: Cast) -> None:
    put(cast, old="verschiedene Häuser am Fluss", other="ein Zug")
    assert found(cast, "verschiedenen") == []
    before = corpus(cast.team.pk)
    assert "2 memories indexed as german" in run("german")
    put(cast, new="in verschiedenem Licht")
    assert found(cast, "verschiedenen") == ["new", "old"] or found(cast, "verschiedenen") == ["old", "new"]
    assert corpus(cast.team.pk)[0] == before[0] + 1
    ((lengths,),) = sql("SELECT sum(doc_len) FROM memories_memory")
    assert corpus(cast.team.pk)[1] == lengths
    assert sql("SELECT count(*) FROM memories_memory WHERE version > 1") == [(0,)]


def test_a_locked_memory_is_reindexed_too(cast: Cast) -> None:
    put(cast, k="verschiedene Häuser")
    cast.run("memory.lock", {"memory_key": "k", "mode": "read_only", "reason": "audit"})
    run("german")
    assert found(cast, "verschiedenen") == ["k"]


def test_while_it_runs_a_query_is_asked_in_both_languages(cast: Cast) -> None:
    put(cast, old="the deploys were failing")
    TextConfig.objects.create(namespace=cast.team, language="simple", previous="english")
    text_config.forget()
    put(cast, new="failing deploys")
    assert set(found(cast, "failing")) == {"old", "new"}
    # A run without a language goes on where the other one stopped, and ends it.
    assert "indexed as simple" in run()
    assert TextConfig.objects.get().previous == ""
    assert found(cast, "deploy") == []
    assert set(found(cast, "deploys")) == {"old", "new"}


def test_a_search_over_namespaces_of_several_languages_finds_in_each(cast: Cast) -> None:
    from loomsite.ops import Role

    cast.namespace("side", mate=Role.WRITER)
    put(cast, k="verschiedene Dinge")
    run("german")
    cast.run("memory.set", {"memory_key": "e", "value": "different things", "namespace": "side"})
    assert found(cast, "verschiedenen", namespace_scope="all_mine") == ["k"]
    assert found(cast, "thing", namespace_scope="all_mine") == ["e"]


def test_an_unknown_language_or_namespace_is_refused(cast: Cast) -> None:
    with pytest.raises(CommandError, match="klingon"):
        run("klingon")
    with pytest.raises(CommandError, match="no namespace"):
        call_command("reindex", "--org", "acme", "--namespace", "none")
