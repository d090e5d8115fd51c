"""App configuration of facts."""

from django.apps import AppConfig


class FactsConfig(AppConfig):
    """Values that keep their past, on two axes of time."""

    name = "facts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let `memory.lock`, holds, sources and `reembed` find facts."""
        from facts import embedding_fill, guarding
        from memories import reembed

        guarding.register()
        reembed.register(embedding_fill.FactVectors())
