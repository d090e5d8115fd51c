"""Fixtures of other parts that the tests of procedures use."""

from tests.governance.conftest import broker, worker

__all__ = ["broker", "worker"]
