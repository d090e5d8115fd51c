"""MCP over standard input and output. Standard output carries JSON-RPC and nothing else.

Whatever else the process prints, at the level of Python or of file descriptors, goes to standard error.
"""

from __future__ import annotations

from io import TextIOWrapper

import anyio
from mcp.server.stdio import stdio_server

from governance.tenancy import Credentials
from loomsite.doors.mcp import default_toolset
from loomsite.doors.tools import Access, build_server
from loomsite.doors.wire import claim_stdout
from loomsite.ops import Door
from loomsite.settings import env


def access_from_environment() -> Access:
    """`LOOM_TOKEN`, `LOOM_NAMESPACE` and `LOOM_TOOLSET`. Without a token the local owner acts.

    Who can start this process on this machine is its owner, so the guards of single-user mode hold; whether
    that mode is on is for the pipeline to say.
    """
    token = env.text("LOOM_TOKEN") or None
    return Access(
        credentials=Credentials(bearer=token, door=Door.STDIO, is_local=token is None),
        toolset=default_toolset(),
        namespace=env.text("LOOM_NAMESPACE"),
    )


async def serve(wire: TextIOWrapper, access: Access) -> None:
    """Serve one client until standard input closes."""
    server = build_server(lambda _: access)
    async with stdio_server(stdout=anyio.wrap_file(wire)) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main() -> None:
    """Run until the client has gone. Raises ImproperlyConfigured for a wrong value."""
    access = access_from_environment()
    anyio.run(serve, claim_stdout(), access)
