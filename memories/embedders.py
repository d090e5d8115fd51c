"""Embedders: texts to vectors for the semantic leg of the search.

Every embedder gives L2-normalised float32 rows, so the inner product of two rows is their cosine
similarity, in [-1, 1]. A text without content has a row of zeros, which is near nothing: `is_zero` tells,
and such a row must not be indexed.

Chosen by the setting `LOOM_EMBEDDER`: `wordllama` (default; weights in the wheel, no network), `openai`
(any endpoint that speaks `POST /v1/embeddings`: Ollama, vLLM, TEI, OpenAI), `fastembed` or
`sentence-transformers` (a model in the folder LOOM_EMBEDDER_PATH; see `memories.local_embedders`), or `none`
(keywords only).
"""

import hashlib
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import httpx

Vectors = npt.NDArray[np.float32]

_HUGE: Final = 1e30  # Beyond it the squares in a norm overflow float64 for any usual dimension.

QUERY_CACHE: Final = 4096
"""Query embeddings kept per process (256 dimensions: 4 MiB)."""


class EmbedderUnavailable(Exception):
    """No embedding can be had now: no embedder configured, endpoint down, slow, or answering nonsense.

    A write goes on without its embedding, a search goes on with keywords, and both say so.
    """


class Embedder(Protocol):
    """What the write gateway and the search need of an embedder."""

    @property
    def name(self) -> str:
        """Recorded with every row. Rows of another name are not comparable, whatever their dimension."""

    @property
    def dim(self) -> int:
        """Length of every row."""

    @property
    def weight(self) -> float:
        """Share of the semantic leg in the mix, in [0, 1]; see `memories.ranking.mix`."""

    @property
    def floor(self) -> float:
        """Cosine similarity below which nothing counts as near the query."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Stored texts: [len(texts), dim] float32, rows of length 1, or 0 for a text without content.

        Raises EmbedderUnavailable.
        """

    def embed_query(self, text: str) -> Vectors:
        """A question put to them: [dim]. Not `embed` for every model. Raises EmbedderUnavailable."""


def is_zero(vector: npt.ArrayLike) -> bool:
    """Whether a row stands for a text without content. It has no direction: store no vector for it."""
    return not np.any(vector)


def normalized(rows: npt.NDArray[Any]) -> Vectors:
    """Rows scaled to length 1; rows of zeros stay zeros."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0).astype(np.float32)
    return scaled


class WordLlamaEmbedder:
    """Static token embeddings, pooled (wordllama `l2_supercat`, 256 dimensions, 16 MB, MIT).

    Two changes to plain average pooling lift turn recall@10 on LoCoMo from 0.42 to 0.54 (semantic leg
    alone):
    - the vocabulary's mean vector is taken off every token (Mu & Viswanath 2018, "All-but-the-top");
    - a stored text gets `PRIOR` as its last coordinate before it is scaled to length 1. So a text of few
      words, which says little, is less near: its similarities shrink by |s| / sqrt(|s|^2 + PRIOR^2), s
      being the sum of its tokens, each about 13 long. Cosine alone ranks "Wow!" above the turn with the
      answer. 40 to 60 would score higher still on chat; 30 is kept for memories, which are short and to the
      point. A query has 0 there.

    A text of any length is taken whole: it is tokenised in windows of `WINDOW` characters and all tokens
    weigh the same, so the order of the windows does not matter and nothing is cut off. Loads on first use,
    once, in about 0.2 s; safe in threads. The tokeniser is called text by text, for its batch call starts
    threads that do not survive a fork.
    """

    WINDOW: Final = 8192
    PRIOR: Final = 30.0
    name: Final = "wordllama-l2-supercat-256-centred-30"
    dim: Final = 256
    weight: float = 0.5
    floor: float = 0.2  # Short memories: what answers a question has 0.35-0.5, what does not, below 0.15.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: tuple[Any, Vectors] | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. A blank text gives zeros. Raises EmbedderUnavailable without the weights."""
        rows = self._sums(texts)
        rows[np.any(rows, axis=1), -1] = self.PRIOR
        return normalized(rows)

    def embed_query(self, text: str) -> Vectors:
        """See `Embedder.embed_query`."""
        row: Vectors = normalized(self._sums([text]))[0]
        return row

    def _sums(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), dim]: the sum of each text's centred tokens, the last coordinate left at 0."""
        tokenizer, weights = self._model or self._load()
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            text = encodable(text)
            if not text.strip():
                continue
            for start in range(0, len(text), self.WINDOW):
                ids = tokenizer.encode(text[start : start + self.WINDOW], add_special_tokens=False).ids
                if ids:
                    row += weights[ids].sum(axis=0)
        return rows

    def _load(self) -> tuple[Any, Vectors]:
        with self._lock:
            if self._model is None:
                self._model = self._read()
            return self._model

    @staticmethod
    def _read() -> tuple[Any, Vectors]:
        """The two files of the wheel, read without importing the package.

        `import wordllama` configures the root logger to INFO, and would bring the code that downloads.
        """
        spec = find_spec("wordllama")
        if spec is None or not spec.submodule_search_locations:
            raise EmbedderUnavailable("the package wordllama is not installed")
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        package = Path(spec.submodule_search_locations[0])
        try:
            vocabulary = (package / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text("utf-8")
            stored = load_file(package / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
        except (OSError, KeyError, SafetensorError) as error:
            raise EmbedderUnavailable(f"wordllama cannot be loaded: {error}") from error
        tokenizer = Tokenizer.from_str(vocabulary)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        weights = stored.astype(np.float32)
        weights -= weights.mean(axis=0)
        weights[:, -1] = 0
        return tokenizer, weights


class OpenAICompatibleEmbedder:
    """An endpoint that speaks OpenAI's `POST {base_url}/embeddings`.

    Retries, within `DEADLINE_SECONDS` in all, time-outs, connection faults, 429 and 5xx with jittered
    exponential back-off (`Retry-After` is honoured up to a bound); after `TRIP_AFTER` failed calls in a row
    the circuit opens, and for `REST_SECONDS` every call fails at once, so that a dead endpoint does not
    slow each write. Long texts are cut into windows of `window` characters; the normalised vectors of the
    windows are averaged, each by its length in characters.
    """

    BATCH: Final = 64
    ATTEMPTS: Final = 3
    BACKOFF_SECONDS: Final = 0.2
    MAX_WAIT_SECONDS: Final = 2.0
    DEADLINE_SECONDS: Final = 10.0
    TRIP_AFTER: Final = 3
    REST_SECONDS: Final = 15.0
    weight: float = 0.4
    floor: float = 0.2

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str = "",
        *,
        timeout_seconds: float = 5.0,
        window: int = 6000,
        backoff_seconds: float = BACKOFF_SECONDS,
    ) -> None:
        self.name = f"openai:{model}@{hashlib.sha256(base_url.encode()).hexdigest()[:8]}"
        self._url = base_url.rstrip("/") + "/embeddings"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout_seconds
        self._window = window
        self._backoff = backoff_seconds
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._dim = 0
        self._failures = 0
        self._open_until = 0.0

    @property
    def dim(self) -> int:
        """Learnt from the first answer; asked for when still unknown. Raises EmbedderUnavailable."""
        if not self._dim:
            self._call(["dimension"])
        return self._dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. Raises EmbedderUnavailable, and so for NaN and a changed dimension."""
        windows: list[str] = []
        owners: list[int] = []
        for owner, text in enumerate(texts):
            text = encodable(text)
            for start in range(0, len(text), self._window):
                window = text[start : start + self._window]
                if window.strip():
                    windows.append(window)
                    owners.append(owner)
        if not windows:
            return np.zeros((len(texts), self.dim), dtype=np.float32)
        parts = [
            self._call(windows[start : start + self.BATCH]) for start in range(0, len(windows), self.BATCH)
        ]
        lengths = np.array([[len(window)] for window in windows], dtype=np.float32)
        vectors = np.concatenate(parts) * lengths
        rows = np.zeros((len(texts), self._dim), dtype=np.float32)
        np.add.at(rows, owners, vectors)
        return normalized(rows)

    def embed_query(self, text: str) -> Vectors:
        """See `Embedder.embed_query`."""
        row: Vectors = self.embed([text])[0]
        return row

    def _call(self, batch: list[str]) -> Vectors:
        if time.monotonic() < self._open_until:
            raise EmbedderUnavailable("the embedding endpoint failed repeatedly and is left alone")
        try:
            vectors = self._checked(self._post(batch), len(batch))
        except EmbedderUnavailable:
            with self._lock:
                self._failures += 1
                if self._failures >= self.TRIP_AFTER:
                    self._open_until = time.monotonic() + self.REST_SECONDS
            raise
        with self._lock:
            self._failures = 0
            if self._dim and vectors.shape[1] != self._dim:
                raise EmbedderUnavailable(
                    f"the endpoint answered {vectors.shape[1]} dimensions, before {self._dim}"
                )
            self._dim = vectors.shape[1]
        return vectors

    def _post(self, batch: list[str]) -> Any:
        """The decoded body of a 200 answer. Raises EmbedderUnavailable after bounded retries."""
        import httpx

        started = time.monotonic()
        for attempt in range(1, self.ATTEMPTS + 1):
            wait = self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311 (jitter, no secret)
            try:
                answer = self._http().post(
                    self._url, json={"model": self._model, "input": batch}, headers=self._headers
                )
            except httpx.TransportError as error:
                reason = type(error).__name__
            except httpx.InvalidURL as error:
                raise EmbedderUnavailable(f"LOOM_EMBEDDER_URL: {error}") from error
            else:
                if answer.status_code == 200:
                    try:
                        return answer.json()
                    except ValueError as error:
                        raise EmbedderUnavailable("the embedding endpoint answered no JSON") from error
                reason = f"HTTP {answer.status_code}"
                if answer.status_code != 429 and answer.status_code < 500:
                    break
                wait = max(wait, _retry_after(answer.headers.get("Retry-After")))
            wait = min(wait, self.MAX_WAIT_SECONDS)
            if attempt == self.ATTEMPTS or time.monotonic() - started + wait > self.DEADLINE_SECONDS:
                break
            time.sleep(wait)
        raise EmbedderUnavailable(f"the embedding endpoint failed: {reason}")

    def _checked(self, body: Any, count: int) -> Vectors:
        """[count, dim], normalised, from an answer's body, in the order of the input."""
        try:
            items = sorted(body["data"], key=lambda item: int(item["index"]))
            vectors = np.array([item["embedding"] for item in items], dtype=np.float64)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise EmbedderUnavailable(
                f"the embedding endpoint's answer has another shape: {error!r}"
            ) from error
        if vectors.ndim != 2 or vectors.shape[0] != count or not vectors.shape[1]:
            raise EmbedderUnavailable(f"the embedding endpoint answered {vectors.shape} for {count} texts")
        if not (np.abs(vectors) < _HUGE).all():
            raise EmbedderUnavailable("the embedding endpoint answered NaN, infinities or absurd numbers")
        return normalized(vectors)

    def _http(self) -> "httpx.Client":
        import httpx

        with self._lock:
            if self._client is None:
                self._client = httpx.Client(timeout=self._timeout)
            return self._client


class NoEmbedder:
    """`LOOM_EMBEDDER=none`: searches by keyword only. Not a fault, so `embed` gives rows of no columns."""

    name: Final = "none"
    dim: Final = 0
    weight: Final = 0.0
    floor: Final = 0.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), 0]"""
        return np.zeros((len(texts), 0), dtype=np.float32)

    def embed_query(self, text: str) -> Vectors:
        """[0]"""
        return np.zeros(0, dtype=np.float32)


def encodable(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which no tokeniser and no UTF-8 body takes."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _retry_after(header: str | None) -> float:
    """Seconds of a numeric Retry-After header; 0 for none or a date (the back-off then applies)."""
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


@lru_cache(maxsize=1)
def get_embedder() -> Embedder:
    """The embedder that the settings name, one per process. Raises ImproperlyConfigured naming it."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    match getattr(settings, "LOOM_EMBEDDER", "wordllama"):
        case "wordllama":
            return WordLlamaEmbedder()
        case "none":
            return NoEmbedder()
        case "openai":
            url, model = (
                getattr(settings, "LOOM_EMBEDDER_URL", ""),
                getattr(settings, "LOOM_EMBEDDER_MODEL", ""),
            )
            if not url or not model:
                raise ImproperlyConfigured(
                    "LOOM_EMBEDDER=openai needs LOOM_EMBEDDER_URL, LOOM_EMBEDDER_MODEL"
                )
            return OpenAICompatibleEmbedder(url, model, getattr(settings, "LOOM_EMBEDDER_API_KEY", ""))
        case "fastembed" | "sentence-transformers" as kind:
            return _local(kind)
        case other:
            raise ImproperlyConfigured(
                f"LOOM_EMBEDDER={other!r}: expected wordllama, openai, fastembed, sentence-transformers, none"
            )


def _local(kind: str) -> Embedder:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    from memories import local_embedders

    package, folder = kind.replace("-", "_"), getattr(settings, "LOOM_EMBEDDER_PATH", "")
    if find_spec(package) is None:
        raise ImproperlyConfigured(
            f"LOOM_EMBEDDER={kind} needs the package {kind}: pip install -r requirements-extras.txt"
        )
    if not folder:
        raise ImproperlyConfigured(f"LOOM_EMBEDDER={kind} needs LOOM_EMBEDDER_PATH, the folder of the model")
    try:
        if kind == "fastembed":
            model = getattr(settings, "LOOM_EMBEDDER_MODEL", "") or "sentence-transformers/all-MiniLM-L6-v2"
            return local_embedders.fastembed(folder, model)
        return local_embedders.sentence_transformers(folder)
    except EmbedderUnavailable as error:
        raise ImproperlyConfigured(str(error)) from error


_queries: OrderedDict[tuple[str, str], Vectors] = OrderedDict()
_queries_lock = threading.Lock()


def embed_query(text: str) -> Vectors:
    """[dim] for one query by the configured embedder, remembered. Read-only. Raises EmbedderUnavailable."""
    embedder = get_embedder()
    key = (embedder.name, text)
    with _queries_lock:
        if key in _queries:
            _queries.move_to_end(key)
            return _queries[key]
    vector = embedder.embed_query(text)
    vector.flags.writeable = False
    with _queries_lock:
        _queries[key] = vector
        while len(_queries) > QUERY_CACHE:
            _queries.popitem(last=False)
    return vector


def reset_embedder() -> None:
    """Forget the embedder and the queries; the next call reads the settings again."""
    get_embedder.cache_clear()
    with _queries_lock:
        _queries.clear()
