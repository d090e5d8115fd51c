"""Settings of a server for a team: Django's own checks, and what the modes mean, each in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)


def manage(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`manage.py` with these variables and none of the test session's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**kept, "LOOM_HOME": str(home), **environment},
        check=False,
    )


SERVER = {"LOOM_HTTPS": "1", "LOOM_PUBLIC_HOSTS": "memory.example.org"}
READ_MODE = "from django.conf import settings as s; print(s.LOOM_SINGLE_USER, s.LOOM_RATE_WRITES)"


@pytest.mark.parametrize(
    "how",
    [
        {"LOOM_SINGLE_USER": "0"},
        {"LOOM_BIND": "0.0.0.0:8321"},
        {"LOOM_MCP_BIND": "[::]:8322", "LOOM_RATE_READS": "off"},
    ],
)
def test_deployment_checks_have_nothing_to_say_in_server_mode(tmp_path: Path, how: dict[str, str]) -> None:
    done = manage("check", "--deploy", "--fail-level", "INFO", home=tmp_path, **SERVER, **how)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no issues (0 silenced)" in done.stdout


def test_the_checks_would_speak_up_without_https(tmp_path: Path) -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING", home=tmp_path, LOOM_SINGLE_USER="0")
    assert done.returncode == 1
    assert "security.W012" in done.stderr


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "True"),
        ({"LOOM_SINGLE_USER": "0"}, "False"),
        ({"LOOM_BIND": "0.0.0.0:8321"}, "False"),
        # What other machines reach is never single-user, whatever is asked for.
        ({"LOOM_BIND": "0.0.0.0:8321", "LOOM_SINGLE_USER": "1"}, "False"),
    ],
)
def test_single_user_mode_is_off_as_soon_as_others_may_come_in(
    tmp_path: Path, how: dict[str, str], says: str
) -> None:
    done = manage("shell", "--no-imports", "-c", READ_MODE, home=tmp_path, **how)
    assert done.stdout.split() == [says, "(600,", "60.0)"], done.stderr


def test_a_wrong_rate_is_one_line_that_names_it(tmp_path: Path) -> None:
    done = manage("check", home=tmp_path, LOOM_RATE_WRITES="many")
    assert done.returncode != 0
    assert "LOOM_RATE_WRITES='many'" in done.stderr.splitlines()[-1]
