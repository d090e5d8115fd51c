"""The gate: both tables of operating characteristics, its integrals against exact fractions, its edges."""

from __future__ import annotations

from fractions import Fraction
from math import comb, isclose, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procedures.counting import Counts
from procedures.gate import (
    Cost,
    Gate,
    GateSettings,
    KnownRate,
    cost_check,
    gate_of,
    integrated_rate,
    median_cost,
    plugin_rate,
    walk,
    walk_gate,
)

DEFAULTS = GateSettings()
PLUGIN = GateSettings(baseline="plugin")
MARGIN = GateSettings(mode="margin")


# Operating characteristics, by exact dynamic programmes


class Programme:
    """Every way a gate can go, with its probability: a state is how many runs succeeded and failed.

    The verdict is a function of the two counts, so paths with the same counts need not be told apart.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._verdicts: dict[tuple[int, int], str] = {}

    def _verdict(self, ok: int, failed: int) -> str:
        found = self._verdicts.get((ok, failed))
        if found is None:
            found = self._verdicts[ok, failed] = self._gate.at(ok, failed).verdict
        return found

    def run(self, rate: float) -> tuple[float, float]:
        """(probability of a revert, mean runs until a verdict) when runs succeed at `rate`."""
        open_: dict[int, float] = {0: 1.0}
        revert = mean = 0.0
        for total in range(1, self._gate.settings.cap + 1):
            reached: dict[int, float] = {}
            for ok, chance in open_.items():
                reached[ok] = reached.get(ok, 0.0) + chance * (1 - rate)
                reached[ok + 1] = reached.get(ok + 1, 0.0) + chance * rate
            open_ = {}
            for ok, chance in reached.items():
                verdict = self._verdict(ok, total - ok)
                if verdict == "undecided":
                    open_[ok] = chance
                    continue
                mean += total * chance
                revert += chance if verdict == "revert" else 0.0
        assert not open_, "the cap decides"
        return revert, mean


def known(p0: float) -> Gate:
    """The gate when p0 is known."""
    return Gate(DEFAULTS, Counts(), p0, KnownRate(p0, p0 - DEFAULTS.min_drop))


def first(gate: Gate, ok: bool) -> int | None:
    return walk_gate(gate, [ok] * 60).decided_at


@pytest.mark.parametrize(
    ("p0", "to_revert", "to_accept", "false_revert", "power"),
    [
        (0.95, 3, 10, 0.031, 0.80),
        (0.90, 4, 9, 0.031, 0.74),
        (0.80, 5, 8, 0.031, 0.63),
        (0.70, 7, 7, 0.030, 0.57),
        (0.50, 11, 5, 0.031, 0.56),
    ],
)
def test_operating_characteristics_with_a_known_baseline(
    p0: float, to_revert: int, to_accept: int, false_revert: float, power: float
) -> None:
    gate = known(p0)
    assert (first(gate, False), first(gate, True)) == (to_revert, to_accept)
    programme = Programme(gate)
    assert programme.run(p0)[0] == pytest.approx(false_revert, abs=0.01)
    assert programme.run(p0 - 0.15)[0] == pytest.approx(power, abs=0.01)


@pytest.mark.parametrize("baseline", ["integrated", "plugin"])
@pytest.mark.parametrize(
    ("rate", "prior", "false_revert", "power", "disaster"),
    [
        (0.9, 5, (0.001, 0.002), (0.66, 0.70), (5.1, 6.1)),
        (0.9, 10, (0.004, 0.025), (0.81, 0.83), (3.8, 5.1)),
        (0.8, 10, (0.044, 0.092), (0.79, 0.81), (5.0, 6.9)),
        (0.8, 20, (0.052, 0.087), (0.88, 0.89), (3.9, 6.4)),
        (0.7, 10, (0.101, 0.129), (0.80, 0.81), (6.9, 8.8)),
        (0.5, 20, (0.119, 0.133), (0.89, 0.91), (10.4, 12.7)),
    ],
)
def test_operating_characteristics_with_an_unknown_baseline(
    rate: float,
    prior: int,
    false_revert: tuple[float, float],
    power: tuple[float, float],
    disaster: tuple[float, float],
    baseline: str,
) -> None:
    settings = DEFAULTS if baseline == "integrated" else PLUGIN
    column = 0 if baseline == "integrated" else 1
    found = [0.0, 0.0, 0.0]
    for ok in range(prior + 1):
        weight = comb(prior, ok) * rate**ok * (1 - rate) ** (prior - ok)
        programme = Programme(gate_of(Counts(prior, ok), settings))
        found[0] += weight * programme.run(rate)[0]
        found[1] += weight * programme.run(rate - 0.3)[0]
        found[2] += weight * programme.run(0.05)[1]
    assert found[0] == pytest.approx(false_revert[column], abs=0.02)
    assert found[1] == pytest.approx(power[column], abs=0.02)
    assert found[2] == pytest.approx(disaster[column], abs=0.1)


def test_s_alone_is_blind_to_a_disaster_that_r_sees_at_once() -> None:
    prior = Counts(10, 10)
    assert first(gate_of(prior, DEFAULTS), False) == 3
    s_alone = next(n for n in range(3, 60) if integrated_rate(prior, 0.15).at(0, n).s >= DEFAULTS.upper)
    assert s_alone == 9


# The integrals

Polynomial = list[Fraction]


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return product


def power_of(base: Polynomial, exponent: int) -> Polynomial:
    result = [Fraction(1)]
    for _ in range(exponent):
        result = times(result, base)
    return result


def integral(of: Polynomial, low: Fraction, high: Fraction) -> Fraction:
    return sum(
        (c * (high ** (i + 1) - low ** (i + 1)) / (i + 1) for i, c in enumerate(of)), start=Fraction(0)
    )


def shifted(of: Polynomial, by: Fraction) -> Polynomial:
    """The polynomial in x for one in x - by."""
    result = [Fraction(0)] * len(of)
    for exponent, c in enumerate(of):
        for place, term in enumerate(power_of([-by, Fraction(1)], exponent)):
            result[place] += c * term
    return result


def exact(prior: Counts, ok: int, failed: int, drop: Fraction) -> tuple[float, float]:
    """(S, R) in exact rational arithmetic: every integrand is a polynomial."""
    one, least = Fraction(1), Fraction(1, 200)
    rate, rest = [Fraction(0), one], [one, -one]
    beta = times(power_of(rate, prior.ok), power_of(rest, prior.failed))
    whole = integral(beta, Fraction(0), one)
    beta = [c / whole for c in beta]
    likelihood = times(power_of(rate, ok), power_of(rest, failed))
    same = integral(times(beta, likelihood), Fraction(0), one)
    floor = least**ok * (1 - least) ** failed
    dropped = integral(times(beta, shifted(likelihood, drop)), drop + least, one)
    dropped += integral(beta, Fraction(0), drop + least) * floor
    # The mean of the likelihood over (0, u) is a polynomial in u = p0 - drop.
    mean = [c / (i + 1) for i, c in enumerate(likelihood)]
    lower = integral(times(beta, shifted(mean, drop)), drop, one) + integral(beta, Fraction(0), drop) * floor
    s, c = (log(x.numerator) - log(x.denominator) - log(same) for x in (dropped, lower))
    return s, max(s, c)


@pytest.mark.parametrize(
    "prior",
    [Counts(0, 0), Counts(3, 0), Counts(3, 3), Counts(5, 2), Counts(10, 10), Counts(20, 2), Counts(40, 37)],
)
def test_the_integrated_ratios_are_those_of_exact_fractions(prior: Counts) -> None:
    for ok, failed in [(0, 1), (1, 0), (0, 9), (9, 0), (3, 4), (20, 5), (2, 18)]:
        for drop in (Fraction(3, 20), Fraction(1, 20), Fraction(1, 2)):
            got = integrated_rate(prior, float(drop)).at(ok, failed)
            assert got == pytest.approx(exact(prior, ok, failed, drop), abs=1e-9), (ok, failed, drop)


def test_with_a_million_runs_before_s_is_the_test_of_a_known_baseline() -> None:
    prior = Counts(1_000_000, 900_000)
    point = plugin_rate(prior.smoothed, 0.15)
    for ok, failed in [(0, 4), (8, 1), (30, 20), (50, 0)]:
        assert integrated_rate(prior, 0.15).at(ok, failed).s == pytest.approx(
            point.at(ok, failed).s, abs=0.01
        )


def test_ratios_over_thousands_of_runs_stay_finite_and_accurate() -> None:
    # The rates before and after are far apart, and every likelihood is far below the smallest float.
    few = integrated_rate(Counts(1000, 900), 0.15, 2000).at(100, 1900)
    many = integrated_rate(Counts(1000, 900), 0.15, 200_000).at(100, 1900)
    assert few == pytest.approx(many, rel=1e-9) and few.r > few.s > 0


# The walk


counts = st.integers(0, 30).flatmap(lambda n: st.builds(Counts, st.just(n), st.integers(0, n)))
outcomes = st.lists(st.booleans(), max_size=70)
settings_ = st.builds(
    GateSettings,
    mode=st.sampled_from(["sprt", "margin"]),
    baseline=st.sampled_from(["integrated", "plugin"]),
    min_runs=st.integers(1, 12),
    max_runs=st.integers(1, 50),
    min_drop=st.sampled_from([0.05, 0.15, 0.4]),
)


@given(counts, outcomes, settings_)
def test_the_verdict_does_not_depend_on_how_often_it_is_asked_for(
    prior: Counts, ledger: list[bool], settings: GateSettings
) -> None:
    whole = walk(prior, ledger, settings)
    for asked_after in range(len(ledger) + 1):
        seen = walk(prior, ledger[:asked_after], settings)
        if whole.decided_at is None or asked_after < whole.decided_at:
            assert seen.verdict == "undecided" and seen.decided_at is None
        else:
            assert seen == whole


@given(counts, outcomes, settings_)
def test_a_walk_says_what_it_read_and_decides_by_the_cap_at_the_latest(
    prior: Counts, ledger: list[bool], settings: GateSettings
) -> None:
    seen = walk(prior, ledger, settings)
    read = seen.decided_at or len(ledger)
    assert seen.after == Counts(read, sum(ledger[:read])) and seen.before == prior
    assert len(seen.s) == len(seen.r) == (read if settings.mode == "sprt" else 0)
    assert all(r >= s for s, r in zip(seen.s, seen.r, strict=True))
    if seen.verdict == "undecided":
        assert len(ledger) < settings.cap
    else:
        assert settings.min_runs <= read <= settings.cap
    if settings.mode == "sprt" and read:
        assert seen.llr == (seen.r[-1] if (seen.verdict, seen.by) == ("revert", "bound") else seen.s[-1])


@given(counts, st.integers(0, 20), st.integers(0, 20))
def test_a_failure_never_speaks_for_the_edit_and_a_success_never_against_it(
    prior: Counts, ok: int, failed: int
) -> None:
    rate = integrated_rate(prior, 0.15)
    here = rate.at(ok, failed)
    # R is the larger of two ratios that both move this way.
    assert rate.at(ok, failed + 1).s >= here.s - 1e-9 and rate.at(ok, failed + 1).r >= here.r - 1e-9
    assert rate.at(ok + 1, failed).s <= here.s + 1e-9 and rate.at(ok + 1, failed).r <= here.r + 1e-9


def test_a_crossing_before_the_least_number_of_runs_does_not_latch() -> None:
    gate = known(0.95)
    assert gate.rate is not None and gate.rate.at(0, 2).r == pytest.approx(DEFAULTS.upper)
    assert walk_gate(gate, [False, False]).verdict == "undecided"
    assert walk_gate(gate, [False, False, True]).verdict == "undecided", "it went back below the bound"
    assert walk_gate(gate, [False, False, False]).verdict == "revert"


def test_a_statistic_on_its_bound_has_crossed_it() -> None:
    # Two failures are 2 ln 4, and the bound is ln 16.
    gate = Gate(GateSettings(min_runs=2), Counts(), 0.95, KnownRate(0.95, 0.8))
    assert walk_gate(gate, [False, False]).verdict == "revert"


def test_the_bounds_are_walds() -> None:
    assert isclose(DEFAULTS.upper, log(0.8 / 0.05)) and isclose(DEFAULTS.lower, log(0.2 / 0.95))


def test_at_the_cap_the_point_estimate_decides_and_the_drop_itself_is_a_drop() -> None:
    # Bounds this wide are not crossed in ten runs.
    wide = GateSettings(alpha=1e-9, beta=1e-9, max_runs=10)
    before = Counts(10, 10)
    kept = walk(before, [True] * 9 + [False], wide)
    fell = walk(before, [True] * 8 + [False] * 2, wide)
    assert (kept.verdict, kept.by, kept.decided_at) == ("accept", "cap", 10)
    assert (fell.verdict, fell.by) == ("revert", "cap"), "11/12 - 9/12 >= 0.15"
    exactly = GateSettings(alpha=1e-9, beta=1e-9, max_runs=10, min_drop=0.25)
    assert walk(before, [True] * 7 + [False] * 3, exactly).verdict == "revert", "11/12 - 8/12 = 0.25"
    assert walk(before, [True] * 8 + [False] * 2, exactly).verdict == "accept"
    assert fell.llr == fell.s[-1]


def test_plugin_keeps_its_rates_off_nought_and_one() -> None:
    assert plugin_rate(0.9999, 0.15) == KnownRate(0.99, pytest.approx(0.84))
    assert plugin_rate(0.1, 0.15) == KnownRate(0.1, 0.01)
    never = plugin_rate(0.0001, 0.15)
    assert never == KnownRate(0.01, 0.01) and never.at(7, 3) == (0.0, 0.0)


def test_a_baseline_that_cannot_fall_by_the_drop_has_no_larger_drop_either() -> None:
    # Nearly all of Beta(1, 201) lies below 0.15, where C is S.
    rate = integrated_rate(Counts(200, 0), 0.15)
    for ok, failed in [(0, 20), (3, 5), (10, 0)]:
        assert rate.at(ok, failed).r == pytest.approx(rate.at(ok, failed).s, abs=1e-9)


def test_margin_compares_plain_rates_once_when_both_sides_have_enough_runs() -> None:
    before = Counts(20, 18)
    assert walk(before, [True, True], MARGIN).verdict == "undecided"
    assert walk(before, [True, True, False], MARGIN).verdict == "revert"
    kept = walk(before, [True, True, True] + [False] * 9, MARGIN)
    assert (kept.verdict, kept.decided_at, kept.by, kept.llr) == ("accept", 3, "margin", None)
    twenty = GateSettings(mode="margin", min_runs=20)
    assert walk(before, [True] * 17 + [False] * 3, twenty).verdict == "accept", "0.05 is within the margin"
    assert walk(before, [True] * 16 + [False] * 4, twenty).verdict == "revert"


def test_margin_after_too_few_runs_before_waits_for_the_cap() -> None:
    short = GateSettings(mode="margin", max_runs=6)
    assert walk(Counts(2, 2), [True] * 5, short).verdict == "undecided"
    assert walk(Counts(2, 2), [True] * 6, short).by == "cap"
    assert walk(Counts(2, 2), [False] * 6, short).verdict == "revert"


# The cost tie-break


def test_the_first_measure_that_both_sides_report_often_enough_decides() -> None:
    before = {"duration_ms": Cost(2, 100), "steps_taken": Cost(3, 10), "tokens": Cost(9, 1000)}
    after = {"duration_ms": Cost(9, 900), "steps_taken": Cost(3, 12), "tokens": Cost(9, 9000)}
    check = cost_check(before, after, DEFAULTS)
    assert (check.measure, check.revert, check.rise) == ("steps_taken", False, pytest.approx(0.2))
    strict = cost_check(before, after, GateSettings(cost_tolerance=0.1))
    assert strict.revert and strict.before == Cost(3, 10) and strict.after == Cost(3, 12)
    two = cost_check(before, after, GateSettings(cost_min_samples=2))
    assert (two.measure, two.revert) == ("duration_ms", True)
    assert cost_check(before, after, GateSettings(cost_min_samples=10)).measure == ""
    assert cost_check({}, after, DEFAULTS).measure == ""


def test_a_rise_by_the_tolerance_itself_is_tolerated() -> None:
    def decided(now: float) -> bool:
        return cost_check({"tokens": Cost(5, 100)}, {"tokens": Cost(5, now)}, DEFAULTS).revert

    assert not decided(125) and decided(126) and not decided(60)


def test_any_cost_is_more_than_none() -> None:
    free, dear = {"steps_taken": Cost(4, 0)}, {"steps_taken": Cost(4, 1)}
    check = cost_check(free, dear, DEFAULTS)
    assert check.revert and check.rise is None
    assert not cost_check(free, free, DEFAULTS).revert


def test_the_median_is_over_what_was_reported() -> None:
    assert median_cost([0, 30, 10, 0, 20], zero_is_unknown=True) == (3, 20.0)
    assert median_cost([0, None, 30, 10], zero_is_unknown=False) == (3, 10.0)
    assert median_cost([10, 20, 40, 50], zero_is_unknown=True) == (4, 30.0)
    assert median_cost([0, 0], zero_is_unknown=True) is None
