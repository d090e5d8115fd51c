"""`make run` from outside: real processes under a home of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loomsite.embedded import banner
from loomsite.embedded.home import Home
from loomsite.embedded.processes import start_mark
from tests.embedded.running import Running, eventually, processes_mentioning

CHILDREN = ("postgres", "valkey", "web", "mcp", "worker")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One running system for the whole file; its path has spaces and is too long for a unix socket."""
    home = tmp_path_factory.mktemp("supervisor") / "a home with spaces" / ("long " * 20).strip()
    home.parent.mkdir()
    running = Running(home)
    try:
        running.start()
        yield running
    finally:
        running.end()


def test_connection_json_is_written_last_and_only_its_owner_reads_it(served: Running) -> None:
    facts = served.connection()
    assert set(facts) == {"url", "mcp_url", "token", "org", "namespace", "admin_url", "admin_user"}
    assert stat.S_IMODE((served.home / "connection.json").stat().st_mode) == 0o600
    assert served.status(f"{facts['url']}/v1/ready") == 200
    assert served.status(facts["mcp_url"]) > 0
    assert served.status(facts["admin_url"]) in {200, 302}


def test_the_password_is_printed_once_and_written_nowhere(served: Running) -> None:
    login = re.search(r"login +(\S+) / (\S+)", served.output.read_text())
    assert login is not None, served.output.read_text()
    password = login[2].encode()
    for path in served.home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert password not in path.read_bytes(), path


def test_the_printed_client_snippet_is_json_with_the_token(served: Running) -> None:
    text = served.output.read_text()
    snippet = json.JSONDecoder().raw_decode(text[text.index('{\n  "mcpServers"') :])[0]
    server = snippet["mcpServers"]["loomsite"]
    facts = served.connection()
    assert server["url"] == facts["mcp_url"]
    assert server["headers"] == {"Authorization": f"Bearer {facts['token']}"}


def test_secrets_and_logs_are_for_their_owner_only(served: Running) -> None:
    for path in (served.home / "pg.secret", *served.home.glob("logs/*"), *served.home.glob("run/*.json")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_no_secret_stands_in_a_command_line(served: Running) -> None:
    secret = (served.home / "pg.secret").read_text().strip()
    lines = processes_mentioning(str(served.home)).values()
    assert lines
    assert not [line for line in lines if secret in line or served.connection()["token"] in line]


def test_nothing_listens_but_web_and_mcp_on_loopback(served: Running) -> None:
    listening = set()
    for pid in processes_mentioning(str(served.home)):
        table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        inodes = {fields[9]: fields[1] for line in table if (fields := line.split())[3] == "0A"}
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                listening.add(inodes[target[8:-1]])
    loopback = "0100007F"
    assert listening == {f"{loopback}:{served.port:04X}", f"{loopback}:{served.port + 1:04X}"}


def test_temporary_files_of_the_servers_stay_in_the_home(served: Running) -> None:
    folder = served.home / "run" / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("web", "mcp", "worker"):
        environment = Path(f"/proc/{served.pids()[name]}/environ").read_bytes().split(b"\0")
        assert f"TMPDIR={folder}".encode() in environment, name


def test_a_start_empties_what_a_killed_server_left(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    home.empty_tmp()
    (home.tmp / "pymp-left").mkdir()
    home.empty_tmp()
    assert list(home.tmp.iterdir()) == []


def test_the_banner_names_a_command_that_can_be_pasted(tmp_path: Path) -> None:
    facts = dict.fromkeys(("url", "mcp_url", "token", "admin_url", "admin_user"), "x")
    text = banner.text(facts, None, Home(tmp_path), 1.0)
    assert "`.venv/bin/python manage.py changepassword owner`" in text


def test_a_second_run_says_that_it_runs_already_and_where(served: Running) -> None:
    for arguments in (["up"], ["up", "--detach"]):
        second = served.command(*arguments)
        assert second.returncode == 0
        assert second.stdout.strip() == f"already running at {served.connection()['url']}"
    assert served.ready()


def test_a_taken_port_that_was_asked_for_is_one_clear_line(served: Running, tmp_path: Path) -> None:
    other = Running(tmp_path / "home", port=served.port)
    refused = other.command("up")
    assert refused.returncode != 0
    assert refused.stderr.strip().count("\n") == 0
    assert f"LOOM_BIND=127.0.0.1:{served.port}" in refused.stderr
    assert not (tmp_path / "home" / "pg").exists()


@pytest.mark.parametrize("name", CHILDREN)
def test_a_killed_process_is_healed(served: Running, name: str) -> None:
    before = served.pids()[name]
    os.kill(before, signal.SIGKILL)
    eventually(f"{name} runs again", lambda: served.pids().get(name, before) != before)
    eventually("everything answers", served.ready)
    eventually("MCP answers", lambda: served.status(served.connection()["mcp_url"]) > 0)


@pytest.mark.parametrize("name", ["postgres", "web", "worker"])
def test_a_killed_process_below_a_server_is_healed(served: Running, name: str) -> None:
    leader = served.pids()[name]
    below = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _parent(int(entry.name)) == leader
    ]
    assert below
    os.kill(below[-1], signal.SIGKILL)
    eventually("the process is gone", lambda: start_mark(below[-1]) is None)
    eventually("everything answers", served.ready)


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_idle_memory_stays_under_600_mb(served: Running) -> None:
    total = 0
    for pid in processes_mentioning(str(served.home)):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
        total += int(found[1]) if found else 0
    assert total < 600 * 1024, f"idle memory (PSS of all processes): {total / 1024:.0f} MB"


def test_a_killed_supervisor_leaves_nothing_running_and_the_next_start_keeps_the_data(
    served: Running,
) -> None:
    token = served.connection()["token"]
    process = served.process
    assert process is not None
    process.kill()
    process.wait()
    eventually("all processes are gone", lambda: not processes_mentioning(str(served.home)))
    served.start()
    assert served.connection()["token"] == token
    assert served.ready()
    assert "password as before" in served.output.read_text()


def test_sigterm_leaves_nothing_running_and_no_connection_file(served: Running) -> None:
    assert served.stop(signal.SIGTERM) == 0
    assert processes_mentioning(str(served.home)) == {}
    left = {path.name for path in served.home.rglob("*") if path.name in {"connection.json", "services.json"}}
    assert left == set()
    assert not (served.home / "pg" / "postmaster.pid").exists()


def test_it_starts_in_the_background_and_down_stops_it(served: Running) -> None:
    started = served.command("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert "Loomsite is ready" in started.stdout
    assert served.ready()
    down = served.command("down")
    assert (down.returncode, down.stdout.strip()) == (0, "stopped")
    assert processes_mentioning(str(served.home)) == {}
    again = served.command("down")
    assert (again.returncode, again.stdout.strip()) == (0, "not running")


# -- starts that are refused with one line -----------------------------------------------------


def one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """The refusal is one line on standard error that names what is wrong."""
    assert result.returncode != 0
    assert result.stderr.strip().count("\n") == 0, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOOM_BIND", "nonsense"),
        ("LOOM_BIND", "127.0.0.1:99999"),
        ("LOOM_MCP_BIND", "127.0.0.1"),
        ("LOOM_DATABASE_URL", "mysql://u:secret@h/db"),
        ("LOOM_SECRET_KEY", "short"),
        ("LOOM_EMBEDDER", "magic"),
        ("LOOM_PUBLIC_HOSTS", "*"),
        ("LOOM_PUBLIC_HOSTS", "a.example,*"),
        ("LOOM_ADMIN_PASSWORD", "short"),
        ("LOOM_BIND", "0.0.0.0:18765"),
    ],
)
def test_a_wrong_value_stops_the_start_with_one_line_that_names_it(
    tmp_path: Path, name: str, value: str
) -> None:
    running = Running(tmp_path / "home")
    running.environment[name] = value
    result = running.command("up")
    one_line(result, name)
    assert "u:secret" not in result.stderr


def test_an_embedder_without_its_address_is_refused_with_one_line(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", LOOM_EMBEDDER="openai")
    one_line(running.command("up"), "LOOM_EMBEDDER_URL is not set")


@pytest.mark.parametrize(
    ("name", "value"), [("LOOM_ADMIN_PASSWORD", "short"), ("LOOM_BIND", "0.0.0.0:18765")]
)
def test_what_cannot_begin_is_refused_before_a_database_is_made(
    tmp_path: Path, name: str, value: str
) -> None:
    running = Running(tmp_path / "home")
    running.environment[name] = value
    result = running.command("up")
    assert result.stderr.startswith(f"loomsite: {name}")
    assert not (running.home / "pg" / "PG_VERSION").exists()


def test_a_home_that_is_a_file_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    one_line(Running(tmp_path / "home").command("up"), "LOOM_HOME", str(tmp_path / "home"))


def _on_a_small_disk(home: Path, options: str) -> subprocess.CompletedProcess[str]:
    """Run `up` with a file system of its own mounted at `home`, in a mount namespace that ends with it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    home.mkdir()
    script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    running = Running(home)
    command = [sys.executable, "-m", "loomsite.embedded", "up"]
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", options, str(home), *command],
        env=running.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "mount:" in result.stderr:
        pytest.skip("this machine does not let root mount")
    return result


def test_a_read_only_disk_is_refused_with_one_line(tmp_path: Path) -> None:
    one_line(_on_a_small_disk(tmp_path / "home", "ro"), "LOOM_HOME", "Read-only file system")


@pytest.mark.parametrize(("size", "complaint"), [("32k", "No space left"), ("100m", "MB are needed")])
def test_a_full_disk_is_refused_with_one_line(tmp_path: Path, size: str, complaint: str) -> None:
    one_line(_on_a_small_disk(tmp_path / "home", f"size={size}"), "LOOM_HOME", complaint)


def test_a_home_in_a_folder_that_we_may_not_write_is_refused_with_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    running = Running(tmp_path / "home")
    running.environment["LOOM_HOME"] = str(tmp_path / "closed" / "home")
    one_line(running.command("up"), "LOOM_HOME", "Permission denied")


def test_a_stop_during_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    running = Running(tmp_path / "home")
    running.start(wait=False)
    try:
        eventually("the database is starting", (tmp_path / "home" / "pg" / "postmaster.pid").exists)
        assert running.stop(signal.SIGINT) == 0
    finally:
        running.end()
    assert processes_mentioning(str(tmp_path / "home")) == {}
    assert not (tmp_path / "home" / "connection.json").exists()


def test_the_default_port_gives_way_to_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from loomsite.embedded.ports import next_free

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        assert port < next_free("127.0.0.1", port).port < port + 200
