"""ASGI entry: the MCP endpoint at /mcp, natively asynchronous."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
django.setup()

from loomsite.doors.mcp import http_application  # noqa: E402

application = http_application()
