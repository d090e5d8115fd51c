"""Login, its throttle, and where it leads."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from governance import throttle
from governance.models import LoginFailure, User
from tests.console.conftest import PASSWORD, Cast


def login(client: Client, name: str, password: str, next_url: str = "", **meta: Any) -> Any:
    """The login form, sent."""
    data = {"username": name, "password": password, "next": next_url}
    return client.post(reverse("admin:login"), data, **meta)


def test_the_sixth_try_in_five_minutes_is_not_looked_at(cast: Cast, client: Client) -> None:
    for _ in range(throttle.ATTEMPTS):
        assert "Too many" not in login(client, "viewer", "wrong").content.decode()
    blocked = login(client, "viewer", PASSWORD)
    assert blocked.status_code == 200 and "Too many failed logins" in blocked.content.decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_loginfailure SET at = at - interval '6 minutes'")
    assert login(client, "viewer", PASSWORD).status_code == 302


def test_the_throttle_is_per_name_and_address(cast: Cast, client: Client) -> None:
    for _ in range(throttle.ATTEMPTS + 1):
        login(client, "viewer", "wrong")
    assert login(Client(), "writer", PASSWORD).status_code == 302
    assert login(Client(), "viewer", PASSWORD, REMOTE_ADDR="10.0.0.9").status_code == 302
    assert login(Client(), "VIEWER", PASSWORD).status_code == 200


def test_a_right_password_clears_the_count_and_nothing_typed_is_kept(cast: Cast, client: Client) -> None:
    for _ in range(throttle.ATTEMPTS - 1):
        login(client, "viewer", "wrong")
    assert all("viewer" not in row.key for row in LoginFailure.objects.all())
    assert login(client, "viewer", PASSWORD).status_code == 302
    assert not LoginFailure.objects.exists()


def test_refused_tries_do_not_lengthen_the_wait(cast: Cast) -> None:
    key = throttle.key_of("login", "x", "y")
    for _ in range(throttle.ATTEMPTS):
        assert throttle.admit(key) == 0
    assert all(throttle.admit(key) > 0 for _ in range(20))
    assert LoginFailure.objects.count() == throttle.ATTEMPTS


@pytest.mark.parametrize(
    ("given", "leads_to"),
    [
        ("/console/governance/job/", "/console/governance/job/"),
        ("https://evil.example/", "/console/login/"),
        ("//evil.example/", "/console/login/"),
        ("javascript:alert(1)", "/console/login/"),
    ],
)
def test_login_leads_nowhere_else(cast: Cast, client: Client, given: str, leads_to: str) -> None:
    assert login(client, "viewer", PASSWORD, given).headers["Location"] == leads_to


def test_service_accounts_and_the_inactive_do_not_get_in(cast: Cast, client: Client) -> None:
    User.objects.create_user("robot", password=PASSWORD, kind="service")
    User.objects.create_user("gone", password=PASSWORD, is_staff=True, is_active=False)
    for name in ("robot", "gone"):
        assert login(client, name, PASSWORD).status_code == 200


def test_logout_takes_a_post(cast: Cast) -> None:
    client = cast.client("viewer")
    assert client.get(reverse("admin:logout")).status_code == 405
    assert "Logged out" in client.post(reverse("admin:logout")).content.decode()
    assert client.get(reverse("admin:index")).status_code == 302
