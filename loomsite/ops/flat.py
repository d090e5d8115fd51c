"""From a Pydantic model to a flat JSON Schema that every MCP client takes.

Stricter clients refuse whole tool lists over `$ref`, `anyOf` with null, type arrays or enums of numbers.
So nested models are inlined, "or null" means "may be left out", and a union shows one of its members
(inputs) or anything (outputs, which must never be narrower than the answers).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from loomsite.ops.schema import OpInput, WriteInput

Schema = dict[str, Any]
# A tuple and not a set: the order of keys must not change from one process to the next.
_KEPT = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "default", "description")
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
IDEMPOTENCY_KEY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": "Makes a retry safe: the same key with the same arguments gives the first answer again.",
}


class _Flattener:
    """Walks one schema document; `direction` decides what a union of several types becomes."""

    def __init__(self, definitions: dict[str, Schema], direction: Literal["input", "output"]) -> None:
        self.definitions = definitions
        self.direction = direction

    def flatten(self, node: Schema, trail: tuple[str, ...] = ()) -> Schema:
        """`node` without references, unions, nulls and non-string enums."""
        if "$ref" in node:
            return self._reference(node, trail)
        for word in ("anyOf", "oneOf", "allOf"):
            if word in node:
                return self._described(node, self._union(node[word], trail))
        if isinstance(node.get("type"), list):
            members = [{**node, "type": kind} for kind in node["type"]]
            return self._described(node, self._union(members, trail))
        if "const" in node:
            return self._described(node, _choice([node["const"]]))
        if "enum" in node:
            return self._described(node, _choice(node["enum"]))
        flat: Schema = {"type": node["type"]} if "type" in node else {}
        flat.update((word, node[word]) for word in _KEPT if node.get(word) is not None)
        if node.get("type") == "integer" and "exclusiveMinimum" in node:
            flat["minimum"] = node["exclusiveMinimum"] + 1
        if node.get("format") == "date-time":
            flat["format"] = "date-time"
        if node.get("type") == "object" and "properties" in node:
            flat.update(self._object(node, trail))
        if node.get("type") == "array":
            flat["items"] = self.flatten(node.get("items", {}), trail)
        return flat

    def _reference(self, node: Schema, trail: tuple[str, ...]) -> Schema:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in trail:
            raise ValueError(f"The model {name} contains itself; a flat schema cannot show that.")
        return self._described(node, self.flatten(self.definitions[name], (*trail, name)))

    def _object(self, node: Schema, trail: tuple[str, ...]) -> Schema:
        properties = {name: self.flatten(item, trail) for name, item in node["properties"].items()}
        required = [
            name
            for name in node.get("required", [])
            if self.direction == "input" or not _may_be_null(node["properties"][name])
        ]
        return {"properties": properties, **({"required": required} if required else {})}

    def _union(self, members: list[Schema], trail: tuple[str, ...]) -> Schema:
        real = [self.flatten(member, trail) for member in members if member.get("type") != "null"]
        distinct = [member for i, member in enumerate(real) if member not in real[:i]]
        if len(distinct) == 1:
            return distinct[0]
        kinds = [member.get("type") for member in distinct]
        if all("enum" in member for member in distinct):
            return _choice([value for member in distinct for value in member["enum"]])
        if all("properties" in member for member in distinct):
            return {"type": "object", "properties": _merged([member["properties"] for member in distinct])}
        if set(kinds) == {"integer", "number"}:
            return {"type": "number"}
        if set(kinds) == {"string"}:
            return {"type": "string"}
        if self.direction == "output" or None in kinds:
            return {}
        return next((member for member in distinct if member.get("type") == "string"), distinct[0])

    def _described(self, node: Schema, flat: Schema) -> Schema:
        notes = [text for text in (node.get("description"), flat.get("description")) if text]
        default = {"default": node["default"]} if node.get("default") is not None else {}
        note = {"description": " ".join(dict.fromkeys(notes))} if notes else {}
        return {**flat, **default, **note}


def _merged(members: list[Schema]) -> Schema:
    """Properties of several objects together; anything where two of them differ."""
    merged: Schema = {}
    for member in members:
        for name, item in member.items():
            merged[name] = item if merged.get(name, item) == item else {}
    return merged


def _choice(values: list[Any]) -> Schema:
    if all(isinstance(value, str) for value in values):
        return {"type": "string", "enum": values}
    kinds = {_TYPES.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    said = f"One of: {', '.join(str(value).lower() for value in values)}."
    return {**({"type": kind} if kind else {}), "description": said}


def _may_be_null(node: Schema) -> bool:
    return any(member.get("type") == "null" for member in node.get("anyOf", []))


def _flat(model: type[BaseModel], direction: Literal["input", "output"]) -> Schema:
    document = model.model_json_schema(mode="validation")
    flat = _Flattener(document.get("$defs", {}), direction).flatten(document)
    return {"type": "object", "properties": {}, **{k: v for k, v in flat.items() if k != "description"}}


def flat_input(model: type[OpInput], *, is_write: bool) -> Schema:
    """The input schema of an op's MCP tool: its own fields first, then who is meant."""
    schema = _flat(model, "input")
    shared = {*OpInput.model_fields, *WriteInput.model_fields}
    properties = schema["properties"]
    own = {name: item for name, item in properties.items() if name not in shared}
    rest = {name: item for name, item in properties.items() if name in shared}
    extra = {"idempotency_key": IDEMPOTENCY_KEY} if is_write else {}
    return {**schema, "properties": {**own, **rest, **extra}}


def flat_output(model: type[BaseModel]) -> Schema:
    """The output schema of an op's MCP tool. Requires only what can never be null."""
    return _flat(model, "output")


def without_nulls(answer: Any, schema: Schema) -> Any:
    """`answer` without the nulls that its flat `schema` has no word for; stored values stay as they are."""
    if isinstance(answer, dict) and "properties" in schema:
        known = schema["properties"]
        return {
            name: without_nulls(item, known.get(name, {}))
            for name, item in answer.items()
            if item is not None or not known.get(name, {}).get("type")
        }
    if isinstance(answer, list) and "items" in schema:
        return [without_nulls(item, schema["items"]) for item in answer]
    return answer
