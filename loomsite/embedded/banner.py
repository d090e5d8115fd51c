"""What a person and a script are told when the servers are ready."""

from __future__ import annotations

import json
from typing import Any

from loomsite.embedded.home import Home
from loomsite.embedded.ports import Address

CONSOLE_PATH = "/console/"
RESET = ".venv/bin/python manage.py changepassword owner"


def connection(web: Address, mcp: Address, owner: dict[str, Any]) -> dict[str, str]:
    """The content of connection.json. The owner's password is never in it."""
    return {
        "url": web.url,
        "mcp_url": f"{mcp.url}/mcp",
        "token": owner["token"],
        "org": owner["org"],
        "namespace": owner["namespace"],
        "admin_url": f"{web.url}{CONSOLE_PATH}",
        "admin_user": owner["admin_user"],
    }


def text(facts: dict[str, str], password: str | None, home: Home, seconds: float) -> str:
    """The banner: console, login, token, and a client configuration to paste."""
    if password:
        login = f"{facts['admin_user']} / {password}   (shown once; keep it)"
    else:
        login = f"{facts['admin_user']}   (password as before; `{RESET}` sets a new one)"
    snippet = {
        "mcpServers": {
            "loomsite": {
                "type": "http",
                "url": facts["mcp_url"],
                "headers": {"Authorization": f"Bearer {facts['token']}"},
            }
        }
    }
    return "\n".join(
        (
            "",
            f"Loomsite is ready after {seconds:.0f} s. Ctrl-C or `make stop` ends it.",
            "",
            f"  console      {facts['admin_url']}",
            f"  login        {login}",
            f"  REST         {facts['url']}/v1/   (reference: {facts['url']}/v1/docs)",
            f"  agent token  {facts['token']}",
            f"  for scripts  {home.connection_file}",
            f"  logs         {home.logs}",
            "",
            "MCP client configuration:",
            json.dumps(snippet, indent=2),
            "",
        )
    )
