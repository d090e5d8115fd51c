"""The folder that holds everything a run keeps, `LOOM_HOME`, and the lock that makes it one server's own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loomsite.embedded.errors import EmbeddedError

BASE_DIR = Path(__file__).resolve().parent.parent.parent
# A unix socket's path may hold 107 bytes on Linux and 103 on macOS; the longest name we put there is
# `pg/.s.PGSQL.5432.lock`, with some room to spare.
SOCKET_DIR_LIMIT = 103 - len("/pg/.s.PGSQL.5432.lock") - 1
# Celery's and libpq's URLs carry the path: what would need escaping goes to the short folder instead.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when the file is missing or was cut by a crash."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


class Home:
    """Paths under LOOM_HOME, and its lock.

    Folder modes: 0700, or 0711 when root runs us, because the database then runs under a uid of its own and
    has to pass through. Every file with a secret is 0600 whatever the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pg = root / "pg"
        self.pg_secret = root / "pg.secret"
        self.valkey = root / "valkey"
        self.logs = root / "logs"
        self.run = root / "run"
        self.tmp = self.run / "tmp"
        self.connection_file = root / "connection.json"
        self.services_file = self.run / "services.json"
        self.state_file = self.run / "state.json"
        self.lock_file = root / "supervisor.lock"

    @classmethod
    def from_env(cls) -> Home:
        """The home named by LOOM_HOME, default `.loom` beside manage.py."""
        given = os.environ.get("LOOM_HOME", "").strip()
        return cls(Path(given).expanduser().absolute() if given else BASE_DIR / ".loom")

    def prepare(self) -> None:
        """Make the folders and prove that they can be written. Raises EmbeddedError with one line."""
        mode = 0o711 if os.geteuid() == 0 else 0o700
        try:
            for folder, folder_mode in (
                (self.root, mode),
                (self.run, mode),
                (self.logs, 0o700),
                (self.valkey, 0o700),
            ):
                folder.mkdir(parents=folder == self.root, exist_ok=True)
                if stat.S_IMODE(folder.stat().st_mode) != folder_mode:
                    folder.chmod(folder_mode)
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(b"\0" * 65536)
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            raise EmbeddedError(
                f"LOOM_HOME: cannot write {error.filename or self.root} ({error.strerror}); "
                "name a folder that you can write."
            ) from error

    def empty_tmp(self) -> None:
        """Make the children's TMPDIR, empty: a killed one cleans nothing up."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.tmp.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold this home. Yields False when another supervisor holds it.

        The kernel frees the lock when its holder dies in whatever way, so there is no stale lock.
        """
        try:
            handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedError(
                f"LOOM_HOME: cannot open {self.lock_file} ({error.strerror}); does another user own it?"
            ) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def make_socket_dir(self) -> Path:
        """The folder for the unix sockets: `run` when its path is short and plain, else a private one in
        TMPDIR.
        """
        if len(os.fsencode(self.run)) <= SOCKET_DIR_LIMIT and _PLAIN_PATH.fullmatch(str(self.run)):
            return self.run
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (mkdtemp makes a private folder in it)
            if len(os.fsencode(parent)) + len("/loom-12345678") <= SOCKET_DIR_LIMIT and _PLAIN_PATH.fullmatch(
                parent
            ):
                folder = Path(tempfile.mkdtemp(prefix="loom-", dir=parent))
                if os.geteuid() == 0:
                    folder.chmod(0o711)
                return folder
        raise EmbeddedError(
            f"LOOM_HOME: the path {self.root} is too long for a unix socket and no short temporary folder "
            "was found; set TMPDIR or choose a shorter LOOM_HOME."
        )

    def remove_socket_dir(self, folder: Path) -> None:
        """Remove what `make_socket_dir` made outside the home."""
        if folder != self.run and folder.name.startswith("loom-"):
            shutil.rmtree(folder, ignore_errors=True)
