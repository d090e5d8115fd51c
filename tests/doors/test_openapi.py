"""The OpenAPI document, the reference and the docs page: complete, offline, as committed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import Client
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from loomsite.management.commands import ops as command
from loomsite.ops import CODES, Op, all_ops
from loomsite.ops.openapi import document
from loomsite.ops.reference import pages

Document = dict[str, Any]


@pytest.fixture(scope="module")
def described() -> Document:
    plain: Document = json.loads(json.dumps(document()))
    return plain


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(item) for item in node.values()))
    if isinstance(node, list):
        return set().union(*(_references(item) for item in node))
    return set()


def test_every_op_has_its_path(described: Document) -> None:
    posted = {path for path, item in described["paths"].items() if "post" in item}
    assert posted == {f"/v1/{op.name}" for op in all_ops()}
    assert described["openapi"] == "3.1.0"


def test_every_reference_leads_to_a_schema(described: Document) -> None:
    for reference in _references(described):
        hash_, components, kind, name = reference.split("/")
        assert (hash_, components) == ("#", "components")
        assert name in described["components"][kind]


def test_every_schema_is_a_schema(described: Document) -> None:
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_operation_ids_are_unique(described: Document) -> None:
    ids = [item["post"]["operationId"] for item in described["paths"].values() if "post" in item]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_an_op_documents_its_headers_and_refusals(described: Document, op: Op) -> None:
    post = described["paths"][f"/v1/{op.name}"]["post"]
    shared = described["components"]["parameters"]
    headers = {shared[parameter["$ref"].rsplit("/", 1)[-1]]["name"] for parameter in post["parameters"]}
    assert headers == {"X-Request-ID"} | (set() if op.is_read else {"Idempotency-Key"})
    assert {"200", "400", "401", "403", "404", "413", "415", "429", "500", "503"} <= set(post["responses"])
    for status in post["responses"]:
        assert status in {"200", "202"} or int(status) in {code.status for code in CODES.values()}


def test_what_is_generated_is_the_same_in_another_process() -> None:
    script = (
        "import django, hashlib; django.setup()\n"
        "from loomsite.management.commands.ops import generated\n"
        "files = sorted((path.name, text) for path, text in generated().items())\n"
        "print(hashlib.sha256(repr(files).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "DJANGO_SETTINGS_MODULE": "loomsite.settings.test"},
            cwd=settings.BASE_DIR,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_what_is_committed_is_what_the_registry_says() -> None:
    assert command.stale() == [], "run `make docs`"


def test_every_op_has_a_page_of_the_reference() -> None:
    written = pages()
    assert {f"{op.name}.md" for op in all_ops()} | {"index.md"} == set(written)
    for text in written.values():
        for name in re.findall(r"\]\(([^)]+\.md)\)", text):
            assert name in written


def test_the_check_fails_when_a_page_is_stale_and_writing_mends_it(settings: Any, tmp_path: Path) -> None:
    settings.BASE_DIR = tmp_path
    with pytest.raises(CommandError, match="docs/openapi.json"):
        call_command("ops", "--check")
    left_over = tmp_path / "docs" / "reference" / "gone.op.md"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("gone")
    call_command("ops", "--write-docs", stdout=StringIO())
    assert not left_over.exists()
    call_command("ops", "--check")


def test_the_table_of_ops_names_url_tool_and_handler() -> None:
    out = StringIO()
    call_command("ops", stdout=out)
    line = next(line for line in out.getvalue().splitlines() if line.startswith("ops.whoami "))
    for word in ("viewer", "read", "loom_ops_whoami", "/v1/ops.whoami", "governance.ops:ops_whoami"):
        assert word in line


def test_the_document_is_served(client: Client) -> None:
    answer = client.get("/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == document()


def test_the_docs_page_shows_every_op_and_loads_nothing_from_elsewhere(client: Client) -> None:
    answer = client.get("/v1/docs")
    page = answer.content.decode()
    assert answer.status_code == 200
    for op in all_ops():
        assert f'id="{op.name}"' in page
    for code in CODES:
        assert code in page
    assert "<script" not in page and "style=" not in page and "<style" not in page
    assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []
    assert "default-src 'none'" in answer["Content-Security-Policy"]
