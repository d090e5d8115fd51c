"""A server of the benchmark's own, in a database that is dropped at the end.

The PostgreSQL is the one that a running `make run` started, or the one of LOOM_DATABASE_URL; nothing in the
databases that are there already is touched. The web server is started as the supervisor starts it, with
`benchmarks.settings`, on free loopback ports.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import psycopg
from psycopg import sql

from benchmarks.common import ROOT, Skipped, call
from benchmarks.corpus import items
from loomsite.embedded.supervisor import web_command
from loomsite.settings.database import VARIABLE, DatabaseAddress, embedded_service, parse_database_url

NAMESPACE = "bench"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Site:
    """A prepared home and database, and the environment that leads a process to them."""

    home: Path
    database_url: str
    token: str
    environment: dict[str, str]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authenticate."""
        return {"Authorization": f"Bearer {self.token}"}

    def python(self, *arguments: str) -> str:
        """Run Python with these arguments in the site's environment; its standard output."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:3])}: {done.stderr.strip()[-2000:]}")
        return done.stdout


def database_address() -> DatabaseAddress:
    """Where a PostgreSQL is that the benchmark may make a database in. Raises Skipped."""
    home = Path(os.environ.get("LOOM_HOME") or ROOT / ".loom")
    url = os.environ.get(VARIABLE, "").strip() or embedded_service(home, "database_url")
    if not url:
        raise Skipped(f"no database: no server runs under {home}. Start one with `make run`")
    return parse_database_url(url)


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """A migrated database with an owner and a home of its own; both are gone afterwards. Raises Skipped."""
    address = database_address()
    name = f"loom_bench_{secrets.token_hex(4)}"
    try:
        admin = psycopg.connect(_conninfo(address, address.name), autocommit=True)
    except psycopg.OperationalError as error:
        raise Skipped(f"no database: {str(error).splitlines()[0]}") from error
    with admin, tempfile.TemporaryDirectory(prefix="loom-bench-") as folder:
        try:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise Skipped("the database user may not CREATE DATABASE") from error
        try:
            kept = ("LOOM_DATABASE_URL", "LOOM_HOME", "LOOM_BIND", "LOOM_MCP_BIND", "LOOM_DATA")
            environment = {k: v for k, v in os.environ.items() if k not in kept}
            environment |= {
                "LOOM_HOME": folder,
                "LOOM_DATABASE_URL": _url(address, name),
                "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            }
            bare = Site(Path(folder), environment["LOOM_DATABASE_URL"], "", environment)
            bare.python("manage.py", "migrate", "--no-input", "--verbosity", "0")
            owner = json.loads(bare.python("manage.py", "bootstrap").strip().splitlines()[-1])
            yield Site(bare.home, bare.database_url, owner["token"], environment)
        finally:
            _drop(admin, name)


def _drop(admin: psycopg.Connection, name: str) -> None:
    """Drop the database; say so if it has to stay.

    Not WITH (FORCE): that may not end an autovacuum worker, which belongs to the superuser, while the plain
    statement sends it away. Backends of the servers that just ended may take a moment to go.
    """
    for _ in range(5):
        try:
            admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
            return
        except psycopg.errors.ObjectInUse:
            time.sleep(1)
    print(f"the database {name} is still in use and stays: drop it by hand")


def web(port: int) -> list[str]:
    """The web server's command line: the supervisor's own."""
    return web_command("127.0.0.1", port)


def uvicorn(port: int) -> list[str]:
    """The MCP server's command line, as the supervisor has it."""
    return [
        *(sys.executable, "-m", "uvicorn", "loomsite.asgi:application", "--host", "127.0.0.1"),
        *("--port", str(port), "--lifespan", "on", "--ws", "none", "--no-access-log"),
        *("--log-level", "warning"),
    ]


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(where: Site, command: Sequence[str], port: int) -> Iterator[str]:
    """The address of the server that `command` starts on `port`; it ends with the block."""
    log = where.home / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=where.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            _wait(process, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fill(url: str, where: Site, rows: int, batch: int = 500) -> float:
    """Store `rows` made-up memories in `NAMESPACE` and let the database count them; seconds taken."""
    started = time.perf_counter()
    with httpx.Client(base_url=url, headers=where.headers, timeout=120) as client:
        for chunk in items(rows, batch):
            call(client, "memory.set_many", namespace=NAMESPACE, items=chunk)
    taken = time.perf_counter() - started
    with psycopg.connect(where.database_url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")
    return taken


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-1500:]}")


def _conninfo(address: DatabaseAddress, name: str) -> str:
    parts = {
        "dbname": name,
        "user": address.user,
        "password": address.password,
        "host": address.host,
        "port": address.port,
        **address.options,
    }
    return psycopg.conninfo.make_conninfo(**{key: value for key, value in parts.items() if value})


def _url(address: DatabaseAddress, name: str) -> str:
    query = {"host": address.host, "port": str(address.port or ""), **address.options}
    pairs = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items() if value)
    who = f"{quote(address.user, safe='')}:{quote(address.password, safe='')}@" if address.user else ""
    return f"postgresql://{who}/{quote(name, safe='')}?{pairs}"
