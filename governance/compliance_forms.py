"""Forms about erasures."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet

from governance.console import Sight
from governance.console_forms import PasswordCheck
from governance.models import ErasureRequest, Namespace
from loomsite.ops import limits


class ErasureForm(forms.Form):
    """Whose text goes, and from where."""

    namespace = forms.ModelChoiceField(queryset=Namespace.objects.none(), empty_label=None)
    scope = forms.ChoiceField(
        choices=[
            (ErasureRequest.Scope.NAMESPACE, "this namespace"),
            (ErasureRequest.Scope.ORG, "every namespace of its organisation"),
        ],
        initial=ErasureRequest.Scope.NAMESPACE,
        widget=forms.RadioSelect,
        label="Where",
        help_text="The second is for admins of the organisation.",
    )
    user_id = forms.CharField(
        required=False,
        max_length=128,
        label="User",
        help_text="The end user’s id: their memories, facts, notes on runs and what they said.",
    )
    memory_ids = forms.CharField(
        required=False,
        label="Ids",
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Ids of memories, procedures or facts, separated by spaces or commas.",
    )
    subject = forms.CharField(
        required=False, max_length=512, help_text="Facts about this subject, whoever remembered them."
    )
    keep_raw = forms.BooleanField(
        required=False,
        label="Keep the raw archive",
        help_text="Unticked, what the user said goes there too, which takes an admin of the organisation.",
    )
    reason = forms.CharField(
        max_length=limits.REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit for good: name no personal data, but say the number of a letter.",
    )

    def __init__(self, *args: Any, spaces: QuerySet[Namespace], seen: Sight, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["namespace"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared so above
        field.queryset = spaces

    def clean_memory_ids(self) -> list[str]:
        """The ids as a list."""
        ids = self.cleaned_data["memory_ids"].replace(",", " ").split()
        if any(not one.isascii() or not one.isdigit() for one in ids):
            raise forms.ValidationError("Ids are numbers, separated by spaces or commas.")
        return list(ids)

    def payload(self) -> dict[str, Any]:
        """The op's input."""
        given = self.cleaned_data
        payload: dict[str, Any] = {
            "scope": given["scope"], "raw": not given["keep_raw"], "reason": given["reason"]
        }  # fmt: skip
        return payload | {
            name: given[name] for name in ("user_id", "memory_ids", "subject") if given.get(name)
        }


class EraseForm(PasswordCheck):
    """The last word: exactly what was shown, with the password."""

    digest = forms.CharField(max_length=64, widget=forms.HiddenInput)
