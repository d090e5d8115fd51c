"""The op reference as Markdown, one page an op and an index, made from the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loomsite.ops.errors import CODES
from loomsite.ops.failures import codes_of
from loomsite.ops.flat import Schema, flat_input, flat_output
from loomsite.ops.registry import Op, all_ops

GENERATED = "<!-- Made by `manage.py ops --write-docs`; edit the declaration instead. -->\n"


def handler_place(op: Op) -> str:
    """Where the op's handler is, as `module:function`."""
    return f"{op.handler.__module__}:{op.handler.__qualname__}"


def kind_of(schema: Schema) -> str:
    """A field's type in words, such as `integer`, `list of string`, `a | b`."""
    if "enum" in schema:
        return " | ".join(schema["enum"])
    if schema.get("type") == "array":
        inner = schema.get("items", {})
        return f"list of {kind_of(inner)}"
    if schema.get("format") == "date-time":
        return "timestamp"
    return str(schema.get("type", "any JSON"))


def limits_of(schema: Schema) -> str:
    """Bounds and default of a field in words; empty for none."""
    said = []
    for word, text in (
        ("minimum", "at least {}"),
        ("maximum", "at most {}"),
        ("minLength", "at least {} characters"),
        ("maxLength", "at most {} characters"),
        ("minItems", "at least {} items"),
        ("maxItems", "at most {} items"),
        ("default", "default {}"),
    ):
        if word in schema:
            said.append(text.format(schema[word]))
    return ", ".join(said)


def rows_of(schema: Schema, prefix: str = "") -> list[dict[str, Any]]:
    """Every field of a flat schema, nested ones by path, as {name, kind, required, limits, description}."""
    rows: list[dict[str, Any]] = []
    required = set(schema.get("required", []))
    for name, item in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        rows.append(
            {
                "name": path,
                "kind": kind_of(item),
                "required": name in required,
                "limits": limits_of(item),
                "description": item.get("description", ""),
            }
        )
        if item.get("type") == "object":
            rows += rows_of(item, f"{path}.")
        elif item.get("type") == "array":
            rows += rows_of(item.get("items", {}), f"{path}[].")
    return rows


def input_rows(op: Op) -> list[dict[str, Any]]:
    """The op's arguments over HTTP (there the idempotency key is a header)."""
    return rows_of(flat_input(op.input, is_write=False))


def output_rows(op: Op) -> list[dict[str, Any]]:
    """The fields of the op's answer."""
    return rows_of(flat_output(op.output))


def code_rows(op: Op) -> list[dict[str, Any]]:
    """The op's refusals as {status, code, meaning}."""
    return [
        {"status": CODES[code].status, "code": code, "meaning": CODES[code].meaning} for code in codes_of(op)
    ]


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _table(head: list[str], lines: Sequence[Sequence[object]]) -> str:
    rows: list[Sequence[object]] = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def page(op: Op) -> str:
    """The op's page."""
    arguments = [
        [f"`{row['name']}`{' *' if row['required'] else ''}", row["kind"], row["description"], row["limits"]]
        for row in input_rows(op)
    ]
    answer = [[f"`{row['name']}`", row["kind"], row["description"]] for row in output_rows(op)]
    codes = [[row["status"], f"`{row['code']}`", row["meaning"]] for row in code_rows(op)]
    parts = [
        f"# `{op.name}`\n\n{GENERATED}\n{op.summary}",
        _table(
            ["role", "kind", "effects", "MCP tool", "toolset", "handler"],
            [
                [
                    op.role.label,
                    op.kind,
                    ", ".join(sorted(op.effects)),
                    f"`{op.tool_name}`",
                    op.toolset,
                    f"`{handler_place(op)}`",
                ]
            ],
        ),
        f"`POST /v1/{op.name}`",
        f"**What.** {op.text.what}\n\n**When.** {op.text.when}\n\n**When not.** {op.text.when_not}\n\n"
        f"**Arguments.** {op.text.args}",
        "## Arguments (* required)\n\n" + _table(["name", "type", "meaning", "limits"], arguments),
        "## Answer\n\n" + _table(["name", "type", "meaning"], answer),
        "## Refusals\n\n" + _table(["status", "code", "meaning"], codes),
    ]
    if op.see_also:
        parts.append("See also: " + ", ".join(f"[`{name}`]({name}.md)" for name in op.see_also))
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The index: every op, and the table of codes."""
    ops = [
        [f"[`{op.name}`]({op.name}.md)", op.role.label, op.kind, f"`{op.tool_name}`", op.toolset, op.summary]
        for op in all_ops()
    ]
    codes = [
        [code.status, f"`{name}`", code.category, "yes" if code.retryable else "no", code.meaning]
        for name, code in CODES.items()
    ]
    return "\n\n".join(
        [
            f"# Operations\n\n{GENERATED}",
            _table(["op", "role", "kind", "MCP tool", "toolset", "summary"], ops),
            "## Codes\n\n" + _table(["status", "code", "category", "retry can help", "meaning"], codes),
        ]
    ) + "\n"  # fmt: skip


def pages() -> dict[str, str]:
    """Every file of the reference by its name."""
    return {"index.md": index(), **{f"{op.name}.md": page(op) for op in all_ops()}}
