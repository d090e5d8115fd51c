"""Hygiene of incoming JSON: strict parsing, NFC, NUL, surrogates, non-finite numbers, nesting.

Runs before any schema, so that no op has to think of it.
"""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, NoReturn

from loomsite.ops import limits
from loomsite.ops.errors import OpError, invalid

REPLACEMENT = "\ufffd"
# In these a replaced character would change which row is meant, so NUL is refused instead.
ADDRESSING = frozenset(
    {
        "memory_key", "org", "namespace", "agent", "user_id", "session_id", "run_id", "prefix", "key_prefix",
        "keys", "into", "cursor", "from_namespace", "to", "subject", "attribute", "memory_id", "job_id",
    }
)  # fmt: skip


def _refuse_constant(token: str) -> NoReturn:
    raise invalid("body", f"{token} is not JSON; send null or a finite number.", "json_invalid")


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw` (UTF-8). Raises OpError 400 or 413; an empty body is an empty object."""
    if len(raw) > limits.BODY_BYTES:
        raise OpError(
            "TOO_LARGE",
            f"The body has {len(raw)} bytes; the limit is {limits.BODY_BYTES}.",
            limit=limits.BODY_BYTES,
        )
    if not raw.strip():
        return {}
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise invalid("body", f"is not UTF-8 (byte {error.start}).", "json_invalid") from error
    except json.JSONDecodeError as error:
        raise invalid(
            "body", f"is not JSON: {error.msg} at character {error.pos}.", "json_invalid"
        ) from error
    except RecursionError as error:
        raise _too_deep("body") from error
    except ValueError as error:  # CPython refuses to read integers of more than 4,300 digits
        raise invalid("body", "holds a number with too many digits.", "json_invalid") from error
    if not isinstance(body, dict):
        raise invalid("body", 'must be a JSON object, for example {"memory_key": "k"}.', "json_type")
    return body


def _too_deep(path: str) -> OpError:
    return invalid(path, f"is nested deeper than {limits.NESTING} levels.", "nesting", limit=limits.NESTING)


def clean(payload: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`payload` with every string NFC-normalised, and the advisories that came of it.

    NUL becomes U+FFFD in values, with an advisory; in what addresses a row it is refused. Lone
    surrogates, NaN, infinities and too deep nesting raise OpError 400 naming the path.
    """
    advisories: list[str] = []

    def string(text: str, path: str, addressing: bool) -> str:
        if text.isascii() and "\x00" not in text:
            return text
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise invalid(path, "holds a lone surrogate, which is not text.", "surrogate") from error
        if "\x00" in text:
            if addressing:
                raise invalid(path, "must not hold U+0000.", "nul")
            text = text.replace("\x00", REPLACEMENT)
            advisories.append(f"{path}: U+0000 is stored as U+FFFD")
        return unicodedata.normalize("NFC", text)

    def walk(value: Any, path: str, depth: int, addressing: bool) -> Any:
        if depth > limits.NESTING:
            raise _too_deep(path.split(".", 1)[0])
        if isinstance(value, str):
            return string(value, path, addressing)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise invalid(path, "must be a finite number.", "finite_number")
            return value
        if isinstance(value, dict):
            fresh: dict[str, Any] = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise invalid(path, "has an object key that is not a string.", "json_type")
                name = string(key, f"{path}.{key!r:.40}" if path else "body", False)
                if name in fresh:
                    raise invalid(f"{path}.{name}" if path else name, "stands twice after NFC normalisation.")
                # Only the op's own fields address rows; a stored value may use the same words freely.
                own = depth == 1 or path.split(".", 1)[0] in {"items", "filter"} and depth <= 3
                fresh[name] = walk(
                    item, f"{path}.{name}" if path else name, depth + 1, name in ADDRESSING and own
                )
            return fresh
        if isinstance(value, list):
            return [walk(item, f"{path}.{i}", depth + 1, addressing) for i, item in enumerate(value)]
        return value

    return walk(payload, "", 1, False), advisories
