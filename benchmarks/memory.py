"""How much memory everything behind an idle `make run` takes.

Counted is the proportional set size (PSS) of the supervisor and all its descendants: memory that several
processes share is counted once in the sum, as `smaps_rollup` divides it among them. Linux only. The server
should have rested for a while; the benchmark itself sends nothing but one readiness call.
"""

import json
import os
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import ROOT, Skipped, print_table

LIMIT_MB = 600.0
PROC = Path("/proc")


def run(_client: httpx.Client, _data_dir: Path | None) -> dict[str, Any]:
    """Megabytes (10^6 bytes) of PSS by child of the supervisor, with the processes below it, and in all."""
    supervisor = _supervisor()
    parents = _parents()
    if not (PROC / str(supervisor) / "smaps_rollup").exists():
        raise Skipped("needs /proc/<pid>/smaps_rollup (Linux)")
    groups = {"supervisor": [supervisor]}
    for child in _children(supervisor, parents):
        groups[_name(child)] = [child, *_descendants(child, parents)]
    try:
        found = {name: sum(_pss(pid) for pid in pids) for name, pids in groups.items()}
    except PermissionError:
        raise Skipped(
            "the server's processes belong to another user; run this as root or as that user"
        ) from None
    total = sum(found.values())
    rows = [[name, len(groups[name]), megabytes] for name, megabytes in found.items()]
    print_table(
        "Memory at rest, PSS",
        ["", "processes", "MB"],
        [*rows, ["all", sum(len(pids) for pids in groups.values()), total]],
    )
    return {
        "megabytes": found,
        "processes": {name: len(pids) for name, pids in groups.items()},
        "total_megabytes": total,
        "bars": {f"everything under {LIMIT_MB:.0f} MB ({total:.0f})": total < LIMIT_MB},
    }


def _supervisor() -> int:
    home = Path(os.environ.get("LOOM_HOME") or ROOT / ".loom")
    try:
        state = json.loads((home / "run" / "state.json").read_text())
        return int(state["supervisor"]["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Skipped(
            f"no supervisor is recorded under {home}: the server was not started by `make run`"
        ) from None


def _parents() -> dict[int, int]:
    """Parent by process id."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                # The name in parentheses may hold anything, so what counts stands behind the last one.
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def _children(pid: int, parents: dict[int, int]) -> list[int]:
    return sorted(child for child, parent in parents.items() if parent == pid)


def _descendants(pid: int, parents: dict[int, int]) -> list[int]:
    found = []
    for child in _children(pid, parents):
        found += [child, *_descendants(child, parents)]
    return found


def _name(pid: int) -> str:
    """What a child of the supervisor is, by its command line."""
    line = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    known = {"granian": "web", "uvicorn": "mcp", "embedded.worker": "worker", "celery": "worker"}
    known |= {"valkey": "broker", "redis": "broker", "postgres": "database"}
    return next((name for mark, name in known.items() if mark in line), f"{pid}")


def _pss(pid: int) -> float:
    """Megabytes; 0 for a process that ended meanwhile."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024 / 1e6
