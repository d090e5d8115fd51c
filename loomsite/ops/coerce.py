"""Arguments as language models send them: numbers, flags, lists and objects inside strings.

Only a field that cannot hold a string is read this way, so a stored value is always taken as it came.
What cannot be read stays a string, and validation names it.
"""

from __future__ import annotations

import json
import re
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel

from loomsite.ops.schema import spellings

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,3})?")
_FLAGS = {"true": True, "false": False}


def _members(annotation: Any) -> list[Any]:
    """The types a value may have, with `Annotated` and unions taken apart."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [member for arm in get_args(annotation) for member in _members(arm)]
    return [annotation]


def _refuse(token: str) -> NoReturn:
    raise ValueError(token)


def _parsed(text: str, wanted: type) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, wanted) else text


def _from_text(text: str, members: list[Any]) -> Any:
    stripped = text.strip()
    plain = [get_origin(member) or member for member in members]
    if NoneType in plain and stripped == "null":
        return None
    if bool in plain and stripped.lower() in _FLAGS:
        return _FLAGS[stripped.lower()]
    if int in plain and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if float in plain and _NUMBER.fullmatch(stripped):
        return float(stripped)
    if list in plain and stripped.startswith("["):
        return _parsed(stripped, list)
    if stripped.startswith("{") and any(
        member is dict or isinstance(member, type) and issubclass(member, BaseModel) for member in plain
    ):
        return _parsed(stripped, dict)
    return text


def _holds_text(member: Any) -> bool:
    return member is Any or member is str


def _value(value: Any, annotation: Any) -> Any:
    members = _members(annotation)
    if isinstance(value, str):
        if any(_holds_text(member) for member in members):
            return value
        value = _from_text(value, members)
    for member in members:
        origin, arms = get_origin(member), get_args(member)
        if isinstance(value, list) and origin is list:
            return [_value(item, arms[0]) for item in value]
        if isinstance(value, dict) and origin is dict:
            return {key: _value(item, arms[1]) for key, item in value.items()}
        if isinstance(value, dict) and isinstance(member, type) and issubclass(member, BaseModel):
            return coerce(member, value)
    return value


def coerce(model: type[BaseModel], payload: dict[str, Any]) -> dict[str, Any]:
    """`payload` with strings read as what `model` asks for, nested models included."""
    annotations: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        annotations |= dict.fromkeys(spellings(name, field), field.annotation)
    return {
        name: _value(value, annotations[name]) if name in annotations else value
        for name, value in payload.items()
    }
