"""The lock matrix for facts and procedures: every declared write, every state of its row, each door.

The table is governance.md's; a write op of either app without a cell fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction

from governance.services import worker_heartbeat
from loomsite.ops import Role, all_ops
from tests.conftest import Cast
from tests.memories.helpers import sql
from tests.memories.test_lock_matrix import DOORS, REFUSED, STATES
from tests.procedures.helpers import KEY, RECIPE, add, graph, record

APPS = ("facts", "procedures")
WRITES = [op.name for op in all_ops() if not op.is_read and op.handler.__module__.split(".")[0] in APPS]
FACT = {"subject": "Ada", "attribute": "employer"}
Body = Callable[[Cast, str], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """A call on the governed row of the scene, and the effect that it has there."""

    effect: str
    body: Body
    # The row is a fact that belongs to one user.
    private: bool = False


def _fact(**more: Any) -> Body:
    return lambda cast, id_: {**FACT, **more}


def _version(**more: Any) -> Body:
    return lambda cast, id_: {"factId": id_, **more}


def _procedure(**more: Any) -> Body:
    return lambda cast, id_: {"memory_key": KEY, **more}


CELLS: dict[str, dict[str, Cell]] = {
    "fact.remember": {
        "a later value": Cell("value", _fact(value="Bolt", validFrom="2022-01-01", validTo="2023-01-01")),
        "another fact": Cell("none", lambda cast, id_: {**FACT, "attribute": "city", "value": "Bern"}),
    },
    "fact.correct": {
        "it changed": Cell("value", _version(value="Bolt", validFrom="2021-01-01", kind="changed")),
        "it was wrong": Cell("value", _version(value="Bolt", kind="wrong")),
        "it was another's": Cell("existence", _version(value="Acme", kind="wrong", subject="Bo")),
    },
    "fact.retract": {"it": Cell("existence", _version(kind="wrong", reason="never so"))},
    "fact.share": {"it": Cell("value", _version(), private=True)},
    "procedure.add": {
        "another situation": Cell("value", lambda cast, id_: {**RECIPE, "situation": "Errors went up"}),
        "the same": Cell("none", lambda cast, id_: RECIPE),
    },
    "procedure.revise": {"a graph": Cell("value", _procedure(graph=graph("s1>s2 s2>s3 s1>s3")))},
    "procedure.record_run": {"a run": Cell("none", _procedure(path=["s1", "s2"], ok=True))},
    "procedure.evolve": {"it": Cell("none", _procedure(wait_s=0))},
    "procedure.fork": {
        "into another": Cell(
            "none",
            lambda cast, id_: {"namespace": "other", "from_namespace": "team", "memory_key": KEY},
        )
    },
}


def test_every_write_of_facts_and_procedures_has_its_cells() -> None:
    assert sorted(CELLS) == WRITES


def _scene(cast: Cast, op: str, cell: Cell) -> tuple[str, str]:
    """(the governed row's key, the id of its version): a fact that ends, or a procedure that has run."""
    if op.startswith("fact."):
        private = {"user_id": "u1", "visibility": "private"} if cell.private else {}
        # Something may be remembered after it where it has ended; the others need one that holds.
        ends = {"validTo": "2022-01-01"} if op == "fact.remember" else {}
        told = {**FACT, "value": "Acme", "validFrom": "2020-01-01", **ends, **private}
        made = cast.run("fact.remember", told)
        assert made.status == 200, made.body
        return f"fact:{made['factId']}", str(made["factId"])
    assert add(cast).status == 200
    assert record(cast, ["s1", "s2", "s3"]).status == 200
    return KEY, ""


def _guard(cast: Cast, state: str, key: str, op: str) -> None:
    mode, holds, ended = STATES[state]
    who = {"user_id": "u1"} if op == "fact.share" else {}
    for number in range(holds):
        body = {"memory_key": key, "matter": f"case {number}", "reason": "r", **who}
        placed = cast.run("hold.add", body)
        assert placed.status == 200, placed.body
    if mode:
        body = {"memory_key": key, "mode": mode, "reason": "audit of May", **who}
        locked = cast.run("memory.lock", {**body, "ttl_seconds": 60} if ended else body)
        assert locked.status == 200, locked.body
    if ended:
        table = "facts_lineage" if key.startswith("fact:") else "memories_memory"
        ((id_,),) = sql(f"SELECT id FROM {table} WHERE lock_mode <> 'none'")  # noqa: S608 - one of two
        sql("SELECT set_config('loom.loosen', %s, false)", [str(id_)])
        sql(f"UPDATE {table} SET lock_until = clock_timestamp() - interval '1 second' WHERE id = %s", [id_])  # noqa: S608
        sql("SELECT set_config('loom.loosen', '', false)")


def _standing(op: str) -> list[tuple[Any, ...]]:
    """What a refused write must leave as it is."""
    if op.startswith("fact."):
        return sql("SELECT v::text FROM facts_version v ORDER BY id") + sql(
            "SELECT owner, version, status FROM facts_lineage ORDER BY id"
        )
    return sql("SELECT value::text, version, status FROM memories_memory ORDER BY id") + sql(
        "SELECT revision, prior_revision, quarantined, template, authored FROM procedures_procedure"
    )


def _fault(cast: Cast, op: str, cell: Cell, state: str, door: str) -> str:
    """What is wrong with this cell, or nothing."""
    key, id_ = _scene(cast, op, cell)
    _guard(cast, state, key, op)
    before = _standing(op)
    body = cell.body(cast, id_)
    if cell.private:
        body = {**body, "user_id": "u1"}
    status, answer = DOORS[door](cast, op, body)
    changed = _standing(op) != before
    if state not in REFUSED[cell.effect]:
        return "" if status in (200, 202) else f"{status} {answer}"
    if changed:
        return f"refused and changed all the same: {answer}"
    detail = answer.get("detail", {})
    if (status, detail.get("code")) != (423, "LOCKED"):
        return f"{status} {answer}"
    mode, holds, ended = STATES[state]
    said = (detail["mode"], detail["holds"])
    return "" if said == ("none" if ended or not mode else mode, holds) else f"says {said}"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("op", WRITES)
def test_each_cell_of_the_table_holds_over_each_door(cast: Cast, op: str, door: str) -> None:
    cast.namespace("other", mate=Role.WRITER, owner=Role.ADMIN)
    worker_heartbeat()
    wrong = []
    for name, cell in CELLS[op].items():
        for state in STATES:
            with transaction.atomic():
                fault = _fault(cast, op, cell, state, door)
                transaction.set_rollback(True)
            if fault:
                wrong.append(f"{name}, {state}: {fault}"[:400])
    assert wrong == []
