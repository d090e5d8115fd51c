"""What the apps above bring to plans: how their rows stand now, what is in them, and what depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from governance.locks import LockState


@dataclass(frozen=True)
class Present:
    """A governed row as it stands now."""

    id: int
    key: str
    title: str
    version: int
    content_sha256: str
    lock: LockState
    status: str
    flagged: bool = False


@dataclass(frozen=True)
class Dependant:
    """Something that cites or stands on a row: `what` says how, `url` leads to its page ("" for none)."""

    kind: str
    key: str
    what: str
    url: str = ""


# The rows with these ids, by id; with the second argument true their row locks are taken, in id order.
PresentOf = Callable[[Sequence[int], bool], Mapping[int, Present]]
# Their present content (any JSON), for one page of a plan.
ContentOf = Callable[[Sequence[int]], Mapping[int, Any]]
# What depends on these ids, by id; a bounded number each.
DependantsOf = Callable[[Sequence[int]], Mapping[int, Sequence[Dependant]]]
DEPENDANTS_SHOWN = 20


@dataclass(frozen=True)
class Kind:
    """One app's governed rows. `page` is the name of their console page, which takes the id."""

    name: str
    present: PresentOf
    content: ContentOf
    page: str = ""


@dataclass
class _Registry:
    kinds: dict[str, Kind] = field(default_factory=dict)
    dependants: dict[str, DependantsOf] = field(default_factory=dict)


_registry = _Registry()


def register_kind(kind: Kind) -> None:
    """Called once by an app when it is ready."""
    _registry.kinds[kind.name] = kind


def register_dependants(app: str, source: DependantsOf) -> None:
    """Called once by an app whose rows may cite others."""
    _registry.dependants[app] = source


def kind(name: str) -> Kind:
    """The kind of this name; KeyError for one that no app registered."""
    return _registry.kinds[name]


def dependants(ids: Sequence[int]) -> dict[int, list[Dependant]]:
    """What depends on these ids, of every app; at most `DEPENDANTS_SHOWN` of each app for one id."""
    found: dict[int, list[Dependant]] = {id_: [] for id_ in ids}
    for source in _registry.dependants.values():
        for id_, rows in source(ids).items():
            found[id_].extend(rows)
    return found
