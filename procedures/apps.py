"""App configuration of procedures."""

from django.apps import AppConfig


class ProceduresConfig(AppConfig):
    """How-to knowledge: recipes with a graph, and the ledger of the runs that followed them."""

    name = "procedures"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Keys of procedures are written by procedure ops only."""
        from memories import reembed, screening
        from memories.services import manage_keys
        from procedures.graph import KEY_PREFIX
        from procedures.services import SituationVectors, texts_beside

        reembed.register(SituationVectors())
        screening.register_beside(texts_beside)

        manage_keys(
            KEY_PREFIX,
            "belong to procedures; use procedure.add (or procedure.revise once it has run).",
            may_end=True,
        )
