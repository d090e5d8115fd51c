"""Base models of op inputs and outputs, shared field types, and validation to one error shape."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo

from loomsite.ops import limits
from loomsite.ops.errors import OpError

# How much of an unknown field's name is repeated in the answer.
NAME_CHARS = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")


def _address(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank; leave it out instead")
    if _CONTROL.search(text):
        raise ValueError("must not hold control characters or line breaks")
    return text


def _zoned(value: datetime) -> datetime:
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError("needs a zone, for example 2026-01-31T09:00:00Z")
    if not 2 <= value.year <= 9998:
        raise ValueError("must lie between the years 0002 and 9998")
    # PostgreSQL reads offsets up to 15:59 only, and the zone that was written means nothing further on.
    return value.astimezone(UTC)


def _iso_text(value: Any) -> Any:
    # Pydantic would read a bare number as seconds since 1970; over JSON that is a mistake, not an instant.
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", value):
        raise ValueError("must be an ISO 8601 timestamp with a zone, for example 2026-01-31T09:00:00Z")
    return value


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Identity = Annotated[str, Field(max_length=limits.IDENTITY_CHARS), AfterValidator(_address)]
Key = Annotated[str, Field(min_length=1, max_length=limits.KEY_CHARS), AfterValidator(_address)]
Prefix = Annotated[str, Field(max_length=limits.KEY_CHARS)]
Tag = Annotated[str, Field(min_length=1, max_length=limits.TAG_CHARS), AfterValidator(_address)]
Tags = Annotated[list[Tag], Field(max_length=limits.TAGS)]
Reason = Annotated[str, Field(max_length=limits.REASON_CHARS)]
Instant = Annotated[datetime, BeforeValidator(_iso_text), AfterValidator(_zoned)]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_no_bool)]
Json = Annotated[Any, WithJsonSchema({})]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class OpInput(BaseModel):
    """What every op accepts: who is meant. Unknown fields are served and named in `ignored_args`."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=False)

    org: Identity | None = Field(None, description="Organisation; the token fills it.")
    namespace: Identity | None = Field(
        None,
        description="The shared space of memories that is meant, such as a project or a team. "
        "Leave it out to use the token's own.",
    )
    agent: Identity | None = Field(
        None, description='Name of the agent; "-" means none, "*" (reads only) means any.'
    )
    user_id: Identity | None = Field(
        None, description='The end user a row belongs to; "-" means none, "*" (reads only) means any.'
    )
    session_id: Identity | None = Field(
        None, description='The session a row belongs to; "-" means none, "*" (reads only) means any.'
    )
    run_id: Identity | None = Field(None, description="The caller's own run; kept in the audit.")
    # Fields that are taken for compatibility and not used; the answer names them in `ignored_args`.
    ACCEPTED_NOT_USED: ClassVar[frozenset[str]] = frozenset()


class WriteInput(OpInput):
    """What every write accepts besides."""

    reason: Reason | None = Field(None, description="Why; kept in the history and in the audit.")


class Selector(BaseModel):
    """A nested selector: an unknown key is refused, for ignored it would match everything."""

    model_config = ConfigDict(extra="forbid")


class OpOutput(BaseModel):
    """What any answer may carry besides its own fields."""

    model_config = ConfigDict(extra="forbid")

    ignored_args: list[str] | None = Field(None, description="Input fields that were not used.")
    advisories: list[str] | None = Field(None, description="Notes, each naming the field it is about.")
    degraded: list[str] | None = Field(None, description="Parts that worked less well, such as embedding.")


class ReviewedOutput(OpOutput):
    """The answer of an op that may wait for a person: while `state` is pending_review nothing has changed."""

    state: str | None = Field(
        None, description="applied, previewed (a dry run), or pending_review: a person decides, see plan.get."
    )
    needs_review: bool | None = Field(
        None, description="True of a dry run whose real run would wait for a person."
    )
    plan_id: str | None = Field(None, description="Of the plan that waits; plan.get follows it.")
    digest: str | None = Field(None, description="SHA-256 of the plan.")
    review_url: str | None = Field(None, description="Where a person decides.")
    plan_expires_at: str | None = Field(None, description="Undecided by then, it is void.")


@dataclass(frozen=True)
class _Shape:
    """What `validate` needs to know of a model, by every spelling of a field (name and alias)."""

    fields: frozenset[str]
    # Fields to which an explicit null says something; elsewhere it counts as left out.
    nulls: frozenset[str]
    # Fields that hold a model, or a list of it.
    nested: dict[str, type[BaseModel]]
    # Of a selector an unknown key is refused by the model itself.
    forbids: bool
    unused: frozenset[str]


def spellings(name: str, field: FieldInfo) -> set[str]:
    """Every name under which an input field is taken: its own, its alias, its `AliasChoices`."""
    aliases = field.validation_alias
    choices = aliases.choices if isinstance(aliases, AliasChoices) else [aliases]
    return {name, field.alias or name, *(choice for choice in choices if isinstance(choice, str))}


def _arms(annotation: Any) -> list[Any]:
    """The types a value may have, with `Annotated`, unions and lists taken apart."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _arms(args[0])
    if origin in (Union, UnionType, list):
        return [arm for arg in args for arm in _arms(arg)]
    return [annotation]


def _takes_null(annotation: Any) -> bool:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _takes_null(args[0])
    if origin in (Union, UnionType):
        return any(_takes_null(arg) for arg in args)
    return annotation is Any or annotation is NoneType


@cache
def _shape(model: type[BaseModel]) -> _Shape:
    fields: set[str] = set()
    nulls: set[str] = set()
    nested: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        names = spellings(name, field)
        fields |= names
        if _takes_null(field.annotation):
            nulls |= names
        for arm in _arms(field.annotation):
            if isinstance(arm, type) and issubclass(arm, BaseModel):
                nested |= dict.fromkeys(names, arm)
    return _Shape(
        frozenset(fields),
        frozenset(nulls),
        nested,
        model.model_config.get("extra") == "forbid",
        getattr(model, "ACCEPTED_NOT_USED", frozenset()),
    )


def _known(
    model: type[BaseModel], payload: dict[str, Any], prefix: str, ignored: list[str]
) -> dict[str, Any]:
    """What `model` reads of `payload`; the names of the rest join `ignored`."""
    shape = _shape(model)
    known: dict[str, Any] = {}
    for name, value in payload.items():
        if name in shape.unused:
            ignored.append(f"{prefix}{name}")
        if name not in shape.fields:
            if shape.forbids:
                known[name] = value
            else:
                ignored.append(f"{prefix}{name[:NAME_CHARS]}")
        elif value is not None or name in shape.nulls:
            inner = shape.nested.get(name)
            known[name] = value if inner is None else _inner(inner, value, f"{prefix}{name}.", ignored)
    return known


def _inner(model: type[BaseModel], value: Any, prefix: str, ignored: list[str]) -> Any:
    if isinstance(value, dict):
        return _known(model, value, prefix, ignored)
    if isinstance(value, list):
        return [_inner(model, item, f"{prefix}{i}.", ignored) for i, item in enumerate(value)]
    return value


def validate(model: type[OpInput], payload: dict[str, Any]) -> tuple[OpInput, list[str]]:
    """`payload` as an instance of `model`, and the sorted names of fields that nobody reads.

    Fields of nested requests are named by their path (`items.0.colour`). An explicit null counts as
    omitted where the field gives null no meaning. Raises OpError 400 listing every fault with its path,
    or 413 for a value over its size.
    """
    ignored: list[str] = []
    known = _known(model, payload, "", ignored)
    try:
        return model.model_validate(known), sorted(ignored)
    except ValidationError as error:
        raise invalid_fields(error) from error


def invalid_fields(error: ValidationError) -> OpError:
    """Every fault of a Pydantic error as one OpError; 413 when a value was too large."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(str(part) for part in fault["loc"]) or "body"
        message = fault["msg"].removeprefix("Value error, ")
        faults.append({"path": path, "message": message, "type": fault["type"]})
    summary = "; ".join(f"{fault['path']}: {fault['message']}" for fault in faults[:5])
    if len(faults) > 5:
        summary += f"; and {len(faults) - 5} more"
    if any(fault["type"] == "too_large" for fault in faults):
        return OpError("TOO_LARGE", summary, errors=faults, limit=limits.VALUE_BYTES)
    return OpError("INVALID_ARGUMENT", summary, errors=faults)
