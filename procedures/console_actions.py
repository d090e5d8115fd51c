"""What the console changes about a procedure that is no op: its stored gate settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import connection, transaction

from governance import audit
from governance import services as governance
from governance.console import sight_of
from governance.locks import locked
from governance.models import User
from loomsite.ops import Door, Effect, OpError, Role
from procedures.evolving import locked_rows
from procedures.gate_settings import require_settings
from procedures.models import Procedure
from procedures.services import audit_of

SETTINGS_OP = "procedure.settings"


def settings_store(*, by: User, procedure: Procedure, stored: Mapping[str, Any] | None, reason: str) -> bool:
    """Store gate settings with a procedure, or take them away (None); False when they stood so already.

    They go before `metadata.evolve`. For writers of the namespace. OpError 400 for settings that are not
    valid, 403, 404 for a procedure that has ended, 423 under a read_only lock.
    """
    if sight_of(by).role_in(procedure.namespace) < Role.WRITER:
        raise OpError("FORBIDDEN", "Only a writer of the namespace changes how its procedures are judged.")
    if stored is not None:
        require_settings(dict(stored), "settings")
    namespace = procedure.namespace
    ctx = governance.system_context(
        org=namespace.org, namespace=namespace, op_name=SETTINGS_OP, principal=by.username
    )
    ctx.caller = replace(ctx.caller, principal_id=by.pk, door=Door.CONSOLE, acts_for="person")
    ctx.reason = reason
    with transaction.atomic():
        _, row, present = locked_rows(ctx, procedure.pk)
        if present.evolve_settings == stored:
            return False
        if row.lock.refuses(Effect.VALUE):
            raise locked(row.lock, Effect.VALUE, SETTINGS_OP, row.key, row.id)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE procedures_procedure SET evolve_settings = %s WHERE memory_id = %s",
                [None if stored is None else json.dumps(stored), present.id],
            )
        change = {"settings": {"before": present.evolve_settings, "after": stored}}
        audit.append(ctx, [audit_of(present, change)])
    return True
