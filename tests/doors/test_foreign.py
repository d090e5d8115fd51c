"""What a page elsewhere or a forged cookie can do: nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from governance.models import Org, User
from tests.conftest import Cast

EVIL = "https://evil.example"
LOCAL: dict[str, Any] = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1:8321"}


@pytest.fixture
def local_owner(db: None) -> User:
    """Whom a local call without a token acts for."""
    Org.objects.create(slug="dev")
    return User.objects.create_superuser("owner", password="a password of the tests")


def post(op: str, body: Any = None, client: Client | None = None, **meta: Any) -> Any:
    raw = body if isinstance(body, str) else json.dumps(body or {})
    kind = meta.pop("content_type", "application/json")
    return (client or Client()).post(f"/v1/{op}", data=raw, content_type=kind, **meta)


def test_a_preflight_is_refused_and_allows_no_origin(local_owner: User) -> None:
    asked = {
        "HTTP_ORIGIN": EVIL,
        "HTTP_ACCESS_CONTROL_REQUEST_METHOD": "POST",
        "HTTP_ACCESS_CONTROL_REQUEST_HEADERS": "content-type, authorization",
    }
    for path in ("/v1/memory.set", "/v1/ops.whoami", "/v1/health", "/v1/openapi.json", "/v1/docs"):
        answer = Client().options(path, **LOCAL, **asked)
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")], path
    assert Client().options("/v1/memory.set", **LOCAL, **asked).status_code == 405


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_elsewhere_can_send_without_a_preflight_is_refused(local_owner: User, kind: str) -> None:
    body = '{"memory_key": "k", "value": 1}'
    assert post("memory.set", body, content_type=kind, **LOCAL).status_code == 415
    foreign = post("memory.set", body, content_type=kind, HTTP_ORIGIN=EVIL, **LOCAL)
    assert foreign.status_code in (401, 415)


@pytest.mark.parametrize(
    "header",
    [
        {"HTTP_ORIGIN": EVIL},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_ORIGIN": "http://127.0.0.1:9999"},
        {"HTTP_HOST": "evil.example"},
        {"HTTP_HOST": "127.0.0.1.evil.example:8321"},
        {"HTTP_X_FORWARDED_FOR": "10.0.0.1"},
        {"REMOTE_ADDR": "10.0.0.1"},
    ],
)
def test_without_a_token_a_foreign_page_host_or_machine_is_nobody(
    local_owner: User, header: dict[str, str]
) -> None:
    assert post("ops.whoami", **LOCAL).status_code == 200
    refused = post("ops.whoami", **{**LOCAL, **header})
    assert refused.status_code == 401
    assert not [name for name in refused.headers if name.lower().startswith("access-control-")]


def test_a_login_of_the_console_opens_no_op(local_owner: User) -> None:
    client = Client()
    client.force_login(local_owner, backend="django.contrib.auth.backends.ModelBackend")
    answer = post("ops.whoami", client=client, REMOTE_ADDR="10.0.0.1", HTTP_HOST="memory.example.org")
    assert answer.status_code == 401
    assert not answer.cookies


@pytest.mark.parametrize("forged", ["", "x" * 32, "../../etc/passwd", "\u0000", "0" * 4000, "'; --"])
def test_a_forged_session_is_no_login(local_owner: User, forged: str) -> None:
    client = Client()
    client.cookies["sessionid"] = forged
    answer = client.get(reverse("admin:index"))
    assert answer.status_code == 302 and answer.headers["Location"].startswith("/console/login/")


def test_a_session_with_a_forged_hash_is_no_login(local_owner: User) -> None:
    def visit(session_hash: str) -> int:
        session = SessionStore()
        session["_auth_user_id"] = str(local_owner.pk)
        session["_auth_user_backend"] = "django.contrib.auth.backends.ModelBackend"
        session["_auth_user_hash"] = session_hash
        session.create()
        client = Client()
        client.cookies["sessionid"] = str(session.session_key)
        return client.get(reverse("admin:index")).status_code

    assert visit("0" * 64) == 302
    # With the right hash it is a login, so it was the hash that was refused.
    assert visit(local_owner.get_session_auth_hash()) == 200


@pytest.mark.parametrize("token", ["", "x" * 32, "y" * 64])
def test_a_forged_csrf_token_or_a_foreign_origin_changes_nothing(local_owner: User, token: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(local_owner, backend="django.contrib.auth.backends.ModelBackend")
    path = reverse("admin:governance_org_new")
    data = {"name": "made by another page", "csrfmiddlewaretoken": token}
    assert client.post(path, data).status_code == 403
    page = client.get(path)
    assert client.cookies["csrftoken"].value
    assert client.post(path, data).status_code == 403
    good = {"name": "elsewhere", "csrfmiddlewaretoken": page.context["csrf_token"]}
    assert client.post(path, good, HTTP_ORIGIN=EVIL).status_code == 403
    assert list(Org.objects.values_list("slug", flat=True)) == ["dev"]
    assert client.post(path, good).status_code == 302


def test_the_console_answers_to_its_own_names_only(local_owner: User, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1", "memory.example.org"]
    for host, status in (("evil.example", 400), ("127.0.0.1:8321", 302), ("memory.example.org", 302)):
        assert Client().get(reverse("admin:index"), HTTP_HOST=host).status_code == status


def test_cookies_of_the_console_are_out_of_reach_of_scripts_and_other_sites(
    local_owner: User, settings: Settings
) -> None:
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    data = {"username": "owner", "password": "a password of the tests", "next": "/console/"}
    answer = Client().post(reverse("admin:login"), data, secure=True)
    assert answer.status_code == 302
    session = answer.cookies["sessionid"]
    assert session["httponly"] and session["secure"] and session["samesite"] == "Lax"
    assert answer.cookies["csrftoken"]["secure"]


def test_a_token_in_the_address_is_not_taken(cast: Cast) -> None:
    full = cast.tokens["mate"]
    for path in (f"/v1/ops.whoami?token={full}", f"/v1/ops.whoami?access_token={full}"):
        answer = Client().post(path, data="{}", content_type="application/json", REMOTE_ADDR="10.0.0.1")
        assert answer.status_code == 401


def test_mcp_refuses_a_foreign_origin_host_and_preflight(server: str, token: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    good = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
    }
    for header in (
        {"Origin": EVIL}, {"Origin": "null"}, {"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"},
    ):  # fmt: skip
        answer = httpx.post(f"{server}/mcp", json=call, headers={**good, **header})
        assert answer.status_code == 403, header
        assert answer.json()["detail"]["code"] == "FORBIDDEN"
    preflight = httpx.options(
        f"{server}/mcp", headers={"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code in (403, 405)
    own = httpx.options(f"{server}/mcp", headers={"Access-Control-Request-Method": "POST"})
    assert own.status_code == 405
    for answer in (preflight, own):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
