"""How a child process is started: whose it is, and that it dies with its parent.

PostgreSQL refuses to run as root. Under root it therefore gets a uid that no account uses. LOOM_HOME or the
virtual environment may lie below a folder that such a uid cannot enter (`/root` is 0700). The usual answer,
opening those folders to everyone, is not ours to give: instead the server keeps, as an ambient capability,
the right to pass through folders, and nothing else of root's.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loomsite.embedded.errors import EmbeddedError

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
# Above the ordinary accounts, below the ranges of systemd's dynamic users and of `nobody`.
_UNUSED_UIDS = range(60_500, 61_000)

_libc = ctypes.CDLL(None, use_errno=True)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _prctl(option: int, argument: int, extra: int = 0) -> None:
    if _libc.prctl(option, argument, extra, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


@dataclass(frozen=True)
class Account:
    """The uid and gid a server runs under, and the capabilities it keeps (none where none is needed)."""

    uid: int
    gid: int
    capabilities: tuple[int, ...] = ()

    def become(self) -> None:
        """Turn this (root) process into the account for good; runs between fork and exec."""
        if self.capabilities:
            _prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        if not self.capabilities:
            return
        mask = sum(1 << capability for capability in self.capabilities)
        data = (_CapData * 2)(_CapData(0, mask, mask), _CapData(0, 0, 0))
        if _libc.capset(ctypes.byref(_CapHeader(_CAPABILITY_VERSION_3, 0)), data) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"capset: {os.strerror(number)}")
        for capability in self.capabilities:
            _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def child_setup(account: Account | None, death_signal: signal.Signals) -> Callable[[], None]:
    """The `preexec_fn` of every child: its account, default signals, and a signal when the supervisor dies.

    The death signal comes last, for a change of uid clears it. A parent that died before it was armed is
    seen by the changed parent id.
    """
    parent = os.getpid()

    def setup() -> None:
        os.umask(0o077)
        if account is not None:
            account.become()
        if LINUX:
            _prctl(_PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:
                os._exit(1)

    return setup


def _unused_account() -> Account:
    for number in _UNUSED_UIDS:
        try:
            pwd.getpwuid(number)
        except KeyError:
            try:
                grp.getgrgid(number)
            except KeyError:
                return Account(number, number)
    return named_account()


def named_account() -> Account:
    """An unprivileged account with a name: `initdb` insists on looking its user up."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedError(
            "running as root needs an account named 'nobody' for the database; run as an ordinary user "
            "or set LOOM_DATABASE_URL."
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def _can_use(account: Account, program: Path, folder: Path) -> bool:
    """Whether the account can run `program` and enter `folder`, tried for real and not derived from modes."""
    script = '"$1" --version >/dev/null 2>&1 && cd "$2"'
    try:
        result = subprocess.run(
            ["/bin/sh", "-c", script, "sh", str(program), str(folder)],
            preexec_fn=account.become,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (subprocess.SubprocessError, OSError):
        return False  # the kernel refused the uid or the capability
    return result.returncode == 0


def reachable_account(base: Account, program: Path, folder: Path) -> Account:
    """`base` with the least right that lets it run `program` and enter `folder`."""
    for capabilities in ((), (CAP_DAC_READ_SEARCH,), (CAP_DAC_OVERRIDE,)):
        account = Account(base.uid, base.gid, capabilities)
        if _can_use(account, program, folder):
            return account
    raise EmbeddedError(
        f"running as root, the database cannot be given a user of its own that reaches {folder}; "
        "run as an ordinary user or set LOOM_DATABASE_URL."
    )


def database_account(data_dir: Path) -> Account | None:
    """Whose the database files are: None for an ordinary user (his own); under root an unused uid."""
    if os.geteuid() != 0:
        return None
    if data_dir.exists():
        status = data_dir.stat()
        if status.st_uid != 0:
            return Account(status.st_uid, status.st_gid)
    return _unused_account()


def give(folder: Path, account: Account) -> None:
    """Hand a folder and all in it to the account; links are not followed."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.lchown(os.path.join(parent, name), account.uid, account.gid)
    os.lchown(folder, account.uid, account.gid)
