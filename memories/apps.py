"""App configuration of memories."""

from django.apps import AppConfig


class MemoriesConfig(AppConfig):
    """Keyed, versioned, searchable, lockable memories."""

    name = "memories"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Report on the embedder in ops.health."""
        from governance.selectors import HEALTH_PROBES
        from memories import planning

        HEALTH_PROBES["embedder"] = _embedder
        planning.register()


def _embedder() -> str:
    """Whether a text can be embedded now; an embedder that was switched off is as it should be."""
    from django.conf import settings

    from memories.embedders import EmbedderUnavailable, get_embedder

    if settings.LOOM_EMBEDDER == "none":
        return "ok"
    try:
        get_embedder().embed(["health"])
    except EmbedderUnavailable as error:
        return f"unavailable: {error}"[:200]
    return "ok"
