"""Folding: the same state however the ledger is cut, and the counts of an independent count."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from procedures.counting import Tally, tally_of
from procedures.folding import FoldedRun, RevisionState, Sources, State, fold

ids = st.sampled_from(["a", "b", "c", "d", "elsewhere"])
runs = st.lists(
    st.builds(
        FoldedRun,
        path=st.lists(ids, max_size=8),
        ok=st.booleans(),
        revision=st.integers(1, 3),
        principal=st.sampled_from(["ann", "bob"]),
        session=st.sampled_from(["-", "", "s1", "s2"]),
    ),
    max_size=40,
)


@given(runs, st.lists(st.integers(0, 40), max_size=6))
def test_any_split_of_a_ledger_gives_the_same_state_also_through_storage(
    ledger: list[FoldedRun], cuts: list[int]
) -> None:
    whole = fold(State(), ledger).stored()
    pieces, start = State(), 0
    for end in [*sorted(cut for cut in cuts if cut <= len(ledger)), len(ledger)]:
        pieces = State.read(json.loads(json.dumps(fold(pieces, ledger[start:end]).stored())))
        start = end
    assert json.dumps(pieces.stored()) == json.dumps(whole)


@given(runs)
def test_folding_leaves_the_given_state_as_it_was(ledger: list[FoldedRun]) -> None:
    half = fold(State(), ledger)
    before = json.dumps(half.stored())
    fold(half, ledger)
    assert json.dumps(half.stored()) == before


@given(runs)
def test_counts_are_those_of_an_independent_count(ledger: list[FoldedRun]) -> None:
    state = fold(State(), ledger)
    for number in (1, 2, 3):
        mine = [run for run in ledger if run.revision == number]
        tally = state.revision(number).tally
        assert tally.counts == (len(mine), len([run for run in mine if run.ok]))
        assert tally.pathed == len([run for run in mine if len(run.path) > 0])
        visits = Counter(id_ for run in mine for id_ in run.path)
        won = Counter(id_ for run in mine if run.ok for id_ in run.path)
        once = Counter(id_ for run in mine for id_ in set(run.path))
        won_once = Counter(id_ for run in mine if run.ok for id_ in set(run.path))
        expected = {id_: (visits[id_], won[id_], once[id_], won_once[id_]) for id_ in visits}
        assert tally.nodes() == expected
        pairs = Counter((run.path[i - 1], run.path[i]) for run in mine for i in range(1, len(run.path)))
        assert {pair: count.total for pair, count in tally.edges().items()} == pairs


@given(runs)
def test_strikes_are_the_failures_after_the_last_success_of_a_revision(ledger: list[FoldedRun]) -> None:
    state = fold(State(), ledger)
    for number in (1, 2, 3):
        mine = [run.ok for run in ledger if run.revision == number]
        tail = 0
        while tail < len(mine) and not mine[len(mine) - 1 - tail]:
            tail += 1
        assert state.revision(number).strikes == tail


@given(runs)
def test_retention_is_counted_over_neighbours_of_the_whole_ledger(ledger: list[FoldedRun]) -> None:
    after_success = [ledger[i + 1].ok for i in range(len(ledger) - 1) if ledger[i].ok]
    retention = fold(State(), ledger).retention
    assert (retention.pairs, retention.kept) == (len(after_success), sum(after_success))
    if after_success:
        assert retention.shown()["rate"] == round(sum(after_success) / len(after_success), 6)
    else:
        assert retention.shown() == {"pairs": 0, "kept": 0}


@given(runs)
def test_tallies_of_parts_add_up_to_the_tally_of_all(ledger: list[FoldedRun]) -> None:
    state = fold(State(), ledger)
    assert state.tally([1, 2, 3, 4]).stored() == tally_of((run.path, run.ok) for run in ledger).stored()
    assert Tally.read({}).stored() == Tally().stored()


def test_the_state_grows_with_the_ids_and_not_with_the_runs() -> None:
    def size(runs: int) -> int:
        ledger = [FoldedRun(["a", "b", "a"], n % 3 > 0, 1, f"p{n}", f"s{n}") for n in range(runs)]
        return len(json.dumps(fold(State(), ledger).stored()))

    # Only the digits of the counts grow.
    assert size(3000) - size(30) < 100


def sources(*reports: tuple[str, str]) -> Sources:
    found = Sources()
    for principal, session in reports:
        found.add(principal, session)
    return found


def test_sessions_are_told_apart_and_callers_without_one_count_by_their_principal() -> None:
    assert sources(("ann", "s1"), ("ann", "s1")).count == 1
    assert sources(("ann", "s1"), ("ann", "s2")).count == 2
    assert sources(("ann", "s1"), ("bob", "s1")).count == 2
    assert sources(("ann", "-"), ("ann", "")).count == 1
    assert sources(("ann", "-"), ("bob", "-")).count == 2
    assert sources(("ann", "-"), ("ann", "s1")).count == sources(("ann", "s1"), ("ann", "-")).count == 1
    assert sources(("ann", "-"), ("ann", "s1"), ("ann", "s2")).count == 2


def test_a_restored_revision_has_the_counters_and_no_strike() -> None:
    ledger = [FoldedRun(["a"], True, 1, "ann", "s1"), *[FoldedRun(["a"], False, 1, "ann", "s1")] * 4]
    old = fold(State(), ledger).revision(1)
    new = old.restored()
    assert old.strikes == 4 and (new.strikes, new.strike_sources.count) == (0, 0)
    assert new.tally.stored() == old.tally.stored() and new.ok_sources == old.ok_sources
    new.add(FoldedRun(["a"], False))
    assert old.tally.total == 5, "a copy"
    assert RevisionState.read(old.stored()) == old
