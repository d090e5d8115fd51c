"""Facts: lineages, their versions on two axes of time, and the search index of the versions.

The rules that hold for stored data whatever writes it are in migration 0002: the exclusion constraint, the
append-only trigger and the lock guard.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import DateTimeRangeField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from pgvector.django import HalfVectorField

from governance.models import Lockable, Namespace
from memories.models import NextNodeId

SHARED = "-"


class Cardinality(models.TextChoices):
    """Whether a fact has one value at a time, or several side by side."""

    ONE = "one"
    MANY = "many"


class Kind(models.TextChoices):
    """What made a version."""

    REMEMBER = "remember"
    MERGE = "merge", "same value with more sources"
    CHANGED = "changed"
    WRONG = "wrong"
    # What stays of a version of which another call took a part.
    CLIP = "clip", "the rest of a version"
    ENDED = "ended"
    SHARE = "share"


class Lineage(Lockable):
    """A fact: all versions of one (namespace, owner, subject, attribute).

    `owner` is "-" for a shared fact, else the user it belongs to. Subject and attribute are found by the
    SHA-256 of their folded text (see `facts.services.folded`) and printed as first given.
    """

    id = models.BigIntegerField(primary_key=True, db_default=NextNodeId())
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="facts")
    owner = models.CharField(max_length=128, default=SHARED)
    subject = models.TextField()
    attribute = models.TextField()
    subject_sha256 = models.BinaryField(max_length=32)
    attribute_sha256 = models.BinaryField(max_length=32)
    cardinality = models.CharField(max_length=4, choices=Cardinality.choices, default=Cardinality.ONE)
    created_at = models.DateTimeField(db_default=Now())
    # The known time of the last write; the next one is forced to be later.
    last_known_at = models.DateTimeField(db_default=Now())
    # The catalogue of patterns that screened all its versions; a newer one screens them again.
    screened_with = models.CharField(max_length=32, blank=True, default="", db_default="")

    class Meta:
        verbose_name = "fact"
        constraints = [
            models.UniqueConstraint(
                fields=["namespace", "subject_sha256", "attribute_sha256", "owner"],
                name="one_lineage_per_subject_and_attribute",
            ),
            models.CheckConstraint(
                name="fact_cardinality_known", condition=Q(cardinality__in=Cardinality.values)
            ),
            models.CheckConstraint(
                name="fact_lock_has_a_reason", condition=Q(lock_mode="none") | ~Q(lock_reason="")
            ),
        ]  # fmt: skip
        indexes = [
            models.Index(fields=["namespace", "attribute_sha256"], name="fact_by_attribute"),
            models.Index(fields=["screened_with", "id"], name="fact_screened"),
            models.Index(
                fields=["namespace", "-id"],
                name="fact_guarded",
                condition=~Q(lock_mode="none") | Q(holds__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject}: {self.attribute}"


class Version(models.Model):
    """One believed or once believed value over a period. Only the end of `known` is ever set, once.

    Both periods are half-open; infinity is an unbounded bound. `value_key` is what makes two values of a
    `many` fact stand side by side: the SHA-256 of the value there, nothing for `one`.
    """

    id = models.BigIntegerField(primary_key=True, db_default=NextNodeId())
    lineage = models.ForeignKey(Lineage, on_delete=models.PROTECT, related_name="versions")
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, db_index=False, related_name="+")
    # Who sees this version: "-" for everybody, else one user.
    owner = models.CharField(max_length=128, default=SHARED)
    value: models.JSONField[Any, Any] = models.JSONField(null=True)
    value_sha256 = models.BinaryField(max_length=32)
    value_key = models.BinaryField(max_length=32, default=b"")
    valid = DateTimeRangeField()
    known = DateTimeRangeField()
    # A bound given as a date is printed as a date.
    from_is_date = models.BooleanField(default=True)
    to_is_date = models.BooleanField(default=True)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    # The version that this one came from, whatever the kind; the lock guard reads it.
    made_from = models.ForeignKey("self", null=True, on_delete=models.PROTECT, db_index=False)
    # What recall answers about the value that this one replaced: value, kind, reason, at; or null.
    replaced = models.JSONField(null=True)
    sources = models.JSONField(default=list)
    confidence = models.FloatField(null=True)
    source_class = models.CharField(max_length=20)
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    agent = models.CharField(max_length=128, blank=True, default="")
    reason = models.TextField(blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        verbose_name = "fact version"
        ordering: ClassVar = ["-id"]
        constraints = [
            models.CheckConstraint(
                name="fact_confidence_is_a_share",
                condition=Q(confidence__isnull=True) | Q(confidence__gte=0, confidence__lte=1),
            ),
            models.CheckConstraint(name="fact_valid_not_empty", condition=Q(valid__isempty=False)),
            models.CheckConstraint(name="fact_known_not_empty", condition=Q(known__isempty=False)),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind}"


class Retraction(models.Model):
    """Why a version was taken back without a successor. Append-only by trigger."""

    version = models.OneToOneField(
        Version, on_delete=models.PROTECT, primary_key=True, related_name="retraction"
    )
    at = models.DateTimeField()
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    agent = models.CharField(max_length=128, blank=True, default="")
    reason = models.TextField()
    request_id = models.CharField(max_length=64, blank=True, default="")

    def __str__(self) -> str:
        return f"{self.version_id} taken back"


class FactFlag(models.Model):
    """A pattern found in a version's text. A version with an unread flag stays out of search and of packs."""

    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="flags")
    pattern = models.CharField(max_length=64)
    spans = models.JSONField(default=list)
    catalogue = models.CharField(max_length=32)
    acknowledged_by = models.CharField(max_length=150, blank=True, default="")
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledge_reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["version", "pattern"], name="one_fact_flag_per_pattern"),
        ]
        indexes = [
            models.Index(
                fields=["version"], name="fact_flag_unread", condition=Q(acknowledged_at__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version_id} {self.pattern}"


class FactPosting(models.Model):
    """One term of one version, for the keyword leg."""

    pk = models.CompositePrimaryKey("namespace_id", "term", "version_id")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    term = models.CharField(max_length=80)
    version = models.ForeignKey(Version, on_delete=models.CASCADE, db_index=False)
    tf = models.IntegerField()
    doc_len = models.IntegerField()
    # The version's owner, so that frequencies can be counted over what a caller sees without a join.
    owner = models.CharField(max_length=128, default=SHARED)

    def __str__(self) -> str:
        return f"{self.term} x{self.tf}"


class FactCorpusStripe(models.Model):
    """How many versions of one owner a namespace has: the sum of its stripes, of which one may be negative.

    Striped so that writers rarely meet in one row; counted by owner, so that what a caller cannot see moves
    nothing in its answers.
    """

    pk = models.CompositePrimaryKey("namespace_id", "owner", "stripe")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE, db_index=False)
    owner = models.CharField(max_length=128)
    stripe = models.SmallIntegerField()
    docs = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.namespace_id} {self.owner} {self.stripe}: {self.docs}"


class FactEmbedding(models.Model):
    """The vector of a version's text, by embedder: two may stand beside each other while `reembed` runs."""

    pk = models.CompositePrimaryKey("version_id", "embedder")
    version = models.ForeignKey(Version, on_delete=models.CASCADE, db_index=False, related_name="embeddings")
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE)
    embedder = models.CharField(max_length=128)
    dim = models.SmallIntegerField()
    vector = HalfVectorField()

    def __str__(self) -> str:
        return f"{self.version_id} {self.embedder}"
