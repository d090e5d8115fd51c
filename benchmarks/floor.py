"""The floor view: a plain Django view that runs an op's own statements and nothing else of it.

It reads the JSON body, runs the statements that `benchmarks.replay` recorded from real calls of the op (the
one that authenticates among them; those of a write in one transaction), fetches their rows, and answers the
recorded answer as JSON. No pipeline, no validation, no locks judged, no embedding, no BM25 terms, no
hashing. It is served by the same process as the op it is compared with, on the same connection pool, and
takes the same short way through the middleware.

Only `benchmarks.urls` knows it; the recordings lie in the benchmark's own LOOM_HOME.
"""

import itertools
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from benchmarks.replay import Recording, Statement, named, replay

FILE = "recordings.pickle"
_turn = itertools.count()


@cache
def recordings(path: Path) -> dict[str, list[Recording]]:
    """The recordings by op, as `benchmarks.record` wrote them."""
    with path.open("rb") as file:
        found: dict[str, list[Recording]] = pickle.load(file)
    return found


def _run(statement: Statement, params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, params)
        return cursor.fetchall() if statement.returns_rows else []


@csrf_exempt
def view(request: HttpRequest, op: str) -> HttpResponse:
    """Replay the next recording of `op`."""
    payload = json.loads(request.body)
    number = next(_turn)
    known = recordings(Path(settings.LOOM_HOME) / FILE)[op]
    recording = known[number % len(known)]
    writes = any(statement.in_transaction for statement in recording.statements)
    if not writes:
        replay(recording, None, _run)
    else:
        replay_in_transaction(recording, named(payload))
    response = HttpResponse(json.dumps(recording.body), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


def replay_in_transaction(recording: Recording, key: str | int | None) -> None:
    """The statements ahead of the transaction as they stand, the others in one."""
    block = transaction.atomic()
    entered = False

    def run(statement: Statement, params: Any) -> list[tuple[Any, ...]]:
        nonlocal entered
        if statement.in_transaction and not entered:
            block.__enter__()
            entered = True
        return _run(statement, params)

    try:
        replay(recording, key, run)
    except BaseException as error:
        if entered:
            block.__exit__(type(error), error, error.__traceback__)
        raise
    block.__exit__(None, None, None)
