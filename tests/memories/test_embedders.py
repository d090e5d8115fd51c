"""memories.embedders: the default model, and an endpoint on a real socket."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memories import embedders
from memories.embedders import (
    EmbedderUnavailable,
    NoEmbedder,
    OpenAICompatibleEmbedder,
    WordLlamaEmbedder,
    embed_query,
    get_embedder,
    is_zero,
    reset_embedder,
)

Answer = Callable[[dict[str, Any]], tuple[int, Any]]

wordllama = WordLlamaEmbedder()


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing on stderr for a client that hung up, as one that timed out does."""


class Endpoint:
    """A server of POST /v1/embeddings; `answer` maps a request's body to (status, body)."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: (200, vectors_for(body["input"]))
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append({"path": self.path, **body})
                endpoint.headers.append(dict(self.headers))
                status, content = endpoint.answer(body)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on stderr."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def vectors_for(texts: list[str]) -> dict[str, Any]:
    """Three dimensions from a text's length and first character, in an order that is not the input's."""
    items = [{"index": i, "embedding": [len(text), ord(text[0]), 1]} for i, text in enumerate(texts)]
    return {"data": items[::-1]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture
def client(endpoint: Endpoint) -> OpenAICompatibleEmbedder:
    return OpenAICompatibleEmbedder(endpoint.url, "tiny", "s3cret", timeout_seconds=5, backoff_seconds=0.001)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset_embedder()
    yield
    reset_embedder()


def similarity(query: str, text: str) -> float:
    return float(wordllama.embed([text])[0] @ wordllama.embed_query(query))


# The default embedder


@hypothesis_settings(deadline=None)  # The first example loads the model.
@given(st.lists(st.text(st.characters(), max_size=80), max_size=5))
def test_every_text_has_a_row_of_length_1_or_0(texts: list[str]) -> None:
    rows = wordllama.embed(texts)
    assert rows.shape == (len(texts), wordllama.dim)
    assert rows.dtype == np.float32
    for row in [*rows, *(wordllama.embed_query(text) for text in texts)]:
        assert is_zero(row) or np.linalg.norm(row) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_blank_text_has_a_zero_vector(text: str) -> None:
    assert is_zero(wordllama.embed([text])[0])
    assert is_zero(wordllama.embed_query(text))


def test_a_text_is_nearer_to_what_it_is_about() -> None:
    query = "what is my favourite colour?"
    assert similarity(query, "favorite_color: blue") > wordllama.floor
    assert similarity(query, "deploys run on Friday with make release") < wordllama.floor


def test_a_text_of_few_words_is_less_near_than_one_that_says_more() -> None:
    assert similarity("camping in the mountains", "camping!") < similarity(
        "camping in the mountains", "We went camping in the mountains with tents and a fire"
    )


def test_the_same_text_has_the_same_vector_alone_and_in_a_batch() -> None:
    texts = ["one", "another text", "of the batch"]
    assert np.array_equal(wordllama.embed(texts), np.concatenate([wordllama.embed([text]) for text in texts]))


def test_a_long_text_is_embedded_to_its_end() -> None:
    beginning = "weather " * 5_000
    assert not np.allclose(wordllama.embed([beginning]), wordllama.embed([beginning + "submarine " * 5_000]))
    assert wordllama.embed(["的" * 87_000]).shape == (1, 256)


def test_threads_that_start_together_load_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    read = WordLlamaEmbedder._read
    monkeypatch.setattr(WordLlamaEmbedder, "_read", staticmethod(lambda: loads.append(1) or read()))
    embedder = WordLlamaEmbedder()
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda _: embedder.embed(["hello"])[0], range(16)))
    assert len(loads) == 1
    assert all(np.array_equal(row, rows[0]) for row in rows)


def test_loading_leaves_the_logging_of_the_process_alone() -> None:
    before = (logging.root.level, list(logging.root.handlers))
    WordLlamaEmbedder().embed(["hello"])
    assert (logging.root.level, list(logging.root.handlers)) == before


def test_missing_weights_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "find_spec", lambda name: None)
    with pytest.raises(EmbedderUnavailable, match="not installed"):
        WordLlamaEmbedder().embed(["hello"])


# An endpoint


def test_rows_come_back_in_the_order_of_the_texts_and_normalised(
    endpoint: Endpoint, client: OpenAICompatibleEmbedder
) -> None:
    rows = client.embed(["aaaa", "b"])
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1])
    assert rows[0] / rows[0][2] == pytest.approx([4, ord("a"), 1])
    assert rows[1] / rows[1][2] == pytest.approx([1, ord("b"), 1])
    assert client.dim == 3
    assert endpoint.requests[0]["path"] == "/v1/embeddings"
    assert endpoint.requests[0]["model"] == "tiny"
    assert endpoint.headers[0]["Authorization"] == "Bearer s3cret"


def test_the_dimension_is_asked_for_when_unknown(client: OpenAICompatibleEmbedder) -> None:
    assert client.dim == 3


def test_many_texts_go_out_in_batches(endpoint: Endpoint, client: OpenAICompatibleEmbedder) -> None:
    assert client.embed([f"text {i}" for i in range(150)]).shape == (150, 3)
    assert [len(request["input"]) for request in endpoint.requests] == [64, 64, 22]


def test_a_long_text_goes_out_in_windows_and_comes_back_as_one_row(endpoint: Endpoint) -> None:
    client = OpenAICompatibleEmbedder(endpoint.url, "tiny", window=10)
    assert client.embed(["x" * 25, "y"]).shape == (2, 3)
    assert endpoint.requests[0]["input"] == ["x" * 10, "x" * 10, "x" * 5, "y"]


def test_a_blank_text_is_not_sent(endpoint: Endpoint, client: OpenAICompatibleEmbedder) -> None:
    rows = client.embed(["", "text", " "])
    assert [is_zero(row) for row in rows] == [True, False, True]
    assert endpoint.requests[0]["input"] == ["text"]
    assert client.embed(["", " "]).shape == (2, 3)
    assert is_zero(client.embed_query(""))


def test_a_lone_surrogate_is_sent_as_a_replacement_character(
    endpoint: Endpoint, client: OpenAICompatibleEmbedder
) -> None:
    client.embed(["a\ud83d"])
    assert endpoint.requests[0]["input"] == ["a\ufffd"]


def test_a_passing_fault_is_retried(endpoint: Endpoint, client: OpenAICompatibleEmbedder) -> None:
    statuses = iter([503, 429, 200])
    endpoint.answer = lambda body: (next(statuses), vectors_for(body["input"]))
    assert client.embed(["text"]).shape == (1, 3)
    assert len(endpoint.requests) == 3


def test_a_refusal_is_not_retried(endpoint: Endpoint, client: OpenAICompatibleEmbedder) -> None:
    endpoint.answer = lambda body: (401, {"error": "no"})
    with pytest.raises(EmbedderUnavailable, match="401"):
        client.embed(["text"])
    assert len(endpoint.requests) == 1


def test_after_repeated_faults_the_endpoint_is_left_alone_and_then_tried_again(
    endpoint: Endpoint, client: OpenAICompatibleEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.answer = lambda body: (400, {})
    for _ in range(client.TRIP_AFTER):
        with pytest.raises(EmbedderUnavailable, match="400"):
            client.embed(["text"])
    asked = len(endpoint.requests)
    with pytest.raises(EmbedderUnavailable, match="left alone"):
        client.embed(["text"])
    assert len(endpoint.requests) == asked

    endpoint.answer = lambda body: (200, vectors_for(body["input"]))
    monkeypatch.setattr(client, "_open_until", 0.0)
    assert client.embed(["text"]).shape == (1, 3)


def test_nobody_listening_is_unavailable() -> None:
    server = Endpoint()
    url = server.url
    server.close()
    with pytest.raises(EmbedderUnavailable, match="ConnectError"):
        OpenAICompatibleEmbedder(url, "tiny", backoff_seconds=0.001).embed(["text"])


def test_a_slow_endpoint_is_unavailable(endpoint: Endpoint) -> None:
    release = threading.Event()
    endpoint.answer = lambda body: (release.wait(20) and 200 or 200, {})
    client = OpenAICompatibleEmbedder(endpoint.url, "tiny", timeout_seconds=0.05, backoff_seconds=0.001)
    with pytest.raises(EmbedderUnavailable, match="ReadTimeout"):
        client.embed(["text"])
    release.set()


@pytest.mark.parametrize("url", ["ftp://host/v1", "no url", "http://[::1/v1"])
def test_a_url_that_is_none_is_unavailable(url: str) -> None:
    with pytest.raises(EmbedderUnavailable):
        OpenAICompatibleEmbedder(url, "tiny", backoff_seconds=0.001).embed(["text"])


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"data": 1}',
        b'{"data": []}',
        b'{"data": [{"index": 0}]}',
        b'{"data": [{"embedding": [1]}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": 1}]}',
        b'{"data": [{"index": 0, "embedding": [[1]]}]}',
        b'{"data": [{"index": 0, "embedding": ["x"]}]}',
        b'{"data": [{"index": 0, "embedding": [null, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [1e999, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [-Infinity, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [1e300, 1]}]}',
        b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]}]}',
    ],
)
def test_a_nonsensical_answer_is_unavailable(
    endpoint: Endpoint, client: OpenAICompatibleEmbedder, body: bytes
) -> None:
    endpoint.answer = lambda _: (200, body)
    with pytest.raises(EmbedderUnavailable):
        client.embed(["text"])


def test_another_dimension_than_before_is_unavailable(
    endpoint: Endpoint, client: OpenAICompatibleEmbedder
) -> None:
    client.embed(["text"])
    endpoint.answer = lambda body: (200, {"data": [{"index": 0, "embedding": [1, 2]}]})
    with pytest.raises(EmbedderUnavailable, match="dimensions"):
        client.embed(["text"])


def test_a_zero_vector_stays_zero(endpoint: Endpoint, client: OpenAICompatibleEmbedder) -> None:
    endpoint.answer = lambda body: (200, {"data": [{"index": 0, "embedding": [0, 0]}]})
    assert is_zero(client.embed(["text"])[0])


def test_names_differ_where_vectors_do() -> None:
    names = {
        OpenAICompatibleEmbedder(url, model).name
        for url in ("http://a/v1", "http://b/v1")
        for model in ("m", "n")
    }
    assert len(names) == 4


# The choice by settings


def test_the_setting_names_the_embedder(settings: Any) -> None:
    settings.LOOM_EMBEDDER = "wordllama"
    assert isinstance(get_embedder(), WordLlamaEmbedder)
    assert get_embedder() is get_embedder()
    reset_embedder()
    settings.LOOM_EMBEDDER = "none"
    assert isinstance(get_embedder(), NoEmbedder)
    assert get_embedder().embed(["a", "b"]).shape == (2, 0)
    reset_embedder()
    settings.LOOM_EMBEDDER, settings.LOOM_EMBEDDER_URL, settings.LOOM_EMBEDDER_MODEL = (
        "openai",
        "http://a/v1",
        "m",
    )
    assert get_embedder().name.startswith("openai:m@")


def test_a_wrong_setting_is_named(settings: Any) -> None:
    settings.LOOM_EMBEDDER = "word2vec"
    with pytest.raises(ImproperlyConfigured, match="LOOM_EMBEDDER='word2vec'"):
        get_embedder()
    settings.LOOM_EMBEDDER, settings.LOOM_EMBEDDER_URL, settings.LOOM_EMBEDDER_MODEL = "openai", "", "m"
    with pytest.raises(ImproperlyConfigured, match="LOOM_EMBEDDER_URL"):
        get_embedder()


def test_a_query_is_embedded_once(settings: Any, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LOOM_EMBEDDER, settings.LOOM_EMBEDDER_URL, settings.LOOM_EMBEDDER_MODEL = (
        "openai",
        endpoint.url,
        "m",
    )
    monkeypatch.setattr(embedders, "QUERY_CACHE", 2)
    first = embed_query("one")
    assert embed_query("one") is first
    assert len(endpoint.requests) == 1
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    for text in ("two", "three", "one"):
        embed_query(text)
    assert [request["input"] for request in endpoint.requests] == [["one"], ["two"], ["three"], ["one"]]
