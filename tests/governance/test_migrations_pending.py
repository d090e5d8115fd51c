"""What readiness asks of the migrations."""

from __future__ import annotations

import threading

import pytest

from governance import selectors


def test_the_graph_is_built_until_nothing_is_pending_and_never_again(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    plans = [["one"], []]

    class Executor:
        def __init__(self, _connection: object) -> None:
            built.append(1)
            self.loader = self.graph = self

        def leaf_nodes(self) -> list[str]:
            return []

        def migration_plan(self, _targets: object) -> list[str]:
            return plans.pop(0)

    monkeypatch.setattr(selectors, "_migrated", threading.Event())
    monkeypatch.setattr(selectors, "MigrationExecutor", Executor)
    assert [selectors.migrations_pending() for _ in range(4)] == [1, 0, 0, 0]
    assert len(built) == 2
