"""Forms of the console's pages about facts."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django import forms

from facts.periods import parse
from governance.console_forms import ReasonForm


class DateText(forms.CharField):
    """A date, or a timestamp with a zone; answers the text, checked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, max_length=40, **options)

    def clean(self, value: Any) -> Any:
        """The text as it was typed; a wrong one is told what would be right."""
        text = super().clean(value)
        if text:
            try:
                parse(text)
            except ValueError as error:
                raise forms.ValidationError(str(error)) from error
        return text


class BeliefForm(forms.Form):
    """What did we believe on a day, about a day?"""

    known_at = DateText(label="Believed on", help_text="YYYY-MM-DD or a timestamp with a zone; empty: now.")
    valid_at = DateText(label="About", help_text="Empty: about all time.")

    def instant(self, name: str) -> datetime | None:
        """The instant that was typed, or None."""
        text = self.cleaned_data.get(name)
        return parse(text).instant if text else None


class CorrectForm(ReasonForm):
    """What is right, since when, and why."""

    value = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text='JSON, such as "Acme" in quotes, 12, or {"a": 1}; other text counts as text.',
        max_length=262_144,
    )
    kind = forms.ChoiceField(
        choices=[("changed", "changed: the world changed on a day"), ("wrong", "wrong: it was never so")],
        widget=forms.RadioSelect,
        initial="changed",
    )
    validFrom = DateText(label="Since", help_text="Needed with changed. YYYY-MM-DD.")
    validTo = DateText(label="Until", help_text="Empty: as it was.")
    field_order = ("value", "kind", "validFrom", "validTo", "reason")

    def clean_value(self) -> Any:
        """The JSON that was typed; what is no JSON is a text."""
        try:
            return json.loads(self.cleaned_data["value"])
        except ValueError:
            return self.cleaned_data["value"]
