"""What holds for every op, whatever it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from pydantic import BaseModel
from pytest_django import DjangoDbBlocker

from governance.models import AuditEvent, Token
from governance.ops import NOT_HERE_YET
from loomsite.ops import Op, all_ops, get
from tests.conftest import Cast, Reply, build_cast, taken_back
from tests.contract.examples import EXAMPLES, body_of, seed

OPS = all_ops()
# Roles that no token carries.
CONSOLE = ("reviewer", "admin")
# What is new with every run of a write of facts: ids and times.
FRESH = {"factId", "lineageId", "knownFrom", "knownTo", "replaced", "corrected", "heldAs"}
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
# Ops as texts mention them: lower-case words around one dot.
MENTION = re.compile(
    r"(?<![\w/.])(?:memory|fact|procedure|plan|ops|namespace|job|raw|lock|hold|audit|erasure)\.[a-z_]+"
)


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[Cast, dict[str, str]]]:
    """The cast and the examples' rows, for all tests of this file."""
    with taken_back(django_db_blocker):
        made = build_cast()
        yield made, seed(made)


@pytest.fixture
def cast(stage: tuple[Cast, dict[str, str]], db: None) -> Cast:
    """The cast; what a test does to it is taken back."""
    return stage[0]


@pytest.fixture
def ids(stage: tuple[Cast, dict[str, str]]) -> dict[str, str]:
    """What stands for the ids of the examples' rows."""
    return stage[1]


def test_every_op_has_an_example() -> None:
    assert sorted(EXAMPLES) == [op.name for op in OPS]


def _doer(cast: Cast, op: Op, body: dict[str, Any], **options: Any) -> Reply:
    """The call by whoever may make it: admins act in the console."""
    if EXAMPLES[op.name].needs in CONSOLE:
        return cast.console(op.name, body)
    return cast.run(op.name, body, **options)


@each_op
def test_an_empty_call_names_what_is_missing_or_answers(cast: Cast, op: Op) -> None:
    missing = sorted(
        field.alias or name for name, field in op.input.model_fields.items() if field.is_required()
    )
    events = AuditEvent.objects.count()
    reply = _doer(cast, op, {})
    if missing:
        assert reply.status == 400
        assert reply.code == "INVALID_ARGUMENT"
        assert sorted(fault["path"] for fault in reply.detail["errors"]) == missing
        assert all(name in reply.detail["message"] for name in missing[:5])
    elif EXAMPLES[op.name].some_field:
        assert (reply.status, reply.code) == (400, "INVALID_ARGUMENT")
    else:
        assert reply.status == 200
        op.output.model_validate(reply.body)
    assert AuditEvent.objects.count() == events


@each_op
def test_an_unknown_field_is_served_and_named(cast: Cast, ids: dict[str, str], op: Op) -> None:
    body = body_of(op.name, ids)
    reply = _doer(cast, op, {**body, "colour": "red", "reasom": "typo"})
    assert reply.status == EXAMPLES[op.name].answers, reply.body
    assert reply.body["ignored_args"] == ["colour", "reasom"]
    op.output.model_validate(reply.body)


@each_op
def test_a_call_that_works_answers_within_the_declared_output(
    cast: Cast, ids: dict[str, str], op: Op
) -> None:
    reply = _doer(cast, op, body_of(op.name, ids))
    assert reply.status == EXAMPLES[op.name].answers, reply.body
    assert "ignored_args" not in reply.body and "advisories" not in reply.body
    op.output.model_validate(reply.body)
    assert set(reply.body) <= set(op.output.model_fields)


@each_op
def test_every_field_that_is_the_wrong_kind_is_named_at_once(cast: Cast, op: Op) -> None:
    wrong = {name: {"not": ["this"]} for name in op.input.model_fields if name not in ("value", "metadata")}
    reply = _doer(cast, op, wrong)
    assert reply.status == 400
    assert {fault["path"].split(".")[0] for fault in reply.detail["errors"]} >= set(wrong)


def _rows() -> dict[str, int]:
    """How often each of the project's tables was written in this transaction, and how many rows it has."""
    found: dict[str, int] = {}
    with connection.cursor() as cursor:
        for model in apps.get_models():
            if model._meta.app_label in ("governance", "memories", "facts", "procedures"):
                table = connection.ops.quote_name(model._meta.db_table)
                # Ids of the rows' transactions change with every update, whatever it sets.
                cursor.execute(f"SELECT count(*), coalesce(max(xmin::text::bigint), 0) FROM {table}")
                found[table], found[f"{table} last"] = cursor.fetchone()
    return found


@each_op
def test_a_read_writes_nothing(cast: Cast, ids: dict[str, str], op: Op) -> None:
    if not op.is_read:
        pytest.skip("a write")
    body = body_of(op.name, ids)
    cast.run("ops.whoami", {})  # the token's last use is noted once a minute
    before = _rows()
    assert _doer(cast, op, body, idempotency_key="k").status == 200
    assert _rows() == before


@each_op
def test_a_write_is_audited_once_under_its_own_name(cast: Cast, ids: dict[str, str], op: Op) -> None:
    if op.is_read:
        pytest.skip("a read")
    body = body_of(op.name, ids)
    before = AuditEvent.objects.count()
    reply = _doer(cast, op, body)
    assert reply.status == EXAMPLES[op.name].answers
    new = list(AuditEvent.objects.order_by("-seq")[: AuditEvent.objects.count() - before])
    assert [event.op for event in new] == [op.name] * EXAMPLES[op.name].audited
    for event in new:
        assert event.outcome == ("withdrawn" if op.name == "plan.withdraw" else "applied")
        assert event.request_id == reply.headers["X-Request-ID"]
        assert event.namespace == "team" and event.org_id == cast.org.pk
        assert event.principal == ("owner" if EXAMPLES[op.name].needs in CONSOLE else "mate")


@each_op
def test_a_dry_run_says_what_would_be_and_leaves_nothing(cast: Cast, ids: dict[str, str], op: Op) -> None:
    if "dry_run" not in op.fields:
        pytest.skip("has no dry_run")
    if op.dry_runs_in_job:
        pytest.skip("its dry run leaves a job, and is told of in the tests of that")
    body = body_of(op.name, ids)
    before = _rows()
    with transaction.atomic():
        dry = _doer(cast, op, {**body, "dry_run": True}, idempotency_key="a key")
        assert dry.status == 200 and dry["dry_run"] is True
    assert _rows() == before
    real = _doer(cast, op, body, idempotency_key="a key")
    assert "Idempotent-Replayed" not in real.headers
    fixed = {
        "affected",
        "erasure_id",
        "job_id",
        "dry_run",
        "memory_id",
        "recoverable_until",
        "results",
        "rows",
        "state",
    } | FRESH
    assert {k: v for k, v in dry.body.items() if k not in fixed} == {
        k: v for k, v in real.body.items() if k not in fixed
    }


@each_op
def test_a_write_with_a_key_runs_once_and_is_replayed(cast: Cast, ids: dict[str, str], op: Op) -> None:
    if op.is_read or EXAMPLES[op.name].needs in CONSOLE:
        pytest.skip("no write of a token")
    body = body_of(op.name, ids)
    first = cast.run(op.name, body, idempotency_key="a key")
    if first.body.get("dry_run"):
        pytest.skip("the example only tells; a dry run is never replayed")
    events = AuditEvent.objects.count()
    again = cast.run(op.name, body, idempotency_key="a key")
    assert again.body == first.body and first.status == again.status == EXAMPLES[op.name].answers
    assert again.headers["Idempotent-Replayed"] == "true" and "Idempotent-Replayed" not in first.headers
    assert AuditEvent.objects.count() == events


@each_op
def test_the_words_for_agents_are_complete(op: Op) -> None:
    assert op.summary.endswith(".") and len(op.summary) <= 120
    for part in ("what", "when", "when_not", "args"):
        assert getattr(op.text, part).strip(), f"{part} is empty"
    if not op.is_read:
        assert "Changes nothing" not in op.text.what
    else:
        assert "Changes nothing" in op.text.what


@each_op
def test_the_words_mention_only_ops_that_exist_or_are_announced(op: Op) -> None:
    text = f"{op.summary} {op.text}" + " ".join(_descriptions(op.input)) + " ".join(_descriptions(op.output))
    mentioned = set(MENTION.findall(text))
    lost = {
        name
        for name in mentioned
        if get(name) is None and not any(fnmatch(name, pattern) for pattern in NOT_HERE_YET)
    }
    assert lost == set()


def _descriptions(model: type[BaseModel]) -> Iterator[str]:
    for field in model.model_fields.values():
        yield field.description or ""


@each_op
def test_every_field_is_described(op: Op) -> None:
    assert [name for name, field in op.input.model_fields.items() if not field.description] == []


def test_what_is_announced_does_not_exist_yet() -> None:
    assert [op.name for op in OPS if any(fnmatch(op.name, pattern) for pattern in NOT_HERE_YET)] == []


def test_capabilities_tell_every_op_and_field_truthfully(cast: Cast) -> None:
    listed = {entry["op"]: entry for entry in cast.run("ops.capabilities", {})["ops"]}
    assert sorted(listed) == [op.name for op in OPS]
    for op in OPS:
        entry = listed[op.name]
        assert entry["url"] == f"/v1/{op.name}"
        assert set(op.input.model_fields) <= set(entry["fields"]) == op.fields
        assert (entry["role"], entry["kind"]) == (op.role.label, op.kind)
        assert cast.call(op.name, {}).code != "UNKNOWN_OP"


def test_a_revoked_token_is_known_by_its_prefix_only(cast: Cast) -> None:
    for token in Token.objects.all():
        assert len(bytes(token.secret_sha256)) == 32
        assert all(bytes(token.secret_sha256).hex() not in full for full in cast.tokens.values())
