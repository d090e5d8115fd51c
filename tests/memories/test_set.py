"""memory.set: a new lineage, a next version, a no-op, a revival, or a refusal that stores nothing."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memories.models import Memory, MemoryVersion
from tests.conftest import Cast
from tests.memories.helpers import AUDIT, govern, history, nothing_changes, pass_expiry, sql

FALSY: list[Any] = [0, 0.0, "", False, [], {}, None]


def test_a_new_key_makes_version_one_and_says_what_was_stored(cast: Cast) -> None:
    answer = cast.call("memory.set", {"memory_key": "deploy/window", "value": "Tuesdays, 9 to 11"})
    assert answer.status == 200
    row = Memory.objects.get()
    assert answer.body == {
        "memory_key": "deploy/window",
        "memory_id": str(row.pk),
        "namespace": "team",
        "version": 1,
        "content_sha256": row.content_sha256,
        "status": "active",
        "pinned": False,
        "noop": False,
        "revived": False,
        "duplicate_of": None,
        "dry_run": False,
    }
    assert (row.agent, row.user_id, row.session_id, row.memory_type) == ("-", "-", "-", "semantic")


def test_the_same_content_again_is_a_noop_and_moves_nothing(cast: Cast) -> None:
    body = {"memory_key": "k", "value": {"b": 1, "a": [1.5, None]}, "tags": ["x"], "metadata": {"m": 1}}
    first = cast.run("memory.set", body)
    with nothing_changes():
        again = cast.run("memory.set", {**body, "value": {"a": [1.5, None], "b": 1}})
    assert again["noop"] is True
    assert again["version"] == first["version"] == 1


def test_a_new_value_makes_the_next_version_and_the_history_keeps_the_old_one(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "one", "reason": "told so"})
    answer = cast.run("memory.set", {"memory_key": "k", "value": "two"})
    assert answer["version"] == 2
    assert [(v["version"], v["value"], v["reason"]) for v in history(cast, "k")] == [
        (1, "one", "told so"),
        (2, "two", ""),
    ]


@pytest.mark.parametrize("value", FALSY, ids=repr)
def test_falsy_values_are_stored_as_given(cast: Cast, value: Any) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "before"})
    assert cast.run("memory.set", {"memory_key": "k", "value": value})["noop"] is False
    read = cast.run("memory.get", {"memory_key": "k"})
    assert read["found"] is True
    assert read["value"] == value and type(read["value"]) is type(value)


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), (1, 1.0), ("1", 1), ([], {}), (None, "")])
def test_values_that_python_holds_equal_are_not_the_same_json(cast: Cast, old: Any, new: Any) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": old, "metadata": {"m": old}})
    answer = cast.run("memory.set", {"memory_key": "k", "value": old, "metadata": {"m": new}})
    assert answer["noop"] is False
    assert cast.run("memory.set", {"memory_key": "k", "value": new})["noop"] is False
    read = cast.run("memory.get", {"memory_key": "k"})
    assert type(read["value"]) is type(new)
    assert type(read["metadata"]["m"]) is type(new)


@pytest.mark.parametrize(
    "number", ["1e22", "1e23", "1.5e300", "-0.0", "123456789012345678901234567890", "5e-324"]
)
def test_saving_what_was_read_changes_nothing_whatever_the_number(cast: Cast, number: str) -> None:
    raw = f'{{"memory_key": "k", "value": {number}, "metadata": {{"n": {number}}}}}'.encode()
    first = cast.call("memory.set", raw)
    read = cast.call("memory.get", {"memory_key": "k"})
    assert Decimal(json.dumps(read["value"])) == Decimal(number)
    assert read["content_sha256"] == first["content_sha256"]
    again = cast.call("memory.set", {"memory_key": "k", "value": read["value"], "metadata": read["metadata"]})
    assert again["noop"] is True
    assert cast.call("memory.set", raw)["noop"] is True


def test_fields_left_out_keep_their_value_and_null_clears_them(cast: Cast) -> None:
    full = {
        "memory_key": "k", "value": 1, "tags": ["a", "b"], "metadata": {"m": 1}, "confidence": 0.5,
        "ttl_seconds": 3600, "memory_type": "profile", "source_trace": "notes.md",
    }  # fmt: skip
    cast.run("memory.set", full)
    before = cast.run("memory.get", {"memory_key": "k"})
    cast.run("memory.set", {"memory_key": "k", "value": 2})
    kept = cast.run("memory.get", {"memory_key": "k"})
    for name in ("tags", "metadata", "confidence", "expires_at", "memory_type"):
        assert kept[name] == before[name], name
    assert MemoryVersion.objects.get(version=2).source_trace == "notes.md"
    cast.run(
        "memory.set",
        {
            "memory_key": "k",
            "value": 2,
            "tags": None,
            "metadata": None,
            "confidence": None,
            "ttl_seconds": None,
        },
    )
    cleared = cast.run("memory.get", {"memory_key": "k"})
    assert (cleared["tags"], cleared["metadata"], cleared["confidence"], cleared["expires_at"]) == (
        [], {}, None, None,
    )  # fmt: skip


def test_clear_expiry_takes_the_expiry_away(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 3600})
    cast.run("memory.set", {"memory_key": "k", "value": 1, "clear_expiry": True})
    assert cast.run("memory.get", {"memory_key": "k"})["expires_at"] is None


def test_clear_expiry_and_a_ttl_contradict_each_other(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1, "clear_expiry": True, "ttl_seconds": 5}
    assert cast.run("memory.set", body).status == 400
    assert not Memory.objects.exists()


def test_repeated_tags_count_once_and_keep_their_order(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "tags": ["b", "a", "b"]})
    assert cast.run("memory.get", {"memory_key": "k"})["tags"] == ["b", "a"]


@pytest.mark.parametrize("field", ["memory_type", "tags", "metadata", "confidence", "on_expire", "pinned"])
def test_a_change_of_any_semantic_field_alone_makes_a_version(cast: Cast, field: str) -> None:
    other = {
        "memory_type": "episodic", "tags": ["n"], "metadata": {"n": 0}, "confidence": 0.0,
        "on_expire": "stale", "pinned": True,
    }[field]  # fmt: skip
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    answer = cast.run("memory.set", {"memory_key": "k", "value": 1, field: other})
    assert (answer["version"], answer["noop"]) == (2, False)


def test_a_deleted_key_is_revived_and_the_history_keeps_the_gap(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "tags": ["t"]})
    cast.run("memory.delete", {"memory_key": "k"})
    answer = cast.run("memory.set", {"memory_key": "k", "value": 1})
    assert (answer["revived"], answer["noop"], answer["version"]) == (True, False, 3)
    assert [v["status"] for v in history(cast, "k")] == ["active", "deleted", "active"]
    assert cast.run("memory.get", {"memory_key": "k"})["tags"] == ["t"]


@pytest.mark.parametrize("status", ["stale", "superseded"])
def test_a_stale_or_superseded_row_becomes_active_again(cast: Cast, status: str) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    sql("UPDATE memories_memory SET status = %s, version = 2", [status])
    answer = cast.run("memory.set", {"memory_key": "k", "value": 2})
    assert (answer["revived"], answer["status"], answer["version"]) == (True, "active", 3)


def test_a_revived_memory_keeps_an_expiry_ahead_and_loses_one_that_has_passed(cast: Cast) -> None:
    for key in ("ahead", "passed"):
        cast.run("memory.set", {"memory_key": key, "value": 1, "ttl_seconds": 3600})
        cast.run("memory.delete", {"memory_key": key})
    pass_expiry("passed")
    for key in ("ahead", "passed"):
        cast.run("memory.set", {"memory_key": key, "value": 2})
    assert cast.run("memory.get", {"memory_key": "ahead"})["expires_at"] is not None
    assert cast.run("memory.get", {"memory_key": "passed"})["expires_at"] is None


def test_a_pin_ends_with_the_state_that_it_kept_ahead(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "pinned": True}, by="owner")
    cast.run("memory.delete", {"memory_key": "k"}, by="owner")
    answer = cast.run("memory.set", {"memory_key": "k", "value": 2})
    assert answer["pinned"] is False
    assert Memory.objects.get().pinned_by == ""


@pytest.mark.parametrize("status", ["deleted", "rejected", "archived"])
def test_a_governed_row_is_not_revived_by_a_save(cast: Cast, status: str) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    govern("k", status)
    with nothing_changes():
        refused = cast.call("memory.set", {"memory_key": "k", "value": 2})
    assert (refused.status, refused.code) == (409, "GOVERNED_KEY")
    assert refused.detail["status"] == status
    assert "reviewer" in refused.detail["message"]


def test_the_row_after_a_redacted_one_is_a_new_lineage(cast: Cast) -> None:
    first = cast.run("memory.set", {"memory_key": "k", "value": "secret"})
    sql("UPDATE memories_memory SET status = 'redacted', value = 'null', governed = true")
    answer = cast.run("memory.set", {"memory_key": "k", "value": "new"})
    assert answer["memory_id"] != first["memory_id"]
    assert (answer["version"], answer["revived"]) == (1, False)
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == "new"


@pytest.mark.parametrize("op", ["set", "update", "delete", "restore"])
def test_keys_of_facts_are_managed(cast: Cast, op: str) -> None:
    body: dict[str, Any] = {"memory_key": "fact:home/city"}
    if op in ("set", "update"):
        body["value"] = 1
    with nothing_changes(but_for=AUDIT):
        refused = cast.call(f"memory.{op}", body)
    assert (refused.status, refused.code) == (409, "MANAGED_KEY")


def test_if_match_writes_only_over_the_content_that_was_read(cast: Cast) -> None:
    first = cast.run("memory.set", {"memory_key": "k", "value": 1})
    second = cast.run(
        "memory.set", {"memory_key": "k", "value": 2, "if_match_sha256": first["content_sha256"]}
    )
    assert second["version"] == 2
    with nothing_changes():
        refused = cast.call(
            "memory.set", {"memory_key": "k", "value": 3, "if_match_sha256": first["content_sha256"]}
        )
    assert (refused.status, refused.code) == (409, "VERSION_CONFLICT")
    assert refused.detail["current_sha256"] == second["content_sha256"]
    assert refused.detail["current_version"] == 2


def test_if_match_on_a_key_that_is_not_served_is_a_conflict(cast: Cast) -> None:
    sha = cast.run("memory.set", {"memory_key": "k", "value": 1})["content_sha256"]
    cast.run("memory.delete", {"memory_key": "k"})
    for key in ("k", "never"):
        refused = cast.run("memory.set", {"memory_key": key, "value": 2, "if_match_sha256": sha})
        assert (refused.code, refused.detail["current_sha256"]) == ("VERSION_CONFLICT", None)


def test_a_pinned_value_stays_ahead_of_another_principal(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "mine", "pinned": True}, by="owner")
    with nothing_changes():
        refused = cast.call("memory.set", {"memory_key": "k", "value": "other"})
    assert (refused.status, refused.code) == (409, "PINNED_CONFLICT")
    assert (refused.detail["pinned_value"], refused.detail["offered_value"]) == ("mine", "other")
    assert cast.run("memory.set", {"memory_key": "k", "value": "mine"})["noop"] is True
    assert cast.run("memory.set", {"memory_key": "k", "value": "newer"}, by="owner")["version"] == 2


def test_a_pinned_shared_value_stays_ahead_of_an_agent_who_sees_it(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "shared", "pinned": True})
    for who in ({"agent": "a"}, {"user_id": "u"}, {"session_id": "s"}):
        refused = cast.run("memory.set", {"memory_key": "k", "value": "own", **who})
        assert refused.code == "PINNED_CONFLICT", who
        assert cast.run("memory.set", {"memory_key": "k", "value": "shared", **who})["version"] == 1


def test_a_pinned_private_value_binds_nobody_who_cannot_see_it(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "a's", "pinned": True, "agent": "a"})
    assert cast.run("memory.set", {"memory_key": "k", "value": "b's", "agent": "b"})["version"] == 1
    assert cast.run("memory.set", {"memory_key": "k", "value": "shared"})["version"] == 1


def test_a_pinned_value_that_has_ended_binds_nobody(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "pinned": True, "ttl_seconds": 60}, by="owner")
    pass_expiry("k")
    assert cast.run("memory.set", {"memory_key": "k", "value": 2, "agent": "a"})["version"] == 1
    assert cast.run("memory.set", {"memory_key": "k", "value": 2})["revived"] is True


def test_an_update_cannot_go_round_a_pinned_value(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "own", "agent": "a"})
    cast.run("memory.set", {"memory_key": "k", "value": "shared", "pinned": True}, by="owner")
    with nothing_changes():
        assert cast.run("memory.update", {"memory_key": "k", "value": "x"}).code == "PINNED_CONFLICT"
        refused = cast.run("memory.update", {"memory_key": "k", "value": "x", "agent": "a"})
    assert refused.code == "PINNED_CONFLICT"


def test_the_same_content_under_another_key_is_said_and_not_merged(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "one", "value": {"a": 1}})
    answer = cast.run("memory.set", {"memory_key": "two", "value": {"a": 1}})
    assert answer["duplicate_of"] == "one"
    assert Memory.objects.count() == 2


def test_only_a_visible_and_served_memory_counts_as_a_duplicate(cast: Cast) -> None:
    bound = cast.token(agent="b")
    cast.run("memory.set", {"memory_key": "private", "value": "same", "agent": "a"})
    cast.run("memory.set", {"memory_key": "foreign", "value": "same"}, by="stranger")
    cast.run("memory.set", {"memory_key": "gone", "value": "same"})
    cast.run("memory.delete", {"memory_key": "gone"})
    cast.run("memory.set", {"memory_key": "ended", "value": "same", "ttl_seconds": 60})
    pass_expiry("ended")
    assert cast.run("memory.set", {"memory_key": "k", "value": "same"}, by=bound)["duplicate_of"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"memory_key": "new", "value": 1},
        {"memory_key": "k", "value": 2, "tags": ["x"], "ttl_seconds": 60, "pinned": True},
        {"memory_key": "ended", "value": 2},
    ],
)
def test_a_dry_run_judges_everything_and_changes_nothing(cast: Cast, body: dict[str, Any]) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.set", {"memory_key": "ended", "value": 1, "ttl_seconds": 60})
    pass_expiry("ended")
    with nothing_changes():
        dry = cast.run("memory.set", {**body, "dry_run": True}, idempotency_key="once")
    real = cast.run("memory.set", body, idempotency_key="once")
    assert dry["dry_run"] is True
    for name in ("version", "revived", "noop", "content_sha256", "status"):
        assert dry[name] == real[name], name


def test_a_dry_run_meets_every_refusal_of_a_real_one(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1})
    cast.run("memory.lock", {"memory_key": "k", "reason": "audit"})
    assert cast.run("memory.set", {"memory_key": "k", "value": 2, "dry_run": True}).code == "LOCKED"


def test_each_identity_tuple_is_a_lineage_of_its_own(cast: Cast) -> None:
    tuples = [{}, {"agent": "a"}, {"user_id": "u"}, {"session_id": "s"}, {"agent": "a", "user_id": "u"}]
    for n, who in enumerate(tuples):
        assert cast.run("memory.set", {"memory_key": "k", "value": n, **who})["version"] == 1
    for n, who in enumerate(tuples):
        exact = {"agent": "-", "user_id": "-", "session_id": "-", **who}
        assert cast.run("memory.get", {"memory_key": "k", **exact})["value"] == n


def test_a_bound_token_writes_under_its_own_agent_and_user(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1}, by=cast.token(agent="a", user_id="u"))
    row = Memory.objects.get()
    assert (row.agent, row.user_id, row.session_id) == ("a", "u", "-")


def test_identity_in_metadata_is_inert(cast: Cast) -> None:
    cast.run(
        "memory.set", {"memory_key": "k", "value": 1, "metadata": {"user_id": "bob", "org": "elsewhere"}}
    )
    row = Memory.objects.get()
    assert (row.user_id, row.namespace_id) == ("-", cast.team.pk)


def test_a_higher_source_class_than_the_tokens_is_lowered_and_said_so(cast: Cast) -> None:
    answer = cast.run("memory.set", {"memory_key": "k", "value": 1, "source_class": "user_prompt"})
    assert answer["advisories"] == ["source_class: lowered to local_tool_output, the ceiling of this token"]
    assert cast.run("memory.get", {"memory_key": "k"})["source_class"] == "local_tool_output"


def test_a_lower_source_class_is_kept(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "source_class": "external_content"})
    assert cast.run("memory.get", {"memory_key": "k"})["source_class"] == "external_content"


@pytest.mark.parametrize("ttl", [0, -1, 2**63, 10**30, "soon", True, 1.5])
def test_a_ttl_out_of_bounds_is_400_naming_the_field(cast: Cast, ttl: Any) -> None:
    refused = cast.call("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": ttl})
    assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT")
    assert refused.detail["errors"][0]["path"] == "ttl_seconds"
    assert not Memory.objects.exists()


def test_a_ttl_of_two_to_the_31_is_right(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl_seconds": 2**31})
    ((years,),) = sql("SELECT extract(year FROM age(expires_at, now())) FROM memories_memory")
    assert years == 68


@pytest.mark.parametrize("confidence", [b"NaN", b"1e999", b"-1e999", b"1.01", b"-0.1", b'"high"', b"9" * 400])
def test_a_confidence_that_is_no_share_is_400(cast: Cast, confidence: bytes) -> None:
    raw = b'{"memory_key": "k", "value": 1, "confidence": ' + confidence + b"}"
    assert cast.call("memory.set", raw).status == 400
    assert not Memory.objects.exists()


def test_a_value_over_the_limit_is_413_and_one_at_the_limit_is_stored(cast: Cast) -> None:
    fits = "x" * (256 * 1024 - 2)
    assert cast.call("memory.set", {"memory_key": "k", "value": fits}).status == 200
    refused = cast.call("memory.set", {"memory_key": "k", "value": fits + "x"})
    assert (refused.status, refused.code) == (413, "TOO_LARGE")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("memory_key", ""),
        ("memory_key", "x" * 513),
        ("memory_key", " "),
        ("tags", ["x"] * 65),
        ("tags", ["x" * 129]),
        ("tags", [""]),
        ("tags", "x"),
        ("metadata", []),
        ("agent", ""),
        ("user_id", " "),
        ("namespace", ""),
        ("agent", "*"),
        ("if_match_sha256", "abc"),
        ("on_expire", "vanish"),
        ("source_class", "gospel"),
        ("source_trace", "x" * 513),
        ("reason", "x" * 2001),
    ],
)
def test_what_is_over_a_limit_or_empty_is_400_naming_it(cast: Cast, field: str, wrong: Any) -> None:
    refused = cast.call("memory.set", {"memory_key": "k", "value": 1, field: wrong})
    assert refused.status == 400
    assert field in json.dumps(refused.detail["errors"])
    assert not Memory.objects.exists()


def test_an_empty_call_lists_every_missing_field(cast: Cast) -> None:
    refused = cast.call("memory.set", {})
    assert {fault["path"] for fault in refused.detail["errors"]} >= {"memory_key", "value"}


def test_an_unknown_field_is_served_and_named(cast: Cast) -> None:
    assert cast.run("memory.set", {"memory_key": "k", "value": 1, "ttl": 5})["ignored_args"] == ["ttl"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=20
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
def test_any_json_is_refused_clearly_or_read_back_and_then_a_noop(cast: Cast, value: Any) -> None:
    stored = cast.call("memory.set", {"memory_key": "k", "value": value})
    assert stored.status in (200, 400)
    if stored.status == 400:
        assert "surrogate" in str(stored.detail) or "twice" in str(stored.detail)
        return
    read = cast.call("memory.get", {"memory_key": "k"})
    again = cast.call("memory.set", {"memory_key": "k", "value": read["value"]})
    assert (again["noop"], again["content_sha256"]) == (True, stored["content_sha256"])


def test_who_only_reads_cannot_write_and_a_stranger_does_not_know_the_namespace(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1, "namespace": "team"}
    assert cast.call("memory.set", body, by="viewer").status == 403
    answer = cast.call("memory.set", body, by="stranger")
    assert answer.status == 200
    assert Memory.objects.get().namespace_id == cast.elsewhere.pk


def test_a_set_leaves_one_version_and_one_audit_row_that_agree(cast: Cast) -> None:
    cast.call("memory.set", {"memory_key": "k", "value": 1, "reason": "why"}, HTTP_X_REQUEST_ID="req-1")
    version = MemoryVersion.objects.get()
    ((op, target, after, sha, reason, request),) = sql(
        "SELECT op, target, after_version, after_sha256, reason, request_id FROM governance_auditevent"
    )
    assert (op, target, after, sha) == ("memory.set", "k", 1, version.content_sha256)
    assert reason == version.reason == "why"
    assert request == version.request_id == "req-1"
    assert version.principal == "mate"


def test_a_set_costs_a_bounded_number_of_statements(cast: Cast, django_assert_max_num_queries: Any) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": "some text"})
    with django_assert_max_num_queries(14):
        cast.run("memory.set", {"memory_key": "k", "value": "another text"})
