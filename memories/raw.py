"""The raw archive: what was said, turn by turn. It only grows; governance and no op ever take from it.

Searched by BM25 over its own postings; the corpus is the namespace's archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from governance.clock import iso
from loomsite.ops import AuditEntry, Context
from memories import ranking
from memories.analysis import excerpt, query_terms, term_frequencies
from memories.selectors import decode_cursor, encode_cursor, instant

CONTENT_SHOWN = 2048


def raw_append(
    ctx: Context,
    *,
    session_id: str,
    role: str,
    content: str,
    occurred_at: datetime | None,
    source_class: str,
) -> dict[str, Any]:
    """Add a turn at the end of its session; appends to one session wait for each other."""
    agent = ctx.agent or ctx.caller.bound_agent or "-"
    user_id = ctx.user_id or ctx.caller.bound_user or "-"
    terms, counts, length = term_frequencies(content)
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO memories_rawsession AS s
                 (namespace_id, session_id, agent, user_id, turns, terms, first_at, last_at)
               VALUES (%s, %s, %s, %s, 1, %s, clock_timestamp(), clock_timestamp())
               ON CONFLICT (namespace_id, session_id, agent, user_id) DO UPDATE
                 SET turns = s.turns + 1, terms = s.terms + excluded.terms, last_at = clock_timestamp()
               RETURNING id, turns, last_at""",
            [ctx.namespace_id, session_id, agent, user_id, length],
        )
        session, seq, now = cursor.fetchone()
        cursor.execute(
            """INSERT INTO memories_rawturn (session_id, namespace_id, seq, role, content, occurred_at,
                 source_class, principal, token_prefix, doc_len, created_at)
               VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id""",
            [
                session, ctx.namespace_id, seq, role, content, occurred_at, source_class,
                ctx.caller.principal, ctx.caller.token_prefix, length, now,
            ],
        )  # fmt: skip
        turn_id = cursor.fetchone()[0]
        if terms:
            cursor.execute(
                "INSERT INTO memories_rawposting (namespace_id, term, turn_id, tf, doc_len) "
                "SELECT %s, t, %s, f, %s FROM unnest(%s::text[], %s::int[]) AS x(t, f)",
                [ctx.namespace_id, turn_id, length, terms, counts],
            )
    ctx.record(AuditEntry(target=f"raw:{session_id}#{seq}", detail={"turn_id": str(turn_id), "role": role}))
    return {
        "turn_id": str(turn_id), "session_id": session_id, "seq": seq, "appended_at": iso(now),
        "namespace": ctx.namespace,
    }  # fmt: skip


def scope(ctx: Context, session_id: str | None) -> tuple[str, list[Any]]:
    """The sessions (`s`) that this call may see: the same rule as for memories."""
    parts = ["s.namespace_id = %s"]
    params: list[Any] = [ctx.namespace_id]
    for column, asked, bound in (
        ("agent", ctx.agent, ctx.caller.bound_agent),
        ("user_id", ctx.user_id, ctx.caller.bound_user),
    ):
        if asked is not None:
            parts.append(f"s.{column} = %s")
            params.append(asked)
        elif bound is not None:
            parts.append(f"s.{column} IN ('-', %s)")
            params.append(bound)
    if session_id is not None:
        parts.append("s.session_id = %s")
        params.append(session_id)
    return " AND ".join(parts), params


_TURN = """t.id, s.session_id, s.agent, s.user_id, t.seq, t.role, t.content, t.occurred_at, t.source_class,
  t.principal, t.created_at"""


def _turn(row: Sequence[Any]) -> dict[str, Any]:
    return {
        "turn_id": str(row[0]),
        "session_id": row[1],
        "agent": row[2],
        "user_id": row[3],
        "seq": row[4],
        "role": row[5],
        "content": row[6],
        "occurred_at": iso(row[7]),
        "source_class": row[8],
        "by": row[9],
        "appended_at": iso(row[10]),
    }


def raw_search(ctx: Context, query: str, session_id: str | None, top_k: int) -> list[dict[str, Any]]:
    """Turns with the query's words, best first by BM25; long ones as an excerpt."""
    terms = query_terms(query)
    if ctx.namespace_id is None or not terms:
        return []
    where, params = scope(ctx, session_id)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH corpus AS MATERIALIZED (
                  SELECT greatest(sum(turns), 1)::float8 AS n,
                         greatest(sum(terms)::float8 / greatest(sum(turns), 1), 1) AS average
                  FROM memories_rawsession WHERE namespace_id = %s),
                weights AS MATERIALIZED (
                  SELECT x.term, ln(1 + (greatest(corpus.n - df.n, 0) + 0.5) / (df.n + 0.5)) AS idf, average
                  FROM corpus CROSS JOIN unnest(%s::text[]) AS x(term) CROSS JOIN LATERAL (
                    SELECT count(*) AS n FROM memories_rawposting
                    WHERE namespace_id = %s AND term = x.term) df),
                scored AS MATERIALIZED (
                  SELECT p.turn_id AS id,
                         round(sum(idf * p.tf / (p.tf + %s * (1 - %s + %s * p.doc_len / average)))::numeric,
                               %s)::float8 AS score
                  FROM weights w CROSS JOIN LATERAL (
                    SELECT turn_id, tf, doc_len FROM memories_rawposting
                    WHERE namespace_id = %s AND term = w.term OFFSET 0) p
                  GROUP BY p.turn_id)
                SELECT {_TURN}, k.score
                FROM (SELECT id, score FROM scored ORDER BY score DESC, id OFFSET 0) k
                JOIN memories_rawturn t ON t.id = k.id JOIN memories_rawsession s ON s.id = t.session_id
                WHERE {where} ORDER BY k.score DESC, k.id LIMIT %s""",  # noqa: S608 - constant fragments
            [
                ctx.namespace_id, terms, ctx.namespace_id, ranking.K1, ranking.B, ranking.B, ranking.DIGITS,
                ctx.namespace_id, *params, top_k,
            ],
        )  # fmt: skip
        rows = cursor.fetchall()
    hits = []
    for row in rows:
        hit = _turn(row[:-1])
        if len(hit["content"]) > CONTENT_SHOWN:
            hit["excerpt"] = excerpt(hit.pop("content"), query)
        hits.append({**hit, "score": row[-1]})
    return hits


def raw_list_sessions(
    ctx: Context, limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Sessions, the most recently continued first, and the next cursor.

    A session that gets a turn between two pages moves to the front and is not met again behind.
    """
    place = None
    if cursor:
        at, id_ = decode_cursor(cursor, str, int)
        place = (instant(at), id_)
    if ctx.namespace_id is None:
        return [], None
    where, params = scope(ctx, None)
    if place:
        where += " AND (s.last_at, s.id) < (%s, %s)"
        params.extend(place)
    with connection.cursor() as db:
        db.execute(
            f"SELECT s.id, s.session_id, s.agent, s.user_id, s.turns, s.first_at, s.last_at "  # noqa: S608
            f"FROM memories_rawsession s WHERE {where} ORDER BY s.last_at DESC, s.id DESC LIMIT %s",
            [*params, limit + 1],
        )
        rows = db.fetchall()
    page = [
        {
            "session_id": row[1], "agent": row[2], "user_id": row[3], "turns": row[4],
            "first_at": iso(row[5]), "last_at": iso(row[6]),
        }
        for row in rows[:limit]
    ]  # fmt: skip
    following = encode_cursor(page[-1]["last_at"], rows[limit - 1][0]) if len(rows) > limit else None
    return page, following


def raw_get(
    ctx: Context, session_id: str, limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """The turns of a session in the order in which they were said, and the next cursor."""
    after = decode_cursor(cursor, int)[0] if cursor else 0
    if ctx.namespace_id is None:
        return [], None
    where, params = scope(ctx, session_id)
    with connection.cursor() as db:
        db.execute(
            f"SELECT {_TURN} FROM memories_rawturn t JOIN memories_rawsession s ON s.id = t.session_id "  # noqa: S608
            f"WHERE {where} AND t.id > %s ORDER BY t.id LIMIT %s",
            [*params, after, limit + 1],
        )
        rows = db.fetchall()
    page = [_turn(row) for row in rows[:limit]]
    return page, encode_cursor(rows[limit - 1][0]) if len(rows) > limit else None
