"""What evolve finds in real runs: the numbers of docs/findings.md, each counted here by hand-written loops.

The airline runs have outcomes of their own. The helpdesk log has none: here a case went well when it was
resolved exactly once and ended closed.
"""

from __future__ import annotations

import gzip
import json
import os
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import pytest

from procedures.counting import Counts, tally_of
from procedures.evidence import FailProne, Suspect, dead_ends, fail_prone, linear_path, strikes, template
from procedures.folding import FoldedRun, State, fold
from procedures.gate import GateSettings, walk
from procedures.graph import read
from tests.conftest import Cast
from tests.procedures.evolving import evolve
from tests.procedures.helpers import add, record
from tests.procedures.test_real_runs import airline, followed, helpdesk

# The airline agent had fourteen tools. No run calls this one.
UNUSED = "update_reservation_passengers"
RESOLVE = "Resolve ticket"


def went_well(path: list[str]) -> bool:
    """The outcome that is made up for a helpdesk case."""
    return path.count(RESOLVE) == 1 and path[-1] == "Closed"


def airline_graph() -> dict[str, Any]:
    """Every transition between tools that a run took, and the tool that none took."""
    shape = followed([path for _, _, path in airline()], 1)
    shape["nodes"].append({"id": UNUSED, "kind": "step", "text": UNUSED.replace("_", " "), "tool": UNUSED})
    shape["edges"].append({"src": "get_reservation_details", "dst": UNUSED, "kind": "dep"})
    return shape


def suspect(found: FailProne, label: str) -> Suspect:
    (one,) = [one for one in found.suspects if one.label == label]
    return one


def fisher(runs: list[tuple[bool, bool]]) -> Fraction:
    """The exact one-sided probability for (took it, failed) runs, by choosing which runs failed."""
    total, failed = len(runs), sum(1 for _, bad in runs if bad)
    taken = sum(1 for took, _ in runs if took)
    both = sum(1 for took, bad in runs if took and bad)
    ways = 0
    for x in range(both, min(taken, failed) + 1):
        ways += comb(taken, x) * comb(total - taken, failed - x)
    return Fraction(ways, comb(total, failed))


def adjusted_by_hand(shape: dict[str, Any], runs: list[tuple[list[str], bool]]) -> dict[str, float]:
    """Label -> adjusted probability of all that can be contrasted, from the paths alone."""
    names = {node["id"] for node in shape["nodes"]}
    visits: dict[str, list[int]] = {}
    for number, (path, _) in enumerate(runs):
        for i, id_ in enumerate(path):
            if id_ in names:
                visits.setdefault(id_, []).append(number)
            if i and {path[i - 1], id_} <= names:
                visits.setdefault(f"{path[i - 1]} -> {id_}", []).append(number)
    raw = {}
    for label, numbers in visits.items():
        if len(numbers) >= 5 and len(set(numbers)) < len(runs):
            taking = set(numbers)
            raw[label] = fisher([(number in taking, not ok) for number, (_, ok) in enumerate(runs)])
    found = {}
    for label, p in raw.items():
        # The least bound among all that are as probable or more so.
        bounds = [
            q * len(raw) / sum(1 for other in raw.values() if other <= q) for q in raw.values() if q >= p
        ]
        found[label] = float(min(bounds))
    return found


def has_pair(path: list[str], src: str, dst: str) -> bool:
    return any(path[i] == src and path[i + 1] == dst for i in range(len(path) - 1))


# The airline runs


def test_airline_every_run_that_booked_failed() -> None:
    runs = airline()
    tally = tally_of((path, ok) for _, ok, path in runs)
    found = fail_prone(read(airline_graph()), tally)
    assert sum(1 for _, ok, _ in runs if not ok) == 51 and found.base_rate == 0.51
    assert sorted(found.steps()) == ["book_reservation", "search_direct_flight"]
    assert found.transitions() == []
    for name, taken, failed, p in [
        ("book_reservation", 14, 14, 2.93e-5),
        ("search_direct_flight", 34, 25, 1.11e-3),
    ]:
        outcomes = [(name in path, not ok) for _, ok, path in runs]
        assert sum(1 for took, _ in outcomes if took) == taken
        assert sum(1 for took, bad in outcomes if took and bad) == failed
        one = suspect(found, name)
        assert (one.runs, one.failed) == (taken, failed)
        assert one.p == pytest.approx(float(fisher(outcomes)), rel=1e-9) == pytest.approx(p, rel=0.01)
    by_hand = adjusted_by_hand(airline_graph(), [(path, ok) for _, ok, path in runs])
    assert len(by_hand) == 37
    assert {one.label: one.adjusted for one in found.suspects} == pytest.approx(by_hand)
    assert by_hand["book_reservation"] == pytest.approx(0.0011, abs=5e-5)
    assert by_hand["search_direct_flight"] == pytest.approx(0.0205, abs=5e-5)
    baggages = suspect(found, "update_reservation_baggages")
    assert (baggages.runs, baggages.failed, round(baggages.adjusted, 3)) == (7, 7, 0.062)


def test_airline_all_but_one_of_the_bookings_are_of_tasks_that_never_succeeded() -> None:
    """So the flag says where runs fail, and not that booking is why."""
    booked: dict[int, int] = {}
    won: dict[int, int] = {}
    for task, ok, path in airline():
        won[task] = won.get(task, 0) + (1 if ok else 0)
        if "book_reservation" in path:
            booked[task] = booked.get(task, 0) + 1
    assert booked == {0: 4, 4: 1, 8: 1, 10: 3, 32: 4, 46: 1}
    assert [task for task in booked if won[task]] == [46]
    assert sum(count for task, count in booked.items() if not won[task]) == 13


def test_airline_the_proven_path_looks_up_user_and_reservation_and_hands_over() -> None:
    runs = airline()
    graph = read(airline_graph())
    tally = tally_of((path, ok) for _, ok, path in runs)
    expected = ["get_user_details", "get_reservation_details", "transfer_to_human_agents"]
    assert linear_path(graph, tally, {UNUSED}) == expected
    # By hand: of successful runs, how often each transition from the last step was taken.
    for here, there in zip(expected, expected[1:], strict=False):
        taken: dict[str, int] = {}
        for _, ok, path in runs:
            for i in range(len(path) - 1):
                if ok and path[i] == here and path[i + 1] not in (here, expected[0]):
                    taken[path[i + 1]] = taken.get(path[i + 1], 0) + 1
        best = max(taken.values())
        assert taken[there] == best and list(taken.values()).count(best) == 1


def test_airline_the_tool_that_nobody_called_is_the_only_dead_end() -> None:
    runs = airline()
    tally = tally_of((path, ok) for _, ok, path in runs)
    (found,) = dead_ends(read(airline_graph()), tally, tally, 3)
    calling = [path for _, _, path in runs if len(path) > 0]
    assert not any(UNUSED in path for path in calling)
    assert (found.id, found.runs, len(calling)) == (UNUSED, 91, 91)
    assert found.upper == pytest.approx(0.0324, abs=1e-4) and (1 - found.upper) ** 91 == pytest.approx(0.05)


def test_airline_nine_of_twenty_five_tasks_would_be_in_quarantine() -> None:
    outcomes: dict[int, list[bool]] = {}
    for task, ok, _ in airline():
        outcomes.setdefault(task, []).append(ok)
    by_hand = [task for task, row in outcomes.items() if not (row[-1] or row[-2] or row[-3])]
    assert by_hand == [0, 4, 6, 8, 10, 14, 22, 28, 32] and len(outcomes) == 25
    states = {}
    for task, row in outcomes.items():
        ledger = [FoldedRun([], ok, 1, "agent", f"trial {trial}") for trial, ok in enumerate(row)]
        states[task] = fold(State(), ledger).revision(1)
    assert [task for task, state in states.items() if strikes(state, 3, shared=True).quarantined] == by_hand
    assert strikes(states[6], 3, shared=True).count == 3, "it succeeded once, at first"


def test_airline_the_second_half_passes_the_gate_against_the_first() -> None:
    """The same agent ran both: two trials of each task before, two after."""
    ok = [ok for _, ok, _ in airline()]
    won = [sum(1 for one in half if one) for half in (ok[:50], ok[50:])]
    assert won == [25, 24]
    seen = walk(Counts(50, 25), ok[50:], GateSettings())
    assert (seen.verdict, seen.by, seen.decided_at, seen.after) == ("accept", "cap", 50, (50, 24))
    assert seen.llr == pytest.approx(-0.868, abs=0.001)


def test_airline_retention() -> None:
    ok = [ok for _, ok, _ in airline()]
    retention = fold(State(), [FoldedRun([], one) for one in ok]).retention
    pairs = kept = 0
    for i in range(99):
        if ok[i]:
            pairs += 1
            if ok[i + 1]:
                kept += 1
    assert (retention.pairs, retention.kept) == (pairs, kept) == (48, 25)


# The helpdesk


def test_helpdesk_the_proven_path_is_the_commonest_case() -> None:
    cases = helpdesk()
    tally = tally_of((path, went_well(path)) for path in cases)
    path = linear_path(read(followed(cases, 30)), tally, ())
    assert path == ["Assign seriousness", "Take in charge ticket", RESOLVE, "Closed"]
    assert (len(cases), sum(1 for case in cases if case == path)) == (4580, 2366)


def test_helpdesk_a_software_anomaly_triples_the_share_of_failed_cases() -> None:
    cases = helpdesk()
    found = fail_prone(read(followed(cases, 30)), tally_of((path, went_well(path)) for path in cases))
    assert (found.base.total, found.base.ok) == (4580, sum(1 for case in cases if went_well(case)))
    assert found.base.ok == 4171
    assert found.steps() == []
    # label: cases with it, of them failed.
    expected = {
        "Resolve ticket -> Resolve ticket": (247, 247),
        "Resolve ticket -> Take in charge ticket": (146, 146),
        "Take in charge ticket -> Create SW anomaly": (50, 15),
        "Require upgrade -> Require upgrade": (15, 6),
        "Create SW anomaly -> Require upgrade": (11, 4),
        "Wait -> Require upgrade": (7, 3),
    }
    assert [" -> ".join(pair) for pair in found.transitions()] == list(expected)
    for label, (taken, failed) in expected.items():
        src, dst = label.split(" -> ")
        outcomes = [(has_pair(case, src, dst), not went_well(case)) for case in cases]
        assert sum(1 for took, _ in outcomes if took) == taken
        assert sum(1 for took, bad in outcomes if took and bad) == failed
        one = suspect(found, label)
        assert (one.runs, one.failed) == (taken, failed)
        assert one.p == pytest.approx(float(fisher(outcomes)), rel=1e-6)
    shape = followed(cases, 30)
    by_hand = adjusted_by_hand(shape, [(case, went_well(case)) for case in cases])
    assert {one.label: one.adjusted for one in found.suspects} == pytest.approx(by_hand, rel=1e-6)
    shown = [float(f"{by_hand[label]:.1g}") for label in list(expected)[2:]]
    assert shown == [0.0001, 0.004, 0.03, 0.04]


def test_helpdesk_what_is_certain_and_small_is_not_flagged() -> None:
    cases = helpdesk()
    found = fail_prone(read(followed(cases, 30)), tally_of((path, went_well(path)) for path in cases))
    one = suspect(found, "Assign seriousness -> Resolve ticket")
    taken = [case for case in cases if has_pair(case, "Assign seriousness", RESOLVE)]
    assert (
        (one.runs, one.failed) == (len(taken), sum(1 for case in taken if not went_well(case))) == (258, 72)
    )
    assert one.adjusted < 1e-18 and one.share < found.base_rate + 0.2 and not one.flagged


def test_helpdesk_is_a_template() -> None:
    cases = helpdesk()
    ledger = [FoldedRun(case, went_well(case), 1, "desk", f"case {n}") for n, case in enumerate(cases)]
    state = fold(State(), ledger).revision(1)
    found = template(state, pending=False, quarantined=False, dead_ends_left=False, shared=True)
    assert found.template and found.rate == pytest.approx((4171 + 1) / (4580 + 2))


@pytest.mark.soak
def test_helpdesk_in_the_order_of_the_file_keeps_nine_of_ten_successes() -> None:
    folder = os.environ.get("LOOM_DATA")
    if not folder or not (Path(folder) / "helpdesk_runs.jsonl.gz").is_file():
        pytest.skip("needs helpdesk_runs.jsonl.gz: set LOOM_DATA to the folder that holds it")
    with gzip.open(Path(folder) / "helpdesk_runs.jsonl.gz", "rt") as lines:
        ok = [went_well(json.loads(line)["path"]) for line in lines]
    pairs = [ok[i + 1] for i in range(len(ok) - 1) if ok[i]]
    retention = fold(State(), [FoldedRun([], one) for one in ok]).retention
    assert (retention.pairs, retention.kept) == (len(pairs), sum(pairs)) == (4170, 3787)
    text = "".join("+" if one else "-" for one in ok)
    assert "---" in text and "----" not in text


# Through the database


@pytest.fixture
def unlimited(settings: Any) -> None:
    """No rate limit: one token reports hundreds of runs."""
    settings.LOOM_RATE_WRITES = None


def test_evolve_says_of_the_airline_runs_what_was_counted_by_hand(cast: Cast, unlimited: None) -> None:
    key = add(cast, name="Airline tools", graph=airline_graph())["memory_key"]
    runs = airline()
    for number, (_, ok, path) in enumerate(runs):
        assert record(cast, path, ok, key, session_id=f"run {number}").status == 200
    answer = evolve(cast, key)
    assert answer["folded_runs"] == 100 and answer["run_stats"] == {"total": 100, "ok": 49}
    assert answer["dead_end_steps"] == [UNUSED.replace("_", " ")]
    assert sorted(answer["fail_prone_steps"]) == ["book reservation", "search direct flight"]
    assert answer["fail_prone_transitions"] == []
    assert answer["retention"] == {"pairs": 48, "kept": 25, "rate": round(25 / 48, 6)}
    assert (answer["quarantined"], answer["template"], answer["gate"]) == (False, False, "none")


def test_evolve_quarantines_an_airline_task_that_always_failed(cast: Cast, unlimited: None) -> None:
    mine = [(ok, path) for task, ok, path in airline() if task == 32]
    key = add(cast, name="Airline task 32", graph=followed([path for _, path in mine], 1))["memory_key"]
    for trial, (ok, path) in enumerate(mine):
        record(cast, path, ok, key, session_id=f"trial {trial}")
        answer = evolve(cast, key)
        assert (answer["strikes"], answer["quarantined"]) == (trial + 1, trial >= 2)


def test_evolve_makes_the_helpdesk_a_template(cast: Cast, unlimited: None) -> None:
    # One case in forty: 115 of them.
    cases = helpdesk()[::40]
    key = add(cast, name="Helpdesk", graph=followed(cases, 3))["memory_key"]
    for number, case in enumerate(cases):
        record(cast, case, went_well(case), key, session_id=f"case {number}")
    answer = evolve(cast, key)
    well = sum(1 for case in cases if went_well(case))
    assert answer["template"] is True and answer["run_stats"] == {"total": 115, "ok": well}
    assert (well + 1) / 117 >= 0.8
