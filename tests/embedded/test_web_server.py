"""The web server as `make run` starts it, spoken to on bare sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.embedded.running import Running, eventually


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One running system for the whole file."""
    running = Running(tmp_path_factory.mktemp("web") / "home")
    try:
        running.start()
        yield running
    finally:
        running.end()


def _dial(served: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 30)


def _head(served: Running, method: str, path: str, *lines: str, token: bool = True) -> bytes:
    fixed = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{served.port}"]
    if token:
        fixed.append(f"Authorization: Bearer {served.connection()['token']}")
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def _answer(line: socket.socket, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = line.recv(65536)
        if not more:
            raise ConnectionError(f"hung up after {got[:200]!r}")
        got += more
    head, _, rest = got.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    while body and len(rest) < int(headers["content-length"]):
        rest += line.recv(65536)
    return int(first.split()[1]), headers, rest


def _call(served: Running, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with _dial(served) as line:
        line.sendall(request)
        return _answer(line)


def _health_seconds(served: Running) -> float:
    began = time.monotonic()
    assert _call(served, _head(served, "GET", "/v1/health", token=False))[0] == 200
    return time.monotonic() - began


@pytest.mark.parametrize(
    "begun",
    [
        b"POST /v1/memory.get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /console/login/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"POST /v1/memory.get HTTP/1.1\r\nHost: loc",
        b"",
    ],
    ids=["body", "chunk", "headers", "nothing"],
)
def test_two_hundred_slow_sockets_hold_up_no_other_request(served: Running, begun: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(_dial(served)).sendall(begun)
        time.sleep(0.3)
        assert _health_seconds(served) < 1.0
        body = b'{"memory_key": "slow/none"}'
        head = _head(
            served, "POST", "/v1/memory.get", "Content-Type: application/json", f"Content-Length: {len(body)}"
        )
        assert _call(served, head + body)[0] == 200


@pytest.mark.parametrize("drip", [b"{", b"x"])
def test_a_body_that_drips_is_given_up(served: Running, drip: bytes) -> None:
    with _dial(served) as line:
        line.sendall(_head(served, "POST", "/v1/memory.get", "Content-Length: 1000"))
        began = time.monotonic()
        line.settimeout(1.0)
        while time.monotonic() - began < 25:
            try:
                line.sendall(drip)
                status, headers, body = _answer(line)
            except TimeoutError:
                continue
            assert status == 408
            assert headers["connection"] == "close"
            assert json.loads(body)["detail"]["message"].startswith("The body did not come within")
            return
    pytest.fail("the server still waits for the body")


def test_headers_that_drip_are_given_up(served: Running) -> None:
    with _dial(served) as line:
        line.sendall(b"GET /v1/health HTTP/1.1\r\n")
        line.settimeout(1.0)
        began = time.monotonic()
        while time.monotonic() - began < 25:
            try:
                line.sendall(b"X-Drip: 1\r\n")
                got = line.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                return
            assert not got or b" 408 " in got.split(b"\r\n")[0]
            return
    pytest.fail("the server still waits for the headers")


def test_a_body_of_twelve_megabytes_is_413_in_the_envelope_of_every_error(served: Running) -> None:
    size = 12 * 1024 * 1024
    for path in ("/v1/memory.set", "/console/login/"):
        status, _, body = _call(served, _head(served, "POST", path, f"Content-Length: {size}") + b"x" * size)
        assert status == 413
        assert len(body) < 400
        assert json.loads(body)["detail"]["code"] == "TOO_LARGE"


def test_a_body_of_unknown_length_is_measured_too(served: Running) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    request = _head(served, "POST", "/v1/memory.set", "Transfer-Encoding: chunked") + chunk * 100
    status, _, body = _call(served, request + b"0\r\n\r\n")
    assert (status, json.loads(body)["detail"]["code"]) == (413, "TOO_LARGE")


def test_whoever_asks_before_sending_too_much_is_told_at_once(served: Running) -> None:
    request = _head(served, "POST", "/v1/memory.set", "Content-Length: 12000000", "Expect: 100-continue")
    assert _call(served, request)[0] == 413


def test_a_chunked_body_is_read_as_a_whole_one(served: Running) -> None:
    head = _head(
        served, "POST", "/v1/memory.set", "Content-Type: application/json", "Transfer-Encoding: chunked"
    )
    body = b'10\r\n{"memory_key": "\r\nc\r\nchunked/one"\r\ne\r\n,"value":"x" }\r\n0\r\n\r\n'
    status, _, answer = _call(served, head + body)
    assert (status, json.loads(answer)["memory_key"]) == (200, "chunked/one")


@pytest.mark.parametrize("body", [b"zz\r\n", b"2\r\n{}}\r\n0\r\n\r\n"])
def test_a_badly_framed_body_is_400(served: Running, body: bytes) -> None:
    request = _head(served, "POST", "/v1/memory.get", "Transfer-Encoding: chunked") + body
    status, _, answer = _call(served, request)
    assert (status, json.loads(answer)["detail"]["code"]) == (400, "INVALID_ARGUMENT")


def test_a_connection_is_kept_and_head_and_options_are_answered_on_it(served: Running) -> None:
    with _dial(served) as line:
        line.sendall(_head(served, "HEAD", "/v1/health"))
        status, headers, rest = _answer(line, body=False)
        assert (status, headers["content-length"], rest) == (200, "15", b"")
        line.sendall(_head(served, "OPTIONS", "/v1/memory.get"))
        status, headers, _ = _answer(line)
        assert (status, headers["allow"]) == (405, "POST")
        assert "access-control-allow-origin" not in headers
        line.sendall(_head(served, "GET", "/v1/health"))
        assert _answer(line)[2] == b'{"status":"ok"}'


def test_the_peer_is_the_other_end_of_the_connection(served: Running) -> None:
    """Without a token, only the address of the peer makes a call the owner's."""
    request = _head(served, "POST", "/v1/ops.whoami", "Content-Length: 2", token=False) + b"{}"
    status, _, body = _call(served, request)
    assert (status, json.loads(body)["principal"]) == (200, "owner")


@pytest.mark.parametrize("name", ["X-Forwarded-For", "x_forwarded_for"])
def test_a_name_with_an_underscore_passes_for_no_header(served: Running, name: str) -> None:
    request = _head(served, "POST", "/v1/ops.whoami", f"{name}: 8.8.8.8", "Content-Length: 2", token=False)
    assert _call(served, request + b"{}")[0] == (401 if "-" in name else 200)


def test_static_files_are_served_with_their_kind(served: Running) -> None:
    status, headers, body = _call(served, _head(served, "GET", "/static/admin/css/base.css"))
    assert status == 200
    assert headers["content-type"].startswith("text/css")
    assert len(body) == int(headers["content-length"]) > 10_000


def test_a_request_that_runs_is_finished_when_the_server_is_told_to_end(served: Running) -> None:
    """The write waits for a row lock while SIGTERM arrives; it is answered, and then the process goes."""
    services = json.loads((served.home / "run" / "services.json").read_text())
    before = served.pids()["web"]
    body = json.dumps({"memory_key": "chunked/one", "value": "later"}).encode()
    request = _head(
        served, "POST", "/v1/memory.set", "Content-Type: application/json", f"Content-Length: {len(body)}"
    )
    statuses: list[int] = []
    with psycopg.connect(services["database_url"]) as holder:
        holder.execute("LOCK TABLE memories_memory IN EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: statuses.append(_call(served, request + body)[0]))
        thread.start()
        time.sleep(0.7)

        os.kill(before, signal.SIGTERM)
        time.sleep(1.0)
        assert not statuses
        holder.rollback()
        thread.join(20)
    assert statuses == [200]
    eventually(
        "another web server", lambda: served.pids().get("web") not in (None, before) and served.ready()
    )


def test_a_frozen_database_makes_the_server_not_ready_and_leaves_it_alive(served: Running) -> None:
    """Twice as many calls as there are threads wait; the probes answer beside them, and all goes on after."""
    postmaster = served.pids()["postgres"]
    backends = [
        int(pid) for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    ]
    body = b'{"memory_key": "frozen"}'
    head = _head(
        served, "POST", "/v1/memory.get", "Content-Type: application/json", f"Content-Length: {len(body)}"
    )
    frozen = [postmaster, *backends]
    with contextlib.ExitStack() as stack:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        for _ in range(16):
            stack.enter_context(_dial(served)).sendall(head + body)
        for _ in range(3):
            began = time.monotonic()
            status, _, answer = _call(served, _head(served, "GET", "/v1/ready"))
            assert time.monotonic() - began < 5.0
            assert (status, json.loads(answer)["status"]) == (503, "not ready")
            assert _health_seconds(served) < 1.0
    eventually("ready again", served.ready)


def test_large_bodies_leave_no_file_behind(served: Running, tmp_path: Path) -> None:
    value = "x" * 700_000
    body = json.dumps({"query": value}).encode()
    head = _head(
        served, "POST", "/v1/memory.search", "Content-Type: application/json", f"Content-Length: {len(body)}"
    )
    assert _call(served, head + body)[0] in (200, 400, 413)
    pid = served.pids()["web"]
    for folder in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        links = [str(link.readlink()) for link in Path(f"/proc/{folder}/fd").iterdir() if link.is_symlink()]
        assert not [link for link in links if "(deleted)" in link and "tmp" in link]
