"""Faults of the database: which transaction is run again, and which refusal each stands for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from django.db import Error as DatabaseFault
from django.db import connection
from psycopg_pool import PoolTimeout

from loomsite.ops import OpError

RETRY_STATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
SHUTDOWN_STATES = frozenset({"57P01", "57P02", "57P03"})
# Statement and lock timeouts, an idle transaction, a server that turned into a read-only standby.
BUSY_STATES = RETRY_STATES | {"57014", "55P03", "25P03", "25006"}
BUSY_CLASSES = frozenset({"53"})  # out of connections, memory or disk
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
    """What `transaction` returns; run again after a deadlock or a serialization failure.

    Raises OpError 503 BUSY when the database did not get to it.
    """
    attempt = 1
    while True:
        try:
            return transaction()
        except DatabaseFault as error:
            if not may_retry(error, attempt):
                raise refusal_of(error) from error
            wait(attempt)
        attempt += 1


def is_lost(error: DatabaseFault) -> bool:
    """True when the connection broke, not the statement."""
    cause, state = error.__cause__, sqlstate(error)
    if isinstance(cause, PoolTimeout):
        return False
    broken = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    return broken and (not state or state.startswith("08") or state in SHUTDOWN_STATES)


def refusal_of(error: DatabaseFault) -> Exception:
    """A database error as the refusal it stands for; the error itself when it is a defect."""
    state, cause = sqlstate(error), error.__cause__
    if state == "LM423":
        return OpError("LOCKED", str(cause).split("\n", 1)[0], blocked={"by": "database"})
    if isinstance(cause, PoolTimeout):
        return OpError("BUSY", "No database connection came free in time; try again.", retry_after_s=1)
    if is_lost(error):
        return OpError("BUSY", "The database cannot be reached at the moment; try again.", retry_after_s=2)
    if state in BUSY_STATES or state[:2] in BUSY_CLASSES:
        return OpError("BUSY", "The database did not get to it in time; try again.", retry_after_s=1)
    return error
