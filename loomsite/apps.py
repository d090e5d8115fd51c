"""App configuration of the project package and of its admin site."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class LoomsiteConfig(AppConfig):
    """The project package: commands, doors, and the import of every app's ops."""

    name = "loomsite"

    def ready(self) -> None:
        """Import each app's op declarations, so that the registry is whole before the first call."""
        # The Celery app must exist before a request sends a job.
        import loomsite.celery  # noqa: F401
        from loomsite.ops import load_ops

        load_ops()


class LoomAdminConfig(AdminConfig):
    """Django's admin, served by Loomsite's own site class."""

    default_site = "loomsite.doors.console.LoomAdminSite"
