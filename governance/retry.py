"""Deadlocks and serialization failures: a transaction that met one is run again, a few times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import Error as DatabaseFault
from django.db import connection

RETRY_STATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
ATTEMPTS = 8
Result = TypeVar("Result")


def sqlstate(error: DatabaseFault) -> str:
    """The SQLSTATE of a database error, "" where the server sent none."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def may_retry(error: DatabaseFault, attempt: int) -> bool:
    """Whether the transaction can be run once more after this error on its `attempt`, counted from 1."""
    return sqlstate(error) in RETRY_STATES and attempt < ATTEMPTS and not connection.in_atomic_block


def wait(attempt: int) -> None:
    """Full jitter: writers that met once should not meet again at the same moment."""
    time.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311 - not a secret


def retried(transaction: Callable[[], Result]) -> Result:
    """What `transaction` returns; run again after a deadlock or a serialization failure."""
    attempt = 1
    while True:
        try:
            return transaction()
        except DatabaseFault as error:
            if not may_retry(error, attempt):
                raise
            wait(attempt)
        attempt += 1
