"""Backup and restore: one moment while others write, everything equal afterwards, and a server runs on it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from django.db import connection

from governance import audit, backup
from loomsite.embedded.home import BASE_DIR
from tests.compliance.person import everywhere, procedure, put
from tests.conftest import Cast

pytestmark = pytest.mark.django_db(transaction=True)


def url_of(name: str) -> str:
    """The address of another database of the test server."""
    known = connection.settings_dict
    who = f"{quote(str(known['USER']))}:{quote(str(known['PASSWORD']))}"
    port = f"&port={known['PORT']}" if known["PORT"] else ""
    return f"postgresql://{who}@/{name}?host={quote(str(known['HOST']))}{port}"


class Place:
    """An empty database with an empty home, and commands that work there."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home, self.url = name, home, url_of(name)
        home.mkdir()

    def command(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command of manage.py there."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "DJANGO_"))}
        return subprocess.run(
            [sys.executable, str(BASE_DIR / "manage.py"), *arguments],
            env={
                **environment, "LOOM_HOME": str(self.home), "LOOM_DATABASE_URL": self.url,
                "LOOM_EMBEDDER": "none",
            },
            capture_output=True, text=True, timeout=300, check=False, **more,
        )  # fmt: skip

    def rows(self) -> dict[str, list[str]]:
        """Every row of every table that a backup holds, as text."""
        with psycopg.connect(self.url) as there:
            return contents(lambda statement: there.execute(statement).fetchall())


def contents(query: Callable[[str], list[Any]]) -> dict[str, list[str]]:
    """Rows as text by table."""
    return {
        table: sorted(str(row[0]) for row in query(f'SELECT t::text FROM "{table}" t'))
        for table in backup.tables()
    }


def here() -> dict[str, list[str]]:
    """The rows of this database."""

    def query(statement: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    return contents(query)


@pytest.fixture(scope="module")
def migrated(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with tables and nothing in them, made once to be copied."""
    name = f"{connection.settings_dict['NAME']}_migrated"
    with psycopg.connect(url_of("postgres"), autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}"')
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE template1')
        done = Place(name, tmp_path_factory.mktemp("home") / "migrated").command(
            "migrate", "--verbosity", "0"
        )
        assert done.returncode == 0, done.stderr
        yield name
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def places(tmp_path: Path, migrated: str) -> Iterator[Callable[..., Place]]:
    """Makes empty databases, `bare` ones without even tables; they are dropped at the end."""
    made: list[str] = []
    with psycopg.connect(url_of("postgres"), autocommit=True) as server:

        def make(name: str, *, bare: bool = False) -> Place:
            full = f"{connection.settings_dict['NAME']}_{name}"
            server.execute(f'DROP DATABASE IF EXISTS "{full}"')
            server.execute(f'CREATE DATABASE "{full}" TEMPLATE "{"template1" if bare else migrated}"')
            made.append(full)
            return Place(full, tmp_path / name)

        yield make
        for name in made:
            server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def full(cast: Cast, settings: Any, tmp_path: Path) -> Cast:
    """A database with rows of every kind, and an anchor file of its own."""
    settings.LOOM_AUDIT_ANCHOR = tmp_path / "audit-anchor.jsonl"
    everywhere(cast)
    procedure(cast)
    nasty = "tab\t new\nline \\ back\\N slash \u2028 caf\u00e9 \U0001f600"
    put(cast, "memory.set", memory_key="odd", value={"t": nasty, "n": [1e16, -0.0, None, 10**30]})
    put(cast, "hold.add", memory_key="odd", matter="case", reason="court")
    cast.run("memory.set", {"memory_key": "theirs", "value": 1}, by="stranger")
    return cast


def written(path: Path) -> Path:
    """A backup of this database."""
    with path.open("wb") as file:
        backup.backup(file)
    return path


OURS = {"governance_auditevent", "governance_audithead"}


def same(before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
    """Everything is equal; a restore adds one audit row to each chain."""
    assert {t: r for t, r in after.items() if t not in OURS} == {
        t: r for t, r in before.items() if t not in OURS
    }
    assert set(before["governance_auditevent"]) < set(after["governance_auditevent"])
    added = set(after["governance_auditevent"]) - set(before["governance_auditevent"])
    assert len(added) == 2 and all("database.restore" in row for row in added)


def test_what_is_restored_is_what_was_and_the_audit_verifies(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    before = here()
    file = written(tmp_path / "b.loom")
    place = places("restored", bare=True)
    done = place.command("restore", str(file))
    assert done.returncode == 0, done.stderr
    same(before, place.rows())
    verified = place.command("verify_audit")
    assert verified.returncode == 0 and "acme: " in verified.stdout, verified.stdout + verified.stderr
    # Triggers, functions and sequences are there, not only rows.
    with psycopg.connect(place.url) as there:
        with pytest.raises(psycopg.Error, match="append-only"):
            there.execute("DELETE FROM governance_auditevent")
        there.rollback()
        (top,) = there.execute("SELECT max(id) FROM memories_memory").fetchone() or (0,)
        (following,) = there.execute("SELECT nextval('loom_node_id')").fetchone() or (0,)
        assert following > top
    # And a backup of the restored database holds the same again.
    again = place.command("backup", str(tmp_path / "again.loom"))
    assert again.returncode == 0, again.stderr
    other = places("twice")
    assert other.command("restore", str(tmp_path / "again.loom")).returncode == 0
    assert other.rows()["memories_memory"] == before["memories_memory"]


def test_a_backup_under_writes_is_one_moment(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    stop, errors = threading.Event(), []

    def write(number: int) -> None:
        step = 0
        try:
            while not stop.is_set():
                body = {"memory_key": f"w/{number}/{step % 7}", "value": {"step": step}}
                reply = full.run("memory.set", body)
                if reply.status != 200:
                    errors.append(reply.body)
                step += 1
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        files = [written(tmp_path / f"{number}.loom") for number in range(3)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    place = places("moment")
    done = place.command("restore", str(files[1]))
    assert done.returncode == 0, done.stderr
    with psycopg.connect(place.url) as there:
        # Each row has its version, each version its audit row: no write is there by half.
        for broken in (
            "SELECT 1 FROM memories_memory m WHERE NOT EXISTS (SELECT FROM memories_memoryversion v "
            "WHERE v.memory_id = m.id AND v.version = m.version AND v.content_sha256 = m.content_sha256)",
            "SELECT 1 FROM memories_memoryversion v WHERE NOT EXISTS (SELECT FROM governance_auditevent e "
            "WHERE e.request_id = v.request_id)",
            "SELECT 1 FROM governance_audithead h WHERE NOT EXISTS (SELECT FROM governance_auditevent e "
            "WHERE e.org_id = h.org_id AND e.seq = h.seq AND e.hash = h.hash)",
        ):
            assert there.execute(broken).fetchall() == []
    assert place.command("verify_audit").returncode == 0


def test_a_database_that_holds_something_is_not_overwritten_unasked(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    file = written(tmp_path / "b.loom")
    place = places("kept")
    assert place.command("restore", str(file)).returncode == 0
    before = place.rows()
    refused = place.command("restore", str(file))
    assert refused.returncode == 1 and "--overwrite" in refused.stderr and "not empty" in refused.stderr
    assert place.rows() == before
    done = place.command("restore", str(file), "--overwrite")
    assert done.returncode == 0, done.stderr
    aside = [path.name for path in place.home.glob("audit-anchor.before-*.jsonl")]
    assert len(aside) == 1 and place.command("verify_audit").returncode == 0


def test_an_anchor_file_of_another_audit_is_not_mixed_in(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    file = written(tmp_path / "b.loom")
    place = places("anchored")
    (place.home / "audit-anchor.jsonl").write_text('{"org": 1, "seq": 99, "hash": "00"}\n')
    refused = place.command("restore", str(file))
    assert refused.returncode == 1 and "belongs to another audit" in refused.stderr


@pytest.mark.parametrize("damage", ["cut", "changed", "no backup", "end", "another version"])
def test_a_damaged_file_restores_nothing(
    full: Cast, tmp_path: Path, places: Callable[..., Place], damage: str
) -> None:
    whole = gzip.decompress(written(tmp_path / "b.loom").read_bytes())
    broken = {
        "cut": whole[: len(whole) // 2],
        "changed": whole.replace(b"lives in Oslo", b"lives in Rome", 1),
        "no backup": b'{"something": 1}\n',
        "end": whole[: whole.rindex(b'{"end"')],
        "another version": whole.replace(b'"version":1', b'"version":9', 1),
    }[damage]
    file = tmp_path / "broken.loom"
    file.write_bytes(gzip.compress(broken, 1))
    place = places("damaged")
    done = place.command("restore", str(file))
    assert done.returncode == 1 and "Nothing was restored" in done.stderr, done.stderr
    with psycopg.connect(place.url) as there:
        known = there.execute("SELECT to_regclass('governance_org')").fetchone()
        if known and known[0]:
            assert there.execute("SELECT count(*) FROM governance_org").fetchone() == (0,)
    assert not (place.home / "audit-anchor.jsonl").exists()
    assert list(place.home.glob("*.restoring")) == []


def test_a_backup_of_a_forged_audit_is_refused_unless_it_is_all_there_is(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE governance_auditevent DISABLE TRIGGER USER")
        cursor.execute("UPDATE governance_auditevent SET principal = 'nobody' WHERE seq = 2")
        cursor.execute("ALTER TABLE governance_auditevent ENABLE TRIGGER USER")
    assert audit.verify(full.org.pk, "acme").fault is not None
    file = written(tmp_path / "b.loom")
    place = places("forged")
    refused = place.command("restore", str(file))
    assert refused.returncode == 1 and "acme: row 2 was changed" in refused.stderr
    assert place.command("restore", str(file), "--accept-broken-audit").returncode == 0
    with psycopg.connect(place.url) as there:
        (detail,) = there.execute(
            "SELECT detail FROM governance_auditevent WHERE op = 'database.restore' ORDER BY org_id LIMIT 1"
        ).fetchone() or ({},)
    assert detail["faults"] == ["acme: row 2 was changed"]


def test_a_backup_of_newer_code_is_refused(full: Cast, tmp_path: Path, places: Callable[..., Place]) -> None:
    lines = gzip.decompress(written(tmp_path / "b.loom").read_bytes()).split(b"\n", 1)
    header = json.loads(lines[0])
    header["migrations"].append(["memories", "9999_future"])
    (tmp_path / "newer.loom").write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + lines[1], 1))
    refused = places("newer").command("restore", str(tmp_path / "newer.loom"))
    assert refused.returncode == 1 and "newer Loomsite" in refused.stderr


def test_a_backup_is_private_and_replaces_no_file(
    full: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    place = places("source")
    target = tmp_path / "b.loom"
    assert place.command("backup", str(target)).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o600
    refused = place.command("backup", str(target))
    assert refused.returncode == 1 and "never replaced" in refused.stderr


def test_sessions_are_left_out(full: Cast, tmp_path: Path) -> None:
    content = gzip.decompress(written(tmp_path / "b.loom").read_bytes())
    assert b'"table":"governance_user"' in content and b'"table":"django_session"' not in content


def test_a_backup_of_an_older_schema_is_restored_and_moved_on(
    cast: Cast, tmp_path: Path, places: Callable[..., Place]
) -> None:
    old = places("old", bare=True)
    # Without what came with erasures; of the other apps everything.
    for app, name in (("procedures", "0002"), ("facts", "0002"), ("contenttypes", ""), ("auth", "")):
        done = old.command("migrate", app, *([name] if name else []), "--verbosity", "0")
        assert done.returncode == 0, done.stderr
    with psycopg.connect(old.url) as there:
        assert there.execute("SELECT to_regclass('governance_erasurerequest')").fetchone() == (None,)
        there.execute("INSERT INTO governance_org (slug) VALUES ('ancient')")
    file = tmp_path / "old.loom"
    assert old.command("backup", str(file)).returncode == 0
    fresh = places("fresh", bare=True)
    done = fresh.command("restore", str(file))
    assert done.returncode == 0, done.stderr
    with psycopg.connect(fresh.url) as there:
        assert there.execute("SELECT slug FROM governance_org").fetchall() == [("ancient",)]
        assert there.execute("SELECT count(*) FROM governance_erasurerequest").fetchone() == (0,)
    pending = fresh.command("migrate", "--check")
    assert pending.returncode == 0, pending.stdout
