"""fact.recall by subject, and fact.correct, at 10,000 and at 1,000,000 versions.

In one run: a database of the benchmark's own is filled with the small number of versions, measured, filled
up to the large number, and measured again with the same calls. Ten versions make a fact (ten jobs of a year
each), so that the large store has 100,000 facts in one namespace. The rows are written by SQL with the
tables' own exclusion constraint and indexes in force and the row triggers off; they have no postings, which
recall by subject does not read.

`floor` is psycopg alone, one open connection, in the benchmark's process, running the recall's own statement.
"""

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.common import SEED, call, percentile, print_table
from benchmarks.harness import NAMESPACE, Site, free_port, running, site, web
from benchmarks.wire import Wire

SERVER = False
SMALL, LARGE = 10_000, 1_000_000
PER_FACT = 10
CHUNK = 50_000
CALLS, CORRECTIONS = 1_500, 300
TIMES_SMALL = 3.0

_LINEAGES = """
INSERT INTO facts_lineage (id, namespace_id, owner, subject, attribute, subject_sha256, attribute_sha256,
  cardinality, status, version, lock_mode, lock_reason, locked_by)
SELECT nextval('loom_node_id'), %(namespace)s, '-', 'person ' || n, 'employer',
  sha256(convert_to('person ' || n, 'UTF8')), sha256('employer'), 'one', 'active', 1, 'none', '', ''
FROM generate_series(%(first)s::bigint, %(last)s) n
"""
_VERSIONS = """
INSERT INTO facts_version (lineage_id, namespace_id, owner, value, value_sha256, value_key, valid, known,
  from_is_date, to_is_date, kind, sources, source_class, principal, token_prefix, agent, reason, request_id)
SELECT l.id, l.namespace_id, '-', to_jsonb('company ' || v), sha256(convert_to(v::text, 'UTF8')), '',
  tstzrange(timestamptz '2000-01-01Z' + v * interval '1 year',
            timestamptz '2001-01-01Z' + v * interval '1 year'),
  tstzrange(timestamptz '2020-01-01Z' + v * interval '1 second', NULL),
  true, true, 'remember', '[]', 'local_tool_output', 'owner', '', '', '', ''
FROM facts_lineage l CROSS JOIN generate_series(0, %(each)s - 1) v
WHERE l.subject = ANY (SELECT 'person ' || n FROM generate_series(%(first)s::bigint, %(last)s) n)
"""
_FLOOR = """
SELECT v.id, v.value, lower(v.valid), upper(v.valid), lower(v.known) FROM facts_version v
JOIN facts_lineage l ON l.id = v.lineage_id
WHERE v.namespace_id = %s AND v.owner = ANY(%s) AND l.namespace_id = %s
  AND l.subject_sha256 = sha256(%s::bytea) AND upper_inf(v.known)
ORDER BY lower(v.known) DESC, v.id DESC LIMIT 21
"""


def run(_client: None, _data_dir: Path | None) -> dict[str, Any]:
    """Milliseconds of both ops at both sizes, and whether the bar is met."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        where = stack.enter_context(site())
        port = free_port()
        url = stack.enter_context(running(where, web(port), port))
        _first_fact(url, where)
        done = 0
        for size in (SMALL, LARGE):
            seconds = _fill(where, done, size // PER_FACT)
            done = size // PER_FACT
            found[str(size)] = {"fill_seconds": seconds, **_measure(url, where, done)}
    _print(found)
    small, large = found[str(SMALL)]["recall_ms"]["p95"], found[str(LARGE)]["recall_ms"]["p95"]
    bar = f"recall by subject: p95 at {LARGE:,} within {TIMES_SMALL} x {SMALL:,} ({large / small:.2f})"
    return {"sizes": found, "bars": {bar: large <= TIMES_SMALL * small}}


def _first_fact(url: str, where: Site) -> None:
    """The namespace exists from the first write on."""
    import httpx

    with httpx.Client(base_url=url, headers=where.headers, timeout=60) as client:
        call(client, "fact.remember", namespace=NAMESPACE, subject="first", attribute="x", value=1)


def _fill(where: Site, have: int, want: int) -> float:
    started = time.perf_counter()
    with psycopg.connect(where.database_url, autocommit=True) as connection:
        namespace = _namespace(connection)
        connection.execute("ALTER TABLE facts_version DISABLE TRIGGER USER")
        for first in range(have, want, CHUNK // PER_FACT):
            last = min(first + CHUNK // PER_FACT, want) - 1
            given = {"namespace": namespace, "first": first, "last": last, "each": PER_FACT}
            connection.execute(_LINEAGES, given)
            connection.execute(_VERSIONS, given)
            if first == have:
                connection.execute("ANALYZE facts_lineage, facts_version")
        connection.execute("ALTER TABLE facts_version ENABLE TRIGGER USER")
        connection.execute("VACUUM (ANALYZE) facts_lineage, facts_version")
    return time.perf_counter() - started


def _namespace(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT id FROM governance_namespace WHERE slug = %s", [NAMESPACE]).fetchone()
    assert row is not None
    return int(row[0])


def _measure(url: str, where: Site, facts: int) -> dict[str, Any]:
    recall: list[float] = []
    floor: list[float] = []
    correct: list[float] = []
    wire = Wire(url)
    try:
        with psycopg.connect(where.database_url, autocommit=True) as connection:
            namespace = _namespace(connection)
            for number in range(CALLS):
                subject = f"person {(number * 7_919 + SEED) % facts}"
                started = time.perf_counter()
                connection.execute(_FLOOR, [namespace, ["-"], namespace, subject.encode()]).fetchall()
                floor.append((time.perf_counter() - started) * 1000)
                recall.append(_timed(wire, where, "fact.recall", {"subject": subject}))
            for number in range(CORRECTIONS):
                subject = f"person {(number * 104_729 + SEED) % facts}"
                row = connection.execute(_FLOOR, [namespace, ["-"], namespace, subject.encode()]).fetchone()
                assert row is not None
                day = row[2].date().replace(month=7)
                body = {"factId": str(row[0]), "value": f"moved {number}", "validFrom": str(day)}
                correct.append(_timed(wire, where, "fact.correct", body))
    finally:
        wire.close()
    return {"recall_ms": _shown(recall), "floor_ms": _shown(floor), "correct_ms": _shown(correct)}


def _timed(wire: Wire, where: Site, op: str, body: dict[str, Any]) -> float:
    request = wire.request(f"/v1/{op}", {"namespace": NAMESPACE, **body}, where.headers)
    started = time.perf_counter()
    status, answer = wire.exchange(request)
    taken = (time.perf_counter() - started) * 1000
    if status != 200:
        raise RuntimeError(f"{op} answered {status}: {answer[:300]!r}")
    return taken


def _shown(values: list[float]) -> dict[str, float]:
    # The first calls warm the caches of a store that was just filled.
    counted = values[len(values) // 10 :]
    return {"p50": statistics.median(counted), "p95": percentile(counted, 95)}


def _print(found: dict[str, dict[str, Any]]) -> None:
    rows = [
        [f"{int(size):,}", one["fill_seconds"]]
        + [one[name][part] for name in ("recall_ms", "floor_ms", "correct_ms") for part in ("p50", "p95")]
        for size, one in found.items()
    ]
    heads = [f"{name} {part}" for name in ("recall", "sql alone", "correct") for part in ("p50", "p95")]
    print_table("Facts, one client over REST, milliseconds", ["versions", "fill s", *heads], rows)
