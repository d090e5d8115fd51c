"""The embedded PostgreSQL by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import tuple_row

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import Home
from loomsite.embedded.postgres import DATABASE, ROLE, Postgres, stop, wait_ready
from loomsite.embedded.processes import processes_in


class Server:
    """A cluster in a temporary home that can be started and stopped."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.prepare()
        self.sockets = self.home.make_socket_dir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Postgres:
        """Start as the supervisor does."""
        database = Postgres(self.home, self.sockets)
        database.prepare()
        self.process = database.spawn()
        wait_ready(database, self.process)
        database.provision()
        return database

    def stop(self) -> None:
        """Stop as the supervisor does."""
        if self.process is not None:
            stop(self.process, signal.SIGINT, 30.0)
        self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that is not started yet."""
    made = Server(tmp_path / "home")
    try:
        yield made
    finally:
        made.stop()
        made.home.remove_socket_dir(made.sockets)


def ask(database: Postgres, sql: str) -> object:
    """The first column of the first row, None when there is none."""
    with psycopg.connect(database.url(), row_factory=tuple_row) as connection:
        cursor = connection.execute(sql.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def test_only_the_password_opens_it_and_the_role_is_no_superuser(server: Server) -> None:
    database = server.start()
    assert ask(database, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"host={database.socket_dir} user={ROLE} dbname={DATABASE} password=wrong")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"host={database.socket_dir} user={ROLE} dbname={DATABASE}")
    assert stat.S_IMODE(database.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.home.pg_secret.stat().st_mode) == 0o600


def test_it_is_utf8_checksummed_durable_and_has_vectors(server: Server) -> None:
    database = server.start()
    assert ask(database, "SHOW server_encoding") == "UTF8"
    assert ask(database, "SHOW data_checksums") == "on"
    assert ask(database, "SHOW fsync") == "on"
    assert ask(database, "SHOW synchronous_commit") == "on"
    assert ask(database, "SHOW listen_addresses") == ""
    assert ask(database, "SELECT lower('ÄÉİ') LIKE 'äé%'") is True
    assert ask(database, "SELECT '[1,2,2]'::vector <-> '[0,0,0]'::vector") == 3.0


def test_a_lost_password_file_is_made_anew_and_the_data_stays(server: Server) -> None:
    database = server.start()
    ask(database, "CREATE TABLE kept AS VALUES (7)")
    server.stop()
    server.home.pg_secret.unlink()
    assert ask(server.start(), "SELECT column1 FROM kept") == 7


def test_a_killed_server_recovers_what_it_acknowledged(server: Server) -> None:
    database = server.start()
    with psycopg.connect(database.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
        assert server.process is not None
        server.process.kill()
        server.process.wait()
    assert ask(server.start(), "SELECT count(*) FROM kept") == 1000


def test_backends_that_outlive_a_killed_server_do_not_stop_the_next_one(server: Server) -> None:
    database = server.start()
    with contextlib.closing(psycopg.connect(database.url(), autocommit=True)) as connection:
        # A backend busy in a query does not notice that its postmaster has died.
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 10000000000)")
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        assert ask(server.start(), "SELECT 1") == 1


def test_a_pid_file_that_names_a_stranger_is_stale(server: Server) -> None:
    server.start()
    server.stop()
    pid_file = server.home.pg / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{server.home.pg}\n1700000000\n5432\n\n\n  1 1\nready\n")
    assert ask(server.start(), "SELECT 1") == 1


def test_a_server_that_an_earlier_run_left_is_ended_before_the_start(server: Server) -> None:
    server.start()
    first = server.process
    assert first is not None
    try:
        assert ask(server.start(), "SELECT 1") == 1
        assert first.wait(10) == 0
    finally:
        first.wait(10)


def test_a_cut_first_start_begins_again(server: Server) -> None:
    half = server.home.root / "pg.new" / "data"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    assert ask(server.start(), "SELECT 1") == 1
    assert not (server.home.root / "pg.new").exists()


def test_data_of_another_major_version_is_refused_with_one_line(server: Server) -> None:
    server.home.pg.mkdir()
    (server.home.pg / "PG_VERSION").write_text("15\n")
    with pytest.raises(EmbeddedError, match="PostgreSQL 15"):
        server.start()


def test_a_folder_with_foreign_files_is_not_taken_for_a_database(server: Server) -> None:
    server.home.pg.mkdir()
    (server.home.pg / "diary.txt").write_text("mine")
    with pytest.raises(EmbeddedError, match="not empty"):
        server.start()
    assert (server.home.pg / "diary.txt").read_text() == "mine"


def test_a_broken_configuration_is_told_with_the_servers_own_words(server: Server) -> None:
    server.start()
    server.stop()
    with (server.home.pg / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = on\n")
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        server.start()


def test_under_root_the_server_runs_as_nobodys_uid_even_where_only_root_may_enter(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root needs another uid")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = Server(closed / "home")
    try:
        server.start()
        assert server.process is not None
        assert os.stat(f"/proc/{server.process.pid}").st_uid != 0
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        # CAP_DAC_READ_SEARCH (bit 2) or, where root lacks it, CAP_DAC_OVERRIDE (bit 1): never more.
        effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
        assert int(effective, 16) in {1 << 2, 1 << 1}
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    finally:
        server.stop()
        server.home.remove_socket_dir(server.sockets)
    assert processes_in(server.home.pg, "postgres") == []
