"""A procedure with a past for the tests of its console pages: flags, a rejected revision, a pending one."""

from __future__ import annotations

from typing import Any

from procedures.models import Procedure
from tests.console.conftest import Cast
from tests.procedures.evolving import evolve_by_itself
from tests.procedures.helpers import KEY, RECIPE, graph

FIRST = "look>fix fix>check look>ask ask>check look>guess guess>check"
PENDING_RUNS = (True, False, True, True)


def changed(edges: str, **texts: str) -> dict[str, Any]:
    """A graph whose nodes say something else where `texts` does."""
    made = graph(edges)
    for node in made["nodes"]:
        node["text"] = texts.get(node["id"], node["text"])
    return made


def report(cast: Cast, path: str, ok: bool, session: str, note: str = "") -> None:
    """One run."""
    answer = cast.call(
        "procedure.record_run", memory_key=KEY, path=path.split(), ok=ok, session_id=session, note=note
    )
    assert answer.ok, answer.body


def with_a_past(cast: Cast) -> Procedure:
    """Revision 2 was reverted by its failures, 3 restored the first, 4 is pending with `PENDING_RUNS`."""
    assert cast.call("procedure.add", **{**RECIPE, "graph": graph(FIRST)}).ok
    for number in range(24):
        path = "look ask check" if number % 3 == 2 else "look fix check"
        note = "nobody <b>answered</b>" if number % 3 == 2 else ""
        report(cast, path, number % 3 != 2, f"session {number % 2}", note)
    evolve_by_itself()
    worse = changed("look>fix fix>check look>ask ask>check look>jump jump>check", fix="do fix at once")
    assert cast.call("procedure.revise", memory_key=KEY, graph=worse, reason="Faster").ok
    for number in range(12):
        report(cast, "look fix check", False, f"session {number % 2}", "broke again")
    evolve_by_itself()
    procedure = Procedure.objects.get()
    assert procedure.revision == 3, "the worse graph was reverted"
    better = changed("look>fix fix>test test>check look>ask ask>check", check="do check and tell")
    assert cast.call("procedure.revise", memory_key=KEY, graph=better, reason="With a test").ok
    for number, ok in enumerate(PENDING_RUNS):
        report(cast, "look fix test check", ok, f"session {number % 2}")
    return Procedure.objects.get()
