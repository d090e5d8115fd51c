"""`manage.py demo`: store sample conversations through the running server's API, and search them."""

from __future__ import annotations

import json
import logging
import os
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from memories import demo_data

BATCH = 250
BATCH_BYTES = 400_000
TOP_K = 3
SEARCHES = 3
DATA_FILE = "locomo_dev.json"
ANSWERABLE = frozenset({1, 2, 3, 4})


@dataclass(frozen=True)
class Question:
    """A search to show, and the keys that hold its answer where the file says so."""

    namespace: str
    query: str
    evidence: frozenset[str] = frozenset()


@dataclass
class Demo:
    """What is stored, by namespace, and what is asked."""

    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)


class Command(BaseCommand):
    """Loads a file of conversations, a memory a turn, a namespace a conversation; else the project's notes.

    The file holds conversations as a JSON list or as lines: {conversation, turns: [{id, session,
    session_time, speaker, text, image_caption?}], questions?: [{question, category, evidence}]}. Running it
    again changes nothing: what is stored already is a no-op.
    """

    help = "Store sample memories in the running server and search them (a file: conversations as JSON)."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The file, as an argument or an option; else DATA, else locomo_dev.json in the folder LOOM_DATA."""
        parser.add_argument(
            "file", nargs="?", help="conversations as JSON; left out: the project's own notes"
        )
        parser.add_argument("--data", help="the same, as an option")

    def handle(self, *args: Any, **options: Any) -> None:
        """Load and search. CommandError with one line when no server runs or the file is not right."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request is no help here
        path = data_path(options["data"] or options["file"])
        demo = read(path) if path else own()
        connection = read_connection(settings.LOOM_HOME / "connection.json")
        with httpx.Client(
            base_url=connection["url"],
            headers={"Authorization": f"Bearer {connection['token']}"},
            timeout=120,
        ) as client:
            self._load(client, demo, path)
            for question in demo.questions:
                self._search(client, question)
        if not path:
            self.stdout.write("\nYour own conversations: make demo DATA=file.json")
        self.stdout.write(f"In the console: {connection['admin_url']}memories/memory/")

    def _load(self, client: httpx.Client, demo: Demo, path: Path | None) -> None:
        total = sum(len(items) for items in demo.items.values())
        stored = 0
        with tqdm(total=total, unit="memories", desc="storing", disable=None) as bar:
            for namespace, items in demo.items.items():
                for batch in batches(items):
                    answer = call(client, "memory.set_many", namespace=namespace, items=batch)
                    stored += answer["stored"]
                    bar.update(len(batch))
        names = list(demo.items)
        where = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} namespaces)"
        self.stdout.write(
            f"{total} memories of {path.name if path else 'the demo team'} in {where}: "
            f"{stored} stored, {total - stored} there already"
        )

    def _search(self, client: httpx.Client, question: Question) -> None:
        answer = call(
            client, "memory.search", namespace=question.namespace, query=question.query, top_k=TOP_K
        )
        self.stdout.write(f"\n? {question.query}   [{question.namespace}]")
        for hit in answer["results"]:
            mark = "  <- holds the answer" if hit["memory_key"] in question.evidence else ""
            text = hit.get("value", hit.get("excerpt"))
            text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            self.stdout.write(f"  {hit['rank_score']:.2f}  {hit['memory_key']}{mark}")
            self.stdout.write(textwrap.indent(textwrap.shorten(text, 200, placeholder=" …"), "        "))
        if not answer["results"]:
            self.stdout.write("  nothing found")
        if answer.get("degraded"):
            self.stdout.write(f"  degraded: {', '.join(answer['degraded'])}")


def data_path(given: str | None) -> Path | None:
    """The file to load, or None for the project's own notes. CommandError when a named file is missing."""
    if named := given or os.environ.get("DATA"):
        path = Path(named).expanduser()
        if not path.is_file():
            raise CommandError(f"{named}: no such file; DATA names a JSON file of conversations.")
        return path
    folder = os.environ.get("LOOM_DATA")
    if folder and (default := Path(folder).expanduser() / DATA_FILE).is_file():
        return default
    return None


def own() -> Demo:
    """The project's own notes."""
    questions = [Question(demo_data.NAMESPACE, query) for query in demo_data.QUERIES]
    return Demo({demo_data.NAMESPACE: list(demo_data.ITEMS)}, questions)


def read(path: Path) -> Demo:
    """The conversations of a file. CommandError with one line that says what is wrong with it."""
    demo = Demo()
    asked: list[list[Question]] = []
    for number, conversation in enumerate(_conversations(path)):
        try:
            namespace = f"demo/conversation-{conversation['conversation']}"
            items = [_memory(turn) for turn in conversation["turns"]]
            keys = frozenset(item["memory_key"] for item in items)
            asked.append(
                [
                    Question(namespace, question["question"], keys.intersection(question.get("evidence", ())))
                    for question in conversation.get("questions", ())
                    if question.get("category", 1) in ANSWERABLE
                ]
            )
        except (KeyError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            shape = "{conversation, turns: [{id, speaker, text, …}]}"
            raise CommandError(f"{path}: conversation {number + 1} is not {shape}: {what}.") from error
        demo.items.setdefault(namespace, []).extend(items)
    if not any(demo.items.values()):
        raise CommandError(f"{path}: holds no conversation with turns.")
    demo.questions = _few(asked) or [_from_text(demo)]
    return demo


def _conversations(path: Path) -> list[Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read as UTF-8 text ({error}).") from error
    try:
        whole = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise CommandError(f"{path}: neither a JSON list nor a JSON object a line ({error}).") from error
    return whole if isinstance(whole, list) else [whole]


def _memory(turn: dict[str, Any]) -> dict[str, Any]:
    caption = turn.get("image_caption")
    item: dict[str, Any] = {
        "memory_key": str(turn["id"]),
        "value": f"{turn['speaker']}: {turn['text']}" + (f" [{caption}]" if caption else ""),
        "memory_type": "episodic",
        "metadata": {name: turn[name] for name in ("session", "session_time", "speaker") if name in turn},
    }
    if "session" in turn:
        item["tags"] = [f"session-{turn['session']}"]
    return item


def _few(asked: Sequence[Sequence[Question]]) -> list[Question]:
    """The first questions of the first conversations, one each as far as they reach."""
    by_turn = [questions[i] for i in range(SEARCHES) for questions in asked if i < len(questions)]
    return by_turn[:SEARCHES]


def _from_text(demo: Demo) -> Question:
    namespace, items = next((name, items) for name, items in demo.items.items() if items)
    return Question(namespace, textwrap.shorten(items[0]["value"], 80, placeholder=""))


def batches(items: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Lists of at most BATCH memories and about BATCH_BYTES, in order."""
    batch: list[dict[str, Any]] = []
    size = 0
    for item in items:
        weight = len(json.dumps(item))
        if batch and (len(batch) == BATCH or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += weight
    if batch:
        yield batch


def read_connection(path: Path) -> dict[str, str]:
    """The content of connection.json. CommandError when no server runs."""
    try:
        connection: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        raise CommandError(f"No server runs ({path} is missing). Start one with `make run`.") from None
    except ValueError as error:
        raise CommandError(f"{path} is damaged; restart the server with `make run`.") from error
    return connection


def call(client: httpx.Client, op: str, **arguments: Any) -> dict[str, Any]:
    """The output of an op. CommandError when no server answers or it refuses."""
    try:
        answer = client.post(f"/v1/{op}", json=arguments)
        body: dict[str, Any] = answer.json()
    except httpx.TransportError as error:
        reason = type(error).__name__
        raise CommandError(
            f"No server answers at {client.base_url} ({reason}). Start one with `make run`."
        ) from error
    except ValueError as error:
        raise CommandError(f"{client.base_url} is no Loomsite server: its answer is not JSON.") from error
    if answer.status_code != 200:
        detail = body.get("detail", {})
        said = detail.get("message", answer.text[:200])
        raise CommandError(f"{op} answered {answer.status_code} {detail.get('code', '')}: {said}")
    return body
