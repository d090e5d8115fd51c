"""The Celery application: carries job ids; the Job table is the truth."""

import os

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
app = Celery("loomsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    result_backend=None,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    timezone="UTC",
)
app.autodiscover_tasks(["governance", "memories"])


@worker_init.connect
def _announce(**_: object) -> None:
    """Say that a worker is here before the first periodic beat."""
    from governance.services import worker_heartbeat

    worker_heartbeat()
