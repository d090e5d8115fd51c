"""Forms of the review pages."""

from __future__ import annotations

from typing import Any

from django import forms

from governance.console_forms import PasswordWhenRisky
from governance.models import Plan
from governance.plan_words import is_large
from loomsite.ops import limits

NO_REASON = "A rejection needs a reason, for whoever asked."


class DecisionForm(PasswordWhenRisky):
    """Approve or reject, with a comment. Approving takes the password, and a large plan's count."""

    WHEN = "Needed to approve."

    comment = forms.CharField(
        required=False,
        max_length=limits.REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="For whoever asked. A rejection needs one.",
    )
    count = forms.IntegerField(label="Rows it changes", min_value=0)
    field_order = ("comment", "count", "password")

    def __init__(self, *args: Any, plan: Plan, decision: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan, self.decision = plan, decision
        if not is_large(plan):
            del self.fields["count"]
        else:
            self.fields["count"].required = decision != "reject"
            self.fields["count"].help_text = "Needed to approve."

    def is_risky(self, data: dict[str, Any]) -> bool:
        """A rejection changes nothing that is stored."""
        return self.decision == "approve"

    def clean(self) -> dict[str, Any]:
        """What each decision needs."""
        cleaned = super().clean() or {}
        if self.decision == "reject" and not (cleaned.get("comment") or "").strip():
            self.add_error("comment", NO_REASON)
        if self.decision == "approve" and "count" in self.fields and cleaned.get("count") is not None:
            if cleaned["count"] != self.plan.changes:
                self.add_error("count", "That is not the number of rows that this plan changes.")
        return cleaned


class ManyForm(PasswordWhenRisky):
    """One decision about the plans that were ticked in the queue."""

    WHEN = "Needed to approve."

    comment = forms.CharField(
        required=False,
        max_length=limits.REASON_CHARS,
        help_text="For whoever asked. A rejection needs one.",
    )
    field_order = ("comment", "password")

    def __init__(self, *args: Any, decision: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.decision = decision

    def is_risky(self, data: dict[str, Any]) -> bool:
        """A rejection changes nothing that is stored."""
        return self.decision == "approve"

    def clean(self) -> dict[str, Any]:
        """A rejection says why."""
        cleaned = super().clean() or {}
        if self.decision == "reject" and not (cleaned.get("comment") or "").strip():
            self.add_error("comment", NO_REASON)
        return cleaned


class QueueForm(forms.Form):
    """What the queue shows."""

    state = forms.ChoiceField(
        required=False,
        choices=[
            ("pending", "waiting"),
            *((s, s) for s in Plan.State.values if s not in Plan.OPEN),
            ("all", "all"),
        ],
    )
    namespace = forms.CharField(
        required=False, max_length=260, widget=forms.TextInput(attrs={"list": "namespaces"})
    )
    requested_by = forms.CharField(required=False, label="Asked by", max_length=150)
    action = forms.ChoiceField(required=False, label="Action")
    at_least = forms.IntegerField(required=False, label="Rows at least", min_value=0)

    def __init__(self, *args: Any, actions: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["action"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - as declared above
        field.choices = [("", "any"), *((action, action) for action in actions)]
