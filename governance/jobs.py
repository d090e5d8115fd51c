"""Background work: the Job row is the truth, the queue carries its id.

A lost message is found again by `sweep`; a redelivered one finds the row taken and does nothing; the
job of a dead worker is taken over once its heartbeat is overdue. Each attempt owns the row through a
lease, so that a worker that was given up for dead can neither beat nor finish.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection
from kombu.exceptions import OperationalError as BrokerError

from governance.selectors import worker_seen
from loomsite.ops import OpError

log = logging.getLogger("loomsite.jobs")


@dataclass(frozen=True)
class JobRun:
    """One attempt at a job."""

    id: int
    org_id: int
    namespace_id: int | None
    kind: str
    input: dict[str, Any]
    attempt: int
    max_attempts: int
    lease: uuid.UUID
    kept: dict[str, Any] | None = None
    """What an earlier attempt kept before it ended without a word."""

    def keep(self, result: dict[str, Any]) -> None:
        """Store what the attempt has achieved, in the transaction that achieves it: call it last there.

        An attempt that follows finds it as `kept` and need not do it again. Raises LostLease, which has to
        roll the transaction back, when another worker owns the job by now.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_job SET result = %s, heartbeat_at = clock_timestamp() "
                "WHERE id = %s AND lease = %s AND state = 'running'",
                [json.dumps(result), self.id, self.lease],
            )
            if cursor.rowcount != 1:
                raise LostLease(f"job {self.id} belongs to another worker by now")

    def progress(self, share: float) -> bool:
        """Note progress (0..1) and beat; False when another worker owns the job by now."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_job SET progress = %s, heartbeat_at = clock_timestamp() "
                "WHERE id = %s AND lease = %s AND state = 'running'",
                [share, self.id, self.lease],
            )
            return bool(cursor.rowcount == 1)


class NotNow(Exception):
    """Raised by a handler whose work cannot be done yet through no fault of its own, such as a service that
    is down: the same job is tried again after `delay_s`, and the attempt does not count.
    """

    def __init__(self, reason: str, delay_s: float) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class LostLease(Exception):
    """The attempt was given up for dead and another has begun; what this one did must not stay."""


JobHandler = Callable[[JobRun], dict[str, Any]]
_HANDLERS: dict[str, JobHandler] = {}


def job(kind: str) -> Callable[[JobHandler], JobHandler]:
    """Declare the handler of a kind of job; it must be safe to run again."""

    def register(handler: JobHandler) -> JobHandler:
        if kind in _HANDLERS:
            raise RuntimeError(f"The job kind {kind} is declared twice.")
        _HANDLERS[kind] = handler
        return handler

    return register


# After a failed send the broker is left alone for this long: the caller waits for it once and not each
# time, and the sweep sends what was left out.
BROKER_REST_S = 5.0
# So long a caller waits for the broker; a stopped one is silent for as long as its socket's timeout says.
SEND_S = 0.3
_broker_rests_until = 0.0


def send(job_id: int, delay_s: float = 0.0) -> bool:
    """Put the job's id on the queue; False when the broker does not take it in time and the sweep will send
    again. A send that succeeds later all the same does no harm: a job is claimed once.
    """
    global _broker_rests_until
    from governance.tasks import run_job

    if time.monotonic() < _broker_rests_until:
        return False
    told: list[BrokerError | None] = []

    def attempt() -> None:
        try:
            run_job.apply_async(args=(job_id,), countdown=delay_s, retry=False, ignore_result=True)
        except BrokerError as error:
            told.append(error)
        else:
            told.append(None)

    # A thread a send, not a pool: it must work after a fork, and costs less than the send itself.
    thread = threading.Thread(target=attempt, name="send-job", daemon=True)
    thread.start()
    thread.join(SEND_S)
    if told and told[0] is None:
        return True
    _broker_rests_until = time.monotonic() + BROKER_REST_S
    why = told[0] if told else f"no answer within {SEND_S:g} s"
    log.warning("job %s stays for the sweep: the broker did not take it (%s)", job_id, why)
    return False


def claim(job_id: int) -> JobRun | None:
    """Take the job if it is due and free, or if its worker is overdue; None otherwise."""
    lease = uuid.uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            """UPDATE governance_job
               SET state = 'running', lease = %s, attempts = attempts + 1, heartbeat_at = clock_timestamp()
               WHERE id = %s AND (
                 (state = 'queued' AND run_after <= clock_timestamp())
                 OR (state = 'running' AND heartbeat_at < clock_timestamp() - make_interval(secs => %s)))
               RETURNING org_id, namespace_id, kind, input, attempts, max_attempts, result""",
            [lease, job_id, settings.LOOM_JOB_STALE_S],
        )
        row = cursor.fetchone()
    if row is None:
        return None
    org_id, namespace_id, kind, given, attempt, limit, kept = row
    given = json.loads(given) if isinstance(given, str) else given
    kept = json.loads(kept) if isinstance(kept, str) else kept
    return JobRun(job_id, org_id, namespace_id, kind, given, attempt, limit, lease, kept)


def run(job_id: int) -> str:
    """Run one attempt of the job; the state it is left in, or `not_mine`."""
    attempt = claim(job_id)
    if attempt is None:
        return "not_mine"
    handler = _HANDLERS.get(attempt.kind)
    if attempt.attempt > attempt.max_attempts:
        # Every earlier attempt died without a word, which no handler's error can tell.
        return _finish(attempt, "failed", None, "The workers of all attempts died.", 0.0)
    try:
        if handler is None:
            raise LookupError(f"no handler for the job kind {attempt.kind}")
        with _beating(attempt):
            result = handler(attempt)
    except NotNow as later:
        log.warning("job %s (%s) waits %s s: %s", attempt.id, attempt.kind, later.delay_s, later)
        return _postpone(attempt, str(later)[:2000], later.delay_s)
    except LostLease as error:
        log.warning("%s", error)
        return "not_mine"
    except OpError as error:
        if error.status >= 500:
            log.exception("job %s (%s) attempt %s failed", attempt.id, attempt.kind, attempt.attempt)
            return _failed(attempt, error, attempt.attempt >= attempt.max_attempts)
        # A refusal is the same at every attempt.
        return _finish(attempt, "failed", None, f"{error.code}: {error.message}"[:2000], 0.0)
    except Exception as error:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()  # it may be what broke
        log.exception("job %s (%s) attempt %s failed", attempt.id, attempt.kind, attempt.attempt)
        return _failed(attempt, error, attempt.attempt >= attempt.max_attempts or handler is None)
    return _finish(attempt, "done", result, "", 0.0)


def _failed(attempt: JobRun, error: Exception, last: bool) -> str:
    delay = min(300.0, 2.0**attempt.attempt)
    text = f"{type(error).__name__}: {error}"[:2000]
    state = _finish(attempt, "failed" if last else "queued", None, text, delay)
    if state == "queued":
        send(attempt.id, delay)
    return state


def _postpone(attempt: JobRun, reason: str, delay_s: float) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            """UPDATE governance_job
               SET state = 'queued', error = %s, lease = NULL, attempts = attempts - 1,
                   run_after = clock_timestamp() + make_interval(secs => %s), enqueued_at = NULL
               WHERE id = %s AND lease = %s AND state = 'running'""",
            [reason, delay_s, attempt.id, attempt.lease],
        )
        # The sweep sends it when its time has come; a message would only wait in the worker.
        return "queued" if cursor.rowcount == 1 else "not_mine"


def _finish(attempt: JobRun, state: str, result: dict[str, Any] | None, error: str, delay_s: float) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            """UPDATE governance_job
               SET state = %s, result = coalesce(%s::jsonb, result), error = %s, lease = NULL,
                   progress = CASE WHEN %s = 'done' THEN 1 ELSE progress END,
                   run_after = clock_timestamp() + make_interval(secs => %s),
                   enqueued_at = clock_timestamp(),
                   finished_at = CASE WHEN %s IN ('done', 'failed') THEN clock_timestamp() END
               WHERE id = %s AND lease = %s AND state = 'running'""",
            [
                state, None if result is None else json.dumps(result), error, state, delay_s, state,
                attempt.id, attempt.lease,
            ],
        )  # fmt: skip
        return state if cursor.rowcount == 1 else "not_mine"


@contextmanager
def _beating(attempt: JobRun) -> Iterator[None]:
    """Beat from a thread while the handler works, however long one of its steps takes."""
    stop = threading.Event()

    def beat() -> None:
        try:
            while not stop.wait(settings.LOOM_JOB_STALE_S / 4):
                _beat(attempt)
        finally:
            connection.close()

    thread = threading.Thread(target=beat, name=f"beat-{attempt.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _beat(attempt: JobRun) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE governance_job SET heartbeat_at = clock_timestamp() "
                "WHERE id = %s AND lease = %s AND state = 'running'",
                [attempt.id, attempt.lease],
            )
    except DatabaseFault as error:
        # A database that restarts must not end the beats of a job that goes on.
        connection.close()
        log.warning("job %s could not beat: %s", attempt.id, error)


# Waiting

WAIT_S = 30.0
"""No call waits longer for a job."""
WAITERS = 8
"""Calls of one process that may wait at once; who comes later is answered without waiting."""
_waiters = threading.BoundedSemaphore(WAITERS)
FINISHED = frozenset({"done", "failed"})


@dataclass(frozen=True)
class Seen:
    """A job as it stood."""

    state: str
    result: dict[str, Any] | None
    error: str

    @property
    def finished(self) -> bool:
        """True once nothing more will happen to it."""
        return self.state in FINISHED


def look(job_id: int) -> Seen | None:
    """The job as it stands; None for one that is not there."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT state, result, error FROM governance_job WHERE id = %s", [job_id])
        row = cursor.fetchone()
    if row is None:
        return None
    return Seen(row[0], json.loads(row[1]) if isinstance(row[1], str) else row[1], row[2])


def wait(job_id: int, seconds: float) -> Seen | None:
    """The job once it has ended, or as it stands after `seconds` (WAIT_S at most).

    Polls the row, so that it works behind a transaction-mode pooler, and holds no connection in between.
    Returns at once when WAITERS wait already, and when no worker is alive that could end it.
    """
    seen = look(job_id)
    if seen is None or seen.finished or seconds <= 0 or not _waiters.acquire(blocking=False):
        return seen
    try:
        until, asked, pause = time.monotonic() + min(seconds, WAIT_S), float("-inf"), 0.01
        while seen is not None and not seen.finished and (left := until - time.monotonic()) > 0:
            if time.monotonic() - asked >= 1.0:
                asked = time.monotonic()
                if not worker_seen()["alive"]:
                    return seen
            if not connection.in_atomic_block:
                connection.close()
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.2)
            seen = look(job_id)
    finally:
        _waiters.release()
    return seen


def forget_finished() -> int:
    """Delete jobs that ended longer than LOOM_JOB_KEEP_DAYS ago; how many went."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM governance_job WHERE id IN (SELECT id FROM governance_job "
            "WHERE state IN ('done', 'failed') "
            "AND finished_at < clock_timestamp() - make_interval(days => %s) LIMIT 5000)",
            [settings.LOOM_JOB_KEEP_DAYS],
        )
        return int(cursor.rowcount)


def sweep() -> list[int]:
    """Send again what the queue may have lost: due and unsent for a while, or held by a silent worker."""
    with connection.cursor() as cursor:
        cursor.execute(
            """UPDATE governance_job SET enqueued_at = clock_timestamp()
               WHERE id IN (
                 SELECT id FROM governance_job
                 WHERE (state = 'queued' AND run_after <= clock_timestamp()
                        AND coalesce(enqueued_at, run_after)
                            < clock_timestamp() - make_interval(secs => %s))
                    OR (state = 'running'
                        AND heartbeat_at < clock_timestamp() - make_interval(secs => %s))
                 ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED)
               RETURNING id""",
            [settings.LOOM_SWEEP_S, settings.LOOM_JOB_STALE_S],
        )
        lost = sorted(row[0] for row in cursor.fetchall())
    for job_id in lost:
        send(job_id)
    return lost
