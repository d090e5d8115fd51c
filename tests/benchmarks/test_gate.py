"""The gate benchmark: the same draws give the same shares, and the plot is well-formed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import gate
from benchmarks.evolve import _ledger
from benchmarks.plot import Panel, Series, write


def test_simulated_shares_are_near_the_contract_and_do_not_change_with_the_day() -> None:
    found = gate.simulated(0.9, 10, 2_000, seed=7)
    again = gate.simulated(0.9, 10, 2_000, seed=7)
    assert found == again
    for baseline, false_revert, power, runs in [
        ("integrated", 0.004, 0.81, 3.8),
        ("plugin", 0.025, 0.83, 5.1),
    ]:
        shares = found["integrated" if baseline == "integrated" else "plugin"]
        assert shares.false_revert == pytest.approx(false_revert, abs=0.015)
        assert shares.power == pytest.approx(power, abs=0.04)
        assert shares.disaster == pytest.approx(runs, abs=0.3)


def test_a_plot_draws_every_series_and_names_it_once(tmp_path: Path) -> None:
    lines = [Series(f"<{n}>", [(0, n / 4), (10, 1)], n % 3, dashed=n > 1) for n in range(4)]
    write(tmp_path / "plot.svg", "Two & two", [Panel("A", "x", (0, 10), (0, 1), lines)] * 2)
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    drawn = [path for path in root.iter(f"{name}path") if "line" in path.get("class", "")]
    assert len(drawn) == 2 * 4 + 4
    assert [text.text for text in root.iter(f"{name}text")].count("<2>") == 1
    assert root.findtext(f"{name}title") == "Two & two"
    # The first series goes from the lower left corner to the upper right one.
    assert drawn[0].get("d") == "M46.0 208.0L346.0 34.0"


def test_a_ledger_of_the_evolve_benchmark_has_every_run_once() -> None:
    pieces = list(_ledger([["a"], ["b"]], 12_001))
    assert [len(piece) for piece in pieces] == [5_000, 5_000, 2_001]
