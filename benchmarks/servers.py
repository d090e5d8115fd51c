"""Which web server: memory.get through the supervisor's own command, and through two others beside it.

All servers run at once over one database and are asked in turn, block by block, so that what else the
machine does meets all of them alike; a server that is not asked rests. "granian, WSGI" is the fastest known
way to serve the same application, and no choice: its threads wait for bodies (docs/decisions/0007).
"""

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import percentile, print_table
from benchmarks.harness import fill, free_port, running, site, web
from benchmarks.ops import CLIENTS, ROWS, crowd, rest_way

SERVER = False
OP = "memory.get"
ROUNDS = 8
BLOCK = {1: 100, CLIENTS: 20}


def granian_wsgi(port: int) -> list[str]:
    """granian, each request in a thread from its first byte on."""
    return [
        *(sys.executable, "-m", "granian", "--interface", "wsgi", "--workers", "1"),
        *("--blocking-threads", "8", "--host", "127.0.0.1", "--port", str(port)),
        *("--log-level", "warning", "--no-ws", "loomsite.wsgi:application"),
    ]


def uvicorn_web(port: int) -> list[str]:
    """uvicorn with the web server's application."""
    return [
        *(sys.executable, "-m", "uvicorn", "loomsite.web:application", "--host", "127.0.0.1"),
        *("--port", str(port), "--lifespan", "on", "--ws", "none", "--no-access-log"),
        *("--log-level", "warning"),
    ]


def run(_client: None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds and calls a second by server and number of clients."""
    makers = {"granian, ASGI (ours)": web, "granian, WSGI": granian_wsgi, "uvicorn": uvicorn_web}
    with ExitStack() as stack:
        where = stack.enter_context(site())
        urls: dict[str, str] = {}
        for name, maker in makers.items():
            port = free_port()
            urls[name] = stack.enter_context(running(where, maker(port), port))
        fill(next(iter(urls.values())), where, ROWS)
        ways = {name: partial(rest_way, url, where, f"/v1/{OP}") for name, url in urls.items()}
        found = {str(clients): _measure(ways, clients) for clients in BLOCK}
    rows = [
        [name, clients, values["p50_ms"], values["p95_ms"], values["per_second"], int(values["errors"])]
        for clients, servers in found.items()
        for name, values in servers.items()
    ]
    print_table(f"{OP} by web server", ["", "clients", "p50 ms", "p95 ms", "1/s", "errors"], rows)
    errors = sum(int(values["errors"]) for servers in found.values() for values in servers.values())
    return {"servers": found, "bars": {f"no errors ({errors})": errors == 0}}


def _measure(ways: dict[str, Any], clients: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    errors = dict.fromkeys(ways, 0)
    for number in range(ROUNDS + 1):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in order:
            taken, found, failed = crowd(OP, ways[name], BLOCK[clients], number * 100, clients)
            errors[name] += failed
            if number:  # the first round warms up
                times[name].extend(found)
                seconds[name] += taken
    return {
        name: {
            "p50_ms": percentile(found, 50),
            "p95_ms": percentile(found, 95),
            "per_second": len(found) / seconds[name],
            "errors": errors[name],
        }
        for name, found in times.items()
    }
