"""Base models of op inputs and outputs, shared field types, and validation to one error shape."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from loomsite.ops import limits
from loomsite.ops.errors import OpError

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
    return value


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


def _nullable(annotation: Any) -> bool:
    return annotation is Any or type(None) in getattr(annotation, "__args__", ()) or annotation is Json


def validate(
    model: type[OpInput], payload: dict[str, Any], fields: frozenset[str]
) -> tuple[OpInput, list[str]]:
    """`payload` as an instance of `model`, and the sorted names of fields that nobody reads.

    `fields` are the names and aliases the model knows. An explicit null counts as omitted where the
    field gives null no meaning. Raises OpError 400 listing every fault with its path, or 413 for a
    value over its size.
    """
    known = {
        name: value
        for name, value in payload.items()
        if name in fields and (value is not None or name in _null_fields(model))
    }
    ignored = sorted(
        name[:80] for name in payload if name not in fields or name in model.ACCEPTED_NOT_USED
    )
    try:
        return model.model_validate(known), ignored
    except ValidationError as error:
        raise invalid_fields(error) from error


_NULL_FIELDS: dict[type[BaseModel], frozenset[str]] = {}


def _null_fields(model: type[BaseModel]) -> frozenset[str]:
    known = _NULL_FIELDS.get(model)
    if known is None:
        known = frozenset(
            spelling
            for name, field in model.model_fields.items()
            if _nullable(field.annotation)
            for spelling in (name, field.alias)
            if spelling
        )
        _NULL_FIELDS[model] = known
    return known


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
