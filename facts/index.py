"""The search index of fact versions, their screening, and the sources they name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from django.db import connection
from pgvector import HalfVector

from facts.selectors import Fact, me
from governance import services as governance
from governance.patterns import CATALOGUE_VERSION
from governance.tenancy import visible_namespaces
from loomsite.ops import Context, invalid
from memories import nodes
from memories.analysis import flatten, term_frequencies
from memories.embedders import EmbedderUnavailable, get_embedder, is_zero
from memories.screening import screen

FILL_JOB = "fact.embed"
STRIPES = 16


def text_of(subject: str, attribute: str, value: Any) -> str:
    """The text by which a version is found, by words and by meaning."""
    return f"{subject.strip()} {attribute.strip()}: {flatten(value)}"


def beside(sources: Sequence[str], reason: str) -> str:
    """What a version says besides its value, one text a line: it is read by agents as the value is."""
    return "\n".join(filter(None, (*sources, reason)))


def screened(fact: Fact) -> str:
    """The whole text of a version that screening reads: the one it is found by, then what stands beside."""
    more = beside(fact.sources, fact.reason)
    text = text_of(fact.subject, fact.attribute, fact.value)
    return f"{text}\n{more}" if more else text


def embedded(subject: str, attribute: str, value: Any) -> np.ndarray[Any, Any] | None:
    """The vector of that text, computed before the transaction opens; None when none can be had now."""
    try:
        vector: np.ndarray[Any, Any] = get_embedder().embed([text_of(subject, attribute, value)])[0]
    except EmbedderUnavailable:
        return None
    return vector


def add(ctx: Context, fact: Fact, namespace_id: int, vector: np.ndarray[Any, Any] | None) -> bool:
    """Index a version and screen its text; True when it is held until a person has read it."""
    text = text_of(fact.subject, fact.attribute, fact.value)
    terms, counts, length = term_frequencies(text)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO facts_factposting (namespace_id, version_id, term, tf, doc_len, owner) "
            "SELECT %s, %s, t.term, t.tf, %s, %s FROM unnest(%s::text[], %s::int[]) AS t (term, tf)",
            [namespace_id, fact.id, length, fact.owner, terms, counts],
        )
        count(cursor, namespace_id, {fact.owner: 1})
        if vector is None:
            fill_later(ctx, fact.id)
        elif not is_zero(vector):
            cursor.execute(
                "INSERT INTO facts_factembedding (version_id, namespace_id, embedder, dim, vector) "
                "VALUES (%s, %s, %s, %s, %s::halfvec)",
                [fact.id, namespace_id, get_embedder().name, len(vector), HalfVector(vector).to_text()],
            )
    return flag(ctx, fact)


def flag(ctx: Context, fact: Fact, made_from: int | None = None) -> bool:
    """Screen a version's texts; True when it is held until a person has read it.

    `made_from`: a version with the same value. What was read of it stays read, unless it stands in what the
    new one says besides.
    """
    found = screen(screened(fact))
    if not found:
        return False
    anew = screen(beside(fact.sources, fact.reason))
    with connection.cursor() as cursor:
        for pattern, spans in sorted(found.items()):
            cursor.execute(
                "INSERT INTO facts_factflag (version_id, pattern, spans, catalogue, acknowledged_by, "
                "acknowledged_at, acknowledge_reason) SELECT %s, %s, %s, %s, "
                "coalesce(f.acknowledged_by, ''), f.acknowledged_at, "
                "coalesce(f.acknowledge_reason, '') FROM (VALUES (1)) one (row) "
                "LEFT JOIN facts_factflag f ON f.version_id = %s AND f.pattern = %s AND f.catalogue = %s",
                [
                    fact.id, pattern, json.dumps(spans), CATALOGUE_VERSION,
                    None if pattern in anew else made_from, pattern, CATALOGUE_VERSION,
                ],
            )  # fmt: skip
        cursor.execute(
            "SELECT array_agg(pattern ORDER BY pattern) FROM facts_factflag "
            "WHERE version_id = %s AND acknowledged_at IS NULL",
            [fact.id],
        )
        unread = cursor.fetchone()[0]
    if unread and (made_from is None or anew):
        ctx.advisories.append(
            f"{'reason' if anew else 'value'}: the fact is stored and held out of search until a reviewer "
            f"has read it ({', '.join(unread)})"
        )
    return bool(unread)


def count(cursor: Any, namespace_id: int, more: Mapping[str, int]) -> None:
    """Count versions into the namespace's corpus: owner -> how many."""
    owners = sorted(more)
    cursor.execute(
        "INSERT INTO facts_factcorpusstripe AS s (namespace_id, owner, stripe, docs) "
        "SELECT %s, o.owner, pg_backend_pid() %% %s, o.docs FROM unnest(%s::text[], %s::bigint[]) "
        "AS o (owner, docs) ON CONFLICT (namespace_id, owner, stripe) "
        "DO UPDATE SET docs = s.docs + excluded.docs",
        [namespace_id, STRIPES, owners, [more[owner] for owner in owners]],
    )


def fill_later(ctx: Context, version_id: int) -> None:
    """Leave a job that embeds the version once the embedder is back, and say so."""
    ctx.degraded.append("embedding")
    governance.job_create(ctx=ctx, kind=FILL_JOB, input={"version_ids": [version_id]})


def copy(ctx: Context, old: int, new: Fact, namespace_id: int) -> bool:
    """Index a version whose value is that of another; True when it is held. See `flag`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO facts_factposting (version_id, namespace_id, term, tf, doc_len, owner) SELECT %s, "
            "namespace_id, term, tf, doc_len, %s FROM facts_factposting WHERE version_id = %s",
            [new.id, new.owner, old],
        )
        count(cursor, namespace_id, {new.owner: 1})
        cursor.execute(
            "INSERT INTO facts_factembedding (version_id, namespace_id, embedder, dim, vector) "
            "SELECT %s, namespace_id, embedder, dim, vector FROM facts_factembedding WHERE version_id = %s",
            [new.id, old],
        )
        if cursor.rowcount == 0 and get_embedder().weight:
            # The other one still waits for its vector, or its text has none; the job finds out.
            governance.job_create(ctx=ctx, kind=FILL_JOB, input={"version_ids": [new.id]})
    return flag(ctx, new, old)


# Sources


def is_public_source(ctx: Context, source: str) -> bool:
    """True for a source that may stand on a shared fact."""
    if not source.startswith("node:"):
        return True
    found = nodes.seen(ctx, [int(source[5:])], me(ctx), _namespaces(ctx))
    return all(not private for private in found.values())


def require_sources(ctx: Context, sources: tuple[str, ...], shared: bool) -> None:
    """OpError 400 naming each source that the caller cannot see, or that is private on a shared fact."""
    named = {i: source[5:] for i, source in enumerate(sources) if source.startswith("node:")}
    if not named:
        return
    for i, digits in named.items():
        if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:20]) < 2**63):
            raise invalid(f"sources.{i}", "node:<id> takes the id of a memory, fact or procedure.")
    found = nodes.seen(ctx, [int(digits) for digits in named.values()], me(ctx), _namespaces(ctx))
    for i, digits in named.items():
        if int(digits) not in found:
            raise invalid(f"sources.{i}", "names nothing that this caller can see.")
        if shared and found[int(digits)]:
            raise invalid(
                f"sources.{i}",
                "is private, and the fact is shared: leave it out, or remember with visibility private.",
            )


def _namespaces(ctx: Context) -> list[int]:
    return [row["id"] for row in visible_namespaces(ctx.caller)]
