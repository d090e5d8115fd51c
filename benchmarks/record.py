"""`python -m benchmarks.record <token> <namespace> <rows> <count>`: record real calls of the measured ops.

Runs in a process of its own under `benchmarks.settings`, through the same pipeline as every door, against the
benchmark's database. Writes LOOM_HOME/recordings.pickle for the floor view and for bare psycopg.
"""

import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import django

from benchmarks.corpus import Corpus, key_of
from benchmarks.replay import Recorder, Recording, alike

ROWS_SEEN = 997  # a prime, so that the keys that are read lie all over the namespace


def main() -> None:
    token, namespace, rows, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    django.setup()
    from django.conf import settings
    from django.db import connection

    from benchmarks.floor import FILE
    from governance import pipeline
    from governance.tenancy import Credentials

    caller = Credentials(bearer=token)

    def call(op: str, payload: dict[str, Any]) -> Recording:
        recorder = Recorder(connection)
        with connection.execute_wrapper(recorder):
            answer = pipeline.run(op, payload, caller)
        if not answer.ok:
            raise SystemExit(f"{op} answered {answer.status}: {answer.body}")
        return recorder.recording(op, payload, answer.body)

    _keep_numbers_apart(connection, call, namespace)
    corpus = Corpus(seed=1)
    calls: dict[str, list[Recording]] = {"memory.get": [], "memory.search": [], "memory.set": []}
    for number in range(count):
        key = key_of(number * ROWS_SEEN % rows)
        calls["memory.get"].append(call("memory.get", {"namespace": namespace, "memory_key": key}))
        calls["memory.search"].append(
            call("memory.search", {"namespace": namespace, "query": corpus.query()})
        )
        payload = {"namespace": namespace, "memory_key": f"recorded/{number}", "value": corpus.text()}
        calls["memory.set"].append(call("memory.set", payload))
    chosen = {op: alike(found) for op, found in calls.items()}
    with (Path(settings.LOOM_HOME) / FILE).open("wb") as file:
        pickle.dump(chosen, file)
    for op, found in chosen.items():
        print(f"{op}: {len(found)} of {count} calls recorded, {len(found[0].statements)} statements")


def _keep_numbers_apart(connection: Any, call: Any, namespace: str) -> None:
    """Let the audit run ahead where its numbers are near the ids: a parameter must not look like both."""
    for number in itertools.count():
        payload = {"namespace": namespace, "memory_key": f"apart/{number % 2}", "value": f"apart {number}"}
        call("memory.set", payload)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT abs(max(seq) - (SELECT last_value FROM loom_node_id)) FROM governance_audithead"
            )
            if cursor.fetchone()[0] > 10:
                return


if __name__ == "__main__":
    main()
