"""Every op under generated input, good and bad: no 5xx, no undocumented status, no wrong answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from governance.models import Org, User
from governance.services import token_create
from loomsite.ops import all_ops
from loomsite.wsgi import application

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
schema = schemathesis.openapi.from_wsgi("/v1/openapi.json", application)


@pytest.fixture
def token(transactional_db: None) -> str:
    """A token that may write, and that may make the namespaces which are made up on the way."""
    org, _ = Org.objects.get_or_create(slug="dev")
    owner = User.objects.create_superuser("owner", password="a password of the tests")
    _, full = token_create(principal=owner, org=org, default_namespace="local", may_create_namespaces=True)
    return full


def _attack(name: str, mode: GenerationMode, token: str, examples: int) -> Counter[int]:
    """How often each status came."""
    operation = schema[f"/v1/{name}"]["POST"]
    seen: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case: Any) -> None:
        # A made-up organisation is a 404 whatever else is asked.
        if isinstance(case.body, dict):
            case.body.pop("org", None)
        headers = {"Authorization": f"Bearer {token}"}
        seen[case.call_and_validate(headers=headers, checks=CHECKS).status_code] += 1

    attack()
    return seen


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", [op.name for op in all_ops()])
def test_an_op_keeps_its_contract_under_generated_input(token: str, name: str, mode: GenerationMode) -> None:
    seen = _attack(name, mode, token, examples=12)
    assert seen[401] == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", [op.name for op in all_ops()])
def test_an_op_keeps_its_contract_under_much_generated_input(
    token: str, name: str, mode: GenerationMode
) -> None:
    seen = _attack(name, mode, token, examples=500)
    assert seen[401] == 0
