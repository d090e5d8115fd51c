"""The database refuses what the gateway would refuse, whichever way it comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, ProtectedError
from django.utils import timezone

from governance.models import Hold, Namespace
from memories import services
from memories.models import Memory, MemoryVersion
from tests.conftest import Cast
from tests.memories.helpers import AUDIT, nothing_changes, sql


def put(cast: Cast, key: str = "k", mode: str = "", **more: Any) -> Memory:
    cast.run("memory.set", {"memory_key": key, "value": "old", **more})
    if mode:
        cast.run("memory.lock", {"memory_key": key, "mode": mode, "reason": "audit of May"})
    return Memory.objects.get(memory_key=key)


def refused(write: Callable[[], Any], state: str = "LM423") -> str:
    """The database's message; the write must fail with this SQLSTATE and change nothing."""
    with nothing_changes(), pytest.raises(DatabaseError) as caught, transaction.atomic():
        write()
    assert getattr(caught.value.__cause__, "sqlstate", None) == state, caught.value
    return str(caught.value)


SOON = timezone.now() + timedelta(hours=1)
# Column by column: what is set, and the modes that refuse it. The memory expires in 2998.
COLUMNS: dict[str, tuple[Any, set[str]]] = {
    "value": ("new", {"read_only"}),
    "content_sha256": ("0" * 64, {"read_only"}),
    "memory_type": ("note", {"read_only"}),
    "tags": (["t"], {"read_only"}),
    "metadata": ({"m": 1}, {"read_only"}),
    "confidence": (0.5, {"read_only"}),
    "pinned": (True, {"read_only"}),
    "source_class": ("pack", {"read_only"}),
    "source_trace": ("x", {"read_only"}),
    "version": (9, {"read_only"}),
    "governed": (True, {"read_only"}),
    "status": ("deleted", {"no_delete", "read_only"}),
    "expires_at": (SOON, {"no_delete", "read_only"}),
    "on_expire": ("stale", {"no_delete", "read_only"}),
    "lock_mode": ("none", {"no_delete", "read_only"}),
    "lock_until": (SOON, {"no_delete", "read_only"}),
}


@pytest.mark.parametrize("mode", ["no_delete", "read_only"])
@pytest.mark.parametrize("column", COLUMNS)
def test_update_of_a_queryset_is_refused_as_the_lock_says(cast: Cast, column: str, mode: str) -> None:
    memory = put(cast, mode=mode, ttl_seconds=30_000_000_000 // 10)
    value, modes = COLUMNS[column]
    rows = Memory.objects.filter(pk=memory.pk)
    if mode in modes:
        assert "audit of May" in refused(lambda: rows.update(**{column: value}))
    else:
        assert rows.update(**{column: value}) == 1


@pytest.mark.parametrize("status", ["stale", "rejected", "superseded", "archived", "deleted", "redacted"])
@pytest.mark.parametrize("mode", ["no_delete", "read_only"])
def test_no_status_but_active_is_reached_under_a_lock(cast: Cast, mode: str, status: str) -> None:
    put(cast, mode=mode)
    refused(lambda: Memory.objects.update(status=status))


@pytest.mark.parametrize("mode", ["no_delete", "read_only"])
def test_a_first_expiry_is_refused_under_a_lock(cast: Cast, mode: str) -> None:
    put(cast, mode=mode)
    refused(lambda: Memory.objects.update(expires_at=SOON))


def test_no_delete_lets_an_expiry_move_later_or_go(cast: Cast) -> None:
    put(cast, mode="no_delete", ttl_seconds=60)
    Memory.objects.update(expires_at=SOON)
    Memory.objects.update(expires_at=None)
    assert Memory.objects.get().expires_at is None


@pytest.mark.parametrize("mode", ["no_delete", "read_only"])
def test_bulk_update_save_and_raw_sql_are_refused(cast: Cast, mode: str) -> None:
    memory = put(cast, mode=mode)
    memory.status = "deleted"
    refused(lambda: Memory.objects.bulk_update([memory], ["status"]))
    refused(memory.save)
    refused(lambda: sql("UPDATE memories_memory SET status = 'deleted' WHERE id = %s", [memory.pk]))
    refused(lambda: sql("DELETE FROM memories_memory WHERE id = %s", [memory.pk]))
    refused(lambda: Memory.objects.update(version=F("version") + 1, status="archived"))


def test_one_locked_row_stops_a_bulk_write_over_many(cast: Cast) -> None:
    put(cast, "free")
    put(cast, mode="read_only")
    refused(lambda: Memory.objects.update(value="new"))
    assert set(Memory.objects.values_list("value", flat=True)) == {"old"}


@pytest.mark.parametrize("mode", ["", "no_delete", "read_only"])
def test_no_delete_of_a_memory_reaches_the_table_whichever_way(cast: Cast, mode: str) -> None:
    memory = put(cast, mode=mode)
    with nothing_changes():
        with pytest.raises(ProtectedError):
            memory.delete()
        with pytest.raises(ProtectedError):
            Namespace.objects.filter(pk=cast.team.pk).delete()
        # The foreign keys are judged at the end of the transaction; here they are asked at once.
        for statement in ("memories_memory", "governance_namespace"):
            with pytest.raises(DatabaseError), transaction.atomic():
                sql(f"DELETE FROM {statement}")
                sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("SET CONSTRAINTS ALL DEFERRED")


@pytest.mark.parametrize("table", ["memories_memory", "memories_memoryversion", "governance_namespace"])
def test_truncate_is_refused_under_the_rules_of_production(cast: Cast, table: str) -> None:
    put(cast)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("SET LOCAL loom.allow_truncate = off")
    message = refused(lambda: sql(f"TRUNCATE {table} CASCADE"), "LM001")
    assert "append-only" in message


def test_versions_are_append_only(cast: Cast) -> None:
    put(cast)
    refused(lambda: MemoryVersion.objects.update(value="forged"), "LM001")
    refused(lambda: MemoryVersion.objects.all().delete(), "LM001")
    refused(lambda: sql("UPDATE memories_memoryversion SET at = now() - interval '1 day'"), "LM001")


@pytest.mark.parametrize("column", ["memory_key", "agent", "user_id", "session_id", "namespace_id", "id"])
def test_the_identity_of_a_lineage_never_changes(cast: Cast, column: str) -> None:
    put(cast)
    value = cast.elsewhere.pk if column.endswith("id") and column != "session_id" else "other"
    value = "other" if column == "user_id" else value
    refused(lambda: Memory.objects.update(**{column: value}), "LM001")


def test_a_second_live_lineage_of_one_identity_is_refused(cast: Cast) -> None:
    memory = put(cast)
    copy = Memory(
        namespace=cast.team, memory_key="k", value="twin", content_sha256=memory.content_sha256, pk=10**12
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        copy.save(force_insert=True)


def test_loosening_one_row_loosens_no_other(cast: Cast) -> None:
    put(cast, "a", mode="read_only")
    put(cast, "b", mode="read_only")
    a = Memory.objects.get(memory_key="a")
    sql("SELECT set_config('loom.loosen', %s, true)", [str(a.pk)])
    refused(lambda: Memory.objects.filter(memory_key="b").update(lock_mode="none"))
    refused(lambda: Memory.objects.filter(memory_key="a").update(status="deleted"))
    assert Memory.objects.filter(memory_key="a").update(lock_mode="none", lock_reason="") == 1


def test_unlocking_leaves_no_permission_behind(cast: Cast) -> None:
    put(cast, mode="read_only")
    cast.console("memory.unlock", {"memory_key": "k", "reason": "over"})
    assert sql("SELECT current_setting('loom.loosen', true)") in ([("",)], [(None,)])
    cast.run("memory.lock", {"memory_key": "k", "reason": "again"})
    refused(lambda: Memory.objects.update(lock_mode="none"))


def test_what_a_lock_lets_pass_passes_in_sql_too(cast: Cast) -> None:
    put(cast, mode="read_only")
    assert Memory.objects.update(doc_len=3) == 1
    sql("UPDATE memories_embedding SET embedder = 'other'")
    assert sql("SELECT embedder FROM memories_embedding") == [("other",)]


def test_a_write_that_only_the_trigger_stops_is_answered_as_423(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cast, mode="read_only")
    monkeypatch.setattr(services, "effects_of", lambda old, new: [])
    with nothing_changes(but_for=AUDIT):
        answer = cast.call("memory.set", {"memory_key": "k", "value": "new"})
    assert (answer.status, answer.code) == (423, "LOCKED")
    assert "audit of May" in answer.detail["message"]


def test_the_words_of_a_lock_in_force_stay(cast: Cast) -> None:
    put(cast, mode="no_delete")
    refused(lambda: Memory.objects.update(lock_reason="forged"))
    refused(lambda: Memory.objects.update(locked_by="nobody"))
    assert Memory.objects.update(lock_mode="read_only", lock_reason="tighter, so in other words") == 1


def test_a_hold_in_force_is_neither_changed_nor_deleted_nor_released_past_the_ops(cast: Cast) -> None:
    put(cast)
    cast.run("hold.add", {"memory_key": "k", "matter": "case 1", "reason": "asked for"})
    hold = Hold.objects.filter(matter="case 1")
    now = timezone.now()
    assert "admin releases" in refused(lambda: hold.update(released_at=now))
    refused(lambda: hold.update(matter="case 2"), "LM001")
    refused(lambda: hold.update(reason="none", released_at=now), "LM001")
    refused(lambda: hold.delete(), "LM001")
    done = cast.console("hold.release", {"memory_key": "k", "matter": "case 1", "reason": "closed"})
    assert done.status == 200 and done["changed"] is True
    again = cast.console("hold.release", {"memory_key": "k", "matter": "case 1", "reason": "closed"})
    assert again.status == 200 and again["changed"] is False
    refused(lambda: hold.update(released_at=None), "LM001")
