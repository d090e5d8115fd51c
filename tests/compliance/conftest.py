"""The cast of compliance: besides the usual one, `boss` administers the organisation."""

from __future__ import annotations

from typing import Any

import pytest
from guardian.shortcuts import assign_perm

from governance.models import User
from tests.conftest import Cast


@pytest.fixture
def staff(cast: Cast, settings: Any) -> Cast:
    """The cast with an admin of acme."""
    cast.people["boss"] = User.objects.create_user("boss")
    assign_perm("admin_org", cast.people["boss"], cast.org)
    return cast
