"""Forms of the console's pages about memories."""

from __future__ import annotations

from datetime import datetime

from django import forms

from governance.console_forms import PasswordCheck, ReasonForm, UtcInput, future_utc

LOCK_CHOICES = [
    ("read_only", "read only: nothing about it changes"),
    ("no_delete", "no delete: it may change, and stays"),
]


class LockForm(ReasonForm):
    """How firmly, why, and until when."""

    mode = forms.ChoiceField(choices=LOCK_CHOICES, widget=forms.RadioSelect, initial="read_only")
    until = forms.DateTimeField(
        required=False, label="Until (UTC)", widget=UtcInput(), help_text="Empty: until an admin loosens it."
    )
    field_order = ("mode", "reason", "until")

    def clean_until(self) -> datetime | None:
        """An instant ahead."""
        return future_utc(self.cleaned_data["until"])


class LoosenForm(PasswordCheck, ReasonForm):
    """Why, and the reader's password."""

    field_order = ("reason", "password")
