"""Sentence models from a folder of this machine, by optional packages; nothing is ever downloaded.

`fastembed` runs ONNX files on the CPU; `sentence-transformers` runs what it can load, with torch. Neither is
in requirements.txt: `pip install -r requirements-extras.txt`, or the one that is wanted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from memories.embedders import EmbedderUnavailable, Vectors, encodable, normalized

Encode = Callable[[list[str], bool], Any]
"""(texts, whether they are queries) -> rows."""


class LocalEmbedder:
    """A sentence model in a folder, loaded on first use, once; safe in threads.

    Recorded under a name that has a hash of the weights in it: other weights, other vectors. A blank text
    gives zeros. A text beyond what the model takes in is cut by the model, which is why long values are
    embedded chunk by chunk.
    """

    BATCH: Final = 32
    weight: float = 0.5
    floor: float = 0.2

    def __init__(self, kind: str, folder: str, load: Callable[[Path], Encode]) -> None:
        self._folder = Path(folder)
        self._load = load
        self._lock = threading.Lock()
        self._encode: Encode | None = None
        self._dim = 0
        self.name = f"{kind}:{self._folder.name[:64]}@{_fingerprint(self._folder)}"

    @property
    def dim(self) -> int:
        """Learnt by embedding a word. Raises EmbedderUnavailable."""
        if not self._dim:
            self._rows(["dimension"], query=False)
        return self._dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. Raises EmbedderUnavailable when the model cannot be loaded."""
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        some = [i for i, text in enumerate(texts) if text.strip()]
        if some:
            rows[some] = self._rows([encodable(texts[i]) for i in some], query=False)
        return rows

    def embed_query(self, text: str) -> Vectors:
        """See `Embedder.embed_query`; a model with a prompt for queries gets it."""
        if not text.strip():
            return np.zeros(self.dim, dtype=np.float32)
        row: Vectors = self._rows([encodable(text)], query=True)[0]
        return row

    def _rows(self, texts: list[str], *, query: bool) -> Vectors:
        try:
            with self._lock:
                if self._encode is None:
                    self._encode = self._load(self._folder)
                encode = self._encode
            rows = np.asarray(encode(texts, query), dtype=np.float32)
        except EmbedderUnavailable:
            raise
        except (
            Exception
        ) as error:  # each runtime has exceptions of its own, and none of them may fail a write
            raise EmbedderUnavailable(f"{self.name}: {type(error).__name__}: {error}"[:500]) from error
        if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
            raise EmbedderUnavailable(f"{self.name} gave {rows.shape} for {len(texts)} texts, or no numbers")
        self._dim = rows.shape[1]
        return normalized(rows)


def _fingerprint(folder: Path) -> str:
    """Of the largest file, which holds the weights. Raises EmbedderUnavailable for a folder without files."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    if not files:
        raise EmbedderUnavailable(f"LOOM_EMBEDDER_PATH: {folder} is no folder with a model in it")
    with max(files, key=lambda path: (path.stat().st_size, str(path))).open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()[:12]


def fastembed(folder: str, model: str) -> LocalEmbedder:
    """An ONNX model in a folder; `model` is the name under which fastembed knows how to pool it."""

    def load(path: Path) -> Encode:
        from fastembed import TextEmbedding

        made = TextEmbedding(model_name=model, specific_model_path=str(path), local_files_only=True)

        def encode(texts: list[str], query: bool) -> Any:
            if query:
                return list(made.query_embed(texts))
            return list(made.passage_embed(texts, batch_size=LocalEmbedder.BATCH))

        return encode

    return LocalEmbedder("fastembed", folder, load)


def sentence_transformers(folder: str) -> LocalEmbedder:
    """A model as `SentenceTransformer.save` writes it."""

    def load(path: Path) -> Encode:
        from sentence_transformers import SentenceTransformer

        made = SentenceTransformer(str(path), device="cpu", local_files_only=True)

        def encode(texts: list[str], query: bool) -> Any:
            way = made.encode_query if query else made.encode_document
            return way(texts, batch_size=LocalEmbedder.BATCH, show_progress_bar=False)

        return encode

    return LocalEmbedder("sentence-transformers", folder, load)
