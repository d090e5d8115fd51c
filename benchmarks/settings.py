"""The product's settings with the floor view beside its addresses. For benchmarks only; never for service."""

from loomsite.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.urls"
