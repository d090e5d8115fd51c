"""Loads the embedding model in the background, so that no first answer waits for it."""

from __future__ import annotations

import logging
import threading

from memories.embedders import EmbedderUnavailable, get_embedder

log = logging.getLogger("loomsite.warm")
_started = threading.Event()


def _load() -> None:
    try:
        get_embedder().embed(["warm up"])
    except EmbedderUnavailable as error:
        log.warning("no embeddings for now: %s", error)


def warm_up() -> None:
    """Start loading once a process; returns at once."""
    if _started.is_set():
        return
    _started.set()
    threading.Thread(target=_load, name="embedder-warm-up", daemon=True).start()
