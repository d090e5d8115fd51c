"""Who may act for the local owner without a token."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from loomsite.doors.guards import FORWARDING_HEADERS, bearer_token, is_local_call, split_host
from loomsite.doors.rest import credentials


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1:8321", "localhost:8321", "LOCALHOST:8321", "[::1]:8321", "localhost"]
)
def test_a_plain_call_from_this_machine_is_local(peer: str, host: str) -> None:
    assert is_local_call(peer, host, None, False)


@pytest.mark.parametrize(
    "peer", ["192.168.1.4", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", "localhost", "::1%lo", "unix"]
)
def test_another_peer_is_not_local_whatever_it_says(peer: str) -> None:
    assert not is_local_call(peer, "127.0.0.1:8321", None, False)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8321", "127.0.0.1.evil.example", "localhost.evil.example",
        "localhost@evil.example",
        "evil.example@localhost", "0.0.0.0:8321", "192.168.1.4:8321", "", "localhost:8321:1", "[::1", "::1",
        "localhost:",
        "localhost.", " localhost", "localhost\n", "2130706433", "127.1", "localhost:99999999",
    ],
)  # fmt: skip
def test_a_foreign_or_malformed_host_is_not_local(host: str) -> None:
    assert not is_local_call("127.0.0.1", host, None, False)


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8321", "http://localhost:8321", "https://[::1]:8321"])
def test_a_page_of_the_server_itself_is_local(origin: str) -> None:
    assert is_local_call("127.0.0.1", "127.0.0.1:8321", origin, False)


def test_an_origin_without_a_port_means_the_port_of_its_scheme() -> None:
    assert is_local_call("127.0.0.1", "localhost", "http://localhost", False)
    assert is_local_call("127.0.0.1", "localhost:80", "http://localhost", False)
    assert not is_local_call("127.0.0.1", "localhost:8321", "http://localhost", False)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "https://evil.example:8321", "null", "", "file://", "http://localhost:3000",
        "http://localhost:8321@evil.example", "http://localhost:8321.evil.example", "chrome-extension://abc",
        "http://localhost:port", "http://localhost:8321/path", "http://[::1",
    ],
)  # fmt: skip
def test_a_foreign_origin_is_not_local(origin: str) -> None:
    assert not is_local_call("127.0.0.1", "localhost:8321", origin, False)


@pytest.mark.parametrize(
    "name",
    [
        "CF-Connecting-IP", "X-Client-IP", "True-Client-IP", "X-Forwarded", "X-Forwarded-Server",
        "X-Cluster-Client-IP", "Fastly-Client-IP", "X-Forwarded-For", "X-Real-IP", "Via", "Forwarded",
    ],
)  # fmt: skip
def test_every_header_of_a_proxy_gives_it_away(name: str) -> None:
    assert name.lower() in FORWARDING_HEADERS
    meta = f"HTTP_{name.upper().replace('-', '_')}"
    http = RequestFactory().post("/v1/x", headers={"host": "localhost"}, **{meta: "8.8.8.8"})
    assert not credentials(http).is_local
    assert credentials(RequestFactory().post("/v1/x", headers={"host": "localhost"})).is_local


def test_a_forwarded_call_is_not_local() -> None:
    assert not is_local_call("127.0.0.1", "localhost:8321", None, True)


def test_a_host_is_split_into_name_and_port() -> None:
    assert split_host("[::1]:8321") == ("::1", 8321)
    assert split_host("example.org") == ("example.org", None)
    assert split_host("a b") is None


def test_a_bearer_token_is_taken_from_its_header() -> None:
    assert bearer_token("Bearer loom_a_b") == "loom_a_b"
    assert bearer_token("bearer  loom_a_b ") == "loom_a_b"
    assert bearer_token(None) is None


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dTpw", "loom_a_b"])
def test_a_header_that_holds_no_token_never_counts_as_no_token(header: str) -> None:
    assert bearer_token(header)
