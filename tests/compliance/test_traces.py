"""What outlives a transaction: the database's own files, and the logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from loomsite.embedded import postgres
from loomsite.embedded.home import Home
from loomsite.logs import WithoutData
from tests.compliance.everywhere import found, spellings
from tests.compliance.person import MARK, ask, everywhere, procedure, put, work
from tests.conftest import Cast
from tests.memories.helpers import sql

pytestmark = pytest.mark.django_db(transaction=True)
HOME = Path(os.environ["LOOM_HOME"])


def files_with(folder: Path, texts: list[str]) -> set[str]:
    """Files under the folder that hold one of the texts, byte for byte, whatever the case of its letters.

    Without the write-ahead log, which the server recycles in its own time.
    """
    patterns = [item for text in texts for spelling in spellings(text) for item in ("-e", spelling)]
    done = subprocess.run(
        ["grep", "-rlaiF", "--exclude-dir=pg_wal", *patterns, str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.skipif(not (HOME / "pg" / "PG_VERSION").exists(), reason="the database is not the embedded one")
def test_the_text_is_in_no_file_of_the_database_and_in_no_log(staff: Cast) -> None:
    # Reasons stay in the audit, so that this person gives none of their own words as one.
    put(staff, "memory.set", memory_key="bob/k", user_id="bob", value={"note": f"{MARK}file " * 400})
    put(staff, "memory.set", memory_key="bob/k", user_id="bob", value=f"{MARK}second", tags=[f"{MARK}tag"])
    put(staff, "raw.append", session_id="s", role="user", content=f"{MARK}said", user_id="bob")
    body = {"subject": f"{MARK}subject", "attribute": "a", "value": f"{MARK}fact"}
    put(staff, "fact.remember", user_id="bob", visibility="private", **body)
    procedure(staff)
    _admin("CHECKPOINT")
    assert files_with(HOME / "pg", [MARK])
    assert ask(staff, user_id="bob").status == 200
    assert work(staff) == ["done"] and found([MARK]) == set()
    _rewrite()
    assert files_with(HOME / "pg", [MARK]) == set()
    assert files_with(HOME / "logs", [MARK]) == set()


def _admin(statement: str) -> None:
    """A statement by the superuser of the embedded server."""
    home = Home(HOME)
    folder = Path(str(connection.settings_dict["HOST"]))
    secret = home.pg_secret.read_text().strip()
    subprocess.run(
        [str(postgres.binaries() / "psql"), "-X", "-q", "-h", str(folder), "-p", str(postgres.PORT),
         "-U", postgres.ADMIN_ROLE, "-d", str(connection.settings_dict["NAME"]), "-c", statement],
        env={"PGPASSWORD": secret, "LC_ALL": "C"}, check=True, capture_output=True,
    )  # fmt: skip


def _rewrite() -> None:
    """What the operations guide says: the tables anew, then a checkpoint."""
    connection.close()
    _admin("VACUUM FULL")
    _admin("CHECKPOINT")


def test_the_servers_log_no_statement_that_fails(staff: Cast, settings: Any) -> None:
    everywhere(staff)
    with pytest.raises(DatabaseError), transaction.atomic():
        sql("UPDATE memories_memoryversion SET reason = %s", [f"{MARK}logged"])
    with pytest.raises(DatabaseError), transaction.atomic():
        sql(
            "INSERT INTO governance_org (slug) SELECT slug FROM governance_org WHERE slug <> %s", [f"{MARK}l"]
        )
    assert "append-only" in (HOME / "logs" / "postgres.log").read_text()
    assert files_with(HOME / "logs", [MARK]) == set()


def test_an_error_that_is_logged_keeps_its_words_and_loses_the_row(staff: Cast) -> None:
    formatter = WithoutData("%(message)s")
    insert = "INSERT INTO memories_memory (namespace_id, memory_key, metadata) VALUES (%s, 'k', %s)"
    value = json.dumps({"note": f"{MARK}in the row"})
    text = ""
    try:
        with transaction.atomic():
            sql(insert, [staff.team.pk, value])
    except DatabaseError as error:
        assert f"{MARK}in the row" in str(error)
        exc = (type(error), error, error.__traceback__)
        text = formatter.format(logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), exc))
    assert text.count("violates") == 2 and text.count("Traceback") == 2 and "direct cause" in text
    assert MARK not in text and "DETAIL" not in text
