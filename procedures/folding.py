"""Folding runs into what evolve judges by. Pure: the state after some runs does not depend on the calls.

`fold` is a left fold over the ledger in its order: folding it in any pieces gives the same state, byte for
byte when stored. The state holds counts only, so it grows with the ids that paths name and not with the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from procedures.counting import Tally

SOURCES_NEEDED = 2
"""More distinct sources than this are not kept: the rules ask for two."""
TEMPLATE_RUNS = 10
TEMPLATE_RATE = 0.8
TEMPLATE_KEPT_RATE = 0.7
NO_SESSION = ("", "-")
"""Values of `session_id` that name no session."""


class FoldedRun(NamedTuple):
    """A row of the ledger, as folding reads it."""

    path: Sequence[str]
    ok: bool
    revision: int = 1
    principal: str = ""
    session: str = "-"


class Source(NamedTuple):
    """Who reported: a session of a principal; `session` is "" where the caller had none."""

    principal: str
    session: str


@dataclass
class Sources:
    """Distinct sources of some evidence, up to `SOURCES_NEEDED` of them.

    Two sessions of one principal are two. A caller without a session counts by its principal, so reports of
    one principal with and without a session are not told apart.
    """

    kept: list[Source] = field(default_factory=list)

    def add(self, principal: str, session: str) -> None:
        """Count a report."""
        kept = self.kept
        if len(kept) >= SOURCES_NEEDED:
            return
        source = Source(principal, "" if session in NO_SESSION else session)
        if source in kept:
            return
        if not source.session:
            if all(other.principal != principal for other in kept):
                kept.append(source)
            return
        bare = Source(principal, "")
        if bare in kept:
            kept[kept.index(bare)] = source
        else:
            kept.append(source)

    @property
    def count(self) -> int:
        """How many, `SOURCES_NEEDED` standing for that and more."""
        return len(self.kept)

    def stored(self) -> list[list[str]]:
        """As JSON: [[principal, session]]."""
        return [list(source) for source in self.kept]

    @classmethod
    def read(cls, stored: Iterable[Sequence[str]]) -> Sources:
        """From `stored`."""
        return cls([Source(principal, session) for principal, session in stored])


@dataclass
class RevisionState:
    """What the folded runs of one revision say."""

    tally: Tally = field(default_factory=Tally)
    strikes: int = 0
    """Failed runs at the end, without a success after them."""
    strike_sources: Sources = field(default_factory=Sources)
    """Who reported those."""
    ok_sources: Sources = field(default_factory=Sources)
    """Who reported successes."""
    proven: bool = False
    """The smoothed rate reached 0.8 at 10 runs or later, and has not been below 0.7 since.

    Kept run by run: judged at each evolve, it would depend on when somebody asked.
    """

    def add(self, run: FoldedRun) -> None:
        """Fold one run into this state."""
        path, ok, _, principal, session = run
        tally = self.tally
        tally.add(path, ok)
        if self.proven or tally.total >= TEMPLATE_RUNS:
            # Less a hair: 0.7 of 10 is not 7 in binary.
            needed = TEMPLATE_KEPT_RATE if self.proven else TEMPLATE_RATE
            self.proven = tally.ok + 1 >= needed * (tally.total + 2) - 1e-9
        if ok:
            if self.strikes:
                self.strikes = 0
                self.strike_sources = Sources()
            self.ok_sources.add(principal, session)
        else:
            self.strikes += 1
            self.strike_sources.add(principal, session)

    def copy(self) -> RevisionState:
        """Another state that says the same."""
        return RevisionState(
            self.tally.copy(),
            self.strikes,
            Sources(list(self.strike_sources.kept)),
            Sources(list(self.ok_sources.kept)),
            self.proven,
        )

    def restored(self) -> RevisionState:
        """What the revision that a revert opens starts with: these counters, and no strike.

        Whoever sums revisions up counts either this one or the one it restores, not both.
        """
        return RevisionState(
            self.tally.copy(), ok_sources=Sources(list(self.ok_sources.kept)), proven=self.proven
        )

    def stored(self) -> dict[str, Any]:
        """As JSON: `Tally.stored`, whose part `Tally.read` reads, and the other fields by name."""
        return self.tally.stored() | {
            "strikes": self.strikes,
            "strike_sources": self.strike_sources.stored(),
            "ok_sources": self.ok_sources.stored(),
            "proven": self.proven,
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> RevisionState:
        """From `stored`; an empty object is the state before the first run."""
        return cls(
            Tally.read(stored),
            int(stored.get("strikes", 0)),
            Sources.read(stored.get("strike_sources", ())),
            Sources.read(stored.get("ok_sources", ())),
            bool(stored.get("proven", False)),
        )


@dataclass
class Retention:
    """Of consecutive runs of the ledger whose first succeeded, how many of the second did."""

    pairs: int = 0
    kept: int = 0
    last_ok: bool = False
    """Whether the last folded run succeeded; False before the first."""

    def add(self, ok: bool) -> None:
        """Fold one run into this state."""
        if self.last_ok:
            self.pairs += 1
            self.kept += ok
        self.last_ok = ok

    @property
    def rate(self) -> float | None:
        """kept / pairs; None without a pair."""
        return self.kept / self.pairs if self.pairs else None

    def shown(self) -> dict[str, Any]:
        """As `procedure.evolve` answers: {pairs, kept, rate}, without a rate where there is no pair."""
        shown: dict[str, Any] = {"pairs": self.pairs, "kept": self.kept}
        return shown if self.rate is None else shown | {"rate": round(self.rate, 6)}

    def stored(self) -> dict[str, Any]:
        """As JSON: {pairs, kept, last_ok}."""
        return {"pairs": self.pairs, "kept": self.kept, "last_ok": self.last_ok}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Retention:
        """From `stored`; an empty object is the state before the first run."""
        return cls(
            int(stored.get("pairs", 0)), int(stored.get("kept", 0)), bool(stored.get("last_ok", False))
        )


@dataclass
class State:
    """What the folded runs of a procedure say, revision by revision."""

    revisions: dict[int, RevisionState] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)

    def revision(self, number: int) -> RevisionState:
        """The state of a revision; the empty one where nothing was folded."""
        return self.revisions.get(number) or RevisionState()

    def tally(self, numbers: Iterable[int]) -> Tally:
        """The sum over these revisions. Statistics follow node ids across revisions."""
        merged = Tally()
        for number in numbers:
            if number in self.revisions:
                merged.merge(self.revisions[number].tally)
        return merged

    def copy(self) -> State:
        """Another state that says the same."""
        return State(
            {number: state.copy() for number, state in self.revisions.items()},
            Retention(self.retention.pairs, self.retention.kept, self.retention.last_ok),
        )

    def stored(self) -> dict[str, Any]:
        """As JSON: {revisions: {number: ...}, retention}. A caller may keep the parts where they belong."""
        return {
            "revisions": {str(number): self.revisions[number].stored() for number in sorted(self.revisions)},
            "retention": self.retention.stored(),
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> State:
        """From `stored`; an empty object is the state before the first run."""
        revisions = stored.get("revisions", {})
        return cls(
            {int(number): RevisionState.read(part) for number, part in revisions.items()},
            Retention.read(stored.get("retention", {})),
        )


def fold(state: State, runs: Iterable[FoldedRun]) -> State:
    """The state after these further runs, in ledger order; the given one is left as it is.

    A copy costs as much as the graph is large, so fold in batches of some thousand runs.
    """
    folded = state.copy()
    revisions, retained = folded.revisions, folded.retention
    for run in runs:
        revision = revisions.get(run.revision)
        if revision is None:
            revision = revisions[run.revision] = RevisionState()
        revision.add(run)
        retained.add(run.ok)
    return folded
