"""memory.history: every version, newest first, with who, why and when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Cast
from tests.memories.helpers import govern, sql


def test_every_version_tells_who_why_and_when(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "reason": "first"}, request_id="r1")
    cast.run("memory.update", {"memory_key": "k", "value": 2, "reason": "second"}, by="owner")
    answer = cast.call("memory.history", {"memory_key": "k"}, by="viewer")
    newest, oldest = answer["versions"]
    assert (newest["version"], newest["kind"], newest["value"], newest["by"]) == (2, "update", 2, "owner")
    assert (oldest["reason"], oldest["by"], oldest["request_id"]) == ("first", "mate", "r1")
    assert oldest["token_prefix"] and oldest["at"].endswith("Z")
    assert (answer["found"], answer["status"], answer["next_cursor"]) == (True, "active", None)


def test_the_agent_that_wrote_is_kept(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1}, by=cast.token(agent="a"))
    assert cast.run("memory.history", {"memory_key": "k"})["versions"][0]["agent"] == "a"


def test_a_deleted_memory_keeps_its_history(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.delete", {"memory_key": "k"})
    answer = cast.run("memory.history", {"memory_key": "k"})
    assert answer["status"] == "deleted"
    assert [v["status"] for v in answer["versions"]] == ["deleted", "active"]
    assert answer["versions"][0]["value"] == 1


def test_a_redacted_lineage_shows_its_versions_without_values_until_a_new_one_stands(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "secret"})
    govern("k", "redacted")
    answer = cast.run("memory.history", {"memory_key": "k"})
    assert answer["status"] == "redacted"
    assert "secret" not in str(answer.body)
    assert len(answer["versions"]) == 1
    cast.run("memory.set", {"memory_key": "k", "value": "new"})
    answer = cast.run("memory.history", {"memory_key": "k"})
    assert [v["value"] for v in answer["versions"]] == ["new"]


def test_an_unknown_key_is_no_error(cast: Cast) -> None:
    answer = cast.call("memory.history", {"memory_key": "none"})
    assert (answer["found"], answer["versions"]) == (False, [])


def test_pages_hold_every_version_once_while_more_are_written(cast: Cast) -> None:
    for n in range(7):
        cast.run("memory.set", {"memory_key": "k", "value": n})
    seen: list[int] = []
    body: dict[str, Any] = {"memory_key": "k", "limit": 2}
    while True:
        answer = cast.run("memory.history", body)
        seen += [v["version"] for v in answer["versions"]]
        if answer["next_cursor"] is None:
            break
        body["cursor"] = answer["next_cursor"]
        cast.run("memory.set", {"memory_key": "k", "value": f"later {len(seen)}"})
    assert seen == [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 201}, {"limit": -1}, {"cursor": "x"}, {"cursor": "WzFd" * 2}]
)
def test_bounds_and_made_up_cursors_are_400(cast: Cast, wrong: dict[str, Any]) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    refused = cast.call("memory.history", {"memory_key": "k", **wrong})
    assert refused.status == 400
    assert next(iter(wrong)) in str(refused.detail["errors"])


def test_the_history_obeys_the_same_visibility_as_get(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "agent": "b"})
    assert cast.run("memory.history", {"memory_key": "k"}, by=cast.token(agent="a"))["found"] is False
    assert cast.run("memory.history", {"memory_key": "k"}, by="stranger")["found"] is False
    cast.run("memory.set", {"memory_key": "k", "value": 2, "agent": "c"})
    assert cast.run("memory.history", {"memory_key": "k"}).code == "AMBIGUOUS_KEY"
    assert cast.run("memory.history", {"memory_key": "k", "agent": "c"})["versions"][0]["value"] == 2


def test_neither_reads_nor_locks_nor_noops_make_a_version(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.get", {"memory_key": "k"})
    cast.run("memory.search", {"query": "one"})
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "reason": "audit", "mode": "no_delete"})
    assert len(cast.run("memory.history", {"memory_key": "k"})["versions"]) == 1
    assert sql("SELECT count(*) FROM memories_memoryversion") == [(1,)]
