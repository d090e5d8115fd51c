"""LOOM_DATABASE_URL as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from loomsite.settings.database import databases_from_env, django_database, parse_database_url


@pytest.mark.parametrize(
    ("written", "password"),
    [
        ("p@ss%word", "p@ss%word"),
        ("p%40ss%25word", "p@ss%word"),
        ("a/b#c:d", "a/b#c:d"),
        ("per%2Fcent%3F", "per/cent?"),
        ("50%", "50%"),
        ("pässwörd", "pässwörd"),
        ("", ""),
    ],
)
def test_a_password_is_read_raw_or_percent_encoded(written: str, password: str) -> None:
    address = parse_database_url(f"postgresql://loom:{written}@db.example:6543/mem")
    assert (address.user, address.password) == ("loom", password)
    assert (address.host, address.port, address.name) == ("db.example", 6543, "mem")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql://u:p@[::1]:5433/db", "::1", 5433),
        ("postgres://u@[2001:db8::7]/db", "2001:db8::7", None),
        ("postgresql://u@/db?host=/var/run/postgresql", "/var/run/postgresql", None),
        ("postgresql:///db?host=/dir with space&user=u&port=5434", "/dir with space", 5434),
        ("postgresql://u@%2Fvar%2Frun%2Fpostgresql/db", "/var/run/postgresql", None),
        ("postgresql://u@%2Ftmp%2Fs:5435/db", "/tmp/s", 5435),
        ("postgresql://u@localhost/db", "localhost", None),
        ("postgresql://u@/db", "", None),
    ],
)
def test_the_host_may_be_ipv6_or_a_socket_directory(url: str, host: str, port: int | None) -> None:
    address = parse_database_url(url)
    assert (address.host, address.port, address.name, address.user) == (host, port, "db", "u")


def test_libpq_options_reach_the_driver_beside_a_pool() -> None:
    address = parse_database_url("postgresql://u@h/db?sslmode=require&options=-c%20jit%3Doff")
    settings = django_database(address, pool_size=7)
    assert settings["OPTIONS"]["sslmode"] == "require"
    assert settings["OPTIONS"]["options"] == "-c jit=off"
    assert settings["OPTIONS"]["pool"]["max_size"] == 7
    assert settings["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/db",
        "sqlite:///file",
        "secret",
        "postgresql://u:secret@h",
        "postgresql://u:secret@h/",
        "postgresql://u:secret@h:port/db",
        "postgresql://u:secret@h:0/db",
        "postgresql://u:secret@h:70000/db",
        "postgresql://u:secret@::1:5432/db",
        "postgresql://u:secret@[::1/db",
        "postgresql://u:secret@[::1]x/db",
        "postgresql://:secret@h/db",
        "postgresql://u:secret@h/db?sslmod=require",
        "postgresql://u:secret@h/db?sslmode",
        "postgresql://u:secret@h/db?port=x",
        "postgresql://u:secret%00@h/db",
    ],
)
def test_a_wrong_url_gives_one_line_that_names_the_variable_and_no_secret(url: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        parse_database_url(url)
    message = str(caught.value)
    assert message.startswith("LOOM_DATABASE_URL: ")
    assert "\n" not in message
    assert "secret" not in message


def test_without_a_url_the_running_embedded_server_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOOM_DATABASE_URL", raising=False)
    assert databases_from_env(tmp_path)["default"]["HOST"] == str(tmp_path / "run" / "pg")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "services.json").write_text('{"database_url": "postgresql://a:b@/c?host=/s"}')
    found = databases_from_env(tmp_path)["default"]
    assert (found["USER"], found["PASSWORD"], found["NAME"], found["HOST"]) == ("a", "b", "c", "/s")


def test_a_wrong_pool_size_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_DB_POOL", "many")
    with pytest.raises(ImproperlyConfigured, match="LOOM_DB_POOL"):
        databases_from_env(tmp_path)
