"""What keeps the workers of a parallel run of this suite apart (tests/plugin.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loomsite.celery import app
from loomsite.embedded import valkey
from loomsite.embedded.home import Home
from tests.governance.brokers import use_broker
from tests.governance.workers import lose_everything
from tests.plugin import own_broker


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379/2"),
        ("redis://:p%40ss@127.0.0.1:6379/0", "redis://:p%40ss@127.0.0.1:6379/2"),
        ("rediss://host/3?ssl_cert_reqs=required", "rediss://host/5?ssl_cert_reqs=required"),
        ("redis+socket:///a%20b/valkey.sock", "redis+socket:///a%20b/valkey.sock?virtual_host=2"),
        ("redis+socket:///valkey.sock?virtual_host=4", "redis+socket:///valkey.sock?virtual_host=6"),
        ("amqp://guest@127.0.0.1:5672/loom", "amqp://guest@127.0.0.1:5672/loom2"),
    ],
)
def test_each_worker_gets_a_numbered_database_of_a_given_broker(given: str, own: str) -> None:
    assert own_broker(given, 2) == own


def test_a_broker_without_numbered_databases_is_refused_to_several_workers() -> None:
    with pytest.raises(pytest.UsageError, match="-n 0"):
        own_broker("amqp://guest@127.0.0.1//", 1)


@pytest.fixture
def shared_broker(tmp_path: Path) -> Iterator[str]:
    """A broker that several workers were given."""
    home = Home(tmp_path / "home")
    home.prepare()
    sockets = home.make_socket_dir()
    server = valkey.Valkey(home, sockets)
    process = server.spawn()
    try:
        valkey.wait_ready(server, process)
        yield server.url
    finally:
        valkey.stop(process)
        home.remove_socket_dir(sockets)


def _client() -> Any:
    return app.connection_for_write().default_channel.client  # type: ignore[attr-defined]


def test_what_a_worker_empties_is_its_own_database_alone(shared_broker: str) -> None:
    first, second = own_broker(shared_broker, 0), own_broker(shared_broker, 1)
    with use_broker(first):
        _client().set("kept", "here")
    with use_broker(second):
        assert _client().get("kept") is None
        lose_everything()
    with use_broker(first):
        assert _client().get("kept") == b"here"
