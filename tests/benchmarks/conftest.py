"""A served product and a home whose connection.json leads to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import common
from tests.conftest import Cast


@pytest.fixture
def home(live_server: Any, cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LOOM_HOME of a server that runs in this process, with a token that may make namespaces."""
    folder = tmp_path / "home"
    folder.mkdir()
    connection = {
        "url": live_server.url,
        "token": cast.token("owner", may_create_namespaces=True),
        "admin_url": f"{live_server.url}/console/",
    }
    (folder / "connection.json").write_text(json.dumps(connection))
    monkeypatch.setenv("LOOM_HOME", str(folder))
    return folder


@pytest.fixture
def api(home: Path) -> Iterator[httpx.Client]:
    """A client with that token."""
    connection = json.loads((home / "connection.json").read_text())
    headers = {"Authorization": f"Bearer {connection['token']}"}
    with httpx.Client(base_url=connection["url"], headers=headers, timeout=30) as opened:
        yield opened


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the JSON files go instead of benchmarks/results."""
    folder = tmp_path / "results"
    monkeypatch.setattr(common, "RESULTS", folder)
    return folder
