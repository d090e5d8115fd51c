"""Pins, holds, consolidation and promotion, and the list of what is guarded."""

from __future__ import annotations

from typing import Any

import pytest

from governance.models import AuditEvent, Hold
from loomsite.ops import Role
from memories import services
from memories.models import Memory
from tests.conftest import Cast, Reply
from tests.memories.helpers import AUDIT, PLANS, end_lock, history, nothing_changes, pass_expiry, sql


def put(cast: Cast, key: str = "k", value: Any = "text", by: str = "mate", **more: Any) -> str:
    return str(cast.run("memory.set", {"memory_key": key, "value": value, **more}, by=by)["memory_id"])


# Pins


def test_a_pin_keeps_others_from_changing_the_value_and_is_lifted_by_who_set_it(cast: Cast) -> None:
    put(cast)
    pinned = cast.run("memory.pin", {"memory_key": "k"})
    assert (pinned["pinned"], pinned["pinned_by"], pinned["version"], pinned["changed"]) == (
        True, "mate", 2, True,
    )  # fmt: skip
    refused = cast.run("memory.set", {"memory_key": "k", "value": "other"}, by="owner")
    assert (refused.code, refused.detail["pinned_value"]) == ("PINNED_CONFLICT", "text")
    assert cast.run("memory.set", {"memory_key": "k", "value": "mine"}).status == 200
    with nothing_changes(but_for=AUDIT):
        for by in ("owner", "mate"):
            again = cast.run("memory.pin", {"memory_key": "k"}, by=by)
            assert (again["changed"], again["pinned_by"]) == (False, "mate")
        assert cast.run("memory.unpin", {"memory_key": "k"}, by="owner").status == 403
    assert cast.run("memory.unpin", {"memory_key": "k"})["changed"] is True
    assert cast.run("memory.unpin", {"memory_key": "k"})["changed"] is False
    assert cast.run("memory.set", {"memory_key": "k", "value": "other"}, by="owner").status == 200


def test_an_admin_lifts_a_pin_in_the_console(cast: Cast) -> None:
    put(cast)
    cast.run("memory.pin", {"memory_key": "k"})
    assert cast.console("memory.unpin", {"memory_key": "k"})["changed"] is True


def test_a_pin_means_exactly_the_identity_of_the_call(cast: Cast) -> None:
    put(cast, agent="a")
    assert cast.run("memory.pin", {"memory_key": "k"}).status == 404
    assert cast.run("memory.pin", {"memory_key": "k", "agent": "a"})["changed"] is True
    put(cast, "due", ttl_seconds=60)
    pass_expiry("due")
    assert cast.run("memory.pin", {"memory_key": "due"}).status == 404


# Holds


def hold(cast: Cast, matter: str = "case 1", key: str = "k", **more: Any) -> Reply:
    return cast.run("hold.add", {"memory_key": key, "matter": matter, "reason": "legal asks", **more})


def release(cast: Cast, matter: str = "case 1", by: str = "owner") -> Reply:
    return cast.console("hold.release", {"memory_key": "k", "matter": matter, "reason": "closed"}, by=by)


def test_each_matter_holds_and_is_released_on_its_own(cast: Cast) -> None:
    put(cast)
    assert (hold(cast)["holds"], hold(cast, "case 2")["holds"]) == (1, 2)
    with nothing_changes():
        again = hold(cast)
    assert (again["holds"], again["changed"]) == (2, False)
    assert cast.run("memory.delete", {"memory_key": "k"}).detail["holds"] == 2
    assert (release(cast)["holds"], release(cast)["changed"]) == (1, False)
    assert cast.run("memory.delete", {"memory_key": "k"}).status == 423
    assert release(cast, "case 2")["holds"] == 0
    assert cast.run("memory.delete", {"memory_key": "k"})["tombstoned"] is True
    assert list(Hold.objects.order_by("matter").values_list("matter", "placed_by", "released_by")) == [
        ("case 1", "mate", "owner"), ("case 2", "mate", "owner"),
    ]  # fmt: skip


def test_a_released_matter_may_be_opened_again(cast: Cast) -> None:
    put(cast)
    hold(cast)
    release(cast)
    assert hold(cast)["changed"] is True
    assert Hold.objects.count() == 2 and Memory.objects.get().holds == 1


@pytest.mark.parametrize("by", ["mate", "owner"])
def test_no_token_releases_a_hold_and_a_writer_in_the_console_asks_for_it(cast: Cast, by: str) -> None:
    put(cast)
    hold(cast)
    body = {"memory_key": "k", "matter": "case 1", "reason": "please"}
    with nothing_changes(but_for=PLANS):
        refused = cast.run("hold.release", body, by=by)
        assert (refused.status, refused.code) == (403, "FORBIDDEN") and "console" in refused.detail["message"]
        assert release(cast, by="mate").status == 202


def test_holds_need_a_memory_a_matter_and_a_reason(cast: Cast) -> None:
    put(cast)
    assert hold(cast, key="none").status == 404
    assert hold(cast, matter=" ").status == 400
    assert hold(cast, reason=" ").status == 400
    assert hold(cast, matter="a\x00b").status == 400
    put(cast, "gone")
    cast.run("memory.delete", {"memory_key": "gone"})
    assert hold(cast, key="gone").status == 404
    assert Hold.objects.count() == 0


def test_a_hold_defers_an_expiry_until_it_is_released(cast: Cast) -> None:
    put(cast, ttl_seconds=60)
    hold(cast)
    pass_expiry("k")
    assert services.expire_due() == 0
    assert cast.run("memory.get", {"memory_key": "k"})["lock"] == {
        "mode": "none", "reason": "", "until": None, "holds": 1,
    }  # fmt: skip
    release(cast)
    assert cast.run("memory.get", {"memory_key": "k"})["found"] is False
    assert services.expire_due() == 1


@pytest.mark.parametrize("op", ["memory.lock", "hold.add"])
def test_a_guard_does_not_bring_back_what_has_ended(cast: Cast, op: str) -> None:
    put(cast, ttl_seconds=60, on_expire="stale")
    pass_expiry("k")
    matter = {"matter": "m"} if op == "hold.add" else {}
    assert cast.run(op, {"memory_key": "k", "reason": "r", **matter})["changed"] is True
    assert cast.run("memory.get", {"memory_key": "k"})["found"] is False
    assert [version["status"] for version in history(cast, "k")] == ["active", "stale"]


def test_holds_are_audited_and_make_no_version(cast: Cast) -> None:
    put(cast)
    hold(cast)
    release(cast)
    events = AuditEvent.objects.exclude(op="memory.set").order_by("seq")
    assert [(e.op, e.reason, e.detail["matter"], e.detail["hold"]) for e in events] == [
        ("hold.add", "legal asks", "case 1", "placed"), ("hold.release", "closed", "case 1", "released"),
    ]  # fmt: skip
    assert len(history(cast, "k")) == 1


def test_the_lock_list_names_every_guard_in_force_and_pages(cast: Cast) -> None:
    for key in ("a", "b", "c", "free", "ended"):
        put(cast, key)
    cast.run("memory.lock", {"memory_key": "a", "reason": "audit of May", "until": "2999-01-01T00:00:00Z"})
    cast.run("memory.lock", {"memory_key": "b", "reason": "r", "mode": "no_delete"})
    hold(cast, key="b")
    hold(cast, "case 2", key="c")
    cast.run("memory.lock", {"memory_key": "ended", "reason": "r", "ttl_seconds": 60})
    end_lock("ended")
    found, cursor = [], None
    while True:
        page = cast.run("lock.list", {"limit": 1, **({"cursor": cursor} if cursor else {})}, by="viewer")
        found += page["locks"]
        if not (cursor := page["next_cursor"]):
            break
    assert [(line["memory_key"], line["mode"], len(line["holds"])) for line in found] == [
        ("c", "none", 1), ("b", "no_delete", 1), ("a", "read_only", 0),
    ]  # fmt: skip
    assert found[0]["holds"][0]["matter"] == "case 2" and found[0]["locked_by"] == ""
    assert (found[2]["until"], found[2]["locked_by"]) == ("2999-01-01T00:00:00Z", "mate")
    assert cast.run("lock.list", {}, by="stranger")["locks"] == []
    assert cast.run("lock.list", {"cursor": "x"}).status == 400


# Consolidate


def consolidate(cast: Cast, keys: list[str], into: str = "new", **more: Any) -> Reply:
    return cast.run("memory.consolidate", {"keys": keys, "into": into, "value": "one", **more})


def test_sources_are_superseded_and_follow_leads_on(cast: Cast) -> None:
    put(cast, "a", "alpha")
    put(cast, "b", "beta")
    reply = consolidate(cast, ["a", "b", "a"])
    assert [row["memory_key"] for row in reply["superseded"]] == ["a", "b"]
    assert cast.run("memory.get", {"memory_key": "a"})["found"] is False
    assert cast.run("memory.get", {"memory_key": "a", "follow": True})["memory_id"] == reply["memory_id"]
    assert [hit["memory_key"] for hit in cast.run("memory.search", {"query": "alpha one"})["results"]] == [
        "new"
    ]
    put(cast, "c")
    consolidate(cast, ["new", "c"], "newer")
    assert cast.run("memory.get", {"memory_key": "a", "follow": True})["memory_key"] == "newer"
    assert put(cast, "a", "again")
    assert cast.run("memory.get", {"memory_key": "a", "follow": True})["value"] == "again"


def test_a_circle_of_superseded_keys_ends(cast: Cast) -> None:
    for agent, key, into in (("x", "a", "b"), ("y", "b", "a")):
        put(cast, key, agent=agent)
        put(cast, "beside", agent=agent)
        assert consolidate(cast, [key, "beside"], into, agent=agent).status == 200
        assert cast.run("memory.delete", {"memory_key": into, "agent": agent})["tombstoned"] is True
    assert cast.run("memory.get", {"memory_key": "a", "follow": True})["found"] is False


def test_the_target_may_be_one_of_the_sources(cast: Cast) -> None:
    id_ = put(cast, "a", agent="scout")
    put(cast, "b", agent="scout")
    reply = consolidate(cast, ["a", "b"], "a")
    assert (reply["memory_id"], reply["version"]) == (id_, 2)
    assert [row["memory_key"] for row in reply["superseded"]] == ["b"]
    assert Memory.objects.count() == 2


@pytest.mark.parametrize("locked", ["a", "b", "new"])
@pytest.mark.parametrize("mode", ["read_only", "hold"])
def test_one_guarded_source_or_a_locked_target_refuses_all_of_it(cast: Cast, locked: str, mode: str) -> None:
    for key in ("a", "b", "new"):
        put(cast, key)
    if mode == "hold":
        hold(cast, key=locked)
    else:
        cast.run("memory.lock", {"memory_key": locked, "reason": "r"})
    if (locked, mode) == ("new", "hold"):
        assert consolidate(cast, ["a", "b"]).status == 200  # a hold lets the value change
        return
    with nothing_changes(but_for=AUDIT):
        for dry_run in (True, False):
            reply = consolidate(cast, ["a", "b"], dry_run=dry_run)
            assert (reply.status, reply.detail["memory_key"]) == (423, locked)


@pytest.mark.parametrize(
    ("keys", "into", "status"),
    [
        (["a", "none"], "new", 404),
        (["a"], "new", 400),
        (["a", "a"], "new", 400),
        (["a", "b"], "fact:1", 409),
        (["a", "b"], " ", 400),
    ],
)
def test_a_consolidation_that_cannot_be_changes_nothing(
    cast: Cast, keys: list[str], into: str, status: int
) -> None:
    put(cast, "a")
    put(cast, "b")
    with nothing_changes(but_for=AUDIT):
        assert consolidate(cast, keys, into).status == status


# Promote


@pytest.mark.parametrize("private", [{"agent": "a"}, {"user_id": "u"}, {"session_id": "s"}])
def test_a_private_memory_is_shared_and_the_original_stays(cast: Cast, private: dict[str, str]) -> None:
    id_ = put(cast, value={"n": 1}, tags=["t"], confidence=0.5, **private)
    reply = cast.run("memory.promote", {"memory_key": "k", **private})
    assert (reply["promoted_from"], reply["namespace"], reply["version"], reply["changed"]) == (
        id_, "team", 1, True,
    )  # fmt: skip
    shared = Memory.objects.get(pk=reply["memory_id"])
    assert (shared.agent, shared.user_id, shared.session_id) == ("-", "-", "-")
    assert (shared.value, shared.tags, shared.confidence, shared.promoted_from) == (
        {"n": 1}, ["t"], 0.5, int(id_),
    )  # fmt: skip
    assert Memory.objects.get(pk=id_).version == 1
    assert sql("SELECT count(*) FROM memories_embedding") == [(2,)]
    with nothing_changes():
        again = cast.run("memory.promote", {"memory_key": "k", **private})
    assert (again["changed"], again["memory_id"]) == (False, reply["memory_id"])


def test_what_stands_there_with_other_content_is_a_conflict(cast: Cast) -> None:
    put(cast, agent="a")
    there = put(cast, value="other")
    with nothing_changes(but_for=AUDIT):
        reply = cast.run("memory.promote", {"memory_key": "k", "agent": "a"})
    assert (reply.code, reply.detail["memory_id"]) == ("VERSION_CONFLICT", there)
    assert reply.detail["current_sha256"] == Memory.objects.get(pk=there).content_sha256


def test_another_namespace_needs_the_right_to_write_there(cast: Cast) -> None:
    put(cast, agent="a")
    cast.namespace("read", mate=Role.VIEWER, owner=Role.ADMIN)
    cast.namespace("write", mate=Role.WRITER)
    cast.namespace("hidden", owner=Role.ADMIN)
    body = {"memory_key": "k", "agent": "a"}
    answers = [cast.run("memory.promote", {**body, "to": to}) for to in ("read", "hidden", "nowhere")]
    assert {reply.status for reply in answers} == {404}
    hidden, nowhere = (reply.detail["message"] for reply in answers[1:])
    assert hidden.replace("hidden", "nowhere") == nowhere
    narrow = cast.token(namespaces=["team"])
    assert cast.run("memory.promote", {**body, "to": "write"}, by=narrow).status == 404
    viewer = cast.token(role=Role.VIEWER)
    assert cast.run("memory.promote", {**body, "to": "write"}, by=viewer).status == 403
    reply = cast.run("memory.promote", {**body, "to": "write"})
    assert reply["namespace"] == "write"
    assert cast.run("memory.get", {"memory_key": "k", "namespace": "write"})["value"] == "text"
    assert cast.run("memory.search", {"query": "text", "namespace": "write"})["results"][0]["value"] == "text"
    event = AuditEvent.objects.get(op="memory.promote", outcome="applied")
    assert event.detail["namespace"] == "write" and event.detail["promoted_from"]


def test_nothing_private_of_others_is_promoted(cast: Cast) -> None:
    put(cast, agent="a")
    assert cast.run("memory.promote", {"memory_key": "k"}, by=cast.token(agent="b")).status == 404
    assert cast.run("memory.promote", {"memory_key": "k"}, by="stranger").status == 404
    assert cast.run("memory.promote", {"memory_key": "none"}).status == 404


def test_what_is_shared_already_is_a_noop(cast: Cast) -> None:
    id_ = put(cast)
    with nothing_changes():
        reply = cast.run("memory.promote", {"memory_key": "k"})
    assert (reply["changed"], reply["memory_id"], reply["promoted_from"]) == (False, id_, id_)
