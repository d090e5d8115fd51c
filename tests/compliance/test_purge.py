"""Tombstones end: after their days the value is gone for good; guards defer it and the raw archive stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governance import audit
from governance.models import AuditEvent
from memories.models import Memory, MemoryVersion
from memories.services import expire_due, purge_due
from tests.compliance.everywhere import found
from tests.compliance.person import MARK, put
from tests.conftest import Cast
from tests.memories.helpers import corpus, nothing_changes, sql


def aged(key: str, days: float) -> None:
    """Let the memory have been deleted so long ago."""
    sql(
        "UPDATE memories_memory SET updated_at = clock_timestamp() - make_interval(secs => %s) "
        "WHERE memory_key = %s",
        [days * 86400, key],
    )


def deleted(cast: Cast, key: str = "k", days: float = 15, **more: Any) -> str:
    """A tombstone of that age; its id."""
    put(cast, "memory.set", memory_key=key, value={"note": f"{MARK}{key} words"}, tags=[f"{MARK}tag"], **more)
    id_ = str(put(cast, "memory.delete", memory_key=key)["memory_id"])
    aged(key, days)
    return id_


def test_a_tombstone_is_blanked_when_its_days_are_over_and_audited(cast: Cast) -> None:
    id_ = deleted(cast)
    before = sql("SELECT content_sha256 FROM memories_memoryversion ORDER BY version")
    assert purge_due() == 1
    assert found([MARK]) == set()
    row = Memory.objects.get()
    assert (row.status, row.value, row.version) == ("redacted", None, 3)
    assert sql("SELECT content_sha256 FROM memories_memoryversion ORDER BY version")[:2] == before
    event = AuditEvent.objects.latest("seq")
    assert (event.op, event.target, event.principal) == ("memory.purge", "k", "system")
    assert event.detail["memory_id"] == id_ and "14 days" in event.reason
    assert audit.verify(cast.org.pk, "acme").fault is None
    assert purge_due() == 0 and corpus(cast.team.pk) == (0, 0)
    kinds = [version["kind"] for version in cast.run("memory.history", {"memory_key": "k"})["versions"]]
    assert kinds == ["purge", "delete", "set"]


def test_a_purged_key_opens_a_new_lineage_and_nothing_restores_the_old_one(cast: Cast) -> None:
    old = deleted(cast)
    purge_due()
    assert cast.run("memory.restore", {"memory_key": "k"}).status == 404
    fresh = put(cast, "memory.set", memory_key="k", value="new")
    assert (fresh["version"], fresh["revived"]) == (1, False) and fresh["memory_id"] != old
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == "new"


@pytest.mark.parametrize("days", [0, 13.9])
def test_before_its_days_are_over_it_can_be_restored(cast: Cast, days: float) -> None:
    deleted(cast, days=days)
    with nothing_changes():
        assert purge_due() == 0
    assert put(cast, "memory.restore", memory_key="k")["memory_id"]
    assert MARK in json.dumps(cast.run("memory.get", {"memory_key": "k"})["value"])


def test_the_days_are_a_setting(cast: Cast, settings: Any) -> None:
    deleted(cast, days=2)
    settings.LOOM_TOMBSTONE_DAYS = 3
    assert purge_due() == 0
    settings.LOOM_TOMBSTONE_DAYS = 1
    assert purge_due() == 1


def test_what_was_revived_or_is_not_deleted_stays(cast: Cast) -> None:
    deleted(cast)
    put(cast, "memory.set", memory_key="k", value=f"{MARK} again")
    put(cast, "memory.set", memory_key="old", value=f"{MARK} old")
    for key in ("k", "old"):
        aged(key, 99)
    with nothing_changes():
        assert purge_due() == 0


@pytest.mark.parametrize("guard", ["hold", "no_delete", "read_only"])
def test_a_guard_defers_it_until_it_is_gone(cast: Cast, guard: str) -> None:
    put(cast, "memory.set", memory_key="k", value=f"{MARK} kept")
    put(cast, "memory.delete", memory_key="k")
    # A tombstone takes no new guard by an op; one that stood is still there after an import.
    if guard == "hold":
        sql("UPDATE memories_memory SET holds = 1")
    else:
        sql("UPDATE memories_memory SET lock_mode = %s, lock_reason = 'agreed'", [guard])
    aged("k", 99)
    with nothing_changes():
        assert purge_due() == 0
    sql("SELECT set_config('loom.loosen', id::text, true) FROM memories_memory")
    sql("UPDATE memories_memory SET lock_mode = 'none', lock_reason = '', holds = 0")
    aged("k", 99)
    assert purge_due() == 1 and found([MARK]) == set()


def test_what_governance_deleted_goes_too(cast: Cast) -> None:
    id_ = put(cast, "memory.set", memory_key="k", value=f"{MARK} x")["memory_id"]
    body = {
        "ids": [id_], "action": "delete", "reason": "r", "confirm_destructive": True,
        "expected_versions": {id_: 1},
    }  # fmt: skip
    assert cast.console("memory.govern", body).status == 200
    aged("k", 15)
    assert purge_due() == 1 and Memory.objects.get().status == "redacted"


def test_an_expired_memory_gets_its_days_as_well(cast: Cast) -> None:
    put(cast, "memory.set", memory_key="k", value=f"{MARK} x", ttl_seconds=60)
    sql("UPDATE memories_memory SET expires_at = clock_timestamp() - interval '1 day'")
    assert expire_due() == 1 and purge_due() == 0
    aged("k", 15)
    assert purge_due() == 1


def test_the_raw_archive_and_the_ledger_of_a_procedure_are_not_touched(cast: Cast) -> None:
    put(cast, "raw.append", session_id="s", role="user", content=f"{MARK} said")
    put(cast, "procedure.add", name="Usual", situation="It comes up", steps=["One", "Two"])
    put(cast, "memory.delete", memory_key="procedure_usual")
    aged("procedure_usual", 99)
    with nothing_changes():
        assert purge_due() == 0


def test_many_go_in_portions_across_namespaces(cast: Cast) -> None:
    for number in range(7):
        deleted(cast, f"k{number}")
    their = {"memory_key": "theirs", "value": f"{MARK} x"}
    assert cast.run("memory.set", their, by="stranger").status == 200
    assert cast.run("memory.delete", {"memory_key": "theirs"}, by="stranger").status == 200
    aged("theirs", 15)
    assert purge_due(3) == 4 and purge_due(3) == 3 and purge_due(3) == 1 and purge_due(3) == 0
    assert not MemoryVersion.objects.exclude(value=None).exists()
    for org in (cast.org, cast.elsewhere.org):
        assert audit.verify(org.pk, org.slug).fault is None
