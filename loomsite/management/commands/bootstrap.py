"""`manage.py bootstrap`: the owner, the organisation, the first namespace and the owner's token."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from governance.models import Namespace, Org, Token, User
from governance.services import token_create
from governance.tenancy import LOCAL_NAMESPACE, LOCAL_ORG, usable_tokens
from loomsite.settings.env import LOOPBACK_HOSTS

OWNER = "owner"


def _refuse_open_server() -> None:
    """A server that other machines reach has no single-user mode, so it starts with a token or not at all."""
    if settings.IS_LOOPBACK or usable_tokens():
        return
    name = "LOOM_MCP_BIND" if settings.LOOM_BIND[0] in LOOPBACK_HOSTS else "LOOM_BIND"
    host, port = getattr(settings, name)
    raise CommandError(
        f"{name}={host}:{port} lets other machines in, and no usable token exists yet: start once with "
        f"{name}=127.0.0.1:{port}, which makes the owner's token, then start again."
    )


class Command(BaseCommand):
    """Safe to run at every start: makes what is missing and prints one JSON line.

    The line has `token`, `org`, `namespace`, `admin_user` and `admin_password`, the last null when the
    account existed already. The token is kept in LOOM_HOME (mode 0600), for the database has its hash only.
    """

    help = "Make the owner account, organisation, namespace and token that are missing."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print what the supervisor needs."""
        with transaction.atomic():
            _refuse_open_server()
            org, _ = Org.objects.get_or_create(slug=LOCAL_ORG)
            owner, password = self._owner()
            Namespace.objects.get_or_create(org=org, slug=LOCAL_NAMESPACE)
            token = self._token(org, owner)
        self.stdout.write(
            json.dumps(
                {
                    "token": token,
                    "org": org.slug,
                    "namespace": LOCAL_NAMESPACE,
                    "admin_user": owner.username,
                    "admin_password": password,
                }
            )
        )

    def _owner(self) -> tuple[User, str | None]:
        owner = User.objects.filter(is_superuser=True).order_by("pk").first()
        if owner is not None:
            return owner, None
        given = os.environ.get("LOOM_ADMIN_PASSWORD", "")
        if given:
            try:
                validate_password(given)
            except ValidationError as error:
                raise CommandError(f"LOOM_ADMIN_PASSWORD: {' '.join(error.messages)}") from error
        password = given or secrets.token_urlsafe(12)
        return User.objects.create_superuser(OWNER, password=password), password

    def _token(self, org: Org, owner: User) -> str:
        path = settings.LOOM_HOME / "owner.token"
        try:
            kept = path.read_text().strip()
        except FileNotFoundError:
            kept = ""
        if kept.count("_") >= 2:
            _, prefix, secret = kept.split("_", 2)
            known = Token.objects.filter(prefix=prefix, revoked_at=None, expires_at=None).first()
            digest = hashlib.sha256(secret.encode()).digest()
            if known and hmac.compare_digest(bytes(known.secret_sha256), digest):
                return kept
        _, full = token_create(
            principal=owner,
            org=org,
            label="owner (made by the first run)",
            default_namespace=LOCAL_NAMESPACE,
            source_class="user_prompt",
            may_create_namespaces=True,
            created_by=owner,
        )
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(full)
        return full
