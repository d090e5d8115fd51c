"""Each benchmark runs, prints its table and writes its JSON; what lacks its data or a server says so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from benchmarks import __main__ as program
from benchmarks import bm25, common, corpus, memory, retrieval
from governance.models import WorkerBeat
from tests.benchmarks.conversations import CONVERSATIONS


def run(monkeypatch: pytest.MonkeyPatch, *names: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *names])
    return program.main()


def test_every_benchmark_is_found_and_no_helper() -> None:
    assert {"ops", "retrieval", "memory", "servers", "gate", "evolve"} <= set(program.discover())
    assert {"common", "floor", "settings", "urls", "corpus", "plot"}.isdisjoint(program.discover())


def test_without_data_a_benchmark_is_skipped_with_a_line_that_names_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    WorkerBeat.objects.create(name="here", at=timezone.now())
    monkeypatch.delenv("LOOM_DATA", raising=False)
    assert run(monkeypatch, "retrieval") == 0
    assert "retrieval: skipped, needs locomo_dev.json: set LOOM_DATA" in capsys.readouterr().out
    assert not results.exists()


def test_without_a_server_a_benchmark_is_skipped_with_the_command_that_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    monkeypatch.delenv("LOOM_DATABASE_URL", raising=False)
    assert run(monkeypatch, "retrieval", "memory", "ops") == 0
    out = capsys.readouterr().out
    assert out.count("skipped, no server:") == 2
    assert "ops: skipped, no database:" in out
    assert out.count("make run") == 3


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, "speed")
    assert refused.value.code == 2


def test_retrieval_prints_a_row_for_each_way_and_finds_the_evidence(
    api: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "locomo_dev.json").write_text(json.dumps(CONVERSATIONS))
    result = retrieval.run(api, tmp_path)
    out = capsys.readouterr().out
    for way in ("bm25", "keyword", "semantic", "hybrid"):
        assert f"\n{way} " in out
    assert result["questions"] == 3
    assert result["turns"] == 7
    # Every conversation is shorter than a page, so nothing can be missed by meaning.
    assert result["recall_at_10"]["semantic"] == result["recall_at_10"]["hybrid"] == 1.0
    assert result["degraded"] == []


def test_results_say_the_machine_and_the_versions(results: Path) -> None:
    path = common.write_json("probe", {"figure": 1})
    written = json.loads(path.read_text())
    assert path.parent == results
    assert written["benchmark"] == "probe" and written["figure"] == 1
    assert {"cpu", "cores", "python", "packages", "commit"} <= set(written["machine"])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_adds_up_the_supervisor_and_its_descendants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text(json.dumps({"supervisor": {"pid": os.getpid()}}))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    result: dict[str, Any] = memory.run(None, None)
    assert "Memory at rest" in capsys.readouterr().out
    assert result["megabytes"]["supervisor"] > 10
    assert result["total_megabytes"] == sum(result["megabytes"].values())
    assert result["processes"]["supervisor"] == 1


def test_the_made_up_corpus_is_the_same_each_time_and_its_keys_differ() -> None:
    first, again = list(corpus.items(30, 7)), list(corpus.items(30, 7))
    assert first == again
    assert [len(batch) for batch in first] == [7, 7, 7, 7, 2]
    assert len({item["memory_key"] for batch in first for item in batch}) == 30
    words = corpus.vocabulary(3000)
    assert len(words) == len(set(words)) == 3000


def test_the_baseline_ranks_the_text_with_the_rarer_words_first() -> None:
    index = bm25.BM25(["the red kayak", "the red house by the red lake", "a green field"])
    assert index.search("red kayak", 2) == [0, 1]
    assert index.search("submarine") == []


def test_percentiles_are_interpolated() -> None:
    assert common.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert common.percentile([5.0], 95) == 5.0
