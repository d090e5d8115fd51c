"""Ops that exist only while a test of the doors runs: they answer what they were given, wait, or fail."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from loomsite.ops import AgentText, Context, Op, OpInput, OpOutput, Role, Selector, WriteInput, registry
from loomsite.ops.schema import Instant, Json, Number, Tags

TEXT = AgentText(what="A probe.", when='"Probe the doors."', when_not="Outside tests.", args="any.")


class Inner(Selector):
    """A nested selector."""

    key_prefix: str | None = None
    limit: int = Field(5, ge=1, le=9)
    tags_any: Tags | None = None


class ProbeInput(OpInput):
    """A field of each kind."""

    count: int = Field(description="How many.")
    ratio: Number | None = None
    flag: bool = False
    words: list[str] | None = None
    numbers: list[int] | None = None
    mode: Literal["a", "b"] = "a"
    level: Literal[1, 2] = 1
    at: Instant | None = None
    value: Json = None
    text: str | None = None
    ids: list[str | int] | None = None
    versions: dict[str, int] | None = None
    filter: Inner | None = None
    items: list[Inner] | None = None
    sleep_s: float = 0.0
    fail: bool = False


class ProbeOutput(OpOutput):
    """What came in, and nulls where an answer may have them."""

    given: dict[str, Any]
    value: Json = None
    until: datetime | None = None
    label: str | int | None = None
    inner: Inner | None = None


def probe(ctx: Context, data: ProbeInput) -> dict[str, Any]:
    """Answer, wait or fail."""
    time.sleep(data.sleep_s)
    print("a stray print of an op")  # noqa: T201 - stdio must keep it off the wire
    if data.fail:
        raise RuntimeError("a defect")
    given = data.model_dump(mode="json", exclude_unset=True, exclude={"value"})
    return {"given": given, "value": data.value, "until": None, "label": None, "inner": {"key_prefix": None}}


class TouchInput(WriteInput):
    """A write that changes nothing."""

    note: str


class TouchOutput(OpOutput):
    """How often it ran."""

    runs: int


RUNS: list[str] = []


def touch(ctx: Context, data: TouchInput) -> dict[str, Any]:
    """Count the run."""
    RUNS.append(data.note)
    return {"runs": len(RUNS)}


def _op(name: str, **options: Any) -> Op:
    return Op(name=name, role=Role.VIEWER, summary=f"The probe {name}.", text=TEXT, scoped=False, **options)


PROBES = (
    _op("probe.echo", input=ProbeInput, output=ProbeOutput, kind="read", handler=probe, toolset="core"),
    _op("probe.touch", input=TouchInput, output=TouchOutput, kind="write", handler=touch, toolset="all"),
    _op("probe.hidden", input=ProbeInput, output=ProbeOutput, kind="read", handler=probe, toolset="by_name"),
)


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """The probes stand in the registry for a while."""
    RUNS.clear()
    for op in PROBES:
        registry._REGISTRY[op.name] = op
    try:
        yield
    finally:
        for op in PROBES:
            del registry._REGISTRY[op.name]


def serve_over_stdio() -> None:
    """`manage.py mcp` with the probes, in a process that prints before, during and after."""
    import django

    import manage

    def noisy_setup(set_prefix: bool = True) -> None:
        setup(set_prefix)
        print("noise before the command")  # noqa: T201
        sys.stdout.write("noise without a line break")

    setup, django.setup = django.setup, noisy_setup
    sys.argv = ["manage.py", "mcp"]
    with registered():
        manage.main()
    print("noise after the command")  # noqa: T201


if __name__ == "__main__":
    serve_over_stdio()
