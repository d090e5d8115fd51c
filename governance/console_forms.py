"""Forms of the console's pages about governance."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms

from governance import administration, throttle
from governance.console import Sight
from governance.console_selectors import token_principals
from governance.models import SOURCE_CLASSES, Namespace, Org, Token, User
from loomsite.ops import Role, limits


class UtcInput(forms.DateTimeInput):
    """A date and time picker; what is typed counts as UTC."""

    input_type = "datetime-local"

    def __init__(self) -> None:
        super().__init__(format="%Y-%m-%dT%H:%M", attrs={"data-utc": ""})


class ReasonForm(forms.Form):
    """Why something is done."""

    reason = forms.CharField(
        max_length=limits.REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the history and in the audit.",
    )


class PasswordCheck(forms.Form):
    """The reader's own password once more (step-up). Wrong tries are throttled per user.

    A subclass that needs it only for some of what it can do says so in `is_risky`.
    """

    password = forms.CharField(
        strip=False,
        label="Your password",
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
        help_text="Asked again, so that nobody else at this open browser can do it.",
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def is_risky(self, data: dict[str, Any]) -> bool:
        """Whether what the (valid) form asks for needs the password."""
        return True

    def full_clean(self) -> None:
        """Check the password last, so that a form with another error costs no attempt."""
        super().full_clean()
        if not self.is_bound or self.errors or not self.is_risky(self.cleaned_data):
            return
        password = self.cleaned_data.get("password")
        if not password:
            self.add_error("password", "Your password is needed for this.")
            return
        key = throttle.key_of("confirm", str(self.user.pk))
        wait = throttle.admit(key)
        if wait:
            self.add_error("password", f"Too many wrong passwords. Try again in {wait} seconds.")
        elif not self.user.check_password(password):
            self.add_error("password", "That is not your password. Nothing was changed.")
        else:
            throttle.forget(key)


class PasswordWhenRisky(PasswordCheck):
    """A form that asks for the password for some of what it can do."""

    WHEN = ""

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, user=user, **kwargs)
        field = self.fields["password"]
        field.required = False
        field.help_text = self.WHEN
        # Its help says when it is needed; "optional" beside it would say otherwise.
        field.widget.attrs["data-conditional"] = ""


class AuditFilter(forms.Form):
    """What the audit list is narrowed to."""

    org = forms.CharField(required=False, label="Organisation", widget=forms.TextInput({"list": "orgs"}))
    namespace = forms.CharField(required=False, widget=forms.TextInput({"list": "namespaces"}))
    op = forms.CharField(required=False, label="Op", widget=forms.TextInput({"list": "ops"}))
    outcome = forms.CharField(required=False, widget=forms.TextInput({"list": "outcomes"}))
    principal = forms.CharField(required=False)
    target = forms.CharField(required=False, label="Target, exactly")
    request_id = forms.CharField(required=False, label="Request id")
    since = forms.DateField(required=False, label="From (UTC)", widget=forms.DateInput({"type": "date"}))
    until = forms.DateField(required=False, label="To (UTC)", widget=forms.DateInput({"type": "date"}))


class TokenForm(PasswordWhenRisky):
    """A new token."""

    WHEN = "Needed for a token that speaks for another person, writes as a person, or may create namespaces."

    label = forms.CharField(max_length=128, help_text="What will use it, such as “codex on my laptop”.")
    org = forms.ModelChoiceField(queryset=Org.objects.none(), label="Organisation", empty_label=None)
    principal = forms.CharField(
        max_length=150,
        label="Speaks for",
        widget=forms.TextInput({"list": "principals"}),
        help_text="A user name. The token can never do more than this user may.",
    )
    role = forms.ChoiceField(
        choices=[(value, value) for value in Token.Ceiling.values],
        initial=Token.Ceiling.WRITER,
        label="At most",
        help_text="Reviewers and admins act in the console; no token carries those roles.",
    )
    namespaces = forms.CharField(
        required=False,
        widget=forms.Textarea({"rows": 2}),
        help_text="One a line. Empty: every namespace that the user’s roles allow.",
    )
    default_namespace = forms.CharField(
        required=False, max_length=128, help_text="Used when a call names none."
    )
    expires_at = forms.DateTimeField(
        required=False, label="Expires (UTC)", widget=UtcInput(), help_text="Empty: until it is revoked."
    )
    agent = forms.CharField(required=False, max_length=128, help_text="Binds the token to one agent’s rows.")
    user_id = forms.CharField(
        required=False, max_length=128, label="End user", help_text="Binds the token to one end user’s rows."
    )
    source_class = forms.ChoiceField(
        choices=[(value, value.replace("_", " ")) for value in SOURCE_CLASSES],
        initial="local_tool_output",
        label="Most trusted source",
        help_text="The highest source class that its writes may claim.",
    )
    acts_for = forms.ChoiceField(
        choices=Token.ActsFor.choices,
        initial=Token.ActsFor.AGENT,
        label="Writes count as by",
    )
    may_create_namespaces = forms.BooleanField(required=False, label="May create namespaces")

    ADVANCED = ("agent", "user_id", "source_class", "acts_for", "may_create_namespaces")

    def __init__(self, *args: Any, sight: Sight, **kwargs: Any) -> None:
        super().__init__(*args, user=sight.user, **kwargs)
        self.sight = sight
        field = self.fields["org"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - narrows a type
        field.queryset = sight.orgs()

    def clean_principal(self) -> User:
        """The user of that name, among those this admin may make tokens for."""
        found = token_principals(self.sight).filter(username=self.cleaned_data["principal"]).first()
        if found is None:
            raise forms.ValidationError("No active user of that name holds a role in your organisation.")
        return found

    def clean_namespaces(self) -> list[str] | None:
        """The names, each once; None for no narrowing."""
        lines = (line.strip() for line in self.cleaned_data["namespaces"].splitlines())
        names = list(dict.fromkeys(filter(None, lines)))
        for name in names:
            if len(name) > limits.IDENTITY_CHARS:
                raise forms.ValidationError(
                    f"“{name[:20]}…” is longer than {limits.IDENTITY_CHARS} characters."
                )
        return names or None

    def clean_expires_at(self) -> datetime | None:
        """An instant ahead, in UTC."""
        return future_utc(self.cleaned_data["expires_at"])

    def clean(self) -> dict[str, Any]:
        """The default must be one of the names."""
        data = super().clean() or {}
        names, default = data.get("namespaces"), data.get("default_namespace")
        if names and default and default not in names:
            self.add_error("default_namespace", "Must be one of the namespaces above.")
        return data

    def is_risky(self, data: dict[str, Any]) -> bool:
        """What the token can do in the name of a person, or beyond the roles that were given."""
        principal = data["principal"]
        is_another = principal != self.user and principal.kind == User.Kind.PERSON
        return bool(is_another or data["acts_for"] == Token.ActsFor.PERSON or data["may_create_namespaces"])

    def given(self) -> dict[str, Any]:
        """What the form holds, as `administration.token_issue` takes it."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "password"}
        return {**given, "role": Role.of(given["role"])}

    def basic_fields(self) -> list[forms.BoundField]:
        """The fields that everybody fills."""
        return [self[name] for name in self.fields if name not in (*self.ADVANCED, "password")]

    def advanced_fields(self) -> list[forms.BoundField]:
        """The fields with good defaults."""
        return [self[name] for name in self.ADVANCED]


def future_utc(moment: datetime | None) -> datetime | None:
    """The instant if it lies ahead; a form error otherwise."""
    if moment is not None and moment <= datetime.now(UTC):
        raise forms.ValidationError("Must lie in the future (UTC).")
    return moment


class RoleForm(PasswordWhenRisky):
    """A member's role on a namespace."""

    WHEN = "Needed to give the role admin."

    kind = forms.ChoiceField(choices=[("user", "user"), ("group", "group")], label="Kind")
    name = forms.CharField(max_length=150, label="Name")
    role = forms.ChoiceField(
        choices=[(role.label, role.label) for role in (Role.VIEWER, Role.WRITER, Role.REVIEWER, Role.ADMIN)]
        + [(Role.NONE.label, "none: take every role away")],
        initial="viewer",
    )

    field_order = ("kind", "name", "role", "password")

    def __init__(self, *args: Any, namespace: Namespace, user: User, **kwargs: Any) -> None:
        super().__init__(*args, user=user, **kwargs)
        self.namespace = namespace

    def is_risky(self, data: dict[str, Any]) -> bool:
        """An admin can loosen locks and make admins."""
        return bool(data["role"] == Role.ADMIN.label)

    def clean(self) -> dict[str, Any]:
        """Finds the member, as `member`, among those that the organisation knows."""
        data = super().clean() or {}
        name = data.get("name")
        if name and "kind" in data:
            data["member"] = administration.member_named(
                by=self.user, org=self.namespace.org, kind=data["kind"], name=name
            )
            if data["member"] is None:
                self.add_error("name", administration.NOBODY)
        return data
