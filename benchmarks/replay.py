"""Statements recorded from a real call of an op, and their replay with what has to differ filled in.

A recording holds every statement of one call through the pipeline, in order: the one that authenticates,
those of the op, those of the audit, and which of them stood in the transaction. A replay runs exactly these,
with three kinds of parameters made anew, so that it can be repeated for ever:

- *fresh*: the memory key or the id of the fact that the call was given, wherever it stands as a parameter;
- *flowing*: a parameter that was equal to a column of an earlier statement's answer (the id that an INSERT
  returned, the instant that the database told, the head of the audit chain) takes that column's value of
  the replay;
- *next*: the same, where the parameter was one more (the audit's sequence number).

Everything else stays as it was recorded: the other strings, the vector, the terms and the hashes. So the
database does the same work, while nothing is validated, judged, computed or hashed in Python. The audit
rows of a replay are not a valid chain; a replay belongs into a database that is thrown away.
"""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Whole numbers up to this are versions, counts and the ids of a young database's first rows, which are alike
# by chance; they stay as recorded.
SMALL = 1000
_EMPTY: list[tuple[Any, ...]] = []


@dataclass
class Statement:
    """One statement as it ran; `sources` says which of its parameters are made anew, and from what."""

    sql: str
    params: Any
    in_transaction: bool
    returns_rows: bool
    sources: dict[Any, tuple[str, int, int, int]] = field(default_factory=dict)


@dataclass
class Recording:
    """One call. `body` is what it answered."""

    op: str
    payload: dict[str, Any]
    body: dict[str, Any]
    statements: list[Statement]


class Recorder:
    """An execute wrapper of Django's connection that notes statements and their answers."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.noted: list[tuple[Statement, list[tuple[Any, ...]]]] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if many:
            raise RuntimeError("executemany is not replayed")
        cursor = context["cursor"].cursor
        rows = _EMPTY
        if cursor.description is not None:
            rows = cursor.fetchall()
            if rows:
                cursor.scroll(0, mode="absolute")
        statement = Statement(
            sql, _plain(params), self._connection.in_atomic_block, cursor.description is not None
        )
        self.noted.append((statement, rows))
        return result

    def recording(self, op: str, payload: dict[str, Any], body: dict[str, Any]) -> Recording:
        """What was noted, with the sources of every parameter found."""
        answers: list[list[tuple[Any, ...]]] = []
        for statement, rows in self.noted:
            for place, value in _places(statement.params):
                source = _source(value, answers, named(payload))
                if source is not None:
                    statement.sources[place] = source
            answers.append(rows)
        return Recording(op, payload, _plain(body), [statement for statement, _ in self.noted])


def named(payload: dict[str, Any]) -> str | int | None:
    """What a call names and each call names anew: a memory by its key, a fact by its id."""
    if "factId" in payload:
        return int(payload["factId"])
    key: str | None = payload.get("memory_key")
    return key


def alike(recordings: Iterable[Recording]) -> list[Recording]:
    """Those with the commonest list of statements; once a minute a call also notes the token's last use."""
    found = list(recordings)
    shapes = Counter(tuple(s.sql for s in recording.statements) for recording in found)
    shape = shapes.most_common(1)[0][0]
    return [recording for recording in found if tuple(s.sql for s in recording.statements) == shape]


def replay(
    recording: Recording, fresh_key: str | int | None, run: Callable[[Statement, Any], list[tuple[Any, ...]]]
) -> None:
    """Run the statements by `run(statement, params) -> rows`; who calls opens and ends the transaction."""
    answers: list[list[tuple[Any, ...]]] = []
    for statement in recording.statements:
        answers.append(run(statement, _filled(statement, answers, fresh_key)))


def _filled(statement: Statement, answers: list[list[tuple[Any, ...]]], fresh_key: str | int | None) -> Any:
    if not statement.sources:
        return statement.params
    filled = dict(statement.params) if isinstance(statement.params, dict) else list(statement.params)
    for place, (kind, number, row, column) in statement.sources.items():
        if kind == "fresh":
            if fresh_key is not None:
                filled[place] = _wrapped(fresh_key, statement.params[place])
        elif row < len(answers[number]):
            value = answers[number][row][column]
            filled[place] = _wrapped(value + 1 if kind == "next" else value, statement.params[place])
    return filled


def _wrapped(value: Any, like: Any) -> Any:
    return [value] * len(like) if isinstance(like, list) else value


def _plain(params: Any) -> Any:
    """Members of string enumerations as strings, so that a recording can be read without the product."""
    if isinstance(params, dict):
        return {name: _plain(value) for name, value in params.items()}
    if isinstance(params, list | tuple):
        return [_plain(value) for value in params]
    return str(params) if isinstance(params, str) else params


def _places(params: Any) -> list[tuple[Any, Any]]:
    if params is None:
        return []
    return list(params.items()) if isinstance(params, dict) else list(enumerate(params))


def _source(
    value: Any, answers: Sequence[Sequence[Sequence[Any]]], key: str | int | None
) -> tuple[str, int, int, int] | None:
    if key is not None and value == key and isinstance(value, str):
        return ("fresh", 0, 0, 0)
    if isinstance(value, list):
        # A column of one id repeated, as for the postings of one memory.
        value = value[0] if value and all(item == value[0] for item in value) else None
    if isinstance(key, int) and type(value) is int and value == key:
        return ("fresh", 0, 0, 0)
    if isinstance(value, bool) or not isinstance(value, int | bytes | datetime.datetime):
        return None
    if isinstance(value, int) and value <= SMALL:
        return None
    nexts = None
    for number in range(len(answers) - 1, -1, -1):
        for r, row in enumerate(answers[number]):
            for c, item in enumerate(row):
                if isinstance(item, bool) or not isinstance(item, type(value)):
                    continue
                if item == value:
                    return ("flowing", number, r, c)
                if isinstance(value, int) and item + 1 == value and nexts is None:
                    nexts = ("next", number, r, c)
    return nexts
