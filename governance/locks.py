"""Locks: what each mode refuses, and what counts as tighter. Computes without the database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from governance.clock import iso
from governance.patterns import scan
from loomsite.ops import Effect, OpError, invalid

RANK = {"none": 0, "no_delete": 1, "read_only": 2}
# The lock matrix: effects that each mode refuses. Everything else passes.
REFUSED: dict[str, frozenset[Effect]] = {
    "none": frozenset(),
    "no_delete": frozenset({Effect.EXPIRY_EARLIER, Effect.EXISTENCE}),
    "read_only": frozenset(
        {Effect.VALUE, Effect.EXPIRY_EARLIER, Effect.EXPIRY_LATER, Effect.EXISTENCE}
    ),
}  # fmt: skip
# Characters of a reason that a message repeats; the field beside it has the whole.
REASON_SHOWN = 300
LOOSENED_BY = "an admin of the namespace, in the console under Locks"


@dataclass(frozen=True)
class LockState:
    """A row's lock in force at the database's present instant; mode `none` when there is none."""

    mode: str = "none"
    reason: str = ""
    until: datetime | None = None
    locked_by: str = ""
    locked_at: datetime | None = None
    holds: int = 0

    @property
    def in_force(self) -> bool:
        """True when a lock or a hold guards the row."""
        return self.mode != "none" or self.holds > 0

    def refuses(self, effect: Effect) -> bool:
        """True when this state refuses the effect; a hold acts as `no_delete`."""
        return effect in REFUSED[self.mode] or (self.holds > 0 and effect in REFUSED["no_delete"])

    def shown(self) -> dict[str, Any] | None:
        """The lock as answers show it, or None."""
        if not self.in_force:
            return None
        return {"mode": self.mode, "reason": self.reason, "until": iso(self.until), "holds": self.holds}


def quoted(text: str) -> str:
    """What somebody wrote, as data within a message: in quotes, and not longer than it needs to be."""
    shown = text if len(text) <= REASON_SHOWN else text[: REASON_SHOWN - 1] + "…"
    return json.dumps(shown, ensure_ascii=False)


def require_plain(reason: str) -> None:
    """OpError 400 for a reason that reads like an order: it is handed to every agent that is refused."""
    found = sorted({match.pattern for match in scan(reason)})
    if found:
        raise invalid(
            "reason",
            f"reads like an order to an agent ({', '.join(found)}), and every agent that is refused gets it "
            "to read. Describe why instead.",
        )


def described(state: LockState) -> str:
    """What guards a row, in words that follow its name."""
    words = []
    if state.mode != "none":
        until = f"until {iso(state.until)}" if state.until else "until it is loosened"
        words.append(f"is locked ({state.mode}, {until}): {quoted(state.reason)}")
    if state.holds:
        words.append(
            f"is under {state.holds} legal hold{'s' if state.holds > 1 else ''} (lock.list names them)"
        )
    return " and ".join(words)


def locked(state: LockState, effect: Effect, op: str, memory_key: str, memory_id: int) -> OpError:
    """The 423 for an effect that the state refuses."""
    return OpError(
        "LOCKED",
        f"{memory_key} {described(state)}. {op} would change its {_WORDS[effect]}. "
        f"It can be loosened by {LOOSENED_BY}.",
        memory_key=memory_key,
        memory_id=str(memory_id),
        mode=state.mode,
        reason=state.reason,
        until=iso(state.until),
        holds=state.holds,
        blocked={"op": op, "effect": str(effect)},
        loosened_by=LOOSENED_BY,
    )


_WORDS = {
    Effect.VALUE: "value",
    Effect.EXPIRY_EARLIER: "expiry (to an earlier moment)",
    Effect.EXPIRY_LATER: "expiry (to a later moment)",
    Effect.EXISTENCE: "existence",
    Effect.LOCK: "lock",
    Effect.NONE: "nothing",
}


def compare(
    mode: str, until: datetime | None, other_mode: str, other_until: datetime | None
) -> tuple[int, int]:
    """How (mode, until) stands to another lock: -1, 0 or 1 for the mode and for the end. No end is latest."""
    by_mode = (RANK[mode] > RANK[other_mode]) - (RANK[mode] < RANK[other_mode])
    if until == other_until:
        return by_mode, 0
    if until is None:
        return by_mode, 1
    if other_until is None:
        return by_mode, -1
    return by_mode, (until > other_until) - (until < other_until)
