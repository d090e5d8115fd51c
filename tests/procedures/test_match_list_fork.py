"""procedure.match, list and fork: what is found, in which order, and what a copy takes along."""

from __future__ import annotations

from typing import Any

import pytest

from loomsite.ops import Role
from memories.embedders import reset_embedder
from tests.conftest import Cast, Reply
from tests.memories.helpers import nothing_changes, sql
from tests.procedures.evolving import evolve_by_itself
from tests.procedures.helpers import KEY, RECIPE, add, graph, record

OTHER = {
    "name": "Rotate key",
    "situation": "An API key has leaked or is about to expire and must be replaced",
    "steps": ["Make a new key", "Replace it everywhere", "Revoke the old one"],
}
UNRELATED = "Write a birthday poem about penguins"


def match(
    cast: Cast, situation: str = "a deploy made the error rate rise", by: str = "mate", **more: Any
) -> Reply:
    """procedure.match."""
    return cast.run("procedure.match", {"situation": situation, **more}, by)


def keys(reply: Reply) -> list[str]:
    """The keys of the matches, best first."""
    return [one["memory_key"] for one in reply["matches"]]


def test_what_fits_is_found_and_what_does_not_is_not(cast: Cast) -> None:
    add(cast)
    cast.run("procedure.add", OTHER)
    found = match(cast)
    assert keys(found)[0] == KEY == found["procedure_key"]
    one = found["matches"][0]
    assert one["steps"] == RECIPE["steps"] and one["namespace"] == "team" and one["status"] == "candidate"
    assert found["score"] == one["score"] == pytest.approx(one["similarity"] + 0.2 * one["utility"], abs=1e-5)
    none = match(cast, UNRELATED)
    assert (none["matches"], none["matched"], none["procedure_key"], none["score"]) == ([], 0, "", 0)


def test_utility_and_tools_are_shown_apart_and_added_by_weight(cast: Cast) -> None:
    add(cast, graph=graph("a>b", a="kubectl"))
    record(cast, ["a", "b"])
    one = match(cast, recent_tools=["kubectl", "grep"], tool_boost=0.5, utility_weight=1)["matches"][0]
    assert one["tool_overlap"] == 0.5 and one["utility"] == pytest.approx(2 / 3 - 0.5, abs=1e-6)
    assert one["score"] == pytest.approx(one["similarity"] + 0.25 + one["utility"], abs=1e-5)
    assert one["run_stats"] == {"total": 1, "ok": 1}


def test_among_near_equals_the_better_proven_comes_first(cast: Cast) -> None:
    add(cast)
    add(cast, name="Twin")
    assert keys(match(cast)) == [KEY, "procedure_twin"]
    record(cast, ["s1"], ok=False, key="procedure_twin")
    evolve_by_itself()
    assert keys(match(cast)) == ["procedure_twin", KEY]
    sql(
        "UPDATE procedures_procedure p SET quarantined = true FROM memories_memory m "
        "WHERE m.id = p.memory_id AND m.memory_key = 'procedure_twin'"
    )
    assert keys(match(cast)) == [KEY]
    asked = match(cast, include_quarantined=True)
    assert keys(asked) == [KEY, "procedure_twin"] and asked["matches"][1]["status"] == "quarantined"


def test_filters_by_tag_and_status(cast: Cast) -> None:
    add(cast, tags=["web"])
    add(cast, name="Twin", tags=["db"])
    record(cast, ["s1"], key="procedure_twin")
    evolve_by_itself()
    assert keys(match(cast, tags=["web", "x"])) == [KEY]
    assert keys(match(cast, tags=["none"])) == []
    assert keys(match(cast, include_candidates=False)) == ["procedure_twin"]
    assert keys(match(cast, templates_only=True)) == []
    short = match(cast, top_k=1)
    assert len(short["matches"]) == 1 and short["matched"] == 2


def test_a_goal_counts_three_tenths(cast: Cast) -> None:
    add(cast)
    (plain,) = match(cast)["matches"]
    goal = RECIPE["situation"]
    (alone,) = match(cast, goal)["matches"]
    (mixed,) = match(cast, goal=goal)["matches"]
    expected = 0.7 * plain["similarity"] + 0.3 * alone["similarity"]
    assert mixed["similarity"] == pytest.approx(expected, abs=1e-5)


def test_only_readable_namespaces_are_searched_and_too_many_are_named(cast: Cast) -> None:
    add(cast)
    cast.namespace("hidden")
    cast.namespace("side", mate=Role.VIEWER, owner=Role.WRITER)
    assert cast.run("procedure.add", {**RECIPE, "namespace": "side"}, "owner").status == 200
    assert cast.run("procedure.add", RECIPE, "stranger").status == 200
    found = match(cast)
    assert sorted(one["namespace"] for one in found["matches"]) == ["side", "team"]
    assert found["namespaces_searched"] == ["team", "side"] and found["namespaces_skipped"] == []
    assert match(cast, namespace_scope="this")["namespaces_searched"] == ["team"]
    for i in range(25):
        cast.namespace(f"n{i:02}", mate=Role.VIEWER)
    many = match(cast)
    assert many["namespaces_searched"][:2] == ["team", "side"] and len(many["namespaces_searched"]) == 20
    assert len(many["namespaces_skipped"]) == 7 and "hidden" not in many["namespaces_skipped"]


def test_without_vectors_words_are_compared_and_the_answer_says_so(cast: Cast, settings: Any) -> None:
    settings.LOOM_EMBEDDER = "none"
    reset_embedder()
    try:
        add(cast)
        found = match(cast)
        assert keys(found) == [KEY] and found["degraded"] == ["embedding"]
        assert match(cast, UNRELATED)["matched"] == 0
    finally:
        settings.LOOM_EMBEDDER = "wordllama"
        reset_embedder()
    assert keys(match(cast)) == [KEY], "a row without a vector of the present embedder is still found"


def test_a_situation_whose_embedding_failed_is_filled_in_later(cast: Cast, monkeypatch: Any) -> None:
    from memories import embedders
    from procedures.services import EMBED_JOB, situation_fill

    def down(self: object, texts: object) -> object:
        raise embedders.EmbedderUnavailable("down")

    with monkeypatch.context() as patched:
        patched.setattr(embedders.WordLlamaEmbedder, "embed", down)
        reply = add(cast)
    assert reply["degraded"] == ["embedding"] and sql("SELECT 1 FROM procedures_situation") == []
    ((given,),) = sql("SELECT input FROM governance_job WHERE kind = %s", [EMBED_JOB])
    assert str(reply["memory_id"]) in given
    assert situation_fill(int(reply["memory_id"])) is True
    assert keys(match(cast)) == [KEY]


def test_the_pack_has_a_section_of_procedures(cast: Cast) -> None:
    add(cast)
    pack = cast.run("context.pack", {"situation": "a deploy made the error rate rise"})
    (section,) = [one for one in pack["sections"] if one["section"] == "Procedures"]
    assert section["items"][0]["source"].startswith(f"{KEY} v1")
    assert pack["text"].count("Freeze further deploys") == 1


def test_list_pages_by_key_and_filters(cast: Cast) -> None:
    for name in ("b one", "a two", "b three"):
        add(cast, name=name, tags=[name[0]])
    every = cast.run("procedure.list", {})["procedures"]
    assert [one["name"] for one in every] == ["a two", "b one", "b three"]
    assert every[0] | {"created_at": 0} == {
        "name": "a two", "situation": RECIPE["situation"], "tags": ["a", "procedure"],
        "memory_key": "procedure_a_two", "created_at": 0, "status": "candidate", "held": False,
        "run_stats": {"total": 0, "ok": 0},
    }  # fmt: skip
    first = cast.run("procedure.list", {"prefix": "b", "limit": 1})
    second = cast.run("procedure.list", {"prefix": "b", "limit": 1, "cursor": first["next_cursor"]})
    assert [one["procedures"][0]["name"] for one in (first, second)] == ["b one", "b three"]
    assert second["next_cursor"] is None
    assert [one["name"] for one in cast.run("procedure.list", {"tags": ["a", "zz"]})["procedures"]] == [
        "a two"
    ]
    assert cast.run("procedure.list", {"prefix": "b%"})["procedures"] == []


def fork(cast: Cast, by: str = "mate", **more: Any) -> Reply:
    """procedure.fork of KEY in team into side."""
    body = {"namespace": "side", "from_namespace": "team", "memory_key": KEY, **more}
    return cast.run("procedure.fork", body, by)


def test_a_fork_takes_the_graph_and_leaves_the_evidence(cast: Cast) -> None:
    cast.namespace("side", mate=Role.WRITER)
    add(cast, graph=graph("a>b b>c", a="login"), tags=["web"])
    record(cast, ["a", "b"])
    reply = fork(cast, new_name="Ours", reason="we differ")
    assert (reply["memory_key"], reply["name"], reply["version"]) == ("procedure_ours", "Ours", 1)
    assert reply["steps"] == ["do a", "do b", "do c"]
    origin = reply["forked_from"]
    assert origin["at"].endswith("Z")
    assert set(origin) == {
        "org", "namespace", "key", "revision", "digest", "template", "run_stats", "by", "why", "at"
    }  # fmt: skip
    assert (origin["namespace"], origin["key"], origin["by"], origin["why"]) == (
        "team",
        KEY,
        "mate",
        "we differ",
    )
    assert origin["run_stats"] == {"total": 1, "ok": 1}
    (copy,) = cast.run("procedure.list", {"namespace": "side"})["procedures"]
    assert copy["run_stats"] == {"total": 0, "ok": 0} and copy["tags"] == ["web", "procedure"]
    digests = sql("SELECT DISTINCT digest FROM procedures_revision")
    assert digests == [(origin["digest"],)]


def test_a_fork_needs_to_read_the_source_and_to_write_the_target(cast: Cast) -> None:
    cast.namespace("side", mate=Role.WRITER, viewer=Role.VIEWER)
    cast.namespace("hidden", owner=Role.WRITER)
    add(cast)
    assert cast.run("procedure.add", {**RECIPE, "namespace": "hidden"}, "owner").status == 200
    with nothing_changes():
        hidden = fork(cast, from_namespace="hidden")
        unknown = fork(cast, from_namespace="unknown")
        assert (hidden.status, unknown.status) == (404, 404)
        assert hidden.detail["message"] == unknown.detail["message"]
        assert fork(cast, from_org="elsewhere").status == 404
        assert fork(cast, memory_key="procedure_none").status == 404
        assert fork(cast, by="viewer").status == 403
    assert fork(cast, from_org="acme").status == 200


def test_a_fork_does_not_write_over_what_stands_there(cast: Cast) -> None:
    cast.namespace("side", mate=Role.WRITER)
    add(cast)
    assert fork(cast).status == 200
    with nothing_changes():
        again = fork(cast)
    assert (again.status, again.code) == (409, "VERSION_CONFLICT")


def test_a_redacted_source_is_marked_in_its_forks(cast: Cast) -> None:
    cast.namespace("side", mate=Role.WRITER)
    add(cast)
    fork(cast)
    assert cast.console("memory.redact", {"memory_key": KEY, "reason": "asked for"}).status == 200
    ((origin,),) = sql("SELECT forked_from FROM procedures_procedure WHERE forked_from IS NOT NULL")
    assert '"redacted": true' in origin
