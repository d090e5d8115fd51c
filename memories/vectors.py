"""Vectors of memories: made chunk by chunk before a transaction opens, and stored within one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgvector import HalfVector

from memories.chunks import chunk_spans
from memories.embedders import Embedder, Vectors, get_embedder, is_zero

# From so many rows on a COPY is faster than an INSERT.
COPY_FROM = 8


@dataclass(frozen=True)
class Part:
    """One chunk of a text: its number, its place in characters, and its vector, float32[dim]."""

    chunk: int
    start: int
    end: int
    vector: Vectors


@dataclass(frozen=True)
class Embedded:
    """What is stored for one memory. Without parts: a text that has no meaning to compare."""

    memory_id: int
    namespace_id: int
    content_sha256: str
    parts: Sequence[Part]


def embed_texts(texts: Iterable[str], embedder: Embedder | None = None) -> dict[str, list[Part]]:
    """The parts of each distinct text, in one call of the embedder; a chunk without content has none.

    Raises EmbedderUnavailable.
    """
    spans = {text: chunk_spans(text) for text in texts}
    pieces = [text[start:end] for text, places in spans.items() for start, end in places]
    vectors = iter((embedder or get_embedder()).embed(pieces))
    made: dict[str, list[Part]] = {}
    for text, places in spans.items():
        parts = [Part(i, start, end, next(vectors)) for i, (start, end) in enumerate(places)]
        made[text] = [part for part in parts if not is_zero(part.vector)]
    return made


def write_vectors(cursor: Any, embedder: str, rows: Sequence[Embedded], *, replace: bool = True) -> None:
    """Store vectors, as halfvec, in place of what this embedder had for these memories.

    `replace` false: the caller knows that there is nothing to replace.
    """
    if replace and rows:
        cursor.execute(
            "DELETE FROM memories_embedding WHERE memory_id = ANY(%s) AND embedder = %s",
            [[row.memory_id for row in rows], embedder],
        )
    flat = [(row, part) for row in rows for part in row.parts]
    if len(flat) >= COPY_FROM:
        name = embedder.encode()
        with cursor.copy(
            "COPY memories_embedding (memory_id, namespace_id, embedder, chunk, starts_at, ends_at, dim, "
            "vector, content_sha256) FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.write(_HEADER + b"".join(_binary(name, row, part) for row, part in flat) + _TRAILER)
    elif flat:
        cursor.execute(
            "INSERT INTO memories_embedding (memory_id, namespace_id, embedder, chunk, starts_at, ends_at, "  # noqa: S608
            "dim, vector, content_sha256) VALUES "
            + ",".join(["(%s, %s, %s, %s, %s, %s, %s, %s::halfvec, %s)"] * len(flat)),
            [
                item
                for row, part in flat
                for item in (
                    row.memory_id, row.namespace_id, embedder, part.chunk, part.start, part.end,
                    len(part.vector), HalfVector(part.vector).to_text(), row.content_sha256,
                )
            ],
        )  # fmt: skip


# PostgreSQL's binary COPY format (documentation of COPY): signature, flags, length of the extension.
_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_TRAILER = struct.pack("!h", -1)
_FIXED = struct.Struct("!hiqiqi")


def _binary(embedder: bytes, row: Embedded, part: Part) -> bytes:
    # A halfvec is int16 dim, int16 unused, then the halves, all in network order.
    vector = struct.pack("!hh", len(part.vector), 0) + part.vector.astype(">f2").tobytes()
    sha = row.content_sha256.encode()
    return b"".join(
        (
            _FIXED.pack(9, 8, row.memory_id, 8, row.namespace_id, len(embedder)), embedder,
            struct.pack("!ihiiiiih", 2, part.chunk, 4, part.start, 4, part.end, 2, len(part.vector)),
            struct.pack("!i", len(vector)), vector, struct.pack("!i", len(sha)), sha,
        )
    )  # fmt: skip
