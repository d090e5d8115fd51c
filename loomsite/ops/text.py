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
        "keys", "ids", "into", "cursor", "from_namespace", "to", "subject", "attribute", "memory_id",
        "job_id", "project", "matter",
    }
)  # fmt: skip
# Fields whose objects are selectors or requests of their own, not stored data.
NESTED = frozenset({"items", "filter", "target"})


# Each character of a hostile body could ask for a note of its own.
NOTES = 20
PATH_CHARS = 200
# Where a value stands: (path of what holds it, name or index). Linked, because a path is only spelled out
# when there is something to say about it.
Path = tuple[Any, str | int] | None


def _refuse_constant(token: str) -> NoReturn:
    raise invalid("body", f"{token} is not JSON; send null or a finite number.", "json_invalid")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a name that stands twice is refused, for readers disagree on which one counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = twice[:PATH_CHARS].encode(errors="replace").decode()
        raise invalid(shown or "body", "stands twice in one object.", "json_invalid")
    return found


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
        body = json.loads(
            raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=unique_names
        )
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


def _spelled(path: Path) -> str:
    """The path as errors show it: names and indexes joined by dots, cut in the middle when it is long."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(str(part)[:PATH_CHARS].encode(errors="replace").decode())
    text = ".".join(reversed(parts)) or "body"
    return text if len(text) <= PATH_CHARS else f"{text[: PATH_CHARS // 2]}…{text[-PATH_CHARS // 2 :]}"


class _Cleaner:
    """One walk over a payload."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self.count = 0

    def text(self, text: str, path: Path, addressing: bool) -> str:
        """NFC text without NUL. OpError 400 for a lone surrogate, or for a NUL in what addresses a row."""
        if text.isascii() and "\x00" not in text:
            return text
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            message = "holds a lone surrogate, which is not text."
            raise invalid(_spelled(path), message, "surrogate") from error
        if "\x00" in text:
            if addressing:
                raise invalid(_spelled(path), "must not hold U+0000.", "nul")
            text = text.replace("\x00", REPLACEMENT)
            self.count += 1
            if self.count <= NOTES:
                self.replaced.append(_spelled(path).replace("\x00", REPLACEMENT))
        return unicodedata.normalize("NFC", text)

    def value(self, value: Any, path: Path, depth: int, addressing: bool, names_rows: bool) -> Any:
        """`value` cleaned; `depth` counts the objects and lists around it."""
        if isinstance(value, str):
            return self.text(value, path, addressing)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise invalid(_spelled(path), "must be a finite number.", "finite_number")
            return value
        if isinstance(value, dict):
            return self.object(value, path, depth + 1, names_rows)
        if isinstance(value, list):
            if depth >= limits.NESTING:
                raise _too_deep(_top(path))
            return [
                self.value(item, (path, i), depth + 1, addressing, names_rows) for i, item in enumerate(value)
            ]
        return value

    def object(self, value: dict[Any, Any], path: Path, depth: int, names_rows: bool) -> dict[str, Any]:
        """An object cleaned. `names_rows` is true where its names are the op's own, not stored data."""
        if depth > limits.NESTING:
            raise _too_deep(_top(path))
        fresh: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise invalid(_spelled(path), "has an object key that is not a string.", "json_type")
            name = self.text(key, (path, key), False)
            here = (path, name)
            if name in fresh:
                raise invalid(_spelled(here), "stands twice after NFC normalisation.")
            # A stored value may use the words of addressing fields freely; nested selectors may not.
            nested = depth == 1 and name in NESTED
            fresh[name] = self.value(item, here, depth, names_rows and name in ADDRESSING, nested)
        return fresh


def _top(path: Path) -> str:
    """The op's own field that holds `path`: what is too deep has no useful full path."""
    while path is not None and path[0] is not None:
        path = path[0]
    return _spelled(path)


def clean(payload: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`payload` with every string NFC-normalised, and the advisories that came of it.

    NUL becomes U+FFFD in values, with an advisory; in what addresses a row it is refused. Lone
    surrogates, NaN, infinities and too deep nesting raise OpError 400 naming the path.
    """
    cleaner = _Cleaner()
    fresh = cleaner.object(payload, None, 1, True)
    advisories = [f"{path}: U+0000 is stored as U+FFFD" for path in cleaner.replaced]
    if cleaner.count > NOTES:
        advisories.append(f"body: U+0000 is stored as U+FFFD in {cleaner.count - NOTES} more places")
    return fresh, advisories
