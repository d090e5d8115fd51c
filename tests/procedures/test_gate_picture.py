"""The gate as a picture: every number of the replay stands in it, at its place."""

from __future__ import annotations

import re

import pytest

from procedures.counting import Counts
from procedures.gate import GateSettings, walk
from procedures.gate_picture import MARKS, TABLE_ROWS, gate_picture
from procedures.graph import chain, read
from procedures.judging import Baseline, Judgement, Trial
from procedures.picture import picture_of_difference
from tests.procedures.helpers import graph


def judged(outcomes: str, prior: Counts = Counts(10, 10), **settings: object) -> Judgement:  # noqa: B008
    """A replay of `+` and `-`."""
    chosen = GateSettings(**settings)  # type: ignore[arg-type]
    walked = walk(prior, [outcome == "+" for outcome in outcomes], chosen)
    trials = [Trial(100 + place, outcome == "+", 0, None, 0) for place, outcome in enumerate(outcomes)]
    return Judgement(
        revision=2, settings=chosen, walk=walked, verdict=walked.verdict, reason="", run=None,
        trials=trials[: walked.after.total], costs_before={}, costs_after={}, baseline=Baseline(prior, {}),
    )  # fmt: skip


def points(path: str) -> list[tuple[float, float]]:
    """The corners of a path."""
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_both_statistics_walk_from_zero_and_the_verdict_is_where_r_crossed() -> None:
    made = judged("----", Counts(24, 16))
    shown = gate_picture(made)
    s, r = (points(trace.path) for trace in shown.traces)
    revert, accept, zero = (level.y for level in shown.levels)
    assert made.walk.verdict == "revert" and len(s) == len(r) == 5
    assert s[0] == r[0] == (shown.left, zero)
    assert revert < zero < accept, "up is worse"
    assert r[-1][1] <= revert < r[-2][1], "R crossed with the last run and not before"
    assert s[-1][1] > revert, "S has not crossed"
    assert shown.decision is not None and (shown.decision.x, shown.decision.y) == r[-1]
    assert shown.decision.label == "revert"


def test_an_acceptance_is_where_s_fell_to_its_bound() -> None:
    shown = gate_picture(judged("+" * 40, Counts(20, 12)))
    s = points(shown.traces[0].path)
    assert shown.decision is not None and shown.decision.label == "accept"
    assert s[-1][1] >= shown.levels[1].y > s[-2][1] and (shown.decision.x, shown.decision.y) == s[-1]


def test_min_and_max_runs_are_marked_at_their_runs() -> None:
    shown = gate_picture(judged("+-+-+", min_runs=4, max_runs=8))
    at = {tick.label: tick.at for tick in shown.verticals}
    across = {tick.label: tick.at for tick in shown.across}
    assert (at["min_runs"], at["max_runs"]) == (across["4"], across["8"]) and shown.beyond == ""
    assert gate_picture(judged("+-+")).beyond == "max_runs: 50 →"


def test_a_plugged_in_baseline_has_one_statistic() -> None:
    assert [t.name for t in gate_picture(judged("+-", baseline="plugin")).traces] == ["S = R"]


def test_the_table_holds_what_the_picture_holds() -> None:
    made = judged("+-+")
    steps = gate_picture(made).steps
    assert [(step.number, step.seq, step.ok) for step in steps] == [
        (1, 100, True), (2, 101, False), (3, 102, True)
    ]  # fmt: skip
    assert [step.s for step in steps] == made.walk.s and [step.r for step in steps] == made.walk.r
    assert [round(step.rate) for step in steps] == [100, 50, 67]
    assert not any(step.decides for step in steps)


def test_the_rates_of_a_margin_are_a_table_without_a_drawing() -> None:
    shown = gate_picture(judged("---", mode="margin"))
    assert shown.traces == [] and [step.s for step in shown.steps] == [None] * 3
    assert shown.steps[-1].decides


def test_nothing_has_run_yet() -> None:
    shown = gate_picture(judged(""))
    assert shown.steps == [] and shown.traces == [] and shown.decision is None


def test_a_long_replay_is_cut_in_the_table_and_stays_within_the_frame() -> None:
    balanced = ("+" * 4 + "-") * 160
    made = judged(balanced, Counts(1000, 890), min_runs=790, max_runs=800)
    shown = gate_picture(made)
    assert len(made.trials) > max(MARKS, TABLE_ROWS)
    assert len(shown.steps) == TABLE_ROWS and shown.left_out == len(made.trials) - TABLE_ROWS
    assert shown.outcomes == [], "they would lie on each other"
    for trace in shown.traces:
        for x, y in points(trace.path):
            assert shown.left <= x <= shown.right and shown.top <= y <= shown.bottom


@pytest.mark.parametrize("runs", [1, 7, 33, 120])
def test_the_axis_has_few_numbers_whatever_the_runs(runs: int) -> None:
    shown = gate_picture(judged("+-" * runs, min_runs=4999, max_runs=5000))
    assert 3 <= len(shown.across) <= 13 and 2 <= len(shown.up) <= 10


def test_two_graphs_in_one_say_of_each_part_what_happened() -> None:
    before = read(graph("a>b b>c a>d d>c"))
    after = graph("a>b b>e e>c")
    after["nodes"][1]["text"] = "do b otherwise"
    after["edges"][0]["kind"] = "branch"
    shown = picture_of_difference(before, read(after))
    assert {box.id: box.figures for box in shown.boxes} == {
        "a": "", "b": "~ changed", "c": "", "d": "− removed", "e": "+ added"
    }  # fmt: skip
    assert {(line.src, line.dst): line.sign for line in shown.lines} == {
        ("a", "b"): "~", ("b", "c"): "−", ("a", "d"): "−", ("d", "c"): "−", ("b", "e"): "+", ("e", "c"): "+"
    }  # fmt: skip


def test_the_same_graph_twice_has_no_mark() -> None:
    same = picture_of_difference(chain(["one", "two"]), chain(["one", "two"]))
    assert {line.sign for line in same.lines} == {""} and {box.figures for box in same.boxes} == {""}
