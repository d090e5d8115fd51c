"""Servers named by the environment instead of the embedded ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loomsite.embedded import postgres, valkey
from loomsite.embedded.home import Home
from tests.embedded.running import Running, processes_mentioning


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A PostgreSQL and a Valkey that belong to nobody's supervisor: their two URLs."""
    home = Home(tmp_path / "outside")
    home.prepare()
    sockets = home.make_socket_dir()
    database = postgres.Postgres(home, sockets)
    broker = valkey.Valkey(home, sockets)
    database.prepare()
    server, queue = database.spawn(), broker.spawn()
    try:
        postgres.wait_ready(database, server)
        database.provision()
        valkey.wait_ready(broker, queue)
        yield database.url(), broker.url
    finally:
        valkey.stop(queue)
        postgres.stop(server, signal.SIGINT, 30.0)
        home.remove_socket_dir(sockets)


def test_named_servers_are_used_and_left_running_and_none_is_started(
    outside: tuple[str, str], tmp_path: Path
) -> None:
    running = Running(tmp_path / "home", LOOM_DATABASE_URL=outside[0], LOOM_BROKER_URL=outside[1])
    try:
        running.start()
        assert set(running.pids()) == {"web", "mcp", "worker"}
        assert running.ready()
        assert not (tmp_path / "home" / "pg").exists()
        assert running.stop() == 0
    finally:
        running.end()
    assert processes_mentioning(str(tmp_path / "home")) == {}
    assert processes_mentioning(str(tmp_path / "outside" / "pg"))


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("LOOM_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/db"),
        ("LOOM_DATABASE_URL", "postgresql://u:secret@/db?host=/nowhere"),
        ("LOOM_BROKER_URL", "redis://:secret@127.0.0.1:1/0"),
        ("LOOM_BROKER_URL", "redis+socket:///nowhere/valkey.sock"),
        ("LOOM_BROKER_URL", "filesystem://"),
        ("LOOM_BROKER_URL", "redis://:secret@127.0.0.1:port/0"),
    ],
)
def test_a_named_server_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, name: str, url: str) -> None:
    running = Running(tmp_path / "home", **{name: url})
    result = running.command("up")
    assert result.returncode != 0
    assert result.stderr.strip().count("\n") == 0, result.stderr
    assert f"{name}: " in result.stderr
    assert "secret" not in result.stderr
    assert not (tmp_path / "home" / "pg").exists()


def test_a_wrong_password_of_a_named_database_is_one_clear_line(
    outside: tuple[str, str], tmp_path: Path
) -> None:
    wrong = outside[0].replace("loom:", "loom:x", 1)
    running = Running(tmp_path / "home", LOOM_DATABASE_URL=wrong, LOOM_BROKER_URL=outside[1])
    result = running.command("up")
    assert result.returncode != 0
    assert result.stderr.strip().count("\n") == 0, result.stderr
    assert "LOOM_DATABASE_URL" in result.stderr
    assert "password authentication failed" in result.stderr
    assert os.environ["LOOM_DATABASE_URL"] != wrong
