"""How many calls a token may make: by a clock of the test's own, nobody sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from governance import pipeline, ratelimit
from governance.models import AuditEvent
from governance.ratelimit import Limiter
from governance.services import token_revoke
from governance.tenancy import Credentials
from loomsite.doors.tools import Access, call_tool
from loomsite.ops import Door
from loomsite.settings import env
from tests.conftest import Cast


class Clock:
    """Time that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[Clock]:
    """Server mode with 3 reads and 2 writes a minute."""
    made = Clock()
    monkeypatch.setattr(ratelimit, "_limiter", Limiter(made))
    settings.LOOM_SINGLE_USER = False
    settings.LOOM_RATE_READS, settings.LOOM_RATE_WRITES = (3, 60.0), (2, 60.0)
    yield made


def test_a_bucket_holds_its_calls_and_refills_evenly() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    key = ("token", "read")
    assert [limiter.admit(key, 3, 60.0) for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(20.0)]
    clock.now += 19.9
    assert limiter.admit(key, 3, 60.0) == pytest.approx(0.1)
    clock.now += 0.1
    assert limiter.admit(key, 3, 60.0) == 0.0
    assert limiter.admit(key, 3, 60.0) == pytest.approx(20.0)
    clock.now += 3600
    assert [limiter.admit(key, 3, 60.0) > 0 for _ in range(4)] == [False, False, False, True]


def test_over_hours_no_more_gets_through_than_the_rate_and_one_bucket() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    let_in = 0
    for _ in range(7200):
        clock.now += 0.5
        let_in += limiter.admit(("token", "read"), 7, 60.0) == 0.0
    assert let_in in (7 * 60 + 6, 7 * 60 + 7)


def test_calls_at_the_same_moment_are_all_counted() -> None:
    limiter = Limiter(Clock())
    let_in: list[float] = []

    def body() -> None:
        for _ in range(200):
            if limiter.admit(("token", "read"), 100, 60.0) == 0.0:
                let_in.append(1)

    threads = [threading.Thread(target=body) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(let_in) == 100


def test_full_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "KEPT", 50)
    clock = Clock()
    limiter = Limiter(clock)
    for i in range(1000):
        clock.now += 10
        limiter.admit((f"token-{i}", "read"), 60, 60.0)
    assert len(limiter._full_at) <= 51


def test_reads_and_writes_of_a_token_are_counted_apart_and_refused_with_the_time_to_wait(
    cast: Cast, clock: Clock
) -> None:
    def read() -> Any:
        return cast.call("memory.get", {"memory_key": "k"})

    def write() -> Any:
        return cast.call("memory.set", {"memory_key": "k", "value": 1})

    assert [read().status for _ in range(4)] == [200, 200, 200, 429]
    assert [write().status for _ in range(3)] == [200, 200, 429]
    refused = write()
    assert refused.headers["Retry-After"] == "30"
    assert refused.detail["code"] == "RATE_LIMITED" and refused.detail["retryable"] is True
    assert (refused.detail["retry_after_s"], refused.detail["limit"]) == (30, 2)
    assert "2 writes a minute" in refused.detail["message"]
    clock.now += 30
    assert [write().status, write().status] == [200, 429]


def test_each_token_has_its_own_share(cast: Cast, clock: Clock) -> None:
    other = cast.token("mate")
    assert [cast.run("ops.whoami", {}).status for _ in range(4)] == [200, 200, 200, 429]
    assert cast.run("ops.whoami", {}, by=other).status == 200
    assert cast.run("ops.whoami", {}, by="owner").status == 200


@pytest.mark.parametrize("door", [Door.MCP, Door.STDIO])
def test_mcp_is_counted_by_the_same_buckets(cast: Cast, clock: Clock, door: Door) -> None:
    access = Access(credentials=Credentials(bearer=cast.tokens["mate"], door=door))
    results = [call_tool("loom_ops_whoami", {}, access) for _ in range(3)]
    assert [result.is_error for result in results] == [False] * 3
    refused = call_tool("loom_op", {"op": "memory.get", "args": {"memory_key": "k"}}, access)
    assert refused.is_error and refused.structured_content["detail"]["code"] == "RATE_LIMITED"
    assert refused.structured_content["detail"]["retry_after_s"] == 20
    assert cast.call("ops.whoami", {}).status == 429


def test_people_in_the_console_are_not_counted(cast: Cast, clock: Clock) -> None:
    assert [cast.console("memory.list", {}).status for _ in range(9)] == [200] * 9


def test_single_user_mode_counts_nothing_with_or_without_a_token(
    cast: Cast, clock: Clock, settings: Settings
) -> None:
    settings.LOOM_SINGLE_USER = True
    assert [cast.call("memory.list", {}).status for _ in range(9)] == [200] * 9


def test_off_is_off(cast: Cast, clock: Clock, settings: Settings) -> None:
    settings.LOOM_RATE_READS = None
    assert [cast.call("memory.list", {}).status for _ in range(9)] == [200] * 9
    assert [cast.call("memory.set", {"memory_key": "k", "value": 1}).status for _ in range(3)][2] == 429


def test_a_dead_token_is_401_and_not_429(cast: Cast, clock: Clock) -> None:
    from governance.models import Token

    full = cast.tokens["mate"]
    assert [cast.call("memory.list", {}).status for _ in range(4)][3] == 429
    token_revoke(token=Token.objects.get(prefix=full.split("_")[1]))
    assert cast.call("memory.list", {}).status == 401


def test_a_replay_is_a_call_too_and_a_refused_one_keeps_its_key_free(cast: Cast, clock: Clock) -> None:
    body = {"memory_key": "k", "value": 1}
    assert [cast.run("memory.set", body, idempotency_key="a").status for _ in range(3)] == [200, 200, 429]
    assert cast.run("memory.set", body, idempotency_key="b").status == 429
    clock.now += 30
    assert cast.run("memory.set", {**body, "value": 2}, idempotency_key="b").status == 200


def test_a_refused_destructive_call_fills_no_audit(cast: Cast, clock: Clock) -> None:
    assert [cast.run("memory.delete", {"memory_key": "k"}).status for _ in range(2)] == [200, 200]
    before = AuditEvent.objects.count()
    assert [cast.run("memory.delete", {"memory_key": "k"}).status for _ in range(5)] == [429] * 5
    assert AuditEvent.objects.count() == before


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("1/s", (1, 1.0)),
        ("600/min", (600, 60.0)),
        ("5/hour", (5, 3600.0)),
        ("9/day", (9, 86_400.0)),
        ("off", None),
    ],
)
def test_rates_are_read(monkeypatch: pytest.MonkeyPatch, text: str, means: object) -> None:
    monkeypatch.setenv("LOOM_RATE_READS", text)
    assert env.rate("LOOM_RATE_READS", "1/s") == means


@pytest.mark.parametrize(
    "text", ["0/min", "-1/min", "min", "1/", "1", "1/year", "x/min", "1.5/min", "\u0661/min"]
)
def test_a_wrong_rate_stops_the_start_and_names_itself(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOOM_RATE_READS", text)
    with pytest.raises(ImproperlyConfigured, match="LOOM_RATE_READS"):
        env.rate("LOOM_RATE_READS", "1/s")


def test_the_pipeline_answers_the_refusal_itself(cast: Cast, clock: Clock) -> None:
    credentials = Credentials(bearer=cast.tokens["viewer"])
    answers = [pipeline.run("memory.list", {}, credentials, request_id="mine") for _ in range(4)]
    assert (answers[3].status, answers[3].body["detail"]["request_id"]) == (429, "mine")
