"""The section of `context.pack` that procedures add."""

from __future__ import annotations

from collections.abc import Iterator

from loomsite.ops import Context
from memories.pack import Item, Wanted, section
from procedures.selectors import MatchRequest, procedure_match, procedure_versions

SHOWN = 3


@section("Procedures", order=25, share=0.15)
def procedures_section(ctx: Context, wanted: Wanted) -> Iterator[Item]:
    """What fits the situation (else the query) in this namespace, with its steps."""
    situation = wanted.situation.strip() or wanted.query
    found = procedure_match(ctx, MatchRequest(situation=situation, top_k=SHOWN, all_mine=False))["matches"]
    versions = procedure_versions(ctx, [one["memory_key"] for one in found])
    for one in found:
        id_, version = versions[one["memory_key"]]
        steps = "; ".join(f"{number}. {step}" for number, step in enumerate(one["steps"], 1))
        text = f"{one['name']} ({one['status']}): {one['situation']} Steps: {steps}"
        yield Item(text, f"{one['memory_key']} v{version}", str(id_))
