"""Starts, watches and stops everything behind `make run`: one small single-threaded process.

Order of a start: the home's lock, leftovers of a killed run, database, broker, migrations, owner, then web,
MCP and worker, and `connection.json` last, when everything answers. A stop goes the other way round.
Single-threaded on purpose: a child is signalled when the *thread* that started it ends (PR_SET_PDEATHSIG),
and `preexec_fn` is safe only without threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from loomsite.embedded import banner, postgres, probe, valkey
from loomsite.embedded.children import Child, child_environment, python_child
from loomsite.embedded.errors import EmbeddedError, StopRequested
from loomsite.embedded.external import check_broker, check_database
from loomsite.embedded.home import BASE_DIR, Home, read_json, write_private
from loomsite.embedded.ports import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Address,
    address_from_env,
    explicit,
    next_free,
)
from loomsite.embedded.privileges import child_setup
from loomsite.embedded.processes import Identity, kill_group, processes_of_group

READY_SECONDS = 120.0
STEP_SECONDS = 600.0
STARTUP_FAILURES = 4
WEB_STOP_SECONDS = 15.0
WORKER_STOP_SECONDS = 20.0
LOG_LIMIT_BYTES = 20 * 1024 * 1024
LOG_CHECK_SECONDS = 60.0
HEADERS_MS = 10_000
# What a command prints before a refusal in its own words.
_COMMAND_ERROR = "CommandError: "
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


def web_command(host: str, port: int) -> list[str]:
    """The command line of the web server. HTTP/1.1 only: what stands before it speaks nothing else to it."""
    return [
        *(sys.executable, "-m", "granian", "--interface", "asgi", "--workers", "1", "--loop", "asyncio"),
        *("--host", host, "--port", str(port), "--http", "1", "--no-ws"),
        *("--http1-header-read-timeout", str(HEADERS_MS), "--backlog", "2048"),
        *("--workers-kill-timeout", str(int(WEB_STOP_SECONDS) - 3), "--log-level", "warning"),
        "loomsite.web:application",
    ]


class Supervisor:
    """One run of the servers under one home; the caller holds the home's lock."""

    def __init__(self, home: Home, on_ready: Callable[[], None] | None = None) -> None:
        self.home = home
        self.on_ready = on_ready
        self.log_file = home.logs / "supervisor.log"
        self.children: list[Child] = []
        self.ready = False
        self.stop_signals = 0
        self.web = Address(DEFAULT_HOST, DEFAULT_PORT)
        self.mcp = Address(DEFAULT_HOST, DEFAULT_PORT + 1)
        self.environment: dict[str, str] = {}
        self.sockets: Path | None = None
        self._next_log_check = 0.0
        self._wake_read, self._wake_write = socket.socketpair()

    # -- telling -----------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """One line for the person at the terminal and for the log."""
        print(line, flush=True)
        self.note(line)

    def note(self, line: str) -> None:
        """One line for the log. A full disk must not end the supervision: then the terminal gets it."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with self.log_file.open("a") as log:
                log.write(f"{stamp} {line}\n")
        except OSError as error:
            print(f"{line} (not logged: {error.strerror})", file=sys.stderr, flush=True)

    # -- waiting -----------------------------------------------------------------------------------

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_signals += 1

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into wake-ups of `_sleep`, so that waiting costs nothing and ends at once."""
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        old_wakeup = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wake_read.close()
            self._wake_write.close()

    def _sleep(self, seconds: float) -> None:
        """Wait, at most until a signal comes."""
        readable, _, _ = select.select([self._wake_read], [], [], max(0.0, seconds))
        if readable:
            with contextlib.suppress(BlockingIOError):
                while self._wake_read.recv(512):
                    pass

    def _pause(self, seconds: float) -> None:
        """Wait during the start; StopRequested when somebody asked to stop."""
        self._sleep(seconds)
        if self.stop_signals:
            raise StopRequested

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Start everything, keep it alive until a stop signal, stop everything. Raises EmbeddedError."""
        with self._signals():
            try:
                self._start()
                while not self.stop_signals:
                    self._supervise()
            except StopRequested:
                self.note("stop requested during the start")
            finally:
                self._stop()

    def _start(self) -> None:
        began = time.monotonic()
        self.note(f"starting under {self.home.root}")
        self._end_leftovers()
        self.home.empty_tmp()
        self._choose_addresses()
        self._save_state()
        self.environment = child_environment(
            {
                "LOOM_HOME": str(self.home.root),
                "LOOM_BIND": str(self.web),
                "LOOM_MCP_BIND": str(self.mcp),
                "TMPDIR": str(self.home.tmp),
            }
        )
        self._start_services()
        self._step("migrate", "--no-input", "--verbosity", "0")
        owner = self._bootstrap()
        self._start_servers()
        self._wait_until_served()
        self._announce(owner, time.monotonic() - began)

    def _choose_addresses(self) -> None:
        web = address_from_env("LOOM_BIND")
        mcp = address_from_env("LOOM_MCP_BIND")
        self.web = explicit("LOOM_BIND", web) if web else next_free(DEFAULT_HOST, DEFAULT_PORT)
        if web is None and self.web.port != DEFAULT_PORT:
            self.say(f"port {DEFAULT_PORT} is taken; using {self.web.port}")
        if mcp is None:
            self.mcp = next_free(self.web.host, self.web.port + 1 if self.web.port < 65535 else 1024)
        elif str(mcp) == str(self.web):
            raise EmbeddedError(f"LOOM_MCP_BIND={mcp}: the web server listens there; choose another port.")
        else:
            self.mcp = explicit("LOOM_MCP_BIND", mcp)

    def _start_services(self) -> None:
        """Database and broker, unless the environment names others."""
        services: dict[str, str] = {}
        database_url = os.environ.get("LOOM_DATABASE_URL", "").strip()
        broker_url = os.environ.get("LOOM_BROKER_URL", "").strip()
        own_database, own_broker = not database_url, not broker_url
        if database_url:
            check_database(database_url)
        if broker_url:
            check_broker(broker_url)
        if own_database or own_broker:
            self.sockets = self.home.make_socket_dir()
        if own_database and self.sockets is not None:
            first = not (self.home.pg / "PG_VERSION").exists()
            if first:
                self.say("making the database (once)")
            database = postgres.Postgres(self.home, self.sockets)
            database.prepare()
            child = Child(
                database.name, database.spawn, signal.SIGINT, postgres.FAST_STOP_SECONDS, database.log
            )
            self._keep(child)
            postgres.wait_ready(database, child.running, self._pause)
            database.provision()
            services["database_url"] = database.url()
            self.environment["LOOM_DATABASE_URL"] = database.url()
        if own_broker and self.sockets is not None:
            broker = valkey.Valkey(self.home, self.sockets)
            child = Child(broker.name, broker.spawn, signal.SIGTERM, valkey.STOP_SECONDS, broker.log)
            self._keep(child)
            try:
                valkey.wait_ready(broker, child.running, self._pause)
            except EmbeddedError:
                if not broker.set_snapshot_aside():
                    raise
                self.say("the broker's snapshot cannot be read; starting it empty (jobs are found again)")
                child.start()
                valkey.wait_ready(broker, child.running, self._pause)
            services["broker_url"] = broker.url
            self.environment["LOOM_BROKER_URL"] = broker.url
        write_private(self.home.services_file, json.dumps(services))

    def _start_servers(self) -> None:
        python = sys.executable
        commands: dict[str, tuple[list[str], float]] = {
            "web": (web_command(self.web.numeric, self.web.port), WEB_STOP_SECONDS),
            "mcp": (
                [python, "-m", "uvicorn", "loomsite.asgi:application", "--host", self.mcp.numeric]
                + ["--port", str(self.mcp.port), "--lifespan", "on", "--ws", "none", "--no-access-log"]
                + ["--log-level", "warning", "--timeout-graceful-shutdown", str(int(WEB_STOP_SECONDS) - 3)],
                WEB_STOP_SECONDS,
            ),
            "worker": (
                [python, "-m", "loomsite.embedded.worker", str(self.home.run / "beat-schedule")],
                WORKER_STOP_SECONDS,
            ),
        }
        for name, (command, seconds) in commands.items():
            log = self.home.logs / f"{name}.log"

            def launch(command: list[str] = command, log: Path = log) -> subprocess.Popen[bytes]:
                return python_child(command, self.environment, BASE_DIR, log)

            self._keep(Child(name, launch, signal.SIGTERM, seconds, log))

    def _keep(self, child: Child) -> None:
        """Start a child and keep it from now on: whatever happens next, `_stop` ends it."""
        child.start()
        self.children.append(child)
        self.note(f"{child.name} started (pid {child.running.pid})")
        self._save_state()

    # -- one-off commands --------------------------------------------------------------------------

    def _step(self, *arguments: str) -> str:
        """Run a management command to its end; its standard output. Its standard error goes to a log."""
        log = self.home.logs / f"{arguments[0]}.log"
        with log.open("ab") as errors:
            begin = errors.tell()
            process = subprocess.Popen(
                [sys.executable, str(BASE_DIR / "manage.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment,
                cwd=BASE_DIR,
                start_new_session=True,
                preexec_fn=child_setup(None, signal.SIGTERM),
            )
        try:
            output = self._collect(process, time.monotonic() + STEP_SECONDS)
        except BaseException:
            kill_group(process.pid)
            process.wait()
            raise
        if process.returncode != 0:
            said = log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
            reason = said[-1].strip() if said else f"exit code {process.returncode}"
            if reason.startswith(_COMMAND_ERROR):
                raise EmbeddedError(reason.removeprefix(_COMMAND_ERROR))
            raise EmbeddedError(f"manage.py {arguments[0]} failed: {reason} (log: {log})")
        return output

    def _collect(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        assert process.stdout is not None  # noqa: S101 (PIPE was asked for)
        chunks: list[bytes] = []
        with process.stdout as pipe:
            while time.monotonic() < deadline:
                output, wake_up = pipe.fileno(), self._wake_read.fileno()
                readable, _, _ = select.select([output, wake_up], [], [], 1.0)
                if self.stop_signals:
                    raise StopRequested
                if output in readable:
                    chunk = os.read(output, 65536)
                    if not chunk:
                        process.wait()
                        return b"".join(chunks).decode(errors="replace")
                    chunks.append(chunk)
                elif readable:
                    self._pause(0)
        raise EmbeddedError(f"a management command took longer than {STEP_SECONDS:.0f} s.")

    def _bootstrap(self) -> dict[str, Any]:
        """The owner's account, as `manage.py bootstrap` tells it. May hold a fresh password: never logged."""
        lines = [line for line in self._step("bootstrap").splitlines() if line.strip()]
        try:
            owner = json.loads(lines[-1])
        except (IndexError, ValueError) as error:
            raise EmbeddedError("manage.py bootstrap printed no JSON object on its last line.") from error
        missing = [key for key in ("token", "org", "namespace", "admin_user") if not owner.get(key)]
        if missing:
            raise EmbeddedError(f"manage.py bootstrap left out {', '.join(missing)}.")
        return dict(owner)

    # -- readiness ---------------------------------------------------------------------------------

    def _wait_until_served(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        web, mcp = "nothing answers", "nothing answers"
        while web or mcp:
            self._restart_ended()
            for child in self.children:
                if child.failures >= STARTUP_FAILURES:
                    reason = postgres.last_complaint(child.log)
                    raise EmbeddedError(f"{child.name} does not start: {reason} (log: {child.log})")
            if web and (code := probe.status(self.web.reachable, "/v1/ready")):
                web = "" if code == 200 else f"GET /v1/ready answers {code}"
            if mcp and probe.status(self.mcp.reachable, "/mcp"):
                mcp = ""
            if (web or mcp) and time.monotonic() > deadline:
                name, why = ("web", web) if web else ("mcp", mcp)
                log = self.home.logs / f"{name}.log"
                raise EmbeddedError(f"{name} not ready after {READY_SECONDS:.0f} s: {why} (log: {log})")
            if web or mcp:
                self._pause(0.1)

    def _announce(self, owner: dict[str, Any], seconds: float) -> None:
        connection = banner.connection(self.web, self.mcp, owner)
        write_private(self.home.connection_file, json.dumps(connection, indent=2) + "\n")
        self.ready = True
        self.note(f"ready after {seconds:.1f} s at {self.web.url} and {connection['mcp_url']}")
        print(banner.text(connection, owner.get("admin_password"), self.home, seconds), flush=True)
        if self.on_ready is not None:
            self.on_ready()

    # -- keeping alive -----------------------------------------------------------------------------

    def _supervise(self) -> None:
        """One round: restart what ended, trim logs, wait for the next event."""
        self._restart_ended()
        now = time.monotonic()
        if now >= self._next_log_check:
            self._next_log_check = now + LOG_CHECK_SECONDS
            self._trim_logs()
        due = [child.restart_at for child in self.children if child.restart_at is not None]
        self._sleep(min([*due, self._next_log_check], default=now + 60.0) - time.monotonic())

    def _restart_ended(self) -> None:
        changed = False
        for child in self.children:
            code = child.ended()
            if code is not None and child.process is not None:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                wait = child.schedule_restart()
                self.say(f"{child.name} ended {how}; starting it again in {wait:g} s (log: {child.log})")
                changed = True
            if child.restart_at is not None and time.monotonic() >= child.restart_at:
                self._restart(child)
                changed = True
        if changed:
            self._save_state()

    def _restart(self, child: Child) -> None:
        """Start a child again. A failure of the system (no memory, full disk) is one more reason to wait."""
        try:
            child.start()
        except (OSError, subprocess.SubprocessError, EmbeddedError) as error:
            wait = child.schedule_restart()
            self.say(f"{child.name} could not be started ({error}); next try in {wait:g} s")
            return
        child.restarts += 1
        self.say(f"{child.name} started again (pid {child.running.pid}, restart {child.restarts})")

    def _trim_logs(self) -> None:
        """Keep one older copy of a large log. The writers append, so cutting it in place is safe."""
        for log in self.home.logs.glob("*.log"):
            try:
                if log.stat().st_size > LOG_LIMIT_BYTES:
                    shutil.copyfile(log, log.with_suffix(".log.1"))
                    os.truncate(log, 0)
            except OSError as error:
                self.note(f"cannot trim {log.name}: {error.strerror}")

    # -- stopping ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stop all, servers first and the database last. A second signal makes it hurry."""
        self.home.connection_file.unlink(missing_ok=True)
        if self.children:
            self.say("stopping")
        servers = [child for child in self.children if child.name in {"web", "mcp", "worker"}]
        for group in (servers, *([child] for child in reversed(self.children) if child not in servers)):
            for child in group:
                child.ask_to_stop()
            for child in group:
                if not child.finish(self._patience(child)):
                    self.note(f"{child.name} did not end in {child.stop_seconds:.0f} s and was killed")
        stopped = bool(self.children)
        self.children.clear()
        for path in (self.home.services_file, self.home.state_file):
            path.unlink(missing_ok=True)
        if self.sockets is not None:
            self.home.remove_socket_dir(self.sockets)
        if stopped:
            self.say("stopped")

    def _patience(self, child: Child) -> float:
        """How long a child may take to end. The database keeps its time: killing it means crash recovery."""
        if self.stop_signals > 1 and child.name != "postgres":
            return 1.0
        return child.stop_seconds

    # -- memory of who runs ------------------------------------------------------------------------

    def _save_state(self) -> None:
        """Who runs, for a second `up`, for `down`, and for the clean-up after a kill -9 of this process."""
        me = Identity.of(os.getpid())
        state = {
            "supervisor": me.to_json() if me else None,
            "url": self.web.url,
            "sockets": str(self.sockets) if self.sockets else None,
            "children": {child.name: child.identity.to_json() for child in self.children if child.identity},
        }
        try:
            write_private(self.home.state_file, json.dumps(state))
        except OSError as error:
            self.note(f"cannot write {self.home.state_file}: {error.strerror}")

    def _end_leftovers(self) -> None:
        """End the children of a supervisor that was killed; we hold the lock, so it is dead.

        They got a signal from the kernel when it died (on Linux), so most are ending already.
        """
        self.home.connection_file.unlink(missing_ok=True)
        state = read_json(self.home.state_file)
        recorded = state.get("children")
        left = []
        for name, raw in (recorded if isinstance(recorded, dict) else {}).items():
            identity = Identity.from_json(raw)
            if identity is None:
                continue
            if identity.alive():
                left.append((str(name), identity))
            # Of a server that was killed with the supervisor, its own children may hold the port.
            left += [(str(name), member) for member in processes_of_group(identity.pid, self.home.root)]
        for name, identity in left:
            self.say(f"ending {name} (pid {identity.pid}) of an earlier run")
            identity.send(signal.SIGINT if name == "postgres" else signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        for _, identity in left:
            if not identity.wait_gone(deadline - time.monotonic()):
                identity.send(signal.SIGKILL)
                identity.wait_gone(5.0)
        sockets = state.get("sockets")
        if isinstance(sockets, str):
            self.home.remove_socket_dir(Path(sockets))
        for path in (self.home.services_file, self.home.state_file):
            path.unlink(missing_ok=True)
