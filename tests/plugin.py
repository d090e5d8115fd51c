"""Starts one embedded PostgreSQL and one Valkey for the whole test session, before Django reads its settings.

A plugin (`-p tests.plugin` in pyproject.toml) and not a conftest, because pytest-django loads the settings
before any conftest is read. LOOM_DATABASE_URL or LOOM_BROKER_URL in the environment name servers to use
instead.

With `-n` (pytest-xdist) each worker is such a session: a home and servers of its own, so that a test may cut
connections or empty the broker beside another. On servers that are given, pytest-django names a database for
each worker, and `own_broker` a numbered one. The process that hands out the tests needs no server.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

from loomsite.embedded import postgres, valkey
from loomsite.embedded.home import Home

# What a developer's shell may hand to the suite; any other LOOM_* variable would change what is tested.
KEPT = ("LOOM_DATABASE_URL", "LOOM_BROKER_URL", "LOOM_DATA", "LOOM_DB_POOL")
# A crash of the test database loses nothing that anybody wants.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_services = contextlib.ExitStack()


def _clean_environment() -> None:
    for name in list(os.environ):
        if name.startswith("LOOM_") and name not in KEPT and not name.startswith("LOOM_TEST_"):
            del os.environ[name]


def _xdist_worker() -> int | None:
    """This process's number among the workers of pytest-xdist; None outside of them."""
    name = os.environ.get("PYTEST_XDIST_WORKER")
    return int(name.removeprefix("gw")) if name else None


def own_broker(url: str, number: int) -> str:
    """The address of a database of its own for worker `number`, counted from the one that `url` names.

    With RabbitMQ it is a virtual host, the number behind the name that `url` gives; it has to be there.

    Raises pytest.UsageError for a broker without numbered databases: workers would take each other's jobs.
    """
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss"):
        return urlunsplit(parts._replace(path=f"/{int(parts.path.strip('/') or 0) + number}"))
    if parts.scheme == "redis+socket":
        options = dict(parse_qsl(parts.query))
        options["virtual_host"] = str(int(options.get("virtual_host", 0)) + number)
        return f"{parts.scheme}://{parts.path}?{urlencode(options)}"
    if parts.scheme == "amqp" and parts.path.strip("/"):
        return urlunsplit(parts._replace(path=f"{parts.path}{number}"))
    raise pytest.UsageError(f"tests cannot share a broker of the kind {parts.scheme}: run them with -n 0")


def _part_given_brokers(number: int) -> None:
    for name in ("LOOM_BROKER_URL", "LOOM_TEST_REDIS_URL", "LOOM_TEST_AMQP_URL"):
        if url := os.environ.get(name):
            os.environ[name] = own_broker(url, number)


def _make_home() -> Home:
    root = Path(tempfile.mkdtemp(prefix="loom-test-"))
    _services.callback(shutil.rmtree, root, ignore_errors=True)
    home = Home(root)
    home.prepare()
    os.environ["LOOM_HOME"] = str(root)
    return home


def _start_services(home: Home) -> None:
    sockets = home.make_socket_dir()
    _services.callback(home.remove_socket_dir, sockets)
    if not os.environ.get("LOOM_DATABASE_URL"):
        database = postgres.Postgres(home, sockets, FAST)
        database.prepare()
        server = database.spawn()
        _services.callback(postgres.stop, server, database.death_signal, 30.0)
        postgres.wait_ready(database, server)
        database.provision()
        os.environ["LOOM_DATABASE_URL"] = database.url()
    if not os.environ.get("LOOM_BROKER_URL"):
        broker = valkey.Valkey(home, sockets)
        process = broker.spawn()
        _services.callback(valkey.stop, process)
        valkey.wait_ready(broker, process)
        os.environ["LOOM_BROKER_URL"] = broker.url


SOAK_DEFAULT_SECONDS = 600
SOAK_SPARE_SECONDS = 300
_soak_tests = pytest.StashKey[int]()
_soak_began = pytest.StashKey[float]()


def _soak_total() -> int:
    return int(os.environ.get("SOAK_SECONDS") or SOAK_DEFAULT_SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the soak tests that stay after `-m`, and give them the time they are made for."""
    soak = [item for item in items if item.get_closest_marker("soak")]
    config.stash[_soak_tests] = len(soak)
    for item in soak:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_soak_total() + SOAK_SPARE_SECONDS))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start no further soak test once a given SOAK_SECONDS is used up; what was left out is said."""
    if not os.environ.get("SOAK_SECONDS") or item.get_closest_marker("soak") is None:
        return
    began = item.config.stash.setdefault(_soak_began, time.monotonic())
    if time.monotonic() - began > _soak_total():
        pytest.skip(f"SOAK_SECONDS={_soak_total()} is used up")


@pytest.fixture
def soak_seconds(pytestconfig: pytest.Config) -> float:
    """How long this soak test may loop: its share of SOAK_SECONDS."""
    return max(5.0, _soak_total() / max(1, pytestconfig.stash[_soak_tests]))


def _hands_out(options: argparse.Namespace) -> bool:
    """Whether this process only distributes the tests to workers."""
    return _xdist_worker() is None and bool(getattr(options, "numprocesses", 0) or getattr(options, "tx", []))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Start the services ahead of every other plugin's turn."""
    _clean_environment()
    try:
        home = _make_home()
        if not _hands_out(early_config.known_args_namespace):
            if (number := _xdist_worker()) is not None:
                _part_given_brokers(number)
            _start_services(home)
        return (yield)
    except BaseException:
        _services.close()  # a start that fails here never reaches pytest_unconfigure
        raise


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Stop a worker's services while it may take its time: once it says that it is done, it is ended."""
    if _xdist_worker() is not None:
        _services.close()


def pytest_unconfigure() -> None:
    """Stop the services; if this process is killed instead, the kernel signals them."""
    _services.close()
