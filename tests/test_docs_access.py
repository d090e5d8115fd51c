"""What the pages about access show is run: commands, configurations, the client example."""

from __future__ import annotations

import json
import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from django.conf import settings
from django.core.management import call_command

from governance import pipeline
from governance.models import Namespace, Org, User
from governance.services import token_create
from governance.tenancy import Credentials
from loomsite.doors.stdio import access_from_environment
from tests.doors import serving

DOCS = Path(settings.BASE_DIR) / "docs"
CONNECTING, TEAM = DOCS / "connecting-agents.md", DOCS / "running-for-a-team.md"


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of that kind on the page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
    return [text for name, text in found if name == kind]


@pytest.mark.django_db
def test_the_commands_for_a_team_work_in_their_order_and_lead_to_a_token() -> None:
    lines = [line for block in blocks(TEAM, "") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("manage.py ")]
    said = {}
    for name, *arguments in commands:
        out = StringIO()
        call_command(name, *arguments, stdout=out)
        said[name] = out.getvalue()
    assert len(commands) == 11
    assert said["member_list"].split() == ["writer", "service", "ci", "reviewer", "group", "operators"]
    token = said["token_create"].strip()
    answer = pipeline.run("memory.set", {"memory_key": "k", "value": 1}, Credentials(bearer=token))
    assert answer.status == 200
    assert token.split("_")[1] in said["token_list"]


def test_every_option_of_the_table_is_one_of_the_command() -> None:
    from loomsite.management.commands.token_create import Command

    parser = Command().create_parser("manage.py", "token_create")
    known = {option for action in parser._actions for option in action.option_strings}
    named = set(re.findall(r"`(--[a-z-]+)", TEAM.read_text().split("| option |")[1].split("\n\n")[0]))
    assert named and named <= known


def test_configurations_are_json_and_name_what_the_server_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = [json.loads(block) for block in blocks(CONNECTING, "json")]
    servers = [(part.get("mcpServers") or part["servers"])["loomsite"] for part in found]
    assert len(servers) == 3
    for server in servers[:2]:
        assert server["url"].endswith("/mcp") and server["headers"]["Authorization"].startswith("Bearer ")
    for name, value in servers[2]["env"].items():
        monkeypatch.setenv(name, value)
    access = access_from_environment()
    assert (access.namespace, access.toolset) == ("deploy", "core")
    assert access.credentials.bearer == servers[2]["env"]["LOOM_TOKEN"]


@pytest.mark.django_db(transaction=True)
def test_the_client_example_stores_and_finds() -> None:
    org = Org.objects.create(slug="dev")
    Namespace.objects.create(org=org, slug="local")
    owner = User.objects.create_superuser("owner", password="a password of the tests")
    _, token = token_create(principal=owner, org=org, default_namespace="local")
    scope: dict[str, Any] = {}
    (example,) = blocks(CONNECTING, "python")
    exec(compile(example, str(CONNECTING), "exec"), scope)
    with serving.served() as url:
        assert anyio.run(scope["remember"], f"{url}/mcp", token) == "Tuesday"
