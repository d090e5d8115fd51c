"""Nothing about another tenant can be told: not from bodies, counts, cursors, keys, scores or time."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client

from governance import pipeline
from governance.models import AuditEvent, IdempotencyKey, Job, Namespace
from governance.services import member_set_role
from governance.tenancy import Credentials
from loomsite.doors.tools import Access, call_tool
from loomsite.ops import Door, Role, all_ops, get
from tests.conftest import Cast
from tests.contract.examples import EXAMPLES, JOB, body_of, seed

OPS = sorted(EXAMPLES)
# A word that only another tenant's rows hold.
TELLTALE = "xylophonium"


@pytest.fixture
def ids(cast: Cast) -> dict[str, str]:
    """The examples' rows at home, and a full house elsewhere and in a namespace of others."""
    found = seed(cast)
    cast.namespace("vault", owner=Role.ADMIN)
    for who, namespace in (("stranger", "team"), ("owner", "vault")):
        for number in range(12):
            body = {
                "memory_key": f"{TELLTALE}/{number}", "value": f"{TELLTALE} living {number}",
                "tags": [TELLTALE], "namespace": namespace,
            }  # fmt: skip
            assert cast.run("memory.set", body, by=who).status == 200
    return found


def raw(cast: Cast, op: str, body: dict[str, Any], by: str = "mate") -> tuple[int, bytes, dict[str, str]]:
    """The answer as bytes, and its headers but for the times."""
    response = Client().post(
        f"/v1/{op}",
        data=json.dumps(body),
        content_type="application/json",
        HTTP_AUTHORIZATION=f"Bearer {cast.tokens.get(by, by)}",
        HTTP_X_REQUEST_ID="same",
    )
    headers = {name: value for name, value in response.items() if name != "Server-Timing"}
    return response.status_code, response.content, headers


PAIRS = [
    ({"namespace": "vault"}, {"namespace": "nowhere"}),
    ({"org": "elsewhere"}, {"org": "none"}),
    ({"org": "elsewhere", "namespace": "team"}, {"org": "none", "namespace": "team"}),
    ({"org": "elsewhere", "namespace": "vault"}, {"org": "none", "namespace": "nowhere"}),
]


@pytest.mark.parametrize("op", OPS)
def test_what_is_foreign_and_what_is_absent_answer_byte_by_byte_the_same(
    cast: Cast, ids: dict[str, str], op: str
) -> None:
    narrow = cast.token("mate", namespaces=["team"])
    maker = cast.token("mate", may_create_namespaces=True)
    for foreign, absent in PAIRS:
        for by in ("mate", "viewer", narrow, cast.token("mate", namespaces=[], default_namespace="")):
            body = body_of(op, ids)
            one, two = raw(cast, op, {**body, **foreign}, by), raw(cast, op, {**body, **absent}, by)
            assert one == two and one[0] == 404, (foreign, by[:17])
    # Whoever may make namespaces learns which names of its own organisation are taken, and of no other.
    foreign, absent = PAIRS[1]
    body = body_of(op, ids)
    assert raw(cast, op, {**body, **foreign}, maker) == raw(cast, op, {**body, **absent}, maker)


@pytest.mark.parametrize("door", [Door.MCP, Door.STDIO])
@pytest.mark.parametrize("op", OPS)
def test_the_same_over_mcp(cast: Cast, ids: dict[str, str], op: str, door: Door) -> None:
    found = get(op)
    assert found is not None
    access = Access(credentials=Credentials(bearer=cast.tokens["mate"], door=door), request_id="same")
    for foreign, absent in PAIRS:
        body = body_of(op, ids)
        one = call_tool(found.tool_name, {**body, **foreign}, access)
        two = call_tool(found.tool_name, {**body, **absent}, access)
        assert one.model_dump() == two.model_dump() and one.is_error


@pytest.mark.parametrize("op", [op.name for op in all_ops() if op.is_read])
def test_no_read_repeats_a_word_of_another_tenant(cast: Cast, ids: dict[str, str], op: str) -> None:
    for body in ({}, {"query": "living"}, {"memory_key": f"{TELLTALE}/1"}, {"tags_any": [TELLTALE]}):
        given = {**body_of(op, ids), **body}
        status, content, _ = raw(cast, op, given)
        if TELLTALE not in json.dumps(given):
            assert TELLTALE.encode() not in content
        else:
            assert status in (200, 403, 404) and content.count(TELLTALE.encode()) <= 2


def test_counts_are_of_what_one_may_see(cast: Cast, ids: dict[str, str]) -> None:
    Job.objects.create(org=cast.elsewhere.org, namespace=cast.elsewhere, kind="nothing", state="failed")
    mine = cast.run("memory.list", {"limit": 200})
    assert sorted(row["memory_key"] for row in mine["memories"]) == [
        "living", "locked", "private", "procedure_usual", "second",
    ]  # fmt: skip
    assert cast.run("ops.health", {})["jobs"].get("failed", 0) == 0
    assert [row["namespace"] for row in cast.run("namespace.list", {})["namespaces"]] == ["team"]


@pytest.mark.parametrize("op", ["memory.list", "memory.history"])
def test_a_cursor_of_another_tenant_leads_to_ones_own_rows_or_nowhere(
    cast: Cast, ids: dict[str, str], op: str
) -> None:
    for number in range(5):
        for who in ("mate", "stranger"):
            cast.run("memory.set", {"memory_key": "shared", "value": f"{who} {number}"}, by=who)
    body: dict[str, Any] = {"limit": 2, **({"memory_key": "shared"} if op == "memory.history" else {})}
    theirs = cast.run(op, body, by="stranger")["next_cursor"]
    assert theirs
    status, content, _ = raw(cast, op, {**body, "cursor": theirs})
    assert status in (200, 400)
    assert TELLTALE.encode() not in content and b"stranger" not in content
    seen: set[str] = set()
    cursor: str | None = theirs
    while status == 200 and cursor:
        page = cast.run(op, {**body, "cursor": cursor, "include_values": True})
        seen |= {json.dumps(row) for row in page.body.get("memories", page.body.get("versions", []))}
        cursor = page["next_cursor"]
    assert not [row for row in seen if TELLTALE in row or "stranger" in row]


def test_an_idempotency_key_is_a_tenants_own(cast: Cast) -> None:
    def write(by: str, value: str) -> Any:
        return cast.run("memory.set", {"memory_key": "k", "value": value}, by=by, idempotency_key="same")

    assert write("mate", "ours").status == 200
    # Another tenant, and another principal of the same one: neither a replay nor a conflict.
    for who, value in (("stranger", "theirs"), ("owner", "also ours")):
        reply = write(who, value)
        assert reply.status == 200 and "Idempotent-Replayed" not in reply.headers
    assert write("mate", "other").code == "IDEMPOTENCY_CONFLICT"
    assert IdempotencyKey.objects.filter(key="same").count() == 3


def test_one_person_with_tokens_in_two_organisations_has_two_sets_of_keys(cast: Cast) -> None:
    from governance.services import token_create

    member_set_role(namespace=cast.elsewhere, member=cast.people["mate"], role=Role.WRITER)
    other = cast.elsewhere.org
    _, there = token_create(principal=cast.people["mate"], org=other, default_namespace="team")
    one = cast.run("memory.set", {"memory_key": "k", "value": "here"}, idempotency_key="same")
    two = cast.run("memory.set", {"memory_key": "k", "value": "there"}, by=there, idempotency_key="same")
    assert (one.status, two.status) == (200, 200) and "Idempotent-Replayed" not in two.headers
    assert cast.run("memory.get", {"memory_key": "k"}, by=there)["value"] == "there"
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == "here"


def test_a_request_id_can_be_used_by_anybody_and_leads_to_nobody(cast: Cast) -> None:
    assert cast.run("memory.set", {"memory_key": "a", "value": 1}, request_id="req-1").status == 200
    reply = cast.run("memory.set", {"memory_key": "a", "value": 1}, by="stranger", request_id="req-1")
    assert reply.status == 200
    found = AuditEvent.objects.filter(request_id="req-1")
    assert sorted(event.org.slug for event in found) == ["acme", "elsewhere"]
    # Each chain numbers its own rows: the number says nothing about the other.
    assert {event.seq for event in found} == {1}


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_how_rare_a_word_is_elsewhere_moves_no_score_and_no_order(cast: Cast, mode: str) -> None:
    for number in range(20):
        value = f"note {number} on {'gibbon' if number % 7 == 0 else 'ordinary'} habits and {number * 31}"
        assert cast.run("memory.set", {"memory_key": f"n/{number}", "value": value}).status == 200
    body = {"query": "gibbon habits", "mode": mode, "top_k": 20}
    before = raw(cast, "memory.search", body)
    assert before[0] == 200 and b"n/0" in before[1]
    cast.namespace("vault", owner=Role.WRITER)
    for who, namespace in (("stranger", "team"), ("owner", "vault")):
        items = [{"memory_key": f"g/{i}", "value": "gibbon gibbon habits"} for i in range(100)]
        reply = cast.run("memory.set_many", {"items": items, "namespace": namespace}, by=who)
        assert reply.status == 200, reply.body
    assert raw(cast, "memory.search", body) == before


def test_a_job_of_others_and_one_that_is_not_there_look_the_same(cast: Cast) -> None:
    job = seed(cast)[JOB]
    vault = cast.namespace("vault")
    hidden = Job.objects.create(org=cast.org, namespace=vault, kind="nothing")
    absent = raw(cast, "job.get", {"job_id": "999999999"})
    assert absent[0] == 404
    assert raw(cast, "job.get", {"job_id": str(hidden.pk)}) == absent
    assert raw(cast, "job.get", {"job_id": job}, "stranger") == raw(
        cast, "job.get", {"job_id": "999999999"}, "stranger"
    )


ODD = ["", " ", "\t", "\u00a0", "\u2003", "\n", "\x00", "x\x00", "x" * 129, "\u200b\n"]


@pytest.mark.parametrize("field", ["org", "namespace", "agent", "user_id", "session_id", "run_id"])
@pytest.mark.parametrize("value", ODD)
def test_an_empty_blank_or_odd_identity_is_400_and_never_means_everything(
    cast: Cast, ids: dict[str, str], field: str, value: str
) -> None:
    for op in ("memory.list", "memory.get", "memory.search", "memory.set", "memory.delete"):
        reply = cast.call(op, {**body_of(op, ids), field: value})
        assert (reply.status, reply.code) == (400, "INVALID_ARGUMENT"), (op, reply.body)
        assert any(fault["path"] == field for fault in reply.detail["errors"])


@pytest.mark.parametrize("value", [0, 1, True, [], ["team"], {}, {"$ne": "x"}])
def test_an_identity_is_a_string(cast: Cast, ids: dict[str, str], value: Any) -> None:
    for field in ("org", "namespace", "agent"):
        assert cast.call("memory.list", {field: value}).status == 400


@pytest.mark.parametrize("slug", ["a/b&c=d:%*", "team'--", "TEAM", "team ", "te%m", "t_am", "team\u200d"])
def test_a_namespace_of_a_similar_name_is_another_one(cast: Cast, ids: dict[str, str], slug: str) -> None:
    assert cast.run("memory.list", {"namespace": slug}).status == 404
    Namespace.objects.create(org=cast.org, slug=slug)
    assert cast.run("memory.list", {"namespace": slug}).status == 404
    maker = cast.token("owner", may_create_namespaces=True)
    member_set_role(
        namespace=Namespace.objects.get(org=cast.org, slug=slug),
        member=cast.people["owner"],
        role=Role.WRITER,
    )
    assert cast.run("memory.list", {"namespace": slug}, by=maker)["memories"] == []


def test_identity_in_metadata_is_only_data(cast: Cast) -> None:
    meta = {"user_id": "bob", "org": "elsewhere", "namespace": "team", "agent": "x", "role": "admin"}
    body = {"memory_key": "k", "value": 1, "metadata": meta}
    assert cast.run("memory.set", body).status == 200
    got = cast.run("memory.get", {"memory_key": "k"})
    assert got["metadata"] == meta
    assert cast.run("memory.list", {}, by="stranger")["memories"] == []
    assert cast.run("memory.list", {"user_id": "bob"})["memories"] == []


@pytest.fixture
def in_a_hurry() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    import gc

    cache.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.soak
def test_foreign_and_absent_take_the_same_time_within_noise(
    cast: Cast, ids: dict[str, str], in_a_hurry: None
) -> None:
    """Medians of interleaved calls differ by less than a quarter, or less than a tenth of a millisecond."""
    credentials = Credentials(bearer=cast.tokens["mate"])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    for op in ("memory.get", "memory.set", "memory.search", "ops.whoami"):
        for foreign, absent in PAIRS[:2]:
            body = body_of(op, ids)
            spent: dict[str, list[float]] = {"foreign": [], "absent": []}
            for turn in range(800):
                says = (("foreign", foreign), ("absent", absent))
                for name, where in says if turn % 2 else reversed(says):
                    started = time.perf_counter()
                    answer = pipeline.run(op, {**body, **where}, credentials, request_id="same")
                    spent[name].append(time.perf_counter() - started)
                    assert answer.status == 404
            one, two = (statistics.median(times[100:]) for times in spent.values())
            assert abs(one - two) < max(0.25 * max(one, two), 1e-4), (op, foreign, one, two)
