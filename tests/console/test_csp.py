"""Every page of the console has a strict content policy, and nothing on it that the policy would stop."""

from __future__ import annotations

import html.parser
import re
from urllib.parse import urljoin, urlsplit

import pytest
from django.test import Client
from django.urls import reverse

from tests.console.conftest import Cast
from tests.console.test_who_opens_what import PAGES, Things


class Markup(html.parser.HTMLParser):
    """Collects links, and whatever a policy without `unsafe-inline` stops or fetches elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.faults: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for name, value in given.items():
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag} {name}={value!r}>")
            if name in ("href", "src", "action", "formaction") and re.match(
                r"\s*(?:javascript|vbscript|data|https?):|//", value, re.I
            ):
                self.faults.append(f"<{tag} {name}={value!r}>")
        if tag in ("style", "iframe", "object", "embed", "base"):
            self.faults.append(f"<{tag}>")
        if tag == "script" and "src" not in given and given.get("type") != "application/json":
            self.faults.append("<script> without src")


STRICT = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}


def faults_of(response: object) -> list[str]:
    """What is wrong with the page's policy and markup."""
    headers, content = response.headers, response.content.decode()  # type: ignore[attr-defined]
    policy = dict(
        part.strip().split(" ", 1) for part in headers.get("Content-Security-Policy", "x y").split(";")
    )
    faults = [f"{name}: {policy.get(name)}" for name, value in STRICT.items() if policy.get(name) != value]
    faults += [f"unsafe: {value}" for value in policy.values() if "unsafe" in value or "*" in value]
    if headers.get("X-Frame-Options") != "DENY" or headers.get("X-Content-Type-Options") != "nosniff":
        faults.append("headers")
    markup = Markup()
    markup.feed(content)
    return faults + markup.faults


@pytest.fixture
def things(cast: Cast) -> Things:
    """The cast and one of each thing."""
    return Things(cast)


@pytest.mark.parametrize("who", ["owner", "admin", "viewer"])
def test_the_whole_console_by_its_links(things: Things, who: str) -> None:
    client, start = things.cast.client(who), reverse("admin:index")
    todo, seen, wrong = [start], set(), []
    while todo:
        path = todo.pop()
        if path in seen or len(seen) > 400:
            continue
        seen.add(path)
        response = client.get(path)
        wrong += [f"{path}: {fault}" for fault in faults_of(response)]
        if response.status_code == 200:
            assert "no-store" in response.headers["Cache-Control"], path
        markup = Markup()
        markup.feed(response.content.decode())
        for link in markup.links:
            target = urlsplit(urljoin(path, link))
            # Pages of one list differ in their rows only.
            address = target.path + (f"?{target.query}" if target.query else "")
            if target.path.startswith("/console/") and address not in seen:
                todo.append(address)
    assert wrong == []
    assert len(seen) > (30 if who == "owner" else 12), seen


def test_every_page_of_the_table_and_every_refusal(things: Things) -> None:
    owner, stranger, wrong = things.cast.client("owner"), things.cast.client("stranger"), []
    for page in PAGES:
        path = reverse(f"admin:{page.name}", args=page.args(things))
        for client in (owner, stranger, Client()):
            response = client.get(path)
            wrong += [f"{path}: {fault}" for fault in faults_of(response)]
    for path in (reverse("admin:login"), "/", "/v1/docs", "/nowhere", "/console/nowhere"):
        wrong += [f"{path}: {fault}" for fault in faults_of(owner.get(path))]
        wrong += [f"{path}: {fault}" for fault in faults_of(Client().get(path))]
    refused = Client(enforce_csrf_checks=True).post(reverse("admin:login"), {})
    assert refused.status_code == 403
    assert [fault for fault in faults_of(refused) if fault != "<style>"] == []
    assert wrong == []


def test_the_eyes_of_this_test_are_open() -> None:
    markup = Markup()
    markup.feed(
        '<p style="x">a</p><a href="javascript:x">b</a><a onclick="x">c</a><script>d</script><style>e</style>'
        '<img src="https://evil.example/x.png"><script src="/static/x.js"></script>'
    )
    assert len(markup.faults) == 6
