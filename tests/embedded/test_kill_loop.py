"""No acknowledged write is lost and none is done twice, whatever is killed at whatever moment."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.running import Running, eventually, processes_mentioning

logger = logging.getLogger(__name__)
WRITERS = 4
BETWEEN_KILLS = (0.5, 3.0)
HEAL_SECONDS = 60.0


class Writer(threading.Thread):
    """Stores numbered values one by one; each is tried with one idempotency key until acknowledged."""

    def __init__(self, name: str, running: Running, token: str, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.running = running
        self.token = token
        self.halt = stop
        self.acknowledged: dict[str, int] = {}
        self.versions: dict[str, int] = {}
        self.wrong: list[str] = []
        self.refusals: Counter[int] = Counter()

    def call(self, op: str, body: dict[str, Any], key: str | None = None) -> tuple[int, dict[str, Any]]:
        """One request on a connection of its own; status 0 when it broke."""
        client = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        try:
            client.request("POST", f"/v1/{op}", json.dumps(body), headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            return 0, {}
        finally:
            client.close()

    def run(self) -> None:
        number = 0
        while not self.halt.is_set():
            number += 1
            key = f"{self.name}-{number}"
            self.store(key, number)

    def store(self, key: str, number: int) -> None:
        """Write one value until the server says that it is stored."""
        deadline = time.monotonic() + 2 * HEAL_SECONDS
        while time.monotonic() < deadline:
            status, body = self.call("memory.set", {"memory_key": key, "value": number}, key)
            if status == 200:
                self.acknowledged[key] = number
                self.versions[key] = body["version"]
                return
            self.refusals[status] += 1
            # While a process is away: no connection, a cut one, or an error that says "try again".
            if status not in {0, 503}:
                self.wrong.append(f"{key}: {status} {body}")
                return
            time.sleep(0.05)
        self.wrong.append(f"{key}: not stored within {2 * HEAL_SECONDS:.0f} s")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A served home."""
    served = Running(tmp_path / "home", LOOM_EMBEDDER="none")
    try:
        served.start()
        yield served
    finally:
        served.end()


def _targets(running: Running) -> list[int]:
    """All processes of the run but the supervisor."""
    supervisor = running.process.pid if running.process else 0
    return [pid for pid in _family(supervisor) if pid != supervisor]


def _family(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


@pytest.mark.soak
def test_no_acknowledged_write_is_lost_or_doubled_while_everything_is_killed(
    running: Running, soak_seconds: float
) -> None:
    seed = int(os.environ.get("SOAK_SEED") or time.time())
    chance = random.Random(seed)  # noqa: S311 (which process to kill is no secret)
    stop = threading.Event()
    token = running.connection()["token"]
    writers = [Writer(f"w{number}", running, token, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + soak_seconds
    kills = 0
    try:
        while time.monotonic() < deadline:
            time.sleep(chance.uniform(*BETWEEN_KILLS))
            if chance.random() < 0.1:
                assert running.process is not None
                running.process.kill()
                running.process.wait()
                running.start()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(_targets(running)), signal.SIGKILL)
            kills += 1
        eventually("everything answers again", running.ready, HEAL_SECONDS)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [fault for writer in writers for fault in writer.wrong] == [], f"seed {seed}"
    stored = {key: value for writer in writers for key, value in writer.acknowledged.items()}
    refusals = sum((writer.refusals for writer in writers), Counter())
    logger.info("seed %d: %d kills, %d acknowledged, refusals %s", seed, kills, len(stored), dict(refusals))
    assert kills > 0
    assert stored
    assert {version for writer in writers for version in writer.versions.values()} == {1}

    def check(item: tuple[str, int]) -> str | None:
        status, body = writers[0].call("memory.get", {"memory_key": item[0]})
        good = (status, body.get("found"), body.get("value"), body.get("version")) == (200, True, item[1], 1)
        return None if good else f"{item}: {status} {body}"

    with ThreadPoolExecutor(4) as pool:
        lost = [fault for fault in pool.map(check, stored.items()) if fault]
    assert lost == [], f"seed {seed}"
    assert running.stop() == 0
    assert processes_mentioning(str(running.home)) == {}
