"""The language of a namespace's words, and changing it while the search goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from django.db import connection, transaction

from memories.analysis import ENGLISH, LANGUAGES, search_text, term_frequencies
from memories.models import TextConfig

# Every process looks again after so long; a change waits it out before it begins.
SEEN_SECONDS = 5.0
BATCH = 200

_lock = threading.Lock()
_seen: tuple[float, dict[int, tuple[str, str]]] | None = None


def _configs() -> dict[int, tuple[str, str]]:
    global _seen
    with _lock:
        if _seen is not None and time.monotonic() - _seen[0] < SEEN_SECONDS:
            return _seen[1]
    # Few namespaces have another language than English: all of them in one look.
    found = {
        row[0]: (row[1], row[2])
        for row in TextConfig.objects.values_list("namespace_id", "language", "previous")
    }
    with _lock:
        _seen = (time.monotonic(), found)
    return found


def forget() -> None:
    """Look again at the next call."""
    global _seen
    with _lock:
        _seen = None


def language_of(namespace_id: int) -> str:
    """The language in which a text of this namespace is indexed now."""
    return _configs().get(namespace_id, (ENGLISH, ""))[0]


def languages_of(namespaces: Sequence[int]) -> list[str]:
    """The languages in which texts of these namespaces are indexed, the former one of a running `reindex`
    included; at least one.
    """
    configs = _configs()
    found = [name for id_ in namespaces for name in configs.get(id_, (ENGLISH, "")) if name]
    return list(dict.fromkeys(found)) or [ENGLISH]


def reindex(namespace_id: int, language: str | None, report: Callable[[int, int], None]) -> int:
    """Index the words of a namespace's memories anew, in another language if one is given; rows done.

    Resumable: without a language a run that was stopped goes on where it was. `report` gets the rows done
    and all. Raises ValueError for a language that there is not.
    """
    if language is not None and language not in LANGUAGES:
        raise ValueError(f"language {language!r}: one of {', '.join(LANGUAGES)}")
    config, made = TextConfig.objects.get_or_create(
        namespace_id=namespace_id, defaults={"language": language or ENGLISH, "previous": ENGLISH}
    )
    if not made and language is not None and (language != config.language or not config.previous):
        config.previous, config.language, config.reindexed_to = config.language, language, 0
        config.save()
    forget()
    # A writer of another process may still use the former language; its rows come later than this.
    time.sleep(SEEN_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM memories_memory WHERE namespace_id = %s AND status <> 'redacted' "
            "AND id > %s",
            [namespace_id, config.reindexed_to],
        )
        total, done = int(cursor.fetchone()[0]), 0
    while True:
        report(done, total)
        with transaction.atomic():
            last, count = _batch(namespace_id, config.language, config.reindexed_to)
            if last is not None:
                config.reindexed_to = last
                config.save(update_fields=["reindexed_to"])
        if last is None:
            break
        done += count
    config.previous, config.reindexed_to = "", 0
    config.save()
    forget()
    report(total, total)
    return done


def _batch(namespace_id: int, language: str, after: int) -> tuple[int | None, int]:
    with connection.cursor() as cursor:
        # Locked against a write of the same row, which would lay its own terms.
        cursor.execute(
            "SELECT id, memory_key, value, tags, status, doc_len FROM memories_memory "
            "WHERE namespace_id = %s AND status <> 'redacted' AND id > %s ORDER BY id LIMIT %s FOR UPDATE",
            [namespace_id, after, BATCH],
        )
        rows = cursor.fetchall()
        if not rows:
            return None, 0
        postings: list[tuple[int, str, int, int, bool]] = []
        lengths: list[int] = []
        moved = 0
        for id_, key, value, tags, status, old in rows:
            text = search_text(key, None if value is None else json.loads(value), tags)
            terms, counts, length = term_frequencies(text, language)
            active = status == "active"
            postings += [(id_, t, n, length, active) for t, n in zip(terms, counts, strict=True)]
            lengths.append(length)
            moved += (length - (old or 0)) * active
        ids = [row[0] for row in rows]
        cursor.execute("DELETE FROM memories_posting WHERE memory_id = ANY(%s)", [ids])
        if postings:
            cursor.execute(
                "INSERT INTO memories_posting (namespace_id, memory_id, term, tf, doc_len, active) "
                "SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::bool[])",
                [namespace_id, *map(list, zip(*postings, strict=True))],
            )
        cursor.execute(
            "UPDATE memories_memory m SET doc_len = w.length FROM unnest(%s::bigint[], %s::int[]) "
            "AS w (id, length) WHERE m.id = w.id AND m.doc_len IS DISTINCT FROM w.length",
            [ids, lengths],
        )
        cursor.execute(
            "INSERT INTO memories_corpusstripe AS s (namespace_id, stripe, docs, terms) "
            "VALUES (%s, 0, 0, %s) ON CONFLICT (namespace_id, stripe) "
            "DO UPDATE SET terms = s.terms + excluded.terms",
            [namespace_id, moved],
        )
    return ids[-1], len(rows)
