"""The Celery application: carries job ids; the Job table is the truth."""

import logging
import os
import time

from celery import Celery
from celery.signals import heartbeat_sent, worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
log = logging.getLogger("loomsite.worker")
app = Celery("loomsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Whoever sends is a web request: one try, bounded in time. Without `max_retries` kombu would try to connect
# for as long as the broker is down, whatever `apply_async(retry=False)` says. The worker's own reconnects do
# not read these options.
SENDING = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
REDIS_SOCKETS = {"socket_connect_timeout": 2, "socket_timeout": 3, "socket_keepalive": True}
app.conf.update(
    task_ignore_result=True,
    result_backend=None,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=2,
    broker_transport_options=SENDING,
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    timezone="UTC",
)
if str(app.conf.broker_url).startswith(("redis", "valkey", "sentinel")):
    app.conf.broker_transport_options = {**SENDING, **REDIS_SOCKETS}
app.autodiscover_tasks(["governance", "memories", "facts", "procedures"])

BEAT_S = 5.0
_beaten_at = float("-inf")


@worker_init.connect
def _start(**_: object) -> None:
    """Before the worker forks: plain connections, and a first sign of life.

    A pool has threads and sockets, which children would inherit dead and shared; a worker's process runs
    one task at a time and needs one connection.
    """
    from django.db import connections

    for connection in connections.all():
        connection.settings_dict["OPTIONS"].pop("pool", None)
    _beat()


@heartbeat_sent.connect
def _beat(**_: object) -> None:
    """Say that the worker lives, from its main process: all its children may be busy for an hour."""
    global _beaten_at
    from django.db import Error, connection

    from governance.services import worker_heartbeat

    if time.monotonic() - _beaten_at < BEAT_S:
        return
    _beaten_at = time.monotonic()
    try:
        worker_heartbeat()
    except Error as error:
        log.warning("the worker's heartbeat was not stored: %s", error)
    finally:
        # A child that is forked later must not inherit the socket.
        connection.close()
