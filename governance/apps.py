"""App configuration of governance."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


class GovernanceConfig(AppConfig):
    """Tenancy, tokens, the pipeline, jobs, locks and audit."""

    name = "governance"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Bound every statement of the database role, and free migrations of the bound."""
        pre_migrate.connect(_unbound, sender=self)
        post_migrate.connect(_bound, sender=self)


def _unbound(using: str, **_: Any) -> None:
    """A migration may build an index for an hour; only its own session is freed of the timeout."""
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")


def _bound(using: str, **_: Any) -> None:
    """Session defaults of the role in this database: they hold behind a pooler too, where nothing may rely
    on what a session has set.

    Timeouts bound every statement. At the sizes of a request, compiling a plan or starting parallel workers
    costs more than it gives (20,000 memories: keyword leg 41 ms with both, 31 ms without).
    """
    from django.conf import settings
    from django.db import connections

    connection = connections[using]
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    limit = int(settings.LOOM_STATEMENT_TIMEOUT_MS)
    defaults = {
        "statement_timeout": limit,
        "idle_in_transaction_session_timeout": 2 * limit,
        "jit": "off",
        "max_parallel_workers_per_gather": 0,
    }
    with connection.cursor() as cursor:
        for setting, value in defaults.items():
            cursor.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET {setting} = {value}")
            # This session began before the default and was freed of it for the migrations.
            cursor.execute(f"SET {setting} = {value}")
