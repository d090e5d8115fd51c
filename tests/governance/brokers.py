"""Points the Celery application of this process at another broker for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import kombu.pools

from loomsite.celery import REDIS_SOCKETS, SENDING, app

URLS = ("broker_url", "broker_read_url", "broker_write_url")


def _forget_connections() -> None:
    app.pool.force_close_all()  # type: ignore[attr-defined]
    app._pool = None  # type: ignore[attr-defined]
    app.amqp._producer_pool = None  # type: ignore[attr-defined]
    kombu.pools.reset()


@contextlib.contextmanager
def use_broker(url: str) -> Iterator[None]:
    """Send there; afterwards to the suite's own broker again."""
    usual = {name: getattr(app.conf, name) for name in (*URLS, "broker_transport_options")}
    _forget_connections()
    app.conf.update({name: url for name in URLS})
    app.conf.broker_transport_options = SENDING if url.startswith("amqp") else {**SENDING, **REDIS_SOCKETS}
    try:
        yield
    finally:
        _forget_connections()
        app.conf.update(usual)
