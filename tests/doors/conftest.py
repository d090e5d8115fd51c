"""What the tests of both MCP transports share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from governance.models import Org, User
from governance.services import token_create
from tests.doors import probes, serving


@pytest.fixture
def owner(transactional_db: None) -> User:
    """The owner of organisation dev; a call from this machine without a token acts for it."""
    Org.objects.get_or_create(slug="dev")
    return User.objects.create_superuser("owner", password="a password of the tests")


@pytest.fixture
def token(owner: User) -> str:
    """A writer's token of the owner."""
    org = Org.objects.get(slug="dev")
    _, full = token_create(principal=owner, org=org, default_namespace="local", may_create_namespaces=True)
    return full


@pytest.fixture
def with_probes() -> Iterator[None]:
    """The probe ops exist."""
    with probes.registered():
        yield


@pytest.fixture
def server(owner: User, with_probes: None) -> Iterator[str]:
    """The address of a server for /mcp."""
    with serving.served() as url:
        yield url
