"""From validation to audit: the order of the steps, stored answers, retries, and a database in trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.test import Client
from psycopg_pool import PoolTimeout

from governance import faults
from governance.models import AuditEvent, IdempotencyKey, Namespace, NamespaceUserPermission
from governance.services import idempotency_sweep
from loomsite.ops import AuditEntry, Context, OpError, OpInput, Role
from memories.models import Memory
from tests.conftest import Cast
from tests.governance.conftest import Make, ProbeInput, at_once

real_commits = pytest.mark.django_db(transaction=True)


# The order of the steps


def test_a_call_is_validated_before_anybody_asks_who_calls(cast: Cast) -> None:
    assert cast.run("memory.get", {}, by="no token at all").status == 400
    assert cast.run("memory.get", {"memory_key": "k"}, by="no token at all").status == 401


def test_an_unknown_op_comes_before_everything(cast: Cast) -> None:
    reply = cast.run("memory.gett", {"\ud83d": 1}, by="no token at all")
    assert (reply.status, reply.code) == (404, "UNKNOWN_OP")


def test_the_role_is_judged_before_anything_is_prepared_or_run(cast: Cast, probe: Make) -> None:
    ran: list[str] = []

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ran.append("handler")
        return {"runs": 1}

    probe(handler, prepare=lambda ctx, data: ran.append("prepare"))
    assert cast.run("probe.write", {}, by="viewer").code == "FORBIDDEN"
    assert ran == []
    assert cast.run("probe.write", {}).status == 200
    assert ran == ["prepare", "handler"]


def test_an_answer_outside_the_declared_output_is_a_fault_of_the_server(cast: Cast, probe: Make) -> None:
    probe(lambda ctx, data: {"runs": 1, "secret": "x"})
    reply = cast.run("probe.write", {})
    assert (reply.status, reply.code) == (500, "INTERNAL")
    assert "secret" not in reply.detail["message"]


def test_a_defect_is_a_500_that_leads_to_the_log_and_changes_nothing(
    cast: Cast, probe: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        Namespace.objects.create(org=cast.org, slug="made by the defect")
        raise ZeroDivisionError("a defect")

    probe(handler)
    reply = cast.run("probe.write", {}, request_id="find-me")
    assert (reply.status, reply.code) == (500, "INTERNAL")
    assert "ZeroDivisionError" not in str(reply.body)
    assert "find-me" in caplog.text and "ZeroDivisionError" in caplog.text
    assert not Namespace.objects.filter(slug="made by the defect").exists()


def test_advisories_of_a_handler_reach_the_answer_once_each(cast: Cast, probe: Make) -> None:
    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ctx.advisories += ["note: one", "note: two", "note: one"]
        return {"runs": 1}

    probe(handler)
    assert cast.run("probe.write", {"note": "\u0000"})["advisories"] == [
        "note: U+0000 is stored as U+FFFD", "note: one", "note: two"
    ]  # fmt: skip


def test_what_an_op_declares_for_after_the_commit_runs_then_and_not_for_a_dry_run(
    cast: Cast, probe: Make
) -> None:
    def after(ctx: Context, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "runs": body["runs"] + 100}

    probe(lambda ctx, data: {"runs": 1}, after_commit=after)
    assert cast.run("probe.write", {})["runs"] == 101
    assert cast.run("probe.write", {"dry_run": True})["runs"] == 1
    # A replay waits again on what the stored answer names.
    assert cast.run("probe.write", {}, idempotency_key="k")["runs"] == 101
    assert cast.run("probe.write", {}, idempotency_key="k")["runs"] == 101


def test_an_op_without_a_namespace_is_guarded_by_its_role_too(cast: Cast, probe: Make) -> None:
    probe(lambda ctx, data: {"runs": 1}, scoped=False, role=Role.ADMIN)
    assert cast.run("probe.write", {}, by="owner").code == "FORBIDDEN"


# Namespaces


def test_a_namespace_is_made_by_the_first_write_and_its_maker_is_its_admin(cast: Cast) -> None:
    reply = cast.run("memory.set", {"namespace": "new", "memory_key": "k", "value": 1}, by="owner")
    assert reply.status == 200
    made = Namespace.objects.get(slug="new", org=cast.org)
    assert NamespaceUserPermission.objects.get(content_object=made).permission.codename == "admin"
    events = list(AuditEvent.objects.order_by("seq").values_list("op", "target"))
    assert events == [("namespace.create", "namespace:new"), ("memory.set", "k")]


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("memory.set", {"memory_key": "k", "value": 1, "dry_run": True}),
        ("memory.lock", {"memory_key": "k", "reason": "r"}),
        ("memory.set", {"memory_key": "fact:x", "value": 1}),
        ("memory.restore", {"memory_key": "k"}),
    ],
)
def test_a_refused_or_dry_write_leaves_no_namespace(cast: Cast, op: str, body: dict[str, Any]) -> None:
    cast.run(op, {"namespace": "new", **body}, by="owner")
    assert not Namespace.objects.filter(slug="new").exists()
    assert not AuditEvent.objects.filter(op="namespace.create").exists()


def test_reading_a_namespace_that_is_not_there_finds_nothing_and_makes_nothing(cast: Cast) -> None:
    assert cast.run("memory.get", {"namespace": "new", "memory_key": "k"}, by="owner")["found"] is False
    assert cast.run("memory.list", {"namespace": "new"}, by="owner")["memories"] == []
    assert cast.run("memory.search", {"namespace": "new", "query": "q"}, by="owner")["results"] == []
    assert not Namespace.objects.filter(slug="new").exists()


@pytest.mark.parametrize("name", ["*", "-"])
def test_no_namespace_is_called_like_any_or_none(cast: Cast, name: str) -> None:
    reply = cast.run("memory.set", {"namespace": name, "memory_key": "k", "value": 1}, by="owner")
    assert reply.status == 400 and reply.detail["errors"][0]["path"] == "namespace"


@pytest.mark.parametrize(
    "name", ["a/b&c=d:%*", "..", "../..", "ns with spaces", "{x}", "'; --", "\u540d\u524d"]
)
def test_a_namespace_of_any_other_name_is_served_exactly(cast: Cast, name: str) -> None:
    body = {"namespace": name, "memory_key": name}
    assert cast.run("memory.set", {**body, "value": 1}, by="owner").status == 200
    assert cast.run("memory.get", body, by="owner")["value"] == 1
    assert Namespace.objects.filter(slug=name).count() == 1


@real_commits
def test_of_eight_first_writers_one_makes_the_namespace_and_all_write(cast: Cast) -> None:
    def write(i: int) -> int:
        return cast.run(
            "memory.set", {"namespace": "new", "memory_key": f"k{i}", "value": i}, by="owner"
        ).status

    assert at_once(8, write) == [200] * 8
    assert Namespace.objects.filter(slug="new").count() == 1
    assert AuditEvent.objects.filter(op="namespace.create").count() == 1
    assert Memory.objects.filter(namespace__slug="new").count() == 8


@real_commits
def test_a_namespace_that_another_made_meanwhile_is_judged_and_not_assumed(cast: Cast, probe: Make) -> None:
    """Between the look and the write somebody else makes the namespace; the caller has no role there."""

    def appear(ctx: Context, data: ProbeInput) -> None:
        Namespace.objects.create(org=cast.org, slug="new")

    probe(lambda ctx, data: {"runs": 1}, prepare=appear)
    reply = cast.run("probe.write", {"namespace": "new"}, by="owner")
    assert (reply.status, reply.code) == (404, "NOT_FOUND")


# Stored answers


def test_a_replay_comes_before_the_present_state(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1}
    first = cast.call("memory.set", body, HTTP_IDEMPOTENCY_KEY="key")
    cast.call("memory.set", {"memory_key": "k", "value": 2})
    cast.call("memory.lock", {"memory_key": "k", "reason": "r"})
    again = cast.call("memory.set", body, HTTP_IDEMPOTENCY_KEY="key")
    assert again.status == 200 and again.body == first.body
    assert again.headers["Idempotent-Replayed"] == "true"
    assert cast.call("memory.get", {"memory_key": "k"})["value"] == 2


def test_the_same_key_with_another_body_is_409(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1}, idempotency_key="key")
    reply = cast.run("memory.set", {"memory_key": "k", "value": 2}, idempotency_key="key")
    assert (reply.status, reply.code) == (409, "IDEMPOTENCY_CONFLICT")
    assert cast.run("memory.get", {"memory_key": "k"})["value"] == 1


def test_the_same_body_in_other_words_is_the_same_body(cast: Cast) -> None:
    cast.call("memory.set", b'{"memory_key":"caf\\u00e9","value":1}', HTTP_IDEMPOTENCY_KEY="key")
    raw = '{ "value":1 , "memory_key":"cafe\u0301" }'.encode()
    assert cast.call("memory.set", raw, HTTP_IDEMPOTENCY_KEY="key").headers["Idempotent-Replayed"] == "true"


def test_a_key_belongs_to_its_principal_org_and_op(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1}
    for by in ("mate", "owner", "stranger"):
        reply = cast.run("memory.set", body, by=by, idempotency_key="key")
        assert reply.status == 200 and "Idempotent-Replayed" not in reply.headers
    assert cast.run("memory.update", body, idempotency_key="key")["updated"] is True
    another = cast.run("memory.set", body, by=cast.token("mate"), idempotency_key="key")
    assert another.headers["Idempotent-Replayed"] == "true"


def test_two_tokens_whose_defaults_differ_do_not_share_an_answer(cast: Cast) -> None:
    """The same body means another namespace by another token: no replay of what was done elsewhere."""
    cast.namespace("side", mate=Role.WRITER)
    body = {"memory_key": "k", "value": 1}
    cast.run("memory.set", body, idempotency_key="key")
    for narrowing in ({"default_namespace": "side"}, {"agent": "scout"}, {"user_id": "bob"}):
        reply = cast.run("memory.set", body, by=cast.token("mate", **narrowing), idempotency_key="key")
        assert reply.code == "IDEMPOTENCY_CONFLICT"


def test_a_refusal_is_not_stored(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1, "if_match_sha256": "0" * 64}
    refused = cast.run("memory.set", body, idempotency_key="key")
    assert refused.code == "VERSION_CONFLICT"
    assert not IdempotencyKey.objects.exists()
    good = cast.run("memory.set", {"memory_key": "k", "value": 1}, idempotency_key="key")
    assert good.status == 200


def test_a_dry_run_claims_no_key(cast: Cast) -> None:
    cast.run("memory.set", {"memory_key": "k", "value": 1, "dry_run": True}, idempotency_key="key")
    assert not IdempotencyKey.objects.exists()


def test_a_key_on_a_read_says_nothing(cast: Cast) -> None:
    for key in ("key", "\u00e9", "x" * 300):
        assert cast.run("memory.get", {"memory_key": "k"}, idempotency_key=key).status == 200
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("key", ["", "x" * 256, "\u00e9", "a\nb", "a\u0000b"])
def test_a_malformed_key_is_400(cast: Cast, key: str) -> None:
    reply = cast.run("memory.set", {"memory_key": "k", "value": 1}, idempotency_key=key)
    assert reply.status == 400 and reply.detail["errors"][0]["path"] == "Idempotency-Key"


def test_a_stored_answer_ends_after_a_day(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1}
    cast.run("memory.set", body, idempotency_key="key")
    _age("23 hours 59 minutes")
    assert idempotency_sweep() == 0
    assert cast.run("memory.set", body, idempotency_key="key").headers["Idempotent-Replayed"] == "true"
    _age("2 minutes")
    # Before the sweep comes by, too: the key is free, even for another body.
    reply = cast.run("memory.set", {"memory_key": "k", "value": 2}, idempotency_key="key")
    assert reply.status == 200 and "Idempotent-Replayed" not in reply.headers
    _age("25 hours")
    assert idempotency_sweep() == 1


def _age(by: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_idempotencykey SET created_at = created_at - %s::interval", [by])


def test_an_erased_answer_is_not_replayed(cast: Cast) -> None:
    body = {"memory_key": "k", "value": 1}
    cast.run("memory.set", body, idempotency_key="key")
    IdempotencyKey.objects.update(status=None, answer=None)
    reply = cast.run("memory.set", body, idempotency_key="key")
    assert (reply.status, reply.code) == (409, "IDEMPOTENCY_CONFLICT")


@real_commits
def test_of_concurrent_twins_one_runs_and_the_others_get_its_answer(cast: Cast, probe: Make) -> None:
    ran: list[int] = []

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ran.append(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.2)")
        ctx.record(AuditEntry(target="x"))
        return {"runs": len(ran)}

    probe(handler)
    replies = at_once(6, lambda i: cast.run("probe.write", {}, idempotency_key="key"))
    assert [reply.status for reply in replies] == [200] * 6
    assert {reply["runs"] for reply in replies} == {1}
    assert sum("Idempotent-Replayed" in reply.headers for reply in replies) == 5
    assert len(ran) == AuditEvent.objects.count() == 1


@real_commits
def test_when_the_first_twin_fails_the_other_runs(cast: Cast, probe: Make) -> None:
    ran: list[int] = []
    both = threading.Event()

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ran.append(1)
        if len(ran) == 1:
            assert both.wait(30)
            raise OpError("VERSION_CONFLICT", "The first one fails.")
        return {"runs": len(ran)}

    probe(handler)

    def twin(i: int) -> int:
        if i == 1:
            _until(lambda: len(ran) == 1)
            threading.Timer(0.2, both.set).start()
        return cast.run("probe.write", {}, idempotency_key="key").status

    assert sorted(at_once(2, twin)) == [200, 409]
    assert len(ran) == 2


def _until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    waiting = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if true():
            return
        waiting.wait(0.02)
    raise AssertionError("it never came true")


# Retries


def _database_error(state: str | None) -> OperationalError:
    cause = psycopg.errors.lookup(state)("made up") if state else psycopg.OperationalError("gone")
    error = OperationalError("made up")
    error.__cause__ = cause
    return error


@real_commits
@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_deadlock_or_a_serialisation_failure_is_retried_inside(cast: Cast, probe: Make, state: str) -> None:
    ran: list[int] = []

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ran.append(1)
        ctx.record(AuditEntry(target="x"))
        ctx.advisories.append("note: said by the handler")
        ctx.degraded.append("embedding")
        if len(ran) < faults.ATTEMPTS:
            raise _database_error(state)
        return {"runs": len(ran)}

    probe(handler)
    reply = cast.run("probe.write", {})
    assert reply["runs"] == faults.ATTEMPTS
    assert reply["advisories"] == ["note: said by the handler"] and reply["degraded"] == ["embedding"]
    assert AuditEvent.objects.count() == 1


@real_commits
def test_retries_are_bounded_and_end_in_busy(cast: Cast, probe: Make) -> None:
    ran: list[int] = []

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        ran.append(1)
        raise _database_error("40P01")

    probe(handler)
    reply = cast.run("probe.write", {})
    assert (reply.status, reply.code, reply.detail["retryable"]) == (503, "BUSY", True)
    assert reply.headers["Retry-After"] == str(reply.detail["retry_after_s"])
    assert len(ran) == faults.ATTEMPTS


@real_commits
def test_a_real_deadlock_of_two_writers_is_no_error_of_either(cast: Cast, probe: Make) -> None:
    rows = [cast.namespace(f"n{i}").pk for i in range(2)]
    both, runs = threading.Barrier(2), [0, 0]

    def handler(ctx: Context, data: ProbeInput) -> dict[str, Any]:
        me = int(data.note)
        runs[me] += 1
        for i, row in enumerate(rows if me == 0 else rows[::-1]):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM governance_namespace WHERE id = %s FOR UPDATE", [row])
            if i == 0 and runs[me] == 1:
                both.wait(30)
        return {"runs": runs[me]}

    probe(handler)
    replies = at_once(2, lambda i: cast.run("probe.write", {"note": str(i)}))
    assert [reply.status for reply in replies] == [200, 200]
    # The loser runs again, and may meet the winner once more before that one has committed.
    assert 3 <= sum(runs) <= 2 + 2 * faults.ATTEMPTS


# A database in trouble


@pytest.mark.parametrize(
    "state", ["57014", "55P03", "53300", "53100", "57P01", "57P02", "57P03", "08006", "25006", None]
)
@pytest.mark.parametrize("kind", ["read", "write"])
def test_trouble_of_the_database_is_a_503_that_may_be_tried_again(
    cast: Cast, probe: Make, kind: str, state: str | None
) -> None:
    def handler(ctx: Context, data: OpInput) -> dict[str, Any]:
        raise _database_error(state)

    probe(handler, kind=kind)
    reply = cast.run("probe.write", {})
    assert (reply.status, reply.code) == (503, "BUSY")
    assert int(reply.headers["Retry-After"]) >= 1


def test_another_error_of_the_database_is_a_defect(cast: Cast, probe: Make) -> None:
    def handler(ctx: Context, data: OpInput) -> dict[str, Any]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT nothing")
        return {"runs": 1}

    probe(handler)
    assert cast.run("probe.write", {}).code == "INTERNAL"


@real_commits
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_statement_over_its_time_is_busy(cast: Cast, probe: Make, kind: str) -> None:
    def handler(ctx: Context, data: OpInput) -> dict[str, Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")
        return {"runs": 1}

    probe(handler, kind=kind)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        usual = cursor.fetchone()[0]
        cursor.execute("SET statement_timeout = 200")
    try:
        reply = cast.run("probe.write", {})
    finally:
        # The connection goes back to the pool, and the next test must not inherit its haste.
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, false)", [usual])
        connection.close()
    assert (reply.status, reply.code) == (503, "BUSY")


@real_commits
def test_the_database_bounds_every_statement_and_idle_transaction() -> None:
    connection.close()
    with connection.cursor() as cursor:
        bounds = []
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute("SELECT current_setting(%s)", [name])
            bounds.append(cursor.fetchone()[0])
    assert bounds == ["30s", "1min"]


@real_commits
def test_connections_that_were_cut_heal_within_the_next_call(cast: Cast) -> None:
    """What a restart of the server does to a pool: every connection in it is dead."""
    cast.call("memory.set", {"memory_key": "k", "value": 1})
    at_once(4, lambda i: cast.call("memory.get", {"memory_key": "k"}).status)
    connection.close()
    with psycopg.connect(**_parameters(), autocommit=True) as other:
        cut = other.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        ).fetchone()
    assert cut is not None and cut[0] >= 1
    replies = at_once(6, lambda i: cast.call("memory.get", {"memory_key": "k"}))
    assert [reply.status for reply in replies] == [200] * 6
    assert cast.call("memory.set", {"memory_key": "k", "value": 2}).status == 200


def _parameters() -> dict[str, Any]:
    given = connection.get_connection_params()
    return {name: given[name] for name in ("dbname", "user", "password", "host", "port") if given.get(name)}


@real_commits
def test_a_connection_that_dies_under_a_session_is_replaced_before_anything_is_written(cast: Cast) -> None:
    """Without a check on checkout (a held connection): the first statement of the call meets the loss."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with psycopg.connect(**_parameters(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert cast.run("memory.set", {"memory_key": "k", "value": 1}).status == 200
    assert Memory.objects.count() == 1


@pytest.fixture
def small_pool(transactional_db: None) -> Iterator[int]:
    """A pool of four connections with two seconds of patience, in place of the usual one."""
    pool_settings = connection.settings_dict["OPTIONS"]["pool"]
    usual = dict(pool_settings)
    connections.close_all()
    connection.close_pool()  # type: ignore[attr-defined]
    pool_settings.update(max_size=4, timeout=2.0)
    yield 4
    connections.close_all()
    connection.close_pool()  # type: ignore[attr-defined]
    pool_settings.clear()
    pool_settings.update(usual)


@real_commits
def test_twice_as_many_calls_as_connections_are_served_or_told_to_come_back(
    cast: Cast, small_pool: int
) -> None:
    cast.call("memory.set", {"memory_key": "k", "value": 1})
    connection.close()

    def calls(i: int) -> list[tuple[int, bool]]:
        replies = [cast.call("memory.get", {"memory_key": "k"}) for _ in range(5)]
        return [(reply.status, "Retry-After" in reply.headers) for reply in replies]

    told = [reply for replies in at_once(2 * small_pool, calls) for reply in replies]
    assert set(told) <= {(200, False), (503, True)}
    # On a busy machine a call may wait too long for its turn; most are served all the same.
    assert told.count((200, False)) > len(told) / 2


@real_commits
def test_calls_that_get_no_connection_in_time_are_told_to_come_back(
    cast: Cast, probe: Make, small_pool: int
) -> None:
    def handler(ctx: Context, data: OpInput) -> dict[str, Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(3.5)")
        return {"runs": 1}

    probe(handler, kind="read", role=Role.VIEWER)
    connection.close()
    replies = at_once(2 * small_pool, lambda i: cast.call("probe.write", {}))
    statuses = sorted(reply.status for reply in replies)
    assert statuses == [200] * 4 + [503] * 4
    for reply in replies:
        if reply.status == 503:
            assert reply.code == "BUSY" and int(reply.headers["Retry-After"]) >= 1
    assert cast.call("memory.get", {"memory_key": "k"}).status == 200


def test_a_pool_without_a_free_connection_is_told_apart_from_a_lost_server() -> None:
    error = DatabaseError("made up")
    error.__cause__ = PoolTimeout("none free")
    refusal = faults.refusal_of(error)
    assert isinstance(refusal, OpError) and refusal.code == "BUSY" and "free" in refusal.message


def test_readiness_without_a_database_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> int:
        raise _database_error(None)

    monkeypatch.setattr("governance.selectors.migrations_pending", unreachable)
    response = Client().get("/v1/ready")
    assert response.status_code == 503
    assert response.json()["database"] == "unreachable"
