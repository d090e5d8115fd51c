"""Procedures beside their memory rows: revisions of the graph, the ledger of runs, situation vectors.

A procedure's name, situation and steps are the value of its memory row, which the write gateway of memories
keeps; here is what that row has no room for.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from pgvector.django import HalfVectorField

from governance.models import Namespace
from memories.models import Memory


class Procedure(models.Model):
    """What stands beside a memory row that is a procedure; the row's id is the procedure's id."""

    memory = models.OneToOneField(
        Memory, on_delete=models.PROTECT, primary_key=True, related_name="procedure"
    )
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="procedures")
    # Number of the revision in force; while it is pending, also of the one that it would replace.
    revision = models.IntegerField(default=1)
    prior_revision = models.IntegerField(null=True, blank=True)
    # A person wrote it; else it is a candidate until something has exercised it.
    authored = models.BooleanField(default=False)
    quarantined = models.BooleanField(default=False, db_default=False)
    template = models.BooleanField(default=False, db_default=False)
    # Tools of the present graph, each once, for the overlap with a caller's recent tools.
    tools = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    # What evolve flagged, by node id.
    dead_ends = ArrayField(models.CharField(max_length=128), default=list, db_default=[], blank=True)
    fail_prone = ArrayField(models.CharField(max_length=128), default=list, db_default=[], blank=True)
    # Fail-prone transitions as [src, dst].
    fail_prone_edges = models.JSONField(default=list, db_default=[], blank=True)
    # What the folded runs amount to besides the counters of revisions: `folding.Retention.stored`.
    evidence = models.JSONField(default=dict, db_default={}, blank=True)
    # Gate settings stored in the console; they go before `metadata.evolve`.
    evolve_settings = models.JSONField(null=True, blank=True)
    # The job of the evolve that was queued last, whoever asked for it.
    evolve_job = models.BigIntegerField(null=True, blank=True)
    # The ledger's length and successes; the next run gets the number runs_total + 1.
    runs_total = models.BigIntegerField(default=0, db_default=0)
    runs_ok = models.BigIntegerField(default=0, db_default=0)
    runs_folded = models.BigIntegerField(default=0, db_default=0)
    last_run_at = models.DateTimeField(null=True, blank=True)
    forked_from = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="procedure_runs_add_up",
                condition=Q(runs_ok__gte=0, runs_ok__lte=models.F("runs_total"))
                & Q(runs_folded__gte=0, runs_folded__lte=models.F("runs_total")),
            ),
        ]
        indexes = [
            models.Index(fields=["namespace", "memory"], name="procedure_of_namespace"),
            models.Index(
                fields=["last_run_at"],
                name="procedure_unfolded",
                condition=Q(runs_folded__lt=models.F("runs_total")),
            ),
        ]

    def __str__(self) -> str:
        return f"procedure {self.pk}"


class Revision(models.Model):
    """One topology of a procedure. Its graph is append-only by trigger; state and counters move."""

    class State(models.TextChoices):
        """Where a revision stands."""

        ACCEPTED = "accepted"
        PENDING = "pending"
        REJECTED = "rejected"
        REVERTED = "reverted"
        WITHDRAWN = "withdrawn"

    procedure = models.ForeignKey(Procedure, on_delete=models.PROTECT, related_name="revisions")
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, db_index=False)
    number = models.IntegerField()
    graph = models.JSONField()
    digest = models.CharField(max_length=64)
    proposed_by = models.CharField(max_length=150)
    reason = models.TextField(blank=True, default="")
    state = models.CharField(max_length=9, choices=State.choices, default=State.ACCEPTED)
    # The folded counters (`folding.RevisionState.stored`); what is not folded is counted from the ledger.
    counters = models.JSONField(default=dict, db_default={})
    # The run after which the revision is in force.
    opened_after = models.BigIntegerField(default=0, db_default=0)
    # The revision against which the gate judges it; None where nothing is judged.
    prior = models.IntegerField(null=True, blank=True)
    # The revision whose topology it brings back, and whose runs count as its own.
    restores = models.IntegerField(null=True, blank=True)
    # What the prior revision had shown when this one opened (`judging.Baseline.stored`).
    baseline = models.JSONField(null=True, blank=True)
    # The gate's verdict on it with its numbers.
    verdict = models.JSONField(null=True, blank=True)
    opened_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["procedure", "number"], name="one_revision_per_number"),
            models.UniqueConstraint(
                fields=["procedure"], name="one_pending_revision", condition=Q(state="pending")
            ),
            models.CheckConstraint(
                name="revision_state_known",
                condition=Q(state__in=["accepted", "pending", "rejected", "reverted", "withdrawn"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.procedure_id} r{self.number}"


class Run(models.Model):
    """One reported run: a row of the ledger. Append-only by trigger; only `folded_at` is filled in later.

    `seq` counts a procedure's runs from 1 without gaps, in the order of their commits.
    """

    procedure = models.ForeignKey(Procedure, on_delete=models.PROTECT, related_name="runs", db_index=False)
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, db_index=False)
    seq = models.BigIntegerField()
    revision = models.IntegerField()
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    agent = models.CharField(max_length=128, default="-")
    user_id = models.CharField(max_length=128, default="-")
    session_id = models.CharField(max_length=128, default="-")
    path = ArrayField(models.CharField(max_length=128), default=list)
    ok = models.BooleanField()
    note = models.TextField(blank=True, default="")
    # A flagged note is kept and not read back into prompts.
    note_held = models.BooleanField(default=False)
    steps_taken = models.BigIntegerField(null=True)
    # 0 is unknown.
    duration_ms = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    report_id = models.CharField(max_length=128, null=True)  # noqa: DJ001 - unique where it is given
    # The answer to the report, for its replays.
    answer = models.JSONField(null=True)
    at = models.DateTimeField(db_default=Now())
    folded_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["procedure", "seq"], name="run_of_procedure"),
            models.UniqueConstraint(
                fields=["procedure", "report_id"],
                name="run_reported_once",
                condition=Q(report_id__isnull=False),
            ),
        ]
        # None on `folded_at`, and pages are half full at first (migration 0003): the mark of a fold then
        # finds its place on the row's own page and touches no index.
        indexes = [models.Index(fields=["namespace", "-at", "-id"], name="run_newest")]

    def __str__(self) -> str:
        return f"{self.procedure_id} #{self.seq}"


class Situation(models.Model):
    """The vector of a procedure's situation, by embedder: two may stand there while `reembed` runs."""

    pk = models.CompositePrimaryKey("procedure_id", "embedder")
    procedure = models.ForeignKey(
        Procedure, on_delete=models.CASCADE, db_index=False, related_name="situation_vectors"
    )
    namespace = models.ForeignKey(Namespace, on_delete=models.CASCADE)
    embedder = models.CharField(max_length=128)
    dim = models.SmallIntegerField()
    vector = HalfVectorField()
    text_sha256 = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.procedure_id} {self.embedder}"
