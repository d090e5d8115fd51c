"""What the tests of governance share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connections
from pytest_django import Settings

from loomsite.ops import AgentText, Context, Op, OpInput, OpOutput, Role, WriteInput, registry
from tests.governance.workers import Notes

Result = TypeVar("Result")
TEXT = AgentText(what="A probe.", when='"Probe."', when_not="Outside tests.", args="any.")


@pytest.fixture
def anchor(settings: Settings, tmp_path: Path) -> Path:
    """An anchor file of the test's own."""
    path = tmp_path / "anchor.jsonl"
    settings.LOOM_AUDIT_ANCHOR = path
    return path


def at_once(count: int, work: Callable[[int], Result]) -> list[Result]:
    """`work(0..count-1)` in as many threads, let go together; the results in order. Errors are raised."""
    start, results, errors = threading.Barrier(count), {}, []

    def body(i: int) -> None:
        try:
            start.wait(30)
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return [results[i] for i in range(count)]


class ProbeInput(WriteInput):
    """Anything."""

    note: str = ""
    dry_run: bool = False


class ProbeOutput(OpOutput):
    """How often the probe ran."""

    runs: int


Make = Callable[..., Op]


@pytest.fixture
def probe() -> Iterator[Make]:
    """Declares an op for the test; `handler(ctx, data)` is what it does."""
    made: list[str] = []

    def make(
        handler: Callable[[Context, Any], dict[str, Any]], name: str = "probe.write", **options: Any
    ) -> Op:
        given: dict[str, Any] = {
            "input": ProbeInput, "output": ProbeOutput, "role": Role.WRITER, "kind": "write", **options
        }  # fmt: skip
        op = Op(name=name, summary="A probe.", text=TEXT, handler=handler, **given)
        registry._REGISTRY[name] = op
        made.append(name)
        return op

    yield make
    for name in made:
        registry._REGISTRY.pop(name, None)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


__all__ = ["Make", "OpInput", "ProbeInput", "ProbeOutput", "at_once"]
