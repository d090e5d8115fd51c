"""A backup of a running server, restored into an empty home, and a server that runs on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loomsite.embedded.home import BASE_DIR
from tests.embedded.running import Running


def call(server: Running, op: str, body: dict[str, Any]) -> dict[str, Any]:
    """An op of a running server by its owner's token."""
    known = server.connection()
    request = urllib.request.Request(  # noqa: S310 - a server of this test
        f"{known['url']}/v1/{op}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {known['token']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
    return found


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """manage.py with nothing but a home."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOOM_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, str(BASE_DIR / "manage.py"), *arguments],
        env={**kept, "LOOM_HOME": str(home)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.timeout(400)
def test_a_server_goes_on_from_a_backup_in_an_empty_home(tmp_path: Path) -> None:
    first, second = Running(tmp_path / "first"), Running(tmp_path / "second")
    file = tmp_path / "b.loom"
    try:
        first.start()
        for number in range(5):
            call(first, "memory.set", {"memory_key": f"k{number}", "value": {"n": number}})
        made = command(first.home, "backup", str(file))
        assert made.returncode == 0, made.stderr
        refused = command(first.home, "restore", str(file), "--overwrite")
        assert refused.returncode == 1 and "stop it first" in refused.stderr
        call(first, "memory.set", {"memory_key": "later", "value": 1})
        assert first.stop() == 0
        # Without a server too, and the same again.
        assert command(first.home, "backup", str(tmp_path / "later.loom")).returncode == 0
        restored = command(second.home, "restore", str(file))
        assert restored.returncode == 0, restored.stderr
        second.start()
        assert call(second, "memory.get", {"memory_key": "k3"})["value"] == {"n": 3}
        assert call(second, "memory.get", {"memory_key": "later"})["found"] is False
        assert call(second, "memory.set", {"memory_key": "on", "value": 1})["version"] == 1
        hits = call(second, "memory.search", {"query": "k3"})["results"]
        assert hits[0]["memory_key"] == "k3"
        verified = command(second.home, "verify_audit")
        assert verified.returncode == 0, verified.stdout
    finally:
        first.end()
        second.end()
