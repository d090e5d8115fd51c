"""`up` and `down`, run as `python -m loomsite.embedded`; the management commands only lead here."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from loomsite.embedded.errors import EmbeddedError
from loomsite.embedded.home import BASE_DIR, Home, read_json
from loomsite.embedded.processes import Identity

DOWN_SECONDS = 90.0
OTHER_START_SECONDS = 5.0


def _running_url(home: Home) -> str:
    """Where the other supervisor serves, as far as it has got."""
    deadline = time.monotonic() + OTHER_START_SECONDS
    while True:
        url = read_json(home.connection_file).get("url") or read_json(home.state_file).get("url")
        if url or time.monotonic() > deadline:
            return str(url or "an address not chosen yet")
        time.sleep(0.1)


def _check_settings() -> None:
    """Let the settings judge every LOOM_* value before anything starts. Cheap: no app is loaded."""
    from django.core.exceptions import ImproperlyConfigured

    try:
        import loomsite.settings  # noqa: F401
    except ImproperlyConfigured as error:
        raise EmbeddedError(str(error)) from error


def _check_first_start(home: Home) -> None:
    """What `bootstrap` would refuse, before a database is made for it."""
    if (home.pg / "PG_VERSION").exists() or os.environ.get("LOOM_DATABASE_URL", "").strip():
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
    from django.conf import settings
    from django.contrib.auth.password_validation import validate_password
    from django.core.exceptions import ValidationError

    given = os.environ.get("LOOM_ADMIN_PASSWORD", "")
    try:
        if given:
            validate_password(given)
    except ValidationError as error:
        raise EmbeddedError(f"LOOM_ADMIN_PASSWORD: {' '.join(error.messages)}") from error
    if not settings.IS_LOOPBACK:
        raise EmbeddedError(
            "LOOM_BIND or LOOM_MCP_BIND lets other machines in, and no token exists before the first start: "
            "start once on 127.0.0.1, which makes the owner's token, then start again."
        )


def up(detached: bool = False) -> int:
    """Run the servers in this process until a stop signal; detached, the terminal is let go when all is
    ready.
    """
    from loomsite.embedded.supervisor import Supervisor

    home = Home.from_env()
    home.prepare()
    with home.lock() as mine:
        if not mine:
            print(f"already running at {_running_url(home)}", flush=True)
            return 0
        os.umask(0o077)  # what the servers write is for their owner's eyes
        os.environ["LOOM_HOME"] = str(home.root)
        _check_settings()
        _check_first_start(home)
        Supervisor(home, _let_go if detached else None).run()
    return 0


def _let_go() -> None:
    """Close the pipe to the process that started us; it takes that as "ready" and returns.

    What is said from now on stands in the supervisor's own log already.
    """
    with open(os.devnull, "r+b") as nothing:
        for descriptor in (1, 2):
            os.dup2(nothing.fileno(), descriptor)


def up_detached() -> int:
    """Start a supervisor of its own session and copy what it says until everything is ready.

    The banner comes through a pipe, so that a fresh password reaches the terminal and no file.
    """
    home = Home.from_env()
    home.prepare()
    process = subprocess.Popen(
        [sys.executable, "-m", "loomsite.embedded", "up", "--detached-child"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=BASE_DIR,
        env={**os.environ, "LOOM_HOME": str(home.root)},
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 (PIPE was asked for)
    with process.stdout as pipe:
        for line in iter(pipe.readline, b""):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    # The pipe ends when the child is ready and has turned to its log, or when it has ended.
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it goes on without us; no warning about a child left running
        return 0


def down() -> int:
    """Stop the servers under this home and wait until nothing of them runs."""
    home = Home.from_env()
    if not home.root.is_dir():
        print(f"not running (no {home.root})", flush=True)
        return 0
    with home.lock() as mine:
        if mine:
            print("not running", flush=True)
            return 0
    supervisor = Identity.from_json(read_json(home.state_file).get("supervisor"))
    if supervisor is None or not supervisor.alive():
        raise EmbeddedError(f"a server holds {home.lock_file}, but its process is not recorded; try again.")
    try:
        os.kill(supervisor.pid, signal.SIGTERM)
    except PermissionError as error:
        raise EmbeddedError(f"the server (pid {supervisor.pid}) belongs to another user.") from error
    if not supervisor.wait_gone(DOWN_SECONDS):
        raise EmbeddedError(f"the server (pid {supervisor.pid}) has not ended after {DOWN_SECONDS:.0f} s.")
    print("stopped", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; an EmbeddedError is one line on standard error and exit code 1."""
    parser = argparse.ArgumentParser(prog="loomsite.embedded")
    commands = parser.add_subparsers(dest="command", required=True)
    starter = commands.add_parser("up", help="start everything and keep it alive")
    starter.add_argument("--detach", action="store_true", help="return when ready; `down` stops it")
    starter.add_argument("--detached-child", action="store_true", help=argparse.SUPPRESS)
    commands.add_parser("down", help="stop what `up` started")
    options = parser.parse_args(arguments)
    try:
        if options.command == "down":
            return down()
        if options.detach:
            return up_detached()
        return up(detached=options.detached_child)
    except EmbeddedError as error:
        print(f"loomsite: {error}", file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        # A full disk, a file of another user: the system's word and the file say it all.
        print(
            f"loomsite: {error.filename or 'system call'}: {error.strerror or error}",
            file=sys.stderr,
            flush=True,
        )
        return 1
    except KeyboardInterrupt:
        return 130


def exec_cli(command: str, *arguments: str) -> None:
    """Replace this process by the light command line: what Django loaded to get here is given back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["LOOM_HOME"] = str(Home.from_env().root)  # a relative one is relative to where the user stands
    os.chdir(BASE_DIR)
    os.execv(sys.executable, [sys.executable, "-m", "loomsite.embedded", command, *arguments])  # noqa: S606
