"""Lineages, their versions, and the two search indexes kept beside them.

What can never be false in stored data stands here as a constraint or in the migrations as a trigger.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from pgvector.django import HalfVectorField

from governance.models import Lockable, Namespace


class NextNodeId(models.Func):
    """The next id of the sequence that memories, facts and procedures share (`node:<id>`)."""

    template = "nextval('loom_node_id')"
    output_field = models.BigIntegerField()


class Status(models.TextChoices):
    """Where a memory stands in its life."""

    ACTIVE = "active"
    STALE = "stale"
    REJECTED = "rejected"
    SUPERSEDED = "superseded"
    ARCHIVED = "archived"
    DELETED = "deleted"
    REDACTED = "redacted"


class OnExpire(models.TextChoices):
    """What the sweep does with a memory whose time is up."""

    TOMBSTONE = "tombstone"
    STALE = "stale"


class Memory(Lockable):
    """A lineage: its identity, its present state, and its lock.

    `memory_id` is the primary key. At most one lineage that is not redacted has a given identity.
    """

    id = models.BigIntegerField(primary_key=True, db_default=NextNodeId())
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="memories")
    agent = models.CharField(max_length=128, default="-")
    user_id = models.CharField(max_length=128, default="-")
    session_id = models.CharField(max_length=128, default="-")
    memory_key = models.CharField(max_length=512)
    value: models.JSONField[Any, Any] = models.JSONField(null=True)
    content_sha256 = models.CharField(max_length=64)
    memory_type = models.CharField(max_length=64, default="semantic")
    tags = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    confidence = models.FloatField(null=True, blank=True)
    pinned = models.BooleanField(default=False)
    pinned_by = models.CharField(max_length=150, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    on_expire = models.CharField(max_length=9, choices=OnExpire.choices, default=OnExpire.TOMBSTONE)
    source_class = models.CharField(max_length=20, default="local_tool_output")
    source_trace = models.CharField(max_length=512, blank=True, default="")
    # True once governance (not its writer) retired the row: a save does not revive it.
    governed = models.BooleanField(default=False)
    # True while a flagged text waits for a person: kept out of search and of context.pack.
    held = models.BooleanField(default=False, db_default=False)
    # The catalogue of patterns that the present content was screened with; blank for never.
    screened_with = models.CharField(max_length=32, blank=True, default="", db_default="")
    promoted_from = models.BigIntegerField(null=True, blank=True)
    # Of a superseded memory: the key that stands in its place.
    canonical_key = models.CharField(max_length=512, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    # Length in terms; NULL while the row has no postings.
    doc_len = models.IntegerField(null=True)

    class Meta:
        verbose_name_plural = "memories"
        constraints = [
            models.UniqueConstraint(
                fields=["namespace", "memory_key", "agent", "user_id", "session_id"],
                name="one_live_lineage_per_identity",
                condition=~Q(status="redacted"),
            ),
            models.CheckConstraint(name="memory_status_known", condition=Q(status__in=Status.values)),
            models.CheckConstraint(
                name="lock_has_a_reason", condition=Q(lock_mode="none") | ~Q(lock_reason="")
            ),
            models.CheckConstraint(
                name="confidence_is_a_share",
                condition=Q(confidence__isnull=True) | Q(confidence__gte=0, confidence__lte=1),
            ),
        ]  # fmt: skip
        indexes = [
            models.Index(fields=["namespace", "-updated_at", "-id"], name="memory_newest"),
            models.Index(fields=["-updated_at", "-id"], name="memory_newest_anywhere"),
            models.Index(fields=["namespace", "content_sha256"], name="memory_same_content"),
            models.Index(
                fields=["expires_at"], name="memory_expiring", condition=Q(expires_at__isnull=False)
            ),
            models.Index(
                fields=["namespace", "lock_mode"], name="memory_locked", condition=~Q(lock_mode="none")
            ),
            models.Index(fields=["namespace", "memory_key"], name="memory_pinned", condition=Q(pinned=True)),
            models.Index(fields=["namespace", "-updated_at"], name="memory_held", condition=Q(held=True)),
            models.Index(fields=["screened_with", "id"], name="memory_screened"),
            models.Index(
                fields=["promoted_from"], name="memory_fork", condition=Q(promoted_from__isnull=False)
            ),
            models.Index(fields=["updated_at"], name="memory_tombstone", condition=Q(status="deleted")),
            GinIndex(fields=["tags"], name="memory_tags"),
        ]

    def __str__(self) -> str:
        return self.memory_key


class MemoryVersion(models.Model):
    """One semantic state of a lineage. Append-only by trigger."""

    class Kind(models.TextChoices):
        """What made the version."""

        SET = "set"
        UPDATE = "update"
        DELETE = "delete"
        RESTORE = "restore"
        EXPIRE = "expire"
        PURGE = "purge"

    # The database refuses the cascade: a lineage with history cannot be deleted.
    memory = models.ForeignKey(Memory, on_delete=models.PROTECT, related_name="versions")
    version = models.BigIntegerField()
    kind = models.CharField(max_length=12)
    status = models.CharField(max_length=12)
    value: models.JSONField[Any, Any] = models.JSONField(null=True)
    content_sha256 = models.CharField(max_length=64)
    memory_type = models.CharField(max_length=64)
    tags = ArrayField(models.CharField(max_length=128), default=list)
    metadata = models.JSONField(default=dict)
    confidence = models.FloatField(null=True)
    pinned = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True)
    on_expire = models.CharField(max_length=9, default=OnExpire.TOMBSTONE)
    source_class = models.CharField(max_length=20)
    source_trace = models.CharField(max_length=512, blank=True, default="")
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    agent = models.CharField(max_length=128, blank=True, default="")
    reason = models.TextField(blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["-version"]
        constraints = [models.UniqueConstraint(fields=["memory", "version"], name="one_row_per_version")]

    def __str__(self) -> str:
        return f"{self.memory_id} v{self.version}"


class Flag(models.Model):
    """A pattern found in a memory's present content, until a person has acknowledged it for this content."""

    memory = models.ForeignKey(Memory, on_delete=models.CASCADE, related_name="flags")
    pattern = models.CharField(max_length=64)
    # Start and end of each match, in characters of the screened text.
    spans = models.JSONField(default=list)
    content_sha256 = models.CharField(max_length=64)
    catalogue = models.CharField(max_length=32)
    found_at = models.DateTimeField(db_default=Now())
    acknowledged_by = models.CharField(max_length=150, blank=True, default="")
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledge_reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["memory", "pattern"], name="one_flag_per_pattern"),
        ]

    def __str__(self) -> str:
        return f"{self.memory_id} {self.pattern}"


class Posting(models.Model):
    """One term of one memory, for the keyword leg. `active` follows the memory's status."""

    pk = models.CompositePrimaryKey("memory_id", "term")
    memory = models.ForeignKey(Memory, on_delete=models.CASCADE, db_index=False)
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    term = models.CharField(max_length=80)
    tf = models.IntegerField()
    doc_len = models.IntegerField()
    active = models.BooleanField()

    class Meta:
        indexes = [
            models.Index(
                fields=["namespace", "term", "active", "memory"],
                name="posting_of_term",
                include=["tf", "doc_len"],
            )
        ]

    def __str__(self) -> str:
        return f"{self.term} x{self.tf}"


class CorpusStripe(models.Model):
    """Count and total length of a namespace's active documents, striped so that writers do not queue.

    The corpus is the sum over stripes; a single stripe may be negative.
    """

    pk = models.CompositePrimaryKey("namespace_id", "stripe")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    stripe = models.SmallIntegerField()
    docs = models.BigIntegerField()
    terms = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.namespace_id}/{self.stripe}"


class Embedding(models.Model):
    """The vector of one chunk of a memory's text, with the embedder that made it.

    Vectors of several embedders may stand beside each other while `reembed` runs; a search compares those of
    its own embedder only. `starts_at` and `ends_at` are characters of the text that was embedded.
    `in_graph` rows are in the embedder's HNSW index, if it has one; `memories.graph` moves them there.
    """

    pk = models.CompositePrimaryKey("memory_id", "embedder", "chunk")
    memory = models.ForeignKey(Memory, on_delete=models.CASCADE, db_index=False, related_name="embeddings")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    embedder = models.CharField(max_length=128)
    chunk = models.SmallIntegerField(default=0, db_default=0)
    starts_at = models.IntegerField(default=0, db_default=0)
    ends_at = models.IntegerField(default=0, db_default=0)
    dim = models.SmallIntegerField()
    vector = HalfVectorField()
    content_sha256 = models.CharField(max_length=64)
    in_graph = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes = [models.Index(fields=["namespace", "in_graph", "embedder"], name="embedding_of_namespace")]

    def __str__(self) -> str:
        return f"{self.memory_id}.{self.chunk} {self.embedder}"


class Reembedding(models.Model):
    """That `reembed` has gone once over everything for this embedder."""

    embedder = models.CharField(max_length=128, primary_key=True)
    finished_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.embedder


class TextConfig(models.Model):
    """In which language a namespace's words are stemmed; without a row it is English.

    While `reindex` runs, `previous` is the language of the rows with an id above `reindexed_to`.
    """

    namespace = models.OneToOneField(
        Namespace, on_delete=models.CASCADE, primary_key=True, related_name="text_config"
    )
    language = models.CharField(max_length=32)
    previous = models.CharField(max_length=32, blank=True, default="")
    reindexed_to = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.namespace_id} {self.language}"


class RawSession(models.Model):
    """A conversation in the raw archive: how many turns it has, and its share of the search statistics."""

    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="raw_sessions")
    session_id = models.CharField(max_length=128)
    agent = models.CharField(max_length=128, default="-")
    user_id = models.CharField(max_length=128, default="-")
    turns = models.BigIntegerField(default=0)
    terms = models.BigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["namespace", "session_id", "agent", "user_id"], name="raw_session_of_writer"
            )
        ]
        indexes = [models.Index(fields=["namespace", "-last_at", "-id"], name="raw_session_newest")]

    def __str__(self) -> str:
        return self.session_id


class RawTurn(models.Model):
    """One turn of a conversation, as it was said. Append-only by trigger; no op deletes it."""

    session = models.ForeignKey(RawSession, on_delete=models.PROTECT, related_name="turn_rows")
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, db_index=False)
    seq = models.BigIntegerField()
    role = models.CharField(max_length=64)
    content = models.TextField()
    occurred_at = models.DateTimeField(null=True)
    source_class = models.CharField(max_length=20)
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    doc_len = models.IntegerField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "seq"], name="raw_turn_of_session")]

    def __str__(self) -> str:
        return f"{self.session_id}#{self.seq}"


class RawPosting(models.Model):
    """One term of one raw turn."""

    pk = models.CompositePrimaryKey("namespace_id", "term", "turn_id")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    term = models.CharField(max_length=80)
    turn = models.ForeignKey(RawTurn, on_delete=models.CASCADE, db_index=False)
    tf = models.IntegerField()
    doc_len = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.term} x{self.tf}"
