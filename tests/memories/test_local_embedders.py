"""Models in a local folder: what is missing is named; with the package and a model they embed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from memories import embedders, local_embedders
from memories.embedders import EmbedderUnavailable, get_embedder, reset_embedder
from memories.local_embedders import Encode, LocalEmbedder

KINDS = ["fastembed", "sentence-transformers"]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    reset_embedder()
    yield
    reset_embedder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    return tmp_path


def hashed(folder: Path) -> Encode:
    """Counts of letters, with one more column for queries: a model small enough to read."""

    def encode(texts: list[str], query: bool) -> Any:
        return [[text.count(c) for c in "abcdef"] + [int(query)] for text in texts]

    return encode


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_package_is_named_with_the_way_out(
    settings: Any, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedders, "find_spec", lambda name: None)
    settings.LOOM_EMBEDDER, settings.LOOM_EMBEDDER_PATH = kind, str(folder)
    with pytest.raises(
        ImproperlyConfigured, match=rf"package {kind}: pip install -r requirements-extras.txt"
    ):
        get_embedder()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_or_empty_folder_is_named(
    settings: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedders, "find_spec", lambda name: True)
    settings.LOOM_EMBEDDER, settings.LOOM_EMBEDDER_PATH = kind, ""
    with pytest.raises(ImproperlyConfigured, match="LOOM_EMBEDDER_PATH"):
        get_embedder()
    reset_embedder()
    for path in (tmp_path, tmp_path / "none"):
        settings.LOOM_EMBEDDER_PATH = str(path)
        with pytest.raises(ImproperlyConfigured, match=str(path)):
            get_embedder()
        reset_embedder()


def test_rows_are_normalised_and_blank_texts_are_zero(folder: Path) -> None:
    made = LocalEmbedder("test", str(folder), hashed)
    rows = made.embed(["abc", "", " \n", "ff"])
    assert rows.shape == (4, 7) and made.dim == 7
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 0, 0, 1])
    assert made.embed_query("abc")[-1] > 0
    assert made.embed([]).shape == (0, 7)


def test_other_weights_are_another_name(folder: Path) -> None:
    first = LocalEmbedder("test", str(folder), hashed).name
    assert LocalEmbedder("test", str(folder), hashed).name == first
    (folder / "model.onnx").write_bytes(b"others!")
    assert LocalEmbedder("test", str(folder), hashed).name != first


def test_a_model_that_cannot_be_loaded_is_unavailable(folder: Path) -> None:
    def broken(path: Path) -> Encode:
        raise RuntimeError("not a model")

    with pytest.raises(EmbedderUnavailable, match="not a model"):
        LocalEmbedder("test", str(folder), broken).embed(["a"])


@pytest.mark.parametrize("answer", [[[1.0]], [[float("nan")], [1.0]], [1.0, 2.0]])
def test_a_nonsensical_answer_is_unavailable(folder: Path, answer: Any) -> None:
    with pytest.raises(EmbedderUnavailable):
        LocalEmbedder("test", str(folder), lambda path: lambda texts, query: answer)._rows(
            ["a", "b"], query=False
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_model_of_the_folder_puts_like_beside_like(kind: str) -> None:
    variable = f"LOOM_TEST_{kind.replace('-', '_').upper()}"
    path = os.environ.get(variable)
    if find_spec(kind.replace("-", "_")) is None or not path:
        pytest.skip(f"needs the package {kind} and a model's folder in {variable}")
    if kind == "fastembed":
        made = local_embedders.fastembed(path, "sentence-transformers/all-MiniLM-L6-v2")
    else:
        made = local_embedders.sentence_transformers(path)
    rows = made.embed(["The cat sleeps on the sofa.", "Shares fell on Monday."])
    near = rows @ made.embed_query("Where does the kitten rest?")
    assert near[0] > near[1] + 0.1
