"""`manage.py ops`: every operation and where it lives; writes and checks what is generated from them."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from loomsite.doors.tools import listed
from loomsite.ops import all_ops, openapi, reference


def _as_file(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def generated() -> dict[Path, str]:
    """Every generated file by its path: the reference and the snapshots of both machine-readable lists."""
    docs = Path(settings.BASE_DIR) / "docs"
    tools = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in listed("all")]
    return {
        docs / "openapi.json": _as_file(openapi.document()),
        docs / "mcp-tools.json": _as_file({"core": [tool.name for tool in listed("core")], "tools": tools}),
        **{docs / "reference" / name: text for name, text in reference.pages().items()},
    }


def stale() -> list[str]:
    """Generated files that are missing, differ, or belong to no op any more; relative to the project."""
    base = Path(settings.BASE_DIR)
    wanted = generated()
    wrong = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    left_over = [path for path in (base / "docs" / "reference").glob("*.md") if path not in wanted]
    return sorted(str(path.relative_to(base)) for path in [*wrong, *left_over])


def write() -> list[str]:
    """Write what is stale and remove what is left over; the names of the files touched."""
    wanted = generated()
    touched = stale()
    for name in touched:
        path = Path(settings.BASE_DIR) / name
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], "utf-8")
        else:
            path.unlink()
    return touched


class Command(BaseCommand):
    """List the operations; write or check the reference and the snapshots."""

    help = "List every operation: name, role, kind, effects, MCP tool, toolset, URL, handler."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--write-docs and --check."""
        chosen = parser.add_mutually_exclusive_group()
        chosen.add_argument(
            "--write-docs", action="store_true", help="write docs/reference and the snapshots"
        )
        chosen.add_argument("--check", action="store_true", help="fail when the written files differ")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the table, or write, or check."""
        if options["write_docs"]:
            touched = write()
            self.stdout.write("\n".join(touched) or "nothing to write")
        elif options["check"]:
            wrong = stale()
            if wrong:
                raise CommandError(f"stale, run `manage.py ops --write-docs`: {', '.join(wrong)}")
        else:
            self._print_table()

    def _print_table(self) -> None:
        rows = [("op", "role", "kind", "effects", "tool", "toolset", "url", "handler")]
        for op in all_ops():
            effects = ",".join(sorted(op.effects))
            place = reference.handler_place(op)
            rows.append(
                (op.name, op.role.label, op.kind, effects, op.tool_name, op.toolset, f"/v1/{op.name}", place)
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.stdout.write("  ".join(cells).rstrip())
