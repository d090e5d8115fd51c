"""Forms of the console's pages about memories."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import forms

from governance.console_forms import PasswordCheck, ReasonForm, UtcInput, future_utc
from loomsite.ops import limits

LOCK_CHOICES = [
    ("read_only", "read only: nothing about it changes"),
    ("no_delete", "no delete: it may change, and stays"),
]


class LockFields(forms.Form):
    """How firmly, and until when."""

    mode = forms.ChoiceField(choices=LOCK_CHOICES, widget=forms.RadioSelect, initial="read_only")
    until = forms.DateTimeField(
        required=False, label="Until (UTC)", widget=UtcInput(), help_text="Empty: until an admin loosens it."
    )

    def clean_until(self) -> datetime | None:
        """An instant ahead."""
        return future_utc(self.cleaned_data["until"])


class LockForm(LockFields, ReasonForm):
    """How firmly, why, and until when."""

    field_order = ("mode", "reason", "until")


class ConfirmedForm(PasswordCheck, ReasonForm):
    """Why, and the reader's password."""

    field_order = ("reason", "password")


class LoosenForm(PasswordCheck, ReasonForm):
    """Why, for how long, and the reader's password."""

    relock_seconds = forms.TypedChoiceField(
        required=False,
        coerce=int,
        empty_value=None,
        label="For how long",
        choices=[
            ("", "until somebody locks it again"),
            ("900", "15 minutes, then it is locked again"),
            ("3600", "1 hour, then it is locked again"),
            ("28800", "8 hours, then it is locked again"),
            ("86400", "1 day, then it is locked again"),
            ("604800", "7 days, then it is locked again"),
        ],
    )
    field_order = ("reason", "relock_seconds", "password")


class HoldForm(ReasonForm):
    """For which matter, and why."""

    matter = forms.CharField(
        max_length=limits.IDENTITY_CHARS, help_text="The case or request that the hold belongs to."
    )
    field_order = ("matter", "reason")


class ReleaseForm(PasswordCheck, ReasonForm):
    """Which hold, why, and the reader's password."""

    matter = forms.ChoiceField()
    field_order = ("matter", "reason", "password")

    def __init__(self, *args: Any, matters: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer(self, "matter", matters)


class AcknowledgeForm(ReasonForm):
    """Which pattern was read, and what the reader makes of it."""

    pattern = forms.ChoiceField()
    field_order = ("pattern", "reason")

    def __init__(self, *args: Any, patterns: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer(self, "pattern", patterns)


def _offer(form: forms.Form, name: str, values: Iterable[str]) -> None:
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)  # noqa: S101 - narrows a type
    field.choices = [(value, value) for value in values]


class LabelFields(forms.Form):
    """Which tags, and how."""

    tags = forms.CharField(widget=forms.Textarea({"rows": 2}), help_text="One a line.")
    how = forms.ChoiceField(
        choices=[
            ("add", "add them"),
            ("remove", "remove them"),
            ("replace", "put them in the place of all tags"),
        ],
        widget=forms.RadioSelect,
        initial="add",
        label="How",
    )

    def clean_tags(self) -> list[str]:
        """The tags, each once."""
        tags = list(dict.fromkeys(filter(None, map(str.strip, self.cleaned_data["tags"].splitlines()))))
        if len(tags) > limits.TAGS or any(len(tag) > limits.TAG_CHARS for tag in tags):
            raise forms.ValidationError(f"At most {limits.TAGS} tags of {limits.TAG_CHARS} characters.")
        return tags
