"""The rules that hold the code together, checked by the suite."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from django.core.management import call_command

from loomsite.ops import all_ops

ROOT = Path(__file__).resolve().parent.parent
APPS = ("loomsite", "governance", "memories", "facts", "procedures")


def test_imports_go_one_way() -> None:
    # In a process of its own: its command line turns off every logger that exists.
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checked = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 kept, 0 broken" in checked.stdout


def test_no_migration_is_missing(db: None) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=1)


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_cellar_knows_no_framework_and_no_app() -> None:
    files = list((ROOT / "loomsite" / "ops").glob("*.py"))
    assert len(files) > 5
    for path in files:
        tops = {name.split(".")[0] for name in _imports(path)}
        assert not tops & {"django", "rest_framework", "guardian", "celery", *APPS[1:]}, path.name


def test_governance_names_no_app_above_it() -> None:
    for path in (ROOT / "governance").rglob("*.py"):
        tops = {name.split(".")[0] for name in _imports(path)}
        assert not tops & {"memories", "facts", "procedures"}, path.name


def test_transports_hold_no_query() -> None:
    """Reads live in selectors and writes in services; a door only calls them."""
    for path in (ROOT / "loomsite" / "doors").glob("*.py"):
        assert not any(name.endswith(".models") or ".models." in name for name in _imports(path)), path.name
        text = path.read_text("utf-8")
        assert not any(f"{word} {app}_" in text for word in ("FROM", "INTO", "UPDATE") for app in APPS), (
            path.name
        )


def test_every_handler_is_named_after_its_op() -> None:
    """A newcomer finds an op by its name with one search."""
    for op in all_ops():
        assert op.handler.__name__ == op.name.replace(".", "_")
        assert op.handler.__module__.endswith((".ops", "_ops"))


def test_tasks_are_thin() -> None:
    for app in APPS:
        path = ROOT / app / "tasks.py"
        if not path.exists():
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert len(node.body) <= 6, f"{path.name}: {node.name} does more than call services"
