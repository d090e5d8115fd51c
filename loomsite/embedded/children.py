"""The processes that the supervisor keeps alive: how each is started, stopped, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loomsite.embedded.privileges import child_setup
from loomsite.embedded.processes import Identity, kill_group

# Waits between restarts, in seconds; the last one repeats. A child that ran a minute begins at the first.
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
SETTLED_SECONDS = 60.0


@dataclass
class Child:
    """One supervised process. `launch` starts it, `ready_to_restart` may hold a restart back."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    stop_signal: signal.Signals
    stop_seconds: float
    log: Path
    process: subprocess.Popen[bytes] | None = None
    identity: Identity | None = None
    started: float = 0.0
    failures: int = 0
    restart_at: float | None = None
    restarts: int = field(default=0)

    def start(self) -> None:
        """Start the process and remember who it is."""
        self.process = self.launch()
        self.identity = Identity.of(self.process.pid)
        self.started = time.monotonic()
        self.restart_at = None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process; only to be asked for after `start`."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process

    def ended(self) -> int | None:
        """The exit code when the process has just ended, else None."""
        return None if self.process is None else self.process.poll()

    def schedule_restart(self) -> float:
        """Bury an ended process with what is left of its group; returns the seconds until the next start."""
        if self.process is not None:
            kill_group(self.process.pid)
        lived = time.monotonic() - self.started
        self.failures = 0 if lived >= SETTLED_SECONDS else self.failures
        wait = BACKOFF[min(self.failures, len(BACKOFF) - 1)]
        self.failures += 1
        self.process = None
        self.identity = None
        self.restart_at = time.monotonic() + wait
        return wait

    def ask_to_stop(self) -> None:
        """Send the stop signal, without waiting."""
        self.restart_at = None
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)

    def finish(self, seconds: float) -> bool:
        """Wait for the end, then kill what is left of the group. False when it had to be killed."""
        if self.process is None:
            return True
        in_time = True
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            in_time = False
        kill_group(self.process.pid)
        self.process.wait()
        self.process = None
        self.identity = None
        return in_time


def python_child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a Python server in a group of its own (a Ctrl-C in the terminal reaches only the supervisor)."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            preexec_fn=child_setup(None, signal.SIGTERM),
        )


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of the Python children.

    One BLAS thread each and two malloc arenas: three small servers on two cores gain nothing from more, and
    each arena and thread costs memory.
    """
    environment = {
        "PYTHONUNBUFFERED": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        **extra,
    }
    environment.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
    return environment
