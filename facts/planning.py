"""Facts as plans know them: a version as it stood, how it stands now, and what cites a source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection
from django.urls import reverse

from facts.selectors import HELD, Fact
from facts.services import LINE, Line, line_from, short
from governance.plan_kinds import (
    DEPENDANTS_SHOWN,
    Dependant,
    Kind,
    Present,
    register_dependants,
    register_kind,
)
from governance.review import Target

KIND = "fact"
PREFIX = "fact:"
NODE = "node:"


def register() -> None:
    """Called once, when the app is ready."""
    register_kind(Kind(KIND, present, content))
    register_dependants("facts", dependants)


def target(fact: Fact, line: Line, planned: str) -> Target:
    """A believed version as it stood before the call; its version and lock are the whole fact's."""
    return Target(
        KIND, fact.id, f"{PREFIX}{fact.id}", _title(line, fact.value), line.version,
        fact.value_sha256.hex(), line.lock, _status(fact.believed), planned, flagged=fact.held,
    )  # fmt: skip


def _title(line: Line, value: Any) -> str:
    return f"{line.subject} {line.attribute}: {short(value)}"[:200]


def _status(believed: bool) -> str:
    return "believed" if believed else "superseded"


def present(ids: Sequence[int], lock: bool) -> Mapping[int, Present]:
    """The versions with these ids as they stand; with `lock` their lineages are locked, in id order."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT v.id, encode(v.value_sha256, 'hex'), v.value, upper_inf(v.known), {HELD}, {LINE} "  # noqa: S608
            "FROM facts_version v JOIN facts_lineage m ON m.id = v.lineage_id WHERE v.id = ANY(%s) "
            "ORDER BY m.id, v.id" + (" FOR UPDATE OF m" if lock else ""),
            [list(ids)],
        )
        rows = cursor.fetchall()
    found = {}
    for id_, sha, value, believed, held, *columns in rows:
        line = line_from(columns)
        found[id_] = Present(
            id_, f"{PREFIX}{id_}", _title(line, json.loads(value)), line.version, sha, line.lock,
            _status(believed), held,
        )  # fmt: skip
    return found


def content(ids: Sequence[int]) -> Mapping[int, Any]:
    """The values of these versions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, value FROM facts_version WHERE id = ANY(%s)", [list(ids)])
        return {id_: json.loads(value) for id_, value in cursor.fetchall()}


def dependants(ids: Sequence[int]) -> Mapping[int, Sequence[Dependant]]:
    """Believed facts that name one of these ids as a source (`node:<id>`)."""
    names = [f"{NODE}{id_}" for id_ in ids]
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT asked, id, lineage_id FROM (
                 SELECT source AS asked, v.id, v.lineage_id,
                   row_number() OVER (PARTITION BY source ORDER BY v.id) AS place
                 FROM facts_version v CROSS JOIN LATERAL jsonb_array_elements_text(v.sources) source
                 WHERE v.sources ?| %s::text[] AND upper_inf(v.known) AND source = ANY(%s)
               ) cited WHERE place <= %s ORDER BY asked, id""",
            [names, names, DEPENDANTS_SHOWN],
        )
        rows = cursor.fetchall()
    found: dict[int, list[Dependant]] = {}
    for asked, id_, lineage in rows:
        url = reverse("admin:facts_lineage_change", args=[lineage])
        found.setdefault(int(asked.removeprefix(NODE)), []).append(
            Dependant(KIND, f"{PREFIX}{id_}", "it cites it as a source", url)
        )
    return found
