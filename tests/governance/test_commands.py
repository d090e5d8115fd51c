"""`doctor` and `bootstrap`: what a person sees who starts or mends a server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError
from pytest_django import Settings

from governance.models import Org, Token, User
from governance.services import token_revoke, worker_heartbeat
from loomsite.management.commands import doctor
from tests.governance.brokers import use_broker

PARTS = ["database", "extension", "migrations", "tokens", "broker", "worker", "embedder", "anchor", "disk"]


def examined() -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and (word, rest) by part."""
    out = io.StringIO()
    code = 0
    try:
        call_command("doctor", stdout=out)
    except SystemExit as ended:
        code = int(str(ended.code))
    found = {}
    for line in out.getvalue().splitlines():
        word, part, rest = line.split(maxsplit=2)
        found[part] = (word, rest)
    return code, found


@pytest.mark.usefixtures("anchor")
def test_the_doctor_finds_a_healthy_server_healthy(db: None) -> None:
    worker_heartbeat()
    code, found = examined()
    assert list(found) == PARTS
    assert {word for word, _ in found.values()} == {"ok"}, found
    assert code == 0
    assert found["database"][1].startswith("PostgreSQL")
    assert found["extension"][1].startswith("pgvector")
    assert "single-user mode on" in found["tokens"][1]


@pytest.mark.usefixtures("anchor")
def test_the_doctor_misses_a_worker_and_says_what_to_start(db: None) -> None:
    code, found = examined()
    assert code == 1
    assert found["worker"] == ("FAIL", "never heard from; start one with `celery -A loomsite worker`")
    assert [part for part, (word, _) in found.items() if word == "FAIL"] == ["worker"]


def test_the_doctor_looks_at_every_part_whatever_the_others_say(
    db: None, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> int:
        raise OperationalError("connection refused\nIs the server running?")

    worker_heartbeat()
    settings.LOOM_AUDIT_ANCHOR = tmp_path / "no such folder" / "anchor"
    settings.LOOM_SINGLE_USER = False
    monkeypatch.setattr("governance.selectors.migrations_pending", unreachable)
    monkeypatch.setattr(doctor, "FREE_BYTES", 2**80)
    monkeypatch.setattr(doctor, "PGVECTOR", (99, 0))
    with use_broker("memory://"):
        code, found = examined()
    assert code == 1 and list(found) == PARTS
    bad = {part: rest for part, (word, rest) in found.items() if word == "FAIL"}
    assert set(bad) == {"extension", "migrations", "tokens", "broker", "anchor", "disk"}
    assert bad["migrations"] == "connection refused Is the server running?"
    assert "LOOM_BROKER_URL" in bad["broker"]


def test_the_doctor_does_not_wait_for_a_broker_that_is_down(db: None) -> None:
    with use_broker("redis://127.0.0.1:9/0"):
        _, found = examined()
    assert found["broker"][0] == "FAIL"


# bootstrap


@pytest.fixture
def home(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.LOOM_HOME = tmp_path
    monkeypatch.delenv("LOOM_ADMIN_PASSWORD", raising=False)
    return tmp_path


def bootstrapped() -> dict[str, Any]:
    out = io.StringIO()
    call_command("bootstrap", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_the_first_start_makes_owner_namespace_and_token(db: None, home: Path) -> None:
    found = bootstrapped()
    assert (found["org"], found["namespace"], found["admin_user"]) == ("dev", "local", "owner")
    owner = User.objects.get()
    assert owner.is_superuser and owner.check_password(found["admin_password"])
    assert found["token"] == (home / "owner.token").read_text()
    assert (home / "owner.token").stat().st_mode & 0o777 == 0o600
    token = Token.objects.get()
    assert token.may_create_namespaces and token.role == "writer" and token.agent == ""
    assert not any(found["admin_password"] in path.read_text() for path in home.iterdir())


def test_another_start_changes_nothing_and_shows_no_password(db: None, home: Path) -> None:
    first = bootstrapped()
    assert bootstrapped() == {**first, "admin_password": None}
    assert (User.objects.count(), Token.objects.count(), Org.objects.count()) == (1, 1, 1)


def test_a_revoked_token_is_replaced_on_a_machine_of_its_own(db: None, home: Path) -> None:
    first = bootstrapped()
    token_revoke(token=Token.objects.get())
    assert bootstrapped()["token"] != first["token"]


def test_a_weak_password_is_refused_by_the_name_of_its_variable(
    db: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_ADMIN_PASSWORD", "short")
    with pytest.raises(CommandError, match="^LOOM_ADMIN_PASSWORD: "):
        bootstrapped()
    assert not User.objects.exists()


@pytest.mark.parametrize("name", ["LOOM_BIND", "LOOM_MCP_BIND"])
def test_a_server_that_others_reach_does_not_start_without_a_token(
    db: None, home: Path, settings: Settings, name: str
) -> None:
    _open(settings, name)
    with pytest.raises(CommandError) as refused:
        bootstrapped()
    line = str(refused.value)
    assert line.startswith(f"{name}=0.0.0.0:8321") and "token" in line and "\n" not in line
    assert not User.objects.exists() and not (home / "owner.token").exists()


def _open(settings: Settings, name: str) -> None:
    settings.LOOM_BIND = settings.LOOM_MCP_BIND = ("127.0.0.1", 8321)
    setattr(settings, name, ("0.0.0.0", 8321))
    settings.IS_LOOPBACK = settings.LOOM_SINGLE_USER = False


def test_a_server_that_others_reach_starts_once_there_is_a_token(
    db: None, home: Path, settings: Settings
) -> None:
    first = bootstrapped()
    _open(settings, "LOOM_BIND")
    assert bootstrapped()["token"] == first["token"]
    token_revoke(token=Token.objects.get())
    with pytest.raises(CommandError, match="no usable token"):
        bootstrapped()
