"""App configuration of memories."""

from django.apps import AppConfig


class MemoriesConfig(AppConfig):
    """Keyed, versioned, searchable, lockable memories."""

    name = "memories"
    default_auto_field = "django.db.models.BigAutoField"
