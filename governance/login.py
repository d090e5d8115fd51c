"""The console's login form, and the form for a new password."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm, AdminPasswordChangeForm
from django.core.exceptions import ValidationError
from django.db import transaction

from governance import administration, throttle


class ThrottledLogin(AdminAuthenticationForm):
    """Django's login form; after too many failures of a name from an address it looks at no password."""

    def clean(self) -> dict[str, Any]:
        """Count the attempt, then let Django judge it; a right password clears the count."""
        name = self.cleaned_data.get("username")
        if not name or not self.cleaned_data.get("password"):
            return super().clean()
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        key = throttle.key_of("login", name.casefold(), address)
        wait = throttle.admit(key)
        if wait:
            raise ValidationError(f"Too many failed logins. Try again in {wait} seconds.", code="throttled")
        data = super().clean()
        throttle.forget(key)
        return data


class ThrottledPasswordChange(AdminPasswordChangeForm):
    """Django's form; wrong tries at the old password count with those of every other password check."""

    def clean_old_password(self) -> str:
        """Count the attempt, then let Django judge it."""
        key = throttle.key_of("confirm", str(self.user.pk))
        wait = throttle.admit(key)
        if wait:
            raise ValidationError(f"Too many wrong passwords. Try again in {wait} seconds.", code="throttled")
        old: str = super().clean_old_password()
        throttle.forget(key)
        return old

    def save(self, commit: bool = True) -> Any:
        """Store the password and its audit row together."""
        with transaction.atomic():
            user = super().save(commit)
            if commit:
                administration.own_password_changed(account=user)
        return user
