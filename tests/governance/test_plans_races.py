"""Plans through real doors, from several processes, and against whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client

from governance import audit, plans
from governance.models import Plan, PlanTarget
from tests.conftest import Cast
from tests.doors import serving
from tests.governance.test_plans import approve, govern, put, status
from tests.governance.workers import ROOT
from tests.memories.helpers import sql

APPROVE = """
import json, sys, django
django.setup()
from governance import plans
from governance.models import User
from loomsite.ops import OpError, load_ops
load_ops()
sys.stdin.readline()
try:
    done = plans.plan_approve(
        plan_id=int(sys.argv[1]), reviewer=User.objects.get(username=sys.argv[2]), digest=sys.argv[3])
    print(json.dumps([str(done.state), done.changed]))
except OpError as error:
    print(json.dumps([error.code, False]))
"""


def a_process(*arguments: str) -> subprocess.Popen[str]:
    """A process that approves once it is told to."""
    database = os.environ["LOOM_DATABASE_URL"]
    mark = "&" if "?" in database else "?"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "loomsite.settings.test",
        "LOOM_DATABASE_URL": f"{database}{mark}dbname={connection.settings_dict['NAME']}",
    }
    return subprocess.Popen(
        [sys.executable, "-c", APPROVE, *arguments], cwd=ROOT, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_two_processes_apply_a_plan_once(cast: Cast) -> None:
    reply = govern(cast, [put(cast, f"n/{number}") for number in range(20)])
    given_ = (str(reply.body["plan_id"]), "owner", str(reply.body["digest"]))
    processes = [a_process(*given_) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = []
    for process in processes:
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err[-2000:]
        said.append(json.loads(out.strip().splitlines()[-1]))
    assert sorted(said) == [["applied", False], ["applied", True]]
    assert sql("SELECT count(*) FROM memories_memoryversion WHERE kind = 'delete'") == [(20,)]
    assert audit.verify(cast.org.pk, "acme").fault is None


@pytest.mark.django_db(transaction=True)
def test_the_official_client_asks_waits_and_learns_what_was_decided(cast: Cast) -> None:
    id_ = put(cast)
    headers = {"Authorization": f"Bearer {cast.tokens['mate']}"}

    def tool(name: str, **body: Any) -> dict[str, Any]:
        """The client validates every answer against the tool's output schema."""

        async def conversation(client: Client) -> Any:
            await client.list_tools()
            return await client.call_tool(name, body)

        result = serving.talk(f"{url}/mcp", conversation, headers=headers)
        assert not result.is_error, result
        answer: dict[str, Any] = {**result.structured_content, "said": result.content[0].text}
        return answer

    with serving.served() as url:
        shown = tool("govern_memory", ids=[id_], action="delete", dry_run=True)
        assert shown["needs_review"] is True
        waits = tool(
            "govern_memory", ids=[id_], action="delete", reason="old", confirm_destructive=True,
            expected_versions=shown["expected_versions"],
        )  # fmt: skip
        assert waits["state"] == "pending_review" and waits["review_url"] in waits["said"]
        assert tool("loom_plan_get", plan_id=waits["plan_id"])["state"] == "pending"
        assert tool("loom_memory_redact", memory_key="k", reason="a secret")["state"] == "pending_review"
        decided = plans.plan_approve(
            plan_id=int(waits["plan_id"]), reviewer=cast.people["owner"], digest=waits["digest"], comment="ok"
        )
        assert decided.state == "applied"
        told = tool("loom_plan_get", plan_id=waits["plan_id"])
        assert (told["state"], told["decision"]["comment"], status()) == ("applied", "ok", "deleted")
        assert "Decided by owner" in told["said"]


# What happens to one of four memories between the request and the decision.
def _set(cast: Cast, key: str) -> object:
    return cast.run("memory.set", {"memory_key": key, "value": "new"})


MEANWHILE: dict[str, Callable[[Cast, str], object]] = {
    "set": _set,
    "the same again": lambda cast, key: cast.run("memory.set", {"memory_key": key, "value": "v"}),
    "tag": lambda cast, key: cast.run("memory.set", {"memory_key": key, "value": "v", "tags": ["t"]}),
    "pin": lambda cast, key: cast.run("memory.pin", {"memory_key": key}),
    "lock": lambda cast, key: cast.run("memory.lock", {"memory_key": key, "reason": "r"}),
    "hold": lambda cast, key: cast.run("hold.add", {"memory_key": key, "reason": "r", "matter": "m"}),
    "unlock": lambda cast, key: cast.console("memory.unlock", {"memory_key": key, "reason": "r"}),
    "delete": lambda cast, key: cast.run("memory.delete", {"memory_key": key}),
    "restore": lambda cast, key: cast.run("memory.restore", {"memory_key": key}),
    "read": lambda cast, key: cast.run("memory.get", {"memory_key": key}),
    "another": lambda cast, key: cast.run("memory.set", {"memory_key": f"{key}/more", "value": "v"}),
}
KEYS = ("n/a", "n/b", "n/c", "n/d")
Step = tuple[str, str]
STEPS = st.lists(st.tuples(st.sampled_from(sorted(MEANWHILE)), st.sampled_from(KEYS)), max_size=4)


def _state() -> dict[int, tuple[str, int]]:
    return {
        id_: (now, version) for id_, now, version in sql("SELECT id, status, version FROM memories_memory")
    }


def _decide(cast: Cast, before: list[Step], request: str, after: list[Step]) -> None:
    for key in KEYS:
        put(cast, key)
    for what, key in before:
        MEANWHILE[what](cast, key)
    if request == "memory.clear":
        body = {"filter": {"key_prefix": "n/"}, "reason": "old", "dry_run": False}
        reply = cast.run(request, body)
    else:
        ids = [str(row[0]) for row in sql("SELECT id FROM memories_memory WHERE memory_key <> 'n/d'")]
        reply = govern(cast, ids, request)
    if reply.status != 202:
        return
    for what, key in after:
        MEANWHILE[what](cast, key)
    was = _state()
    decision = approve(cast, reply)
    now = _state()
    planned = {row.node_id: row for row in PlanTarget.objects.filter(plan_id=decision.plan_id)}
    if decision.state == "stale":
        assert now == was and decision.moved > 0
        return
    assert decision.state == "applied", decision
    for id_, (status_was, version_was) in was.items():
        row = planned.get(id_)
        if row is None or not row.changes:
            assert now[id_] == (status_was, version_was)
        else:
            assert (status_was, version_was) == (row.status, row.version)
            assert now[id_] == (row.planned, row.version + 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=STEPS, request=st.sampled_from(["delete", "reject", "memory.clear"]), after=STEPS)
def test_what_the_plan_showed_is_exactly_what_is_applied_or_it_is_stale(
    cast: Cast, before: list[Step], request: str, after: list[Step]
) -> None:
    with transaction.atomic():
        _decide(cast, before, request, after)
        transaction.set_rollback(True)


@pytest.mark.soak
@pytest.mark.django_db(transaction=True)
def test_clicks_from_four_processes_apply_each_plan_once(cast: Cast) -> None:
    for round_ in range(10):
        reply = govern(cast, [put(cast, f"{round_}/{number}") for number in range(5)])
        given_ = (str(reply.body["plan_id"]), "owner", str(reply.body["digest"]))
        processes = [a_process(*given_) for _ in range(4)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
        assert sorted(said) == [["applied", False]] * 3 + [["applied", True]]
    assert Plan.objects.filter(state="applied").count() == 10
    assert sql("SELECT count(*) FROM memories_memoryversion WHERE kind = 'delete'") == [(50,)]
