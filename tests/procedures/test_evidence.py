"""What runs show: dead ends, fail-prone steps, strikes, templates; each against a count by other means."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procedures.counting import Tally, tally_of
from procedures.evidence import (
    benjamini_hochberg,
    dead_ends,
    fail_prone,
    fisher_greater,
    linear_path,
    strikes,
    template,
    upper_bound_of_none,
)
from procedures.folding import FoldedRun, RevisionState, State, fold
from procedures.graph import Edge, Graph, Node, chain, dependency, proven_path

Outcomes = list[tuple[list[str], bool]]


def graph(ids: str, pairs: Iterable[str]) -> Graph:
    """A graph of one-letter nodes; pairs as "ab"."""
    return Graph(tuple(Node(id_, "step", f"Step {id_}") for id_ in ids), tuple(Edge(*pair) for pair in pairs))


DIAMOND = graph("abcd", ["ab", "ac", "bd", "cd"])


# The proven path


def graphs_of(ids: str) -> st.SearchStrategy[Graph]:
    """Any edges between these nodes."""
    pair = st.tuples(st.sampled_from(ids), st.sampled_from(ids)).filter(lambda ends: ends[0] != ends[1])
    edges = st.just(set()) if len(ids) == 1 else st.sets(pair, max_size=20)
    return edges.map(lambda pairs: graph(ids, sorted("".join(ends) for ends in pairs)))


graphs = st.integers(1, 8).flatmap(lambda n: graphs_of("abcdefgh"[:n]))
walks = st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=8), st.booleans()), max_size=30)


@given(graphs, walks)
def test_the_proven_path_is_a_simple_path_from_an_entry_and_takes_the_best_edge(
    made: Graph, runs: Outcomes
) -> None:
    tally = tally_of(runs)
    path = proven_path(made, tally)
    assert path[0] in made.entries and len(set(path)) == len(path)
    assert all(pair in made.pairs for pair in zip(path, path[1:], strict=False))

    def won(src: str, dst: str) -> tuple[int, Fraction]:
        taken = [ok for walk, ok in runs for i in range(1, len(walk)) if (walk[i - 1], walk[i]) == (src, dst)]
        return sum(taken), Fraction(sum(taken) + 1, len(taken) + 2)

    for place, node in enumerate(path):
        open_ = [
            edge.dst
            for edge in made.edges
            if edge.src == node
            and edge.dst not in path[: place + 1]
            and ((node, edge.dst) not in made.back_edges or dependency(tally, node, edge.dst) >= 0.5)
        ]
        if place + 1 == len(path):
            assert open_ == []
        else:
            best = max(won(node, dst) for dst in open_)
            assert path[place + 1] == next(dst for dst in open_ if won(node, dst) == best)


# Dead ends


@pytest.mark.parametrize(("runs", "upper"), [(3, 0.632), (10, 0.259), (30, 0.095), (300, 0.00994)])
def test_the_upper_bound_is_exact_and_about_three_over_n(runs: int, upper: float) -> None:
    found = upper_bound_of_none(runs)
    assert found == pytest.approx(upper, rel=0.005)
    assert (1 - found) ** runs == pytest.approx(0.05), "at this rate, none in all runs has 5 %"
    assert found <= 3 / runs
    assert upper_bound_of_none(0) == 1.0


def test_a_node_without_a_traversal_is_a_dead_end_once_enough_runs_are_folded() -> None:
    two = tally_of([(["a", "b", "d"], True), (["a", "b"], False)])
    assert dead_ends(DIAMOND, two, two, 3) == []
    three = tally_of([(["a", "b", "d"], True)] * 3)
    (found,) = dead_ends(DIAMOND, three, three, 3)
    assert (found.id, found.runs, round(found.upper, 3)) == ("c", 3, 0.632)
    assert linear_path(DIAMOND, three, {"c"}) == ["a", "b", "d"]


def test_a_dead_end_comes_back_with_its_first_run_and_leaves_the_steps_meanwhile() -> None:
    line = chain(["Look", "Try", "Fix"])
    runs: Outcomes = [(["s1", "s2"], True)] * 4
    tally = tally_of(runs)
    dead = [one.id for one in dead_ends(line, tally, tally, 3)]
    assert dead == ["s3"] and linear_path(line, tally, dead) == ["s1", "s2"]
    tally.add(["s3"], False)
    assert dead_ends(line, tally, tally, 3) == []


def test_use_in_an_earlier_revision_counts_and_its_runs_do_not_make_a_dead_end() -> None:
    earlier = tally_of([(["a", "c", "d"], True)] * 5)
    present = tally_of([(["a", "b", "d"], True)] * 2)
    every = Tally()
    every.merge(earlier)
    every.merge(present)
    wider = graph("abcde", ["ab", "ac", "bd", "cd", "de"])
    assert dead_ends(wider, every, present, 3) == [], "two runs of this revision are too few"
    present.add(["a", "b"], True)
    assert [one.id for one in dead_ends(wider, every, present, 3)] == ["e"], "c was used before"


def test_runs_that_do_not_say_where_they_went_make_no_dead_end() -> None:
    silent = tally_of([([], True)] * 50)
    assert dead_ends(DIAMOND, silent, silent, 3) == []
    silent.add(["a", "b", "d"], True)
    assert dead_ends(DIAMOND, silent, silent, 3) == []
    assert dead_ends(DIAMOND, Tally(), Tally(), 0) == []


# Fisher's test and Benjamini-Hochberg

tables = st.integers(1, 40).flatmap(
    lambda runs: st.tuples(st.just(runs), st.integers(0, runs), st.integers(0, runs))
)


@given(tables, st.integers(-1, 41))
def test_fishers_probability_is_that_of_enumeration(table: tuple[int, int, int], least: int) -> None:
    runs, taken, failed = table
    ways = sum(
        comb(failed, x) * comb(runs - failed, taken - x) for x in range(max(least, 0), min(failed, taken) + 1)
    )
    expected = Fraction(ways, comb(runs, taken))
    assert fisher_greater(least, taken, failed, runs) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_fishers_probability_holds_for_large_ledgers() -> None:
    for least, taken, failed, runs in [(130, 500, 1000, 5000), (60, 500, 1000, 5000), (300, 300, 400, 3000)]:
        ways = sum(comb(failed, x) * comb(runs - failed, taken - x) for x in range(least, taken + 1))
        expected = float(Fraction(ways, comb(runs, taken)))
        assert fisher_greater(least, taken, failed, runs) == pytest.approx(expected, rel=1e-7, abs=1e-15)
    middle = fisher_greater(10_000, 100_000, 100_000, 1_000_000)
    assert middle == pytest.approx(0.5, abs=0.01), "at the mean of a million runs"


def test_fishers_own_example_of_the_lady_tasting_tea() -> None:
    assert fisher_greater(4, 4, 4, 8) == pytest.approx(1 / 70)
    assert fisher_greater(3, 4, 4, 8) == pytest.approx(17 / 70)


def rejected(probabilities: list[Fraction], level: Fraction) -> set[Fraction]:
    """The step-up procedure: all up to the largest k with p(k) <= k * level / m."""
    ordered = sorted(probabilities)
    passing = [k for k, p in enumerate(ordered, 1) if p <= k * level / len(ordered)]
    return set(ordered[: max(passing, default=0)])


@given(st.lists(st.integers(1, 1000).map(lambda n: Fraction(n, 1000)), max_size=25))
def test_an_adjusted_probability_is_the_least_level_at_which_the_step_up_procedure_rejects(
    probabilities: list[Fraction],
) -> None:
    adjusted = benjamini_hochberg([float(p) for p in probabilities])
    assert len(adjusted) == len(probabilities)
    for p, q in zip(probabilities, adjusted, strict=True):
        assert p in rejected(probabilities, Fraction(q + 1e-9))
        assert p not in rejected(probabilities, Fraction(q - 1e-9))


# Fail-prone


def mixed(*groups: tuple[str, int, int]) -> Tally:
    """(path, successes, failures) groups."""
    return tally_of(
        run for path, ok, failed in groups for run in [([*path], True)] * ok + [([*path], False)] * failed
    )


def test_a_branch_on_which_runs_fail_is_flagged_and_the_steps_on_every_run_are_not() -> None:
    found = fail_prone(DIAMOND, mixed(("abd", 30, 2), ("acd", 2, 10)))
    assert found.steps() == ["c"] and found.transitions() == [("a", "c"), ("c", "d")]
    assert found.base == (44, 32) and found.base_rate == pytest.approx(12 / 44)
    labels = {one.label for one in found.suspects}
    assert labels == {"b", "c", "a -> b", "a -> c", "b -> d", "c -> d"}, "a and d are on every run"
    worst = next(one for one in found.suspects if one.label == "c")
    assert (worst.traversals, worst.runs, worst.failed) == (12, 12, 10)
    ways = sum(comb(12, x) * comb(32, 12 - x) for x in range(10, 13))
    assert worst.p == pytest.approx(ways / comb(44, 12)) and worst.adjusted == pytest.approx(2 * worst.p)


def test_four_traversals_are_too_few_and_a_small_excess_is_not_enough() -> None:
    assert fail_prone(DIAMOND, mixed(("abd", 60, 0), ("acd", 0, 4))).steps() == []
    assert fail_prone(DIAMOND, mixed(("abd", 60, 0), ("acd", 0, 5))).steps() == ["c"]
    # Certain, for there are thousands of runs, and small.
    slight = fail_prone(DIAMOND, mixed(("abd", 4000, 1000), ("acd", 3200, 1800)))
    by_label = {one.label: one for one in slight.suspects}
    assert by_label["c"].adjusted < 1e-9 and not by_label["c"].flagged


def test_loops_are_counted_by_run_in_the_test_and_by_visit_in_the_minimum() -> None:
    made = graph("abc", ["ab", "bc"])
    # One failed run went round four times more: five traversals, but the evidence is one run of many.
    looped = tally_of([(list("ababababab"), False), *[(list("ac"), True)] * 3, *[(list("ac"), False)] * 3])
    one = next(one for one in fail_prone(made, looped).suspects if one.label == "b")
    assert (one.traversals, one.runs, one.failed) == (5, 1, 1)
    assert one.p == pytest.approx(4 / 7) and not one.flagged


def test_the_failure_share_is_of_runs_and_not_of_visits() -> None:
    # Twelve runs failed at c, each after one visit; four succeeded after going round for long.
    made = graph("abc", ["ab", "ac", "cb"])
    runs: Outcomes = [([*"ab"], True)] * 40 + [([*"ac"], False)] * 12 + [([*"acbcbcbcbcb"], True)] * 4
    one = next(one for one in fail_prone(made, tally_of(runs)).suspects if one.label == "c")
    assert (one.traversals, one.runs, one.failed, one.share) == (32, 16, 12, 0.75) and one.flagged
    assert 12 / 32 < 12 / 56 + 0.2, "by visits it would not be"


def test_what_is_improbable_alone_and_not_among_many_is_not_flagged() -> None:
    # Twelve branches, one of which failed five times of five: 1 in 60 by itself, and one had to be the worst.
    made = graph("abcdefghijklm", [f"a{id_}" for id_ in "bcdefghijklm"])
    groups = [(f"a{id_}", 3, 2) for id_ in "cdefghijklm"]
    found = fail_prone(made, mixed(("ab", 0, 5), *groups))
    one = next(one for one in found.suspects if one.label == "b")
    assert one.p < 0.05 < one.adjusted and one.share >= found.base_rate + 0.2
    assert found.steps() == []


def test_undeclared_transitions_between_declared_nodes_are_judged_and_unknown_ids_are_not() -> None:
    runs = mixed(("abd", 30, 2), ("ad", 0, 8), ("axd", 0, 8), ("aad", 0, 9))
    found = fail_prone(DIAMOND, runs)
    assert ("a", "d") in found.transitions() and ("a", "a") in found.transitions()
    assert not any("x" in one.what for one in found.suspects)


def test_without_runs_nothing_is_contrasted() -> None:
    found = fail_prone(DIAMOND, Tally())
    assert (found.suspects, found.base_rate, found.steps(), found.transitions()) == ([], 0.0, [], [])


def test_where_outcomes_are_chance_a_procedure_is_seldom_flagged() -> None:
    rng = random.Random(20)
    flagged = 0
    for _ in range(400):
        runs = [(["a", rng.choice("bc"), "d"], rng.random() < 0.6) for _ in range(40)]
        flagged += bool(any(one.flagged for one in fail_prone(DIAMOND, tally_of(runs)).suspects))
    # The false discovery rate of 0.05 is the chance of any flag here; 400 draws add two standard errors.
    assert flagged / 400 <= 0.05 + 0.022


# Strikes and templates


def state_of(*runs: tuple[bool, str, str]) -> RevisionState:
    """The state after runs of (ok, principal, session)."""
    return fold(State(), [FoldedRun(["a"], ok, 1, who, session) for ok, who, session in runs]).revision(1)


def test_failures_in_a_row_quarantine_and_one_success_clears() -> None:
    three = [(False, "ann", "s1")] * 3
    assert not strikes(state_of(*three[:2]), 3, shared=False).quarantined
    found = strikes(state_of(*three), 3, shared=False)
    assert found.quarantined and (found.count, found.limit, found.sources) == (3, 3, 1)
    cleared = strikes(state_of(*three, (True, "ann", "s1")), 3, shared=False)
    assert not cleared.quarantined and cleared.count == 0
    assert not strikes(state_of(*three * 9), 0, shared=False).quarantined, "0 is never"


def test_one_session_cannot_quarantine_where_others_may_write() -> None:
    alone = [(False, "ann", "s1")] * 50
    found = strikes(state_of(*alone), 3, shared=True)
    assert (found.quarantined, found.sources, found.sources_needed) == (False, 1, 2)
    assert strikes(state_of(*alone, (False, "bob", "s9")), 3, shared=True).quarantined
    assert strikes(state_of(*alone, (False, "ann", "s2")), 3, shared=True).quarantined
    assert not strikes(state_of((True, "bob", "s9"), *alone), 3, shared=True).quarantined
    broken = state_of((False, "bob", "s9"), (True, "ann", "s1"), *alone)
    assert not strikes(broken, 3, shared=True).quarantined, "his failure is not in this row of failures"


def test_callers_without_a_session_count_by_principal() -> None:
    nameless = [(False, "ann", "-")] * 5
    assert not strikes(state_of(*nameless), 3, shared=True).quarantined
    assert not strikes(state_of(*nameless, (False, "ann", "s1")), 3, shared=True).quarantined
    assert strikes(state_of(*nameless, (False, "bob", "-")), 3, shared=True).quarantined


def judged(state: RevisionState, **given: bool) -> tuple[bool, tuple[str, ...]]:
    asked = {"pending": False, "quarantined": False, "dead_ends_left": False}
    found = template(state, **{**asked, "shared": False, **given})
    return found.template, found.missing


def test_ten_runs_at_a_smoothed_rate_of_four_fifths_make_a_template() -> None:
    good = [(True, "ann", "s1")] * 9
    assert not judged(state_of(*good))[0]
    ten = state_of(*good, (False, "ann", "s1"))
    assert judged(ten) == (True, ())  # 10 / 12
    eight = state_of(*good[:8], (False, "ann", "s1"), (False, "ann", "s1"))
    assert judged(eight) == (False, ("success rate below 0.8",))  # 9 / 12
    for reason in ("pending", "quarantined", "dead_ends_left"):
        is_one, missing = judged(ten, **{reason: True})
        assert not is_one and len(missing) == 1, reason


def test_a_template_stays_one_down_to_seven_tenths_and_has_to_earn_it_again_below() -> None:
    def after(*groups: tuple[bool, int]) -> bool:
        return judged(state_of(*[(ok, "ann", "s1") for ok, runs in groups for _ in range(runs)]))[0]

    assert after((True, 9), (False, 3)), "10/14 = 0.714"
    assert not after((False, 3), (True, 9)), "the same runs, which never reached 0.8"
    assert not after((True, 9), (False, 4)), "10/15 = 0.667"
    assert after((True, 13), (False, 5)), "14/20 is 0.7, and not below"
    assert not after((True, 9), (False, 4), (True, 6)), "16/21 = 0.762"
    assert after((True, 9), (False, 4), (True, 11)), "21/26 = 0.808"


def test_a_demoted_template_says_why() -> None:
    fallen = state_of(*[(True, "ann", "s1")] * 9, *[(False, "ann", "s1")] * 4)
    assert judged(fallen) == (False, ("success rate below 0.8",))


def test_one_session_cannot_promote_where_others_may_write() -> None:
    alone = state_of(*[(True, "ann", "s1")] * 40)
    assert judged(alone, shared=True) == (False, ("successes of one session only",))
    failed_elsewhere = state_of(*[(True, "ann", "s1")] * 40, (False, "bob", "s2"))
    assert judged(failed_elsewhere, shared=True)[0] is False, "the other session is no evidence of success"
    assert judged(state_of(*[(True, "ann", "s1")] * 40, (True, "bob", "s2")), shared=True)[0]
