"""Tool schemas that every client takes, and the flattening and reading of arguments behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel, Field

from loomsite.doors.tools import listed, tool_of
from loomsite.ops import Op, OpInput, OpOutput, all_ops
from loomsite.ops.coerce import coerce
from loomsite.ops.flat import flat_input, flat_output, without_nulls
from tests.doors.probes import PROBES, Inner, ProbeInput, ProbeOutput

Schema = dict[str, Any]
FORBIDDEN = {
    "$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "const", "prefixItems",
    "exclusiveMinimum", "exclusiveMaximum", "additionalProperties", "patternProperties",
    "pattern", "title", "nullable",
}  # fmt: skip


def faults(schema: Any, path: str = "") -> Iterator[str]:
    """Constructs by which some client refuses the schema, each with its place."""
    if not isinstance(schema, dict):
        yield f"{path}: not an object"
        return
    for word in FORBIDDEN & set(schema):
        yield f"{path}: {word}"
    if "type" in schema and not isinstance(schema["type"], str):
        yield f"{path}: a list of types"
    if schema.get("type") == "null":
        yield f"{path}: null"
    if "enum" in schema and not all(isinstance(value, str) for value in schema["enum"]):
        yield f"{path}: an enum of other things than strings"
    if schema.get("default", "") is None:
        yield f"{path}: null as default"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: an array of nobody knows what"
    for name, item in schema.get("properties", {}).items():
        yield from faults(item, f"{path}.{name}")
    if "items" in schema:
        yield from faults(schema["items"], f"{path}[]")
    for name in schema.get("required", []):
        if name not in schema.get("properties", {}):
            yield f"{path}: requires {name}, which it does not have"


OPS = [*all_ops(), *PROBES]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_tools_schemas_hold_nothing_that_clients_refuse(op: Op) -> None:
    tool = tool_of(op)
    for schema in (tool.input_schema, tool.output_schema):
        assert schema is not None
        assert schema["type"] == "object"
        assert list(faults(schema)) == []
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_tool_is_named_and_described_for_agents(op: Op) -> None:
    tool = tool_of(op)
    assert tool.name.replace("_", "").isalnum() and len(tool.name) <= 64
    assert tool.description is not None
    for part in ("WHAT: ", "WHEN: ", "WHEN NOT: ", "ARGS: "):
        assert part in tool.description
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is op.is_read
    assert tool.annotations.destructive_hint is op.destructive


@pytest.mark.parametrize("op", [op for op in OPS if not op.is_read], ids=lambda op: op.name)
def test_a_write_takes_an_idempotency_key(op: Op) -> None:
    assert "idempotency_key" in tool_of(op).input_schema["properties"]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_output_requires_nothing_that_may_be_null(op: Op) -> None:
    for name in flat_output(op.output).get("required", []):
        assert type(None) not in getattr(op.output.model_fields[name].annotation, "__args__", ())


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_argument_of_an_ops_own_is_described(op: Op) -> None:
    bare = [
        name for name, item in tool_of(op).input_schema["properties"].items() if "description" not in item
    ]
    assert bare == [] or op in PROBES


def test_tool_names_are_unique_and_the_gateway_comes_last() -> None:
    names = [tool.name for tool in listed("all")]
    assert len(names) == len(set(names))
    assert names[-1] == "loom_op"
    assert list(faults(listed("all")[-1].input_schema)) == []


def test_an_input_shows_its_own_fields_first() -> None:
    names = list(flat_input(ProbeInput, is_write=True)["properties"])
    assert names[0] == "count"
    assert names.index("value") < names.index("namespace") < names.index("idempotency_key")


def test_each_kind_of_field_becomes_something_flat() -> None:
    fields = flat_input(ProbeInput, is_write=False)["properties"]
    assert fields["count"] == {"type": "integer", "description": "How many."}
    assert fields["ratio"] == {"type": "number"}
    assert fields["words"] == {"type": "array", "items": {"type": "string"}}
    assert fields["mode"] == {"type": "string", "enum": ["a", "b"], "default": "a"}
    assert fields["level"] == {"type": "integer", "default": 1, "description": "One of: 1, 2."}
    assert fields["at"] == {"type": "string", "format": "date-time"}
    assert fields["value"] == {}
    assert fields["ids"]["items"] == {"type": "string"}
    assert fields["versions"] == {"type": "object"}
    assert fields["filter"]["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "default": 5,
    }
    assert fields["items"]["items"]["type"] == "object"


def test_an_output_of_several_types_is_never_narrower_than_the_answers() -> None:
    schema = flat_output(ProbeOutput)
    assert schema["properties"]["label"] == {}
    assert schema["required"] == ["given"]


def test_a_model_that_contains_itself_is_refused() -> None:
    class Node(BaseModel):
        children: list[Node] = []  # noqa: RUF012

    Node.model_rebuild(_types_namespace={"Node": Node})

    class Output(OpOutput):
        root: Node

    with pytest.raises(ValueError, match="contains itself"):
        flat_output(Output)


def test_objects_of_several_shapes_show_all_their_fields() -> None:
    class Left(BaseModel):
        a: int
        both: int

    class Right(BaseModel):
        b: str
        both: str

    class Input(OpInput):
        shape: Left | Right = Field(description="Either.")

    shape = flat_input(Input, is_write=False)["properties"]["shape"]
    assert shape["properties"] == {"a": {"type": "integer"}, "both": {}, "b": {"type": "string"}}
    assert shape["description"] == "Either."


def test_only_stored_values_keep_their_nulls() -> None:
    answer = {"given": {"a": None}, "value": None, "until": None, "inner": {"key_prefix": None, "limit": 3}}
    assert without_nulls(answer, flat_output(ProbeOutput)) == {
        "given": {"a": None}, "value": None, "inner": {"limit": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"count": " 5 "}, {"count": 5}),
        ({"count": "-5"}, {"count": -5}),
        ({"count": "5.0"}, {"count": "5.0"}),
        ({"count": "9" * 400}, {"count": "9" * 400}),
        ({"ratio": "1e3"}, {"ratio": 1000.0}),
        ({"ratio": "Infinity"}, {"ratio": "Infinity"}),
        ({"ratio": "null"}, {"ratio": None}),
        ({"flag": "False"}, {"flag": False}),
        ({"flag": "yes"}, {"flag": "yes"}),
        ({"words": "a, b"}, {"words": "a, b"}),
        ({"words": '{"a": 1}'}, {"words": '{"a": 1}'}),
        ({"words": "[" * 5000}, {"words": "[" * 5000}),
        ({"numbers": "[NaN]"}, {"numbers": "[NaN]"}),
        ({"text": "[1]"}, {"text": "[1]"}),
        ({"text": "null"}, {"text": "null"}),
        ({"value": "5"}, {"value": "5"}),
        ({"mode": "a"}, {"mode": "a"}),
        ({"ids": '["1", 2]'}, {"ids": ["1", 2]}),
        ({"unknown": "5"}, {"unknown": "5"}),
        ({"items": '[{"limit": "2"}]'}, {"items": [{"limit": 2}]}),
    ],
)
def test_a_string_is_read_only_where_the_field_cannot_hold_one(given: Schema, read: Schema) -> None:
    assert coerce(ProbeInput, given) == read


def test_a_nested_model_is_read_by_its_own_fields() -> None:
    assert coerce(Inner, {"limit": "3", "key_prefix": "4"}) == {"limit": 3, "key_prefix": "4"}
