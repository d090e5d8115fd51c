"""App configuration of facts."""

from django.apps import AppConfig


class FactsConfig(AppConfig):
    """Values that keep their past, on two axes of time."""

    name = "facts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let `memory.lock`, holds and sources find facts."""
        from facts import guarding

        guarding.register()
