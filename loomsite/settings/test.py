"""Settings of the test suite: production rules, cheap password hashes, no throttling by time."""

from loomsite.settings.base import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ALLOWED_HOSTS = ["*"]
