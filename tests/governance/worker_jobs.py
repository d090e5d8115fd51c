"""Job handlers for the worker tests; the worker is told to import them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from django.db import connection

from governance.jobs import JobRun, job


def _note(run: JobRun, word: str) -> None:
    handle = os.open(run.input["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{word} {run.attempt} {os.getpid()}\n".encode())
    os.close(handle)


def until_exists(path: str | Path, seconds: float = 60.0) -> None:
    """Wait for a file; bounded."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if Path(path).exists():
            return
        waiting.wait(0.02)
    raise TimeoutError(f"{path} never appeared")


@job("test.wait")
def wait(run: JobRun) -> dict[str, Any]:
    """Say that it began, wait for a file, say that it ended."""
    _note(run, "began")
    until_exists(run.input["go"])
    _note(run, "ended")
    return {"attempt": run.attempt}


@job("test.fail")
def fail(run: JobRun) -> dict[str, Any]:
    """Fail until the attempt that the input names."""
    _note(run, "began")
    if run.attempt < run.input["until"]:
        raise RuntimeError(f"attempt {run.attempt} fails")
    return {"attempt": run.attempt}


@job("test.connection")
def own_connection(run: JobRun) -> dict[str, Any]:
    """Which connection this process has, while another process runs the same."""
    _note(run, "began")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
        until_exists(run.input["go"])
        for i in range(50):
            cursor.execute("SELECT %s, pg_backend_pid()", [i])
            assert cursor.fetchone() == (i, pid)
    pooled = connection.pool is not None  # type: ignore[attr-defined]
    return {"pid": pid, "process": os.getpid(), "pooled": pooled}
