"""Settings: everything is driven by LOOM_* environment variables (table in the README)."""

from loomsite.settings.base import *  # noqa: F403
