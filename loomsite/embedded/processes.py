"""Knowing a process again: a pid alone may have been given to somebody else meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomsite.embedded.privileges import LINUX


def start_mark(pid: int) -> str | None:
    """When the process with this pid started, as an opaque mark; None when it is gone or a zombie."""
    if LINUX:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    result = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None


@dataclass(frozen=True)
class Identity:
    """One process, told apart from a later one with the same pid by its start."""

    pid: int
    mark: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a running process, None when there is none."""
        mark = start_mark(pid)
        return None if mark is None else cls(pid, mark)

    @classmethod
    def from_json(cls, raw: object) -> Identity | None:
        """Read what `to_json` wrote; None for anything else."""
        if isinstance(raw, dict) and isinstance(raw.get("pid"), int) and isinstance(raw.get("mark"), str):
            return cls(raw["pid"], raw["mark"])
        return None

    def to_json(self) -> dict[str, Any]:
        """A form for the state file."""
        return {"pid": self.pid, "mark": self.mark}

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return start_mark(self.pid) == self.mark

    def send(self, number: signal.Signals) -> None:
        """Signal the process if it is still this one."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait_gone(self, seconds: float) -> bool:
        """Wait until the process is gone, True when it is."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True


def kill_group(leader: int) -> None:
    """Kill what is left of a child's process group. Only for groups that we made ourselves."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left; macOS says EPERM when only zombies are


def processes_in(folder: Path, program: str) -> list[Identity]:
    """Running processes of `program` that work in `folder`: how a database's orphaned backends are found.

    Empty where the system has no /proc; their server then waits until they end on their own.
    """
    if not LINUX:
        return []
    found = []
    wanted = os.path.realpath(folder)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            current = os.readlink(f"/proc/{entry.name}/cwd")
            name = Path(f"/proc/{entry.name}/comm").read_text().strip()
        except OSError:
            continue  # not ours, or gone
        if current == wanted and name == program and (identity := Identity.of(int(entry.name))):
            found.append(identity)
    return found


def processes_of_group(leader: int, home: Path) -> list[Identity]:
    """Members of the process group `leader` besides itself that were started for this home.

    The group's number may belong to somebody else by now, so each member must carry our LOOM_HOME.
    """
    if not LINUX:
        return []
    mark = b"LOOM_HOME=" + bytes(home) + b"\0"
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == leader:
            continue
        pid = int(entry.name)
        try:
            ours = os.getpgid(pid) == leader and mark in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # not ours, or gone
        if ours and (identity := Identity.of(pid)):
            found.append(identity)
    return found
