"""The Celery worker with its beat, started as `python -m loomsite.embedded.worker SCHEDULE_FILE`.

Celery's own `--beat` runs the beat in a process of its own that nobody watches: killed, it stays dead and
the sweep that finds lost jobs never runs again. Here it is a thread of the worker's main process, which
lives and dies with it and saves that process's memory; should it ever fail, it takes the worker down, and
the supervisor starts both again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from celery.beat import Service
from celery.signals import worker_ready, worker_shutting_down

from loomsite.celery import app

logger = logging.getLogger(__name__)


def _keep_beating(service: Service) -> None:
    """The thread's body: beat until the worker shuts down."""
    try:
        service.start(embedded_process=False)
    except Exception:
        logger.exception("the beat failed; ending the worker, which will be started again")
        os.kill(os.getpid(), signal.SIGTERM)
        raise


def main(schedule_file: str) -> None:
    """Run the worker in this process until it is told to end."""
    service = Service(app, schedule_filename=schedule_file)

    def begin(**_: object) -> None:
        threading.Thread(target=_keep_beating, args=(service,), name="beat", daemon=True).start()

    def end(**_: object) -> None:
        service.stop()

    worker_ready.connect(begin, weak=False)
    worker_shutting_down.connect(end, weak=False)
    app.worker_main(
        ["worker", "--concurrency", "1", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
    )


if __name__ == "__main__":
    main(sys.argv[1])
