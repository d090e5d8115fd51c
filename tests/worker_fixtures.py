"""A broker and a worker for the tests of every part; a plugin of pytest, named in tests/conftest.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.governance.brokers import use_broker
from tests.governance.workers import BROKER_URLS, BROKERS, a_worker, lose_everything


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker with nothing in it; this process sends there."""
    name = BROKER_URLS[request.param]
    with use_broker(os.environ[name]):
        lose_everything()
        yield os.environ[name]
        lose_everything()


@pytest.fixture(scope="module")
def worker(
    broker: str,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Path]:
    """One worker for the tests that do not kill it; its log."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with django_db_blocker.unblock(), a_worker(broker, "steady", log):
        yield log
