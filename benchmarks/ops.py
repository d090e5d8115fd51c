"""What an op costs over HTTP and MCP, beside two floors that run the same statements.

In one run, interleaved block by block:

- `bare`: psycopg alone in the benchmark's process, one open connection;
- `floor`: the floor view (`benchmarks.floor`), a plain Django view in the same server process;
- `rest`: the op over POST /v1/<op>;
- `mcp`: the op as a tool call over POST /mcp, in the process that serves MCP.

"The same statements" are those of real calls, recorded by Django's `execute_wrapper` and replayed with what
must differ made anew; `benchmarks.replay` says which parameters and how. They include the statement that
authenticates, and for memory.set the transaction with its audit rows and its COMMIT. So the ratio to the
floor shows what validation, tenancy, locks, embedding, ranking terms, hashing and answering cost in Python,
with the HTTP server, Django and the database taken out. The rows: 6,000 memories of made-up text in one
namespace (`benchmarks.corpus`), in a database that is dropped afterwards.

Clients speak HTTP/1.1 over kept-alive bare sockets (`benchmarks.wire`); the line `health` shows what the
client and the HTTP server cost by themselves. At 16 clients each has a thread and a connection of its own in
this process.
"""

import itertools
import pickle
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.common import percentile, print_table
from benchmarks.corpus import Corpus, key_of
from benchmarks.floor import FILE
from benchmarks.harness import NAMESPACE, Site, fill, free_port, running, site, uvicorn, web
from benchmarks.replay import Recording, Statement, replay
from benchmarks.wire import Wire

SERVER = False
ROWS = 6_000
RECORDED = 60
ROUNDS = 16
BLOCK = {"memory.get": 40, "memory.search": 12, "memory.set": 16}
CLIENTS = 16
CLIENT_ROUNDS = 4
CLIENT_BLOCK = {"memory.get": 30, "memory.search": 6, "memory.set": 8}
TIMES_FLOOR = {"memory.get": 1.6, "memory.search": 1.6, "memory.set": 2.0}
MCP_TIMES_REST = 1.5
OPS = tuple(BLOCK)
_unique = itertools.count()

Call = Callable[[dict[str, Any]], bool]


def run(_client: None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds by op and way at one client and at sixteen, the ratios, and whether the bars are met."""
    with ExitStack() as stack:
        where = stack.enter_context(site())
        port, mcp_port = free_port(), free_port()
        url = stack.enter_context(running(where, web(port), port))
        loading = fill(url, where, ROWS)
        record = ("-m", "benchmarks.record", where.token, NAMESPACE, str(ROWS), str(RECORDED))
        print(where.python(*record), end="")
        try:
            mcp_url = stack.enter_context(running(where, uvicorn(mcp_port), mcp_port))
        except RuntimeError as error:
            print(f"mcp is left out: {error}")
            mcp_url = None
        with (where.home / FILE).open("rb") as file:
            recordings: dict[str, list[Recording]] = pickle.load(file)
        one = {op: _one_client(op, where, url, mcp_url, recordings[op]) for op in OPS}
        many = {op: _many_clients(op, where, url, mcp_url) for op in OPS}
        health = _health(url)
    _print(one, many, health)
    return {
        "rows": ROWS,
        "load_seconds": loading,
        "statements": {op: len(found[0].statements) for op, found in recordings.items()},
        "health_ms": health,
        "one_client": one,
        f"{CLIENTS}_clients": many,
        "bars": _bars(one, many),
    }


def payloads(op: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless inputs for an op, different at each call."""
    corpus = Corpus(seed=seed)
    for number in itertools.count(seed):
        if op == "memory.get":
            yield {"namespace": NAMESPACE, "memory_key": key_of(number * 7_919 % ROWS)}
        elif op == "memory.search":
            yield {"namespace": NAMESPACE, "query": corpus.query()}
        else:
            key = f"written/{seed}/{next(_unique)}"
            yield {"namespace": NAMESPACE, "memory_key": key, "value": corpus.text()}


@contextmanager
def rest_way(url: str, where: Site, path: str) -> Iterator[Call]:
    """Calls of POST <path>; True for an answer 200."""
    wire = Wire(url)

    def send(payload: dict[str, Any]) -> bool:
        status, _ = wire.exchange(wire.request(path, payload, where.headers))
        return status == 200

    try:
        yield send
    finally:
        wire.close()


@contextmanager
def mcp_way(url: str, where: Site, op: str) -> Iterator[Call]:
    """Calls of the op's tool over MCP's streamable HTTP; True for a result that is no error."""
    wire = Wire(url)
    headers = {**where.headers, "Accept": "application/json, text/event-stream"}
    tool = f"loom_{op.replace('.', '_')}"

    def send(payload: dict[str, Any]) -> bool:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": payload},
        }
        status, answer = wire.exchange(wire.request("/mcp", body, headers))
        return status == 200 and b'"structuredContent"' in answer and b'"isError":true' not in answer

    try:
        yield send
    finally:
        wire.close()


@contextmanager
def bare_way(where: Site, recordings: list[Recording]) -> Iterator[Call]:
    """The recorded statements by psycopg alone, parameters bound at the client as Django binds them."""
    turn = itertools.cycle(recordings)
    with psycopg.connect(where.database_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as link:

        def statement(statement: Statement, params: Any) -> list[tuple[Any, ...]]:
            if statement.in_transaction and not link.info.transaction_status:
                link.execute("BEGIN")
            cursor = link.execute(statement.sql, params)
            return cursor.fetchall() if statement.returns_rows else []

        def send(payload: dict[str, Any]) -> bool:
            replay(next(turn), payload.get("memory_key"), statement)
            if link.info.transaction_status:
                link.execute("COMMIT")
            return True

        yield send


def _one_client(
    op: str, where: Site, url: str, mcp_url: str | None, recordings: list[Recording]
) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        ways = {
            "bare": stack.enter_context(bare_way(where, recordings)),
            "floor": stack.enter_context(rest_way(url, where, f"/v1/bench/floor/{op}")),
            "rest": stack.enter_context(rest_way(url, where, f"/v1/{op}")),
        }
        if mcp_url:
            ways["mcp"] = stack.enter_context(mcp_way(mcp_url, where, op))
        inputs = {way: payloads(op, seed) for seed, way in enumerate(ways, start=2)}
        # Each thread of the server has a connection to warm.
        for way, send in ways.items():
            for _ in range(16):
                if not send(next(inputs[way])):
                    raise RuntimeError(f"{op} over {way} fails")
        times: dict[str, list[float]] = {way: [] for way in ways}
        errors = dict.fromkeys(ways, 0)
        for number in range(ROUNDS):
            # The order turns, so that no way always follows the same one.
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for way in order:
                for _ in range(BLOCK[op]):
                    payload = next(inputs[way])
                    started = time.perf_counter()
                    good = ways[way](payload)
                    times[way].append((time.perf_counter() - started) * 1000)
                    errors[way] += not good
    return _summary(times, errors)


def _many_clients(op: str, where: Site, url: str, mcp_url: str | None) -> dict[str, dict[str, float]]:
    ways: dict[str, Callable[[], Any]] = {
        "floor": lambda: rest_way(url, where, f"/v1/bench/floor/{op}"),
        "rest": lambda: rest_way(url, where, f"/v1/{op}"),
    }
    if mcp_url:
        ways["mcp"] = lambda: mcp_way(mcp_url, where, op)
    times: dict[str, list[float]] = {way: [] for way in ways}
    errors = dict.fromkeys(ways, 0)
    seconds = dict.fromkeys(ways, 0.0)
    for number in range(CLIENT_ROUNDS):
        for way, opened in ways.items():
            taken, found, failed = crowd(op, opened, CLIENT_BLOCK[op], 100 + number * CLIENTS)
            if number:  # the first round warms up
                times[way].extend(found)
                seconds[way] += taken
            errors[way] += failed
    summary = _summary(times, errors)
    for way, values in summary.items():
        values["per_second"] = len(times[way]) / seconds[way]
    return summary


def crowd_of(
    url: str, where: Site, namespace: str, clients: int, block: int
) -> tuple[float, list[float], int]:
    """memory.set over REST by many clients at once into a namespace; see `crowd`."""
    return crowd(
        "memory.set", lambda: rest_way(url, where, "/v1/memory.set"), block, 5_000, clients, namespace
    )


def crowd(
    op: str,
    opened: Callable[[], Any],
    block: int,
    seed: int,
    clients: int = CLIENTS,
    namespace: str = NAMESPACE,
) -> tuple[float, list[float], int]:
    """Many clients at once, `block` calls each: (seconds in all, milliseconds of each call, failures)."""
    times: list[float] = []
    failed = [0] * clients
    gate = threading.Barrier(clients + 1)

    def client(number: int) -> None:
        inputs = payloads(op, seed + number)
        own = []
        try:
            with opened() as send:
                prepared = [{**next(inputs), "namespace": namespace} for _ in range(block)]
                gate.wait()
                for payload in prepared:
                    started = time.perf_counter()
                    good = send(payload)
                    own.append((time.perf_counter() - started) * 1000)
                    failed[number] += not good
        except (OSError, ValueError):
            failed[number] += block - len(own)
            gate.abort()
        times.extend(own)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        gate.wait()
    except threading.BrokenBarrierError:
        pass
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started, times, sum(failed)


def _health(url: str) -> float:
    wire = Wire(url)
    request = b"GET /v1/health HTTP/1.1\r\nHost: " + url.removeprefix("http://").encode() + b"\r\n\r\n"
    times = []
    for _ in range(200):
        started = time.perf_counter()
        wire.exchange(request)
        times.append((time.perf_counter() - started) * 1000)
    wire.close()
    return statistics.median(times)


def _summary(times: dict[str, list[float]], errors: dict[str, int]) -> dict[str, dict[str, float]]:
    return {
        way: {
            "p50_ms": percentile(found, 50),
            "p95_ms": percentile(found, 95),
            "calls": len(found),
            "errors": errors[way],
        }
        for way, found in times.items()
    }


def _ratio(found: dict[str, dict[str, float]], way: str, to: str) -> float:
    if way not in found or to not in found:
        return float("nan")
    return found[way]["p50_ms"] / found[to]["p50_ms"]


def _print(one: dict[str, Any], many: dict[str, Any], health: float) -> None:
    rows = []
    for label, table in (("1", one), (str(CLIENTS), many)):
        for op, found in table.items():
            for way, values in found.items():
                against = {"floor": "bare", "rest": "floor", "mcp": "rest"}.get(way)
                ratio = _ratio(found, way, against) if against in found else ""
                rows.append(
                    [
                        f"{op} {way}", label, values["p50_ms"], values["p95_ms"],
                        values.get("per_second", ""), int(values["errors"]),
                        f"{ratio:.2f} x {against}" if ratio else "",
                    ]
                )  # fmt: skip
    rows.append(["health", "1", health, "", "", 0, ""])
    header = ["", "clients", "p50 ms", "p95 ms", "1/s", "errors", "ratio"]
    print_table(f"Ops, {ROWS} memories in one namespace", header, rows)


def _bars(one: dict[str, Any], many: dict[str, Any]) -> dict[str, bool]:
    bars = {}
    for op, times in TIMES_FLOOR.items():
        ratio = _ratio(one[op], "rest", "floor")
        bars[f"{op}: median at one client <= {times} x floor view ({ratio:.2f})"] = ratio <= times
        if "mcp" in one[op]:
            ratio = _ratio(one[op], "mcp", "rest")
            bars[f"{op}: MCP <= {MCP_TIMES_REST} x REST ({ratio:.2f})"] = ratio <= MCP_TIMES_REST
    tables = [way for table in (one, many) for found in table.values() for way in found.values()]
    errors = sum(int(way["errors"]) for way in tables)
    bars[f"no errors at {CLIENTS} clients ({errors})"] = errors == 0
    return bars
