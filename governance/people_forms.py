"""Forms of the console's pages about organisations, namespaces and accounts."""

from __future__ import annotations

from typing import Any

from django import forms

from governance.console import Sight
from governance.console_forms import PasswordCheck
from governance.models import Org, User
from loomsite.ops import limits

NAME_HELP = f"At most {limits.IDENTITY_CHARS} characters, no line breaks. It cannot be changed later."


def org_field(help_text: str = "") -> forms.ModelChoiceField[Org]:
    """One of the organisations that the reader administers; `_OrgForm` fills it."""
    return forms.ModelChoiceField(
        queryset=Org.objects.none(), label="Organisation", empty_label=None, help_text=help_text
    )


class _OrgForm(forms.Form):
    """A form with an organisation that the reader administers."""

    def __init__(self, *args: Any, sight: Sight, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["org"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - narrows a type
        field.queryset = sight.orgs()


class NamespaceForm(_OrgForm):
    """A new namespace."""

    org = org_field()
    name = forms.CharField(max_length=limits.IDENTITY_CHARS, strip=False, help_text=NAME_HELP)


class OrgForm(forms.Form):
    """A new organisation."""

    name = forms.CharField(
        max_length=limits.IDENTITY_CHARS, strip=False, help_text=f"{NAME_HELP} No “/” or “:”."
    )


class AccountForm(_OrgForm):
    """A new account."""

    kind = forms.ChoiceField(
        choices=[
            (User.Kind.PERSON, "person: logs in to this console"),
            (User.Kind.SERVICE, "service account: only has tokens"),
        ],
        initial=User.Kind.PERSON,
        widget=forms.RadioSelect,
    )
    name = forms.CharField(max_length=128, help_text="Letters, digits and @ . + - _ only.")
    email = forms.EmailField(required=False)
    org = org_field("Its admins can find the account and give it roles.")


class StandingForm(PasswordCheck, _OrgForm):
    """What an account or group is in an organisation."""

    org = org_field()
    standing = forms.ChoiceField(
        label="Is",
        choices=[
            ("member", "known there: its admins may give it roles"),
            ("admin", "its admin: administers every namespace of it"),
            ("none", "neither; roles on namespaces stay until they are taken away"),
        ],
        widget=forms.RadioSelect,
        initial="member",
    )
    field_order = ("org", "standing", "password")


class GroupForm(PasswordCheck, _OrgForm):
    """Into a group, or out of it."""

    name = forms.CharField(max_length=128, label="Group", help_text="One of a new name is made.")
    org = org_field("The organisation that a new group belongs to.")
    membership = forms.ChoiceField(
        label="The account is", choices=[("in", "in it"), ("out", "not in it")], initial="in"
    )
    field_order = ("name", "org", "membership", "password")
