"""How many calls a token may make. Counted in this process, for every door, off in single-user mode.

A token bucket kept as one number per token and kind (the generic cell rate algorithm, ITU-T I.371): a
bucket of `calls` that refills evenly over `seconds`. So a quiet token may send a whole period's calls at
once, and within any stretch of t seconds no more than calls * (1 + t / seconds) get through.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from django.conf import settings

from loomsite.ops import Context, OpError

# A full bucket needs no entry; this many are kept before those are dropped.
KEPT = 10_000
_WORDS = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}


class Limiter:
    """The buckets of one process. `clock` gives seconds that never run backwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._full_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def admit(self, key: tuple[str, str], calls: int, seconds: float) -> float:
        """Take one call from the bucket; 0.0, or after how many seconds the next one fits.

        A refused call takes nothing, so waiting always helps.
        """
        interval = seconds / calls
        with self._lock:
            now = self.clock()
            full_at = max(self._full_at.get(key, now), now) + interval
            wait = full_at - seconds - now
            if wait > interval * 1e-6:  # sums of floats
                return wait
            if len(self._full_at) >= KEPT:
                self._full_at = {k: at for k, at in self._full_at.items() if at > now}
            self._full_at[key] = full_at
        return 0.0


_limiter = Limiter()


def admit(ctx: Context) -> None:
    """Count the call; OpError 429 with `retry_after_s` when the caller's token has used its share up.

    The console and calls without a token are not counted: the first has people behind it, the second is
    for single-user mode.
    """
    caller = ctx.caller
    if caller.single_user or not caller.token_prefix:
        return
    kind = "read" if ctx.op.is_read else "write"
    rate = settings.LOOM_RATE_READS if ctx.op.is_read else settings.LOOM_RATE_WRITES
    if rate is None:
        return
    calls, seconds = rate
    wait = _limiter.admit((caller.token_prefix, kind), calls, seconds)
    if wait:
        raise OpError(
            "RATE_LIMITED",
            f"This token may make {calls:,} {kind}s a {_WORDS[seconds]}; wait before the next one. "
            "Batches (memory.set_many) count as one call.",
            retry_after_s=max(1, math.ceil(wait)),
            limit=calls,
            per_s=int(seconds),
        )
