"""Fixtures every test may use. The database server itself is started by tests/plugin.py."""

from __future__ import annotations

import pytest
from django.db import connection


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Let this process TRUNCATE: the triggers refuse it elsewhere, transactional tests clean up with it.

    An option of the connection and not of the database: only a superuser may store a setting that no
    extension has declared. Processes that a test starts do not get it, so they run under the rules of
    production.
    """
    options = connection.settings_dict["OPTIONS"]
    options["options"] = f"{options.get('options', '')} -c loom.allow_truncate=on".strip()
