"""Template filters of the console. Each returns escaped HTML."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

# Characters that reorder or hide text. Stored text may hold them; a reader must see them.
_HIDDEN = re.compile(
    "[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def reveal_json(text: str) -> str:
    """JSON text with hidden and control characters as escapes; it stays the same JSON."""

    def escape(found: re.Match[str]) -> str:
        return json.dumps(found[0])[1:-1] if ord(found[0]) != 0x7F else "\\u007f"

    return re.sub(f"{_HIDDEN.pattern}|[\x7f-\x9f\u2028\u2029]", escape, text)


def pretty(value: Any) -> str:
    """A stored value as indented JSON that shows what is hidden in it."""
    return reveal_json(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True))


register.filter("pretty", pretty)


@register.filter
def visible(text: object) -> SafeString:
    """Stored text, escaped and isolated from the direction of its surroundings, hidden characters named."""
    plain = str(text)
    pieces: list[SafeString] = []
    last = 0
    for found in re.finditer(f"{_HIDDEN.pattern}|{_CONTROL.pattern}", plain):
        pieces.append(format_html("{}", plain[last : found.start()]))
        pieces.append(
            format_html(
                '<span class="hidden-char" title="hidden character">U+{}</span>', f"{ord(found[0]):04X}"
            )
        )
        last = found.end()
    pieces.append(format_html("{}", plain[last:]))
    inner = mark_safe("".join(pieces))  # noqa: S308 - each piece is escaped
    return format_html('<bdi dir="auto">{}</bdi>', inner)


def revealed(text: str) -> str:
    """Stored text for where no markup can stand, such as a title: hidden characters by their names."""
    return re.sub(f"{_HIDDEN.pattern}|{_CONTROL.pattern}", lambda found: f"U+{ord(found[0]):04X}", text)


register.filter("revealed", revealed)

# Light enough for dark words on them; the words of a box tell what its colour means.
_TONES_OF_BOXES = ("#8fc1e3", "#f2c57c", "#a8d5a2", "#d5b3e5", "#f0a8a8", "#c9ccd3")


@register.filter
def tone(number: int) -> str:
    """The colour of the n-th value of a picture."""
    return _TONES_OF_BOXES[number % len(_TONES_OF_BOXES)]


@register.filter
def when(moment: datetime | None) -> SafeString | str:
    """An instant in UTC; the console's script turns it into the reader's zone."""
    if moment is None:
        return ""
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}">{}</time>',
        utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        utc.strftime("%Y-%m-%d %H:%M UTC"),
    )


_TONES = {
    "active": "good", "applied": "good", "done": "good", "ok": "good", "valid": "good",
    "would change": "good",
    "parked": "warn", "requested": "quiet", "erased": "bad",
    "template": "good", "accepted": "good", "pending": "warn", "quarantined": "bad", "reverted": "bad",
    "withdrawn": "quiet",
    "stale": "warn", "superseded": "quiet", "archived": "quiet", "expired": "quiet", "revoked": "quiet",
    "deactivated": "quiet",
    "queued": "quiet", "running": "warn", "no_delete": "lock", "read_only": "lock", "admin": "lock",
    "deleted": "bad", "rejected": "bad", "redacted": "bad", "failed": "bad", "refused": "bad",
}  # fmt: skip
_WORDS = {"no_delete": "no delete", "read_only": "read only", "none": "not locked"}


@register.filter
def badge(word: str) -> SafeString:
    """A state as a small label; its tone is never the only sign."""
    return format_html('<span class="badge {}">{}</span>', _TONES.get(word, "quiet"), _WORDS.get(word, word))


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: str | None) -> str:
    """The page's query string with some parameters changed; None and "" drop one."""
    given = context["request"].GET.dict()
    given.update(changes)
    return "?" + urlencode({name: value for name, value in given.items() if value})
