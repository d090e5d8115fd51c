"""`manage.py demo`: what it stores, what it prints, and its one-line refusals."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from loomsite.management.commands import demo
from memories.demo_data import ITEMS, QUERIES
from memories.models import Memory
from tests.benchmarks.conversations import CONVERSATIONS
from tests.conftest import Cast


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is named by the shell that runs the tests."""
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.delenv("LOOM_DATA", raising=False)


@pytest.fixture
def home(live_server: Any, cast: Cast, tmp_path: Path, settings: Any) -> Path:
    """LOOM_HOME of a server that runs in this process."""
    connection = {
        "url": live_server.url,
        "token": cast.token("owner", may_create_namespaces=True),
        "admin_url": f"{live_server.url}/console/",
    }
    (tmp_path / "connection.json").write_text(json.dumps(connection))
    settings.LOOM_HOME = tmp_path
    return tmp_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(CONVERSATIONS))
    return path


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("demo", *arguments, stdout=out)
    return out.getvalue()


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as refused:
        run(*arguments)
    said = str(refused.value)
    assert "\n" not in said
    return said


def test_without_a_file_the_notes_of_the_demo_team_are_stored_and_searched(home: Path) -> None:
    out = run()
    assert f"{len(ITEMS)} stored, 0 there already" in out
    assert all(f"? {query}   [demo]" in out for query in QUERIES)
    assert "deploy/window" in out and "decision/refunds" in out and "incident/0412" in out
    assert f"{json.loads((home / 'connection.json').read_text())['admin_url']}memories/memory/" in out
    assert Memory.objects.filter(namespace__slug="demo").count() == len(ITEMS)


def test_the_first_hit_of_each_of_the_teams_questions_is_the_right_one(home: Path) -> None:
    blocks = run().split("\n? ")[1:]
    firsts = [block.splitlines()[1].split()[1] for block in blocks]
    assert firsts == ["deploy/window", "incident/0412", "decision/refunds"]


def test_a_second_run_changes_nothing(home: Path) -> None:
    run()
    before = list(Memory.objects.order_by("id").values_list("id", "version", "updated_at"))
    assert f"0 stored, {len(ITEMS)} there already" in run()
    assert list(Memory.objects.order_by("id").values_list("id", "version", "updated_at")) == before


def test_a_file_makes_a_namespace_a_conversation_and_a_memory_a_turn(home: Path, file: Path) -> None:
    out = run("--data", str(file))
    assert "7 stored, 0 there already" in out
    slugs = Memory.objects.values_list("namespace__slug", flat=True).distinct().order_by("namespace__slug")
    assert list(slugs) == ["demo/conversation-0", "demo/conversation-1"]
    turn = Memory.objects.get(namespace__slug="demo/conversation-0", memory_key="D1:3")
    assert turn.value == "Ruth: See for yourself. [a red kayak on a beach]"
    assert turn.tags == ["session-1"] and turn.memory_type == "episodic"
    assert turn.metadata == {"session": 1, "session_time": "9:00 am on 3 March, 2025", "speaker": "Ruth"}


def test_three_answerable_questions_of_the_file_are_asked_and_the_evidence_is_marked(
    home: Path, file: Path
) -> None:
    out = run(str(file))
    asked = [line for line in out.splitlines() if line.startswith("? ")]
    assert asked == [
        "? What did Ruth buy?   [demo/conversation-0]",
        "? When does the bakery open?   [demo/conversation-1]",
        "? Where does Anton live now?   [demo/conversation-0]",
    ]
    assert out.count("<- holds the answer") == 3


def test_lines_of_json_are_read_like_a_list(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(json.dumps(conversation) for conversation in CONVERSATIONS) + "\n\n")
    assert "7 stored" in run(str(path))


def test_a_file_without_questions_is_searched_by_words_of_its_own(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"conversation": "x", "turns": CONVERSATIONS[1]["turns"]}))
    out = run(str(path))
    assert "? Ida: The bakery opens at six on Sundays.   [demo/conversation-x]" in out


def test_data_comes_from_the_environment_too(
    home: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(file))
    assert "talks.json" in run()
    monkeypatch.delenv("DATA")
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LOOM_DATA", str(folder))
    assert "demo team" in run()
    file.rename(folder / demo.DATA_FILE)
    assert demo.DATA_FILE in run()


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path, settings: Any) -> None:
    settings.LOOM_HOME = tmp_path
    assert "No server runs" in refusal() and "make run" in refusal()


def test_a_server_that_has_ended_is_said_so(tmp_path: Path, settings: Any, free_tcp_port: int) -> None:
    settings.LOOM_HOME = tmp_path
    url = f"http://127.0.0.1:{free_tcp_port}"
    (tmp_path / "connection.json").write_text(json.dumps({"url": url, "token": "t", "admin_url": url}))
    said = refusal()
    assert f"No server answers at {url}" in said and "make run" in said


def test_a_cut_connection_file_is_said_so(tmp_path: Path, settings: Any) -> None:
    settings.LOOM_HOME = tmp_path
    (tmp_path / "connection.json").write_text('{"url": "http')
    assert "is damaged" in refusal()


def test_what_the_server_refuses_is_told_in_its_own_words(home: Path) -> None:
    connection = json.loads((home / "connection.json").read_text())
    (home / "connection.json").write_text(json.dumps({**connection, "token": "loom_wrong"}))
    assert "memory.set_many answered 401 UNAUTHENTICATED" in refusal()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.json")).startswith(f"{tmp_path / 'none.json'}: no such file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# a page of text", "neither a JSON list nor a JSON object a line"),
        ("[]", "holds no conversation with turns"),
        ('[{"turns": []}]', "conversation 1 is not {conversation, turns:"),
        ('[{"conversation": 0, "turns": [{"id": "D1:1"}]}]', "'speaker' is missing"),
        ("[1]", "conversation 1 is not"),
        ('[{"conversation": 0, "turns": ["hello"]}]', "conversation 1 is not"),
    ],
)
def test_a_file_of_another_shape_is_refused_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert said in refusal(str(path))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as UTF-8 text" in refusal(str(path))


def test_batches_keep_below_both_limits_and_lose_nothing() -> None:
    items = [{"memory_key": str(number), "value": "x" * 3000} for number in range(600)]
    found = list(demo.batches(items))
    assert [item for batch in found for item in batch] == items
    assert all(len(batch) <= demo.BATCH for batch in found)
    assert all(len(json.dumps(batch)) < 2 * demo.BATCH_BYTES for batch in found)
