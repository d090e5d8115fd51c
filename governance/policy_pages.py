"""Console page of a namespace's policy: what its writers do at once, and what waits for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404

from governance.console import sight
from governance.console_forms import PasswordWhenRisky
from governance.console_pages import PageAdmin
from governance.models import Namespace, Policy, User
from governance.policies import BOUNDS, policy_set
from governance.review import LEVELS, TABLE, PolicyRow, Rules, rules_of
from loomsite.ops import OpError, Role, limits

LEVEL_WORDS = {
    "direct": "at once",
    "review": "waits for a person",
    "review_always": "waits, whoever asks",
}


class PolicyForm(PasswordWhenRisky):
    """The whole policy of a namespace; its present one where nothing was typed."""

    WHEN = "Needed to make anything looser than it is."

    approvals = forms.IntegerField(label="Approvals that a plan needs")
    plan_hours = forms.IntegerField(label="Hours that a plan waits")
    apply_at_once = forms.IntegerField(
        label="Rows that count as few",
        help_text="memory.apply deletes or expires up to so many by the row for a few.",
    )
    reason = forms.CharField(
        max_length=limits.REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit with what was and what is.",
    )
    field_order = ("approvals", "plan_hours", "apply_at_once", "reason", "password")

    def __init__(self, *args: Any, user: User, rules: Rules, **kwargs: Any) -> None:
        numbers = {name: getattr(rules, name) for name in BOUNDS}
        levels = {_name(action): rules.level(action) for action in TABLE}
        super().__init__(*args, user=user, initial={**numbers, **levels}, **kwargs)
        self.rules = rules
        for name, (low, high) in BOUNDS.items():
            field = self.fields[name]
            field.widget = forms.NumberInput(attrs={"min": low, "max": high})
            field.validators = [_between(low, high)]
        for action, row in TABLE.items():
            self.fields[_name(action)] = forms.ChoiceField(
                label=row.title, choices=[(level, LEVEL_WORDS[level]) for level in _allowed(row)]
            )

    def levels(self) -> dict[str, str]:
        """What was chosen, by action."""
        return {action: self.cleaned_data[_name(action)] for action in TABLE}

    def rows(self) -> Iterator[tuple[PolicyRow, forms.BoundField]]:
        """Each action of the table with its field."""
        return ((row, self[_name(action)]) for action, row in TABLE.items())

    def is_risky(self, data: dict[str, Any]) -> bool:
        """Whether anything gets looser than it is now."""
        looser = any(
            LEVELS.index(data[_name(action)]) < LEVELS.index(self.rules.level(action)) for action in TABLE
        )
        return (
            looser
            or data["approvals"] < self.rules.approvals
            or data["plan_hours"] > self.rules.plan_hours
            or data["apply_at_once"] > self.rules.apply_at_once
        )


def _name(action: str) -> str:
    return f"level-{action}"


def _allowed(row: PolicyRow) -> tuple[str, ...]:
    return LEVELS[LEVELS.index(row.level) :] if row.starred else LEVELS


def _between(low: int, high: int) -> Callable[[int], None]:
    def check(value: int) -> None:
        if not low <= value <= high:
            raise forms.ValidationError(f"Must be from {low:,} to {high:,}.")

    return check


def policy_page(pages: PageAdmin) -> Callable[[HttpRequest, int], HttpResponse]:
    """The view of a namespace's policy, in the frame of `pages`; its admins set it."""

    def view(request: HttpRequest, pk: int) -> HttpResponse:
        seen = sight(request)
        namespace = get_object_or_404(seen.namespaces(), pk=pk)
        may_set = seen.role_in(namespace) >= Role.ADMIN
        rules = rules_of(namespace.pk)
        form = PolicyForm(request.POST or None, user=seen.user, rules=rules)
        status = 200
        if request.method == "POST":
            if not may_set:
                raise PermissionDenied("Only an admin of the namespace sets its policy.")
            status = (
                _set(namespace, seen.user, form, request.POST.get("version", "")) if form.is_valid() else 400
            )
            if status == 302:
                messages.success(request, "Set. It holds from the next call on.")
                return HttpResponseRedirect(request.path)
        return pages.show(
            request,
            "policy.html",
            f"Policy of {namespace}",
            status=status,
            namespace=namespace,
            form=form,
            rules=rules,
            may_set=may_set,
            rows=[
                (row, field, rules.level(row.action), LEVEL_WORDS[rules.level(row.action)])
                for row, field in form.rows()
            ],
            numbers=[form[name] for name in BOUNDS],
            policy=Policy.objects.filter(namespace=namespace).first(),
        )

    return view


def _set(namespace: Namespace, by: User, form: PolicyForm, version: str) -> int:
    """302 when it was set, else the refusal's status, which the form then says."""
    given = form.cleaned_data
    try:
        policy_set(
            namespace=namespace,
            by=by,
            levels=form.levels(),
            reason=given["reason"],
            expected_version=int(version) if version.isascii() and version.isdigit() else -1,
            **{name: given[name] for name in BOUNDS},
        )
    except OpError as error:
        form.add_error(None, error.message)
        return error.status
    return 302
