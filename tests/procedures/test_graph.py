"""The pure parts: graph, counting, layout, ranking."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procedures.counting import Tally, tally_of
from procedures.graph import (
    MAX_EDGES,
    MAX_NODES,
    chain,
    dependency,
    faults_of,
    proven_path,
    read,
    slug,
    smoothed,
)
from procedures.layout import WIDEST, layout
from procedures.picture import picture, width_of, wrapped
from procedures.ranking import Candidate, ranked, word_similarity
from tests.procedures.helpers import graph


def path(edges: str, runs: list[tuple[str, bool]] = []) -> str:  # noqa: B006 - never changed
    """The proven path of `"a>b b>c"` after runs such as ("abc", True)."""
    tally = tally_of((list(run), ok) for run, ok in runs)
    return "".join(proven_path(read(graph(edges)), tally))


def places(given: dict[str, Any]) -> list[str]:
    """The places of a graph's faults."""
    return [".".join(map(str, fault.place)) for fault in faults_of(given)]


def test_the_proven_path_follows_successes_then_the_rate_then_the_order() -> None:
    assert path("a>b a>c b>d c>d") == "abd"
    assert path("a>b a>c b>d c>d", [("acd", True)]) == "acd"
    assert path("a>b a>c b>d c>d", [("abd", False)]) == "acd", "untried before failed"
    assert path("a>b a>c", [("ab", True), ("ac", True), ("ac", False)]) == "ab", "the better rate"


def test_the_proven_path_begins_at_the_entry_that_worked_most() -> None:
    assert path("a>c b>c") == "ac"
    assert path("a>c b>c", [("bc", True)]) == "bc"
    assert path("a>b b>a") == "ab", "the first declared when none is without an incoming edge"


def test_a_back_edge_is_followed_only_when_one_direction_dominates() -> None:
    edges = "a>c c>b b>c a>b"
    # c>b is the way on; b>c closes the cycle and was taken as often.
    even = [("acb", True), ("abc", True), ("abc", True)]
    assert dependency(tally_of((list(r), ok) for r, ok in even), "b", "c") == pytest.approx(0.25)
    assert path(edges, even) == "ab"
    clear = [*even, *([("abc", True)] * 6)]
    assert path(edges, clear) == "abc"


def test_smoothed_is_the_rule_of_succession() -> None:
    assert (smoothed(0, 0), smoothed(8, 8), smoothed(8, 0)) == (0.5, 0.9, 0.1)


def test_a_chain_is_valid_and_its_path_is_its_steps() -> None:
    made = chain(["one", "two", "three"])
    assert faults_of(made.stored()) == [] and proven_path(made, Tally()) == ["s1", "s2", "s3"]


def test_the_digest_is_of_the_content_and_not_of_the_order_of_edges() -> None:
    one, other = graph("a>b b>c a>c"), graph("a>b b>c a>c")
    other["edges"].reverse()
    assert read(one).digest == read(other).digest
    other["nodes"][0]["dead_end"] = True
    assert read(one).digest == read(other).digest, "flags stay out"
    for field, value in (("text", "x"), ("tool", "t"), ("kind", "decision"), ("memory_key", "k")):
        changed = graph("a>b b>c a>c")
        changed["nodes"][1][field] = value
        assert read(one).digest != read(changed).digest, field


def test_cycles_are_allowed_and_islands_are_not() -> None:
    assert places(graph("a>b b>a")) == []
    assert places(graph("a>b c>d d>c")) == ["nodes.2", "nodes.3"]


def test_limits_are_kept_and_named() -> None:
    many = graph(" ".join(f"n{i}>n{i + 1}" for i in range(MAX_NODES)))
    assert places(many) == ["nodes"]
    assert places(graph(" ".join(f"n{i}>n{i + 1}" for i in range(MAX_NODES - 1)))) == []
    wide = graph("a>b")
    wide["edges"] *= MAX_EDGES + 1
    assert places(wide) == ["edges"]
    long = graph("a>b")
    long["nodes"][0]["text"] = "x" * 2001
    long["nodes"][1]["id"] = "y" * 129
    assert places(long)[:2] == ["nodes.0.text", "nodes.1.id"]


@pytest.mark.parametrize(
    "given_",
    [{}, {"nodes": []}, {"nodes": 1}, {"nodes": [1]}, {"nodes": [{"id": []}], "edges": [{"src": {}}]},
     {"x": 1}, {"nodes": [{"id": "a", "kind": ["step"], "text": "t"}], "edges": [None]}],
)  # fmt: skip
def test_shapes_that_are_no_graph_are_faults_and_never_errors(given_: dict[str, Any]) -> None:
    assert faults_of(given_)


def test_a_node_that_points_to_a_memory_needs_no_text() -> None:
    given_ = graph("a>b")
    given_["nodes"][1] |= {"kind": "memory", "memory_key": "runbook", "text": ""}
    assert places(given_) == [] and read(given_).nodes[1].words == "runbook"
    given_["nodes"][1].pop("memory_key")
    assert places(given_) == ["nodes.1.text"]


def test_a_slug_is_never_empty_and_stays_within_a_key() -> None:
    assert slug("  Roll-back: the Deploy! ") == "roll_back_the_deploy"
    assert slug("Straße İstanbul") and len(slug("ß" * 160)) <= 512 - len("procedure_")
    assert slug("🚀") != slug("🎉") and len(slug("🚀")) == 12


letters = st.lists(st.sampled_from("abcd"), max_size=12)


@given(st.lists(st.tuples(letters, st.booleans()), max_size=30))
def test_counts_equal_a_count_by_hand_and_merge_like_one_ledger(runs: list[tuple[list[str], bool]]) -> None:
    tally = tally_of(runs)
    visits = Counter(node for path_, _ in runs for node in path_)
    assert {id_: count.total for id_, count in tally.nodes().items()} == dict(visits)
    pairs = Counter(pair for path_, _ in runs for pair in zip(path_, path_[1:], strict=False))
    assert {pair: count.total for pair, count in tally.edges().items()} == dict(pairs)
    won = Counter(pair for path_, ok in runs if ok for pair in set(zip(path_, path_[1:], strict=False)))
    assert {p: c.runs_ok for p, c in tally.edges().items() if c.runs_ok} == dict(won)
    half = tally_of(runs[: len(runs) // 2])
    half.merge(tally_of(runs[len(runs) // 2 :]))
    assert half == tally == Tally.read(tally.stored())


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=20))
def test_every_node_has_a_place_of_its_own_and_edges_lead_down_unless_they_close_a_cycle(
    edges: list[tuple[str, str]],
) -> None:
    placed = layout(edges, "abcdef")
    spots = [(p.layer, p.column) for p in placed.positions.values()]
    assert sorted(placed.positions) == list("abcdef") and len(set(spots)) == 6
    assert placed == layout(edges, "abcdef")
    up = [(s, d) for s, d in edges if s != d and placed.positions[s].layer >= placed.positions[d].layer]
    down = {(s, d) for s, d in edges if s != d} - set(up)
    # What leads down alone has no cycle, so whatever leads up is there for one.
    for s, d in set(up):
        assert _reaches(down, d, s)


def _reaches(edges: set[tuple[str, str]], start: str, end: str) -> bool:
    seen, rest = {start}, [start]
    while rest:
        here = rest.pop()
        for s, d in edges:
            if s == here and d not in seen:
                seen.add(d)
                rest.append(d)
    return end in seen


def test_a_layout_of_a_crossing_is_untangled() -> None:
    placed = layout([("a", "x"), ("a", "y"), ("x", "q"), ("y", "p")], ["a", "x", "y", "p", "q"])
    at = placed.positions
    assert (at["x"].column < at["y"].column) == (at["q"].column < at["p"].column)


def test_a_long_edge_bends_around_what_lies_between() -> None:
    placed = layout([("a", "b"), ("b", "c"), ("a", "c")])
    (bend,) = placed.bends["a", "c"]
    assert bend.layer == 1 and bend.column != placed.positions["b"].column


def test_widths_grow_with_use_and_labels_fit() -> None:
    assert width_of(0, 100) < width_of(1, 100) < width_of(10, 100) < width_of(100, 100) == 9
    assert (
        all(len(line) <= 24 for line in wrapped("word " * 30 + "x" * 90)) and len(wrapped("word " * 30)) == 2
    )
    drawn = picture(read(graph("a>b b>a")), tally_of([(list("abab"), True)]), dead_ends={"b"})
    assert "dead-end" in drawn.boxes[1].css and "proven" in drawn.boxes[0].css
    assert [row.count.total for row in drawn.edges] == [2, 1]


def order(*candidates: Candidate, **more: Any) -> list[int]:
    """The ids, best first."""
    return [one.candidate.id for one in ranked(candidates, **more)]


def test_status_reorders_near_equals_only() -> None:
    first = Candidate(1, 0.9, "candidate", 0, 0)
    near = Candidate(2, 0.73, "template", 20, 20)
    far = Candidate(3, 0.6, "template", 20, 20)
    last = Candidate(4, 0.95, "quarantined", 5, 0)
    # 0.73 is no near-equal of 0.95; the most similar sets the mark, quarantined or not.
    assert order(first, near, far) == [2, 1, 3]
    assert order(first, near, far, last) == [1, 2, 3, 4]


def test_equal_scores_are_told_apart_by_id_and_tools_and_utility_add_up() -> None:
    twins = [Candidate(id_, 0.5, "exercised", 0, 0) for id_ in (7, 3)]
    assert order(*twins) == [3, 7]
    with_tool = Candidate(9, 0.5, "exercised", 0, 0, tools=("grep",))
    assert order(*twins, with_tool, recent_tools=["grep"]) == [9, 3, 7]
    (one,) = ranked([with_tool], ["grep", "sed", "grep"], tool_boost=1, utility_weight=1)
    assert (one.tool_overlap, one.utility, one.score) == (0.5, 0.0, 1.0)


def test_words_are_compared_symmetrically_and_nothing_is_like_nothing() -> None:
    assert word_similarity({"a", "b"}, {"b", "c"}) == word_similarity({"b", "c"}, {"a", "b"}) == 0.5
    assert word_similarity(set(), {"a"}) == 0.0 and word_similarity({"a"}, {"a"}) == 1.0


def test_a_graph_of_500_nodes_is_drawn_within_seconds() -> None:
    edges = (
        " ".join(f"n{i // 3}>n{i}" for i in range(1, 500))
        + " "
        + " ".join(f"n{i}>n{(i * 7) % 400 + 50}" for i in range(1, 400))
    )
    made = read(graph(edges))
    started = time.monotonic()
    assert len(picture(made, Tally()).boxes) == 500
    assert time.monotonic() - started < 20


def test_a_layer_too_wide_for_a_screen_is_broken_into_equal_lines() -> None:
    leaves = [f"leaf {i}" for i in range(45)]
    found = layout([("root", leaf) for leaf in leaves] + [("leaf 0", "end")])
    lines = Counter(found.positions[leaf].layer for leaf in leaves)
    assert sorted(lines.values()) == [15, 15, 15] and min(lines) == 1
    assert found.positions["root"].layer == 0 and found.positions["end"].layer == 4
    assert found.columns <= WIDEST / 2 and found.layers == 5
    assert len({(place.layer, place.column) for place in found.positions.values()}) == 47
