"""A real `up` in a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loomsite.embedded.home import BASE_DIR
from loomsite.embedded.processes import start_mark

START_SECONDS = 90.0


def eventually(what: str, check: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `check` holds; fails naming what did not come true."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def free_port_pair() -> int:
    """A port that is free together with its successor.

    Below the range from which the kernel gives ports to outgoing connections: one of those could take the
    port before the server does, or while it is being restarted.
    """
    for _ in range(200):
        port = random.randrange(15_000, 30_000)  # noqa: S311 (no secret)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two neighbouring ports are free")


def processes_mentioning(text: str) -> dict[int, str]:
    """Running processes with `text` in their command line or environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if (text in command or text in environment) and start_mark(int(entry.name)):
            found[int(entry.name)] = command
    return found


class Running:
    """`up` under one home. `extra` are more environment variables."""

    def __init__(self, home: Path, port: int | None = None, **extra: str) -> None:
        self.home = home
        self.port = port if port is not None else free_port_pair()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOOM_", "DJANGO_"))}
        self.environment = {
            **kept,
            "LOOM_HOME": str(home),
            "LOOM_BIND": f"127.0.0.1:{self.port}",
            **extra,
        }
        self.process: subprocess.Popen[str] | None = None
        self.output = home.parent / f"{home.name}.out"

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `up` or `down` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "loomsite.embedded", *arguments],
            env=self.environment,
            cwd=BASE_DIR,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    def start(self, wait: bool = True) -> None:
        """Start `up` in the foreground of its own process; wait until it is ready."""
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loomsite.embedded", "up"],
                env=self.environment,
                cwd=BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait for connection.json, which is written last."""
        deadline = time.monotonic() + START_SECONDS
        while not self._announced():
            assert self.process is None or self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def _announced(self) -> bool:
        """connection.json is there, and not one that an earlier, killed supervisor left."""
        state = self.home / "run" / "state.json"
        if not state.exists() or not (self.home / "connection.json").exists():
            return False
        return self.process is None or json.loads(state.read_text())["supervisor"]["pid"] == self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the supervisor and wait; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def end(self) -> None:
        """End whatever state the test left it in."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def connection(self) -> dict[str, str]:
        """The content of connection.json."""
        content: dict[str, str] = json.loads((self.home / "connection.json").read_text())
        return content

    def pids(self) -> dict[str, int]:
        """The supervised processes by name."""
        state: dict[str, Any] = json.loads((self.home / "run" / "state.json").read_text())
        return {name: child["pid"] for name, child in state["children"].items()}

    def status(self, url: str, method: str = "GET", timeout: float = 20.0) -> int:
        """The status that a request gets, 0 when nobody answers."""
        parts = urlsplit(url)
        client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
        try:
            client.request(method, parts.path)
            return client.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            client.close()

    def ready(self) -> bool:
        """Whether the web server says that everything works."""
        return self.status(f"http://127.0.0.1:{self.port}/v1/ready") == 200
