"""App configuration of governance."""

from django.apps import AppConfig


class GovernanceConfig(AppConfig):
    """Tenancy, tokens, the pipeline, jobs, locks and audit."""

    name = "governance"
    default_auto_field = "django.db.models.BigAutoField"
