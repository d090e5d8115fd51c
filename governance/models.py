"""Who may act, what is locked, what waits, and what was done.

Roles on a namespace are django-guardian object permissions (`viewer` < `writer` < `reviewer` <
`admin`), kept in tables with real foreign keys; `admin_org` on an organisation covers its namespaces.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from guardian.models import GroupObjectPermissionBase, UserObjectPermissionBase

SOURCE_CLASSES = ("user_prompt", "repo_file", "local_tool_output", "pack", "external_content")
LOCK_MODES = ("none", "no_delete", "read_only")


class User(AbstractUser):
    """A principal: a person, or a service account that only tokens speak for."""

    class Kind(models.TextChoices):
        """What stands behind the principal."""

        PERSON = "person"
        SERVICE = "service"

    kind = models.CharField(max_length=16, choices=Kind.choices, default=Kind.PERSON)

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                name="service_accounts_do_not_log_in",
                condition=~Q(kind="service") | Q(is_staff=False, is_superuser=False),
            )
        ]


class Org(models.Model):
    """A tenant. Nothing is shared between organisations."""

    slug = models.CharField(max_length=128, unique=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("admin_org", "Administers every namespace of the organisation")]
        verbose_name = "organisation"

    def __str__(self) -> str:
        return self.slug


class OrgUserPermission(UserObjectPermissionBase):
    """Org admins, by user."""

    content_object = models.ForeignKey(Org, on_delete=models.CASCADE)


class OrgGroupPermission(GroupObjectPermissionBase):
    """Org admins, by group."""

    content_object = models.ForeignKey(Org, on_delete=models.CASCADE)


class Namespace(models.Model):
    """A shared space of memories within an organisation: the unit of roles and policy."""

    org = models.ForeignKey(Org, on_delete=models.PROTECT, related_name="namespaces")
    slug = models.CharField(max_length=128)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        permissions = [
            ("viewer", "May read"),
            ("writer", "May read and write"),
            ("reviewer", "May decide what waits for review"),
            ("admin", "May loosen locks and set roles"),
        ]
        constraints = [models.UniqueConstraint(fields=["org", "slug"], name="namespace_of_org")]

    def __str__(self) -> str:
        return f"{self.org.slug}/{self.slug}"


class NamespaceUserPermission(UserObjectPermissionBase):
    """Roles of a user on a namespace."""

    content_object = models.ForeignKey(Namespace, on_delete=models.CASCADE)


class NamespaceGroupPermission(GroupObjectPermissionBase):
    """Roles of a group on a namespace."""

    content_object = models.ForeignKey(Namespace, on_delete=models.CASCADE)


class Token(models.Model):
    """What lets an agent speak for a principal, and how far. Only a SHA-256 of the secret is kept."""

    class ActsFor(models.TextChoices):
        """Whether what it writes counts as authored by a person."""

        AGENT = "agent"
        PERSON = "person"

    class Ceiling(models.TextChoices):
        """The highest role a token can use: reviewers and admins act in the console."""

        VIEWER = "viewer"
        WRITER = "writer"

    principal = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    org = models.ForeignKey(Org, on_delete=models.PROTECT, related_name="tokens")
    label = models.CharField(max_length=128, blank=True, default="")
    prefix = models.CharField(max_length=16, unique=True)
    secret_sha256 = models.BinaryField(max_length=32)
    # NULL: every namespace that the principal's roles allow. An empty list: none at all.
    namespaces = ArrayField(models.CharField(max_length=128), null=True, blank=True)
    default_namespace = models.CharField(max_length=128, blank=True, default="")
    role = models.CharField(max_length=8, choices=Ceiling.choices, default=Ceiling.WRITER)
    agent = models.CharField(max_length=128, blank=True, default="")
    user_id = models.CharField(max_length=128, blank=True, default="")
    source_class = models.CharField(
        max_length=20, default="local_tool_output", choices=[(c, c) for c in SOURCE_CLASSES]
    )
    acts_for = models.CharField(max_length=8, choices=ActsFor.choices, default=ActsFor.AGENT)
    may_create_namespaces = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="tokens_made")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"loom_{self.prefix}_… ({self.label or self.principal})"


class LockMode(models.TextChoices):
    """How firmly a governed row is held; each includes the ones before it."""

    NONE = "none"
    NO_DELETE = "no_delete"
    READ_ONLY = "read_only"


class Lockable(models.Model):
    """What can be locked: a status, a version, and at most one lock whose mode and end may only rise.

    The rule is enforced by the app's gateway and, for every other way in, by a trigger.
    """

    status = models.CharField(max_length=12, default="active")
    version = models.BigIntegerField(default=1)
    lock_mode = models.CharField(max_length=9, choices=LockMode.choices, default=LockMode.NONE)
    lock_reason = models.TextField(blank=True, default="")
    lock_until = models.DateTimeField(null=True, blank=True)
    locked_by = models.CharField(max_length=150, blank=True, default="")
    locked_at = models.DateTimeField(null=True, blank=True)
    # How many holds stand beside the lock; the holds themselves are rows of `Hold`.
    holds = models.PositiveSmallIntegerField(default=0, db_default=0)

    class Meta:
        abstract = True


class Hold(models.Model):
    """A legal hold on a governed row: no expiry, several beside each other, each released on its own."""

    org = models.ForeignKey(Org, on_delete=models.PROTECT, related_name="holds")
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="holds")
    # The governed row, by the id that memories, facts and procedures draw from one sequence.
    node_id = models.BigIntegerField()
    target = models.CharField(max_length=600)
    matter = models.CharField(max_length=256)
    reason = models.TextField()
    placed_by = models.CharField(max_length=150)
    placed_at = models.DateTimeField(db_default=Now())
    released_at = models.DateTimeField(null=True, blank=True)
    released_by = models.CharField(max_length=150, blank=True, default="")
    release_reason = models.TextField(blank=True, default="")

    class Meta:
        ordering: ClassVar = ["-placed_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["node_id", "matter"],
                condition=Q(released_at__isnull=True),
                name="one_open_hold_per_matter",
            )
        ]
        indexes = [
            models.Index(
                fields=["namespace", "-placed_at"], name="hold_open", condition=Q(released_at__isnull=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.target}: {self.matter}"


class IdempotencyKey(models.Model):
    """The stored answer of a write, replayed to whoever sends the same key and body again."""

    org = models.ForeignKey(Org, on_delete=models.CASCADE)
    principal = models.ForeignKey(User, on_delete=models.CASCADE)
    op = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    body_sha256 = models.BinaryField(max_length=32)
    status = models.SmallIntegerField(null=True)
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["org", "principal", "op", "key"], name="idempotency_key_of_principal"
            )
        ]

    def __str__(self) -> str:
        return f"{self.op} {self.key}"


class AuditHead(models.Model):
    """The last link of an organisation's chain; locked last and once per transaction."""

    org = models.OneToOneField(Org, on_delete=models.PROTECT, primary_key=True, related_name="audit_head")
    seq = models.BigIntegerField(default=0)
    hash = models.BinaryField(max_length=32)

    def __str__(self) -> str:
        return f"{self.org_id} #{self.seq}"


class AuditEvent(models.Model):
    """One state change or one refusal. Append-only by trigger; hash-chained per organisation."""

    org = models.ForeignKey(Org, on_delete=models.PROTECT, related_name="audit_events")
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    namespace = models.CharField(max_length=128, blank=True)
    principal = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True)
    agent = models.CharField(max_length=128, blank=True)
    user_id = models.CharField(max_length=128, blank=True)
    session_id = models.CharField(max_length=128, blank=True)
    run_id = models.CharField(max_length=128, blank=True)
    door = models.CharField(max_length=8)
    op = models.CharField(max_length=64)
    target = models.CharField(max_length=600, blank=True)
    before_version = models.BigIntegerField(null=True)
    after_version = models.BigIntegerField(null=True)
    before_sha256 = models.CharField(max_length=64, blank=True)
    after_sha256 = models.CharField(max_length=64, blank=True)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    outcome = models.CharField(max_length=24)
    detail = models.JSONField(default=dict)
    prev_hash = models.BinaryField(max_length=32)
    hash = models.BinaryField(max_length=32)

    class Meta:
        ordering: ClassVar = ["org", "-seq"]
        constraints = [models.UniqueConstraint(fields=["org", "seq"], name="audit_seq_of_org")]
        indexes = [
            models.Index(fields=["org", "namespace", "-seq"], name="audit_by_namespace"),
            models.Index(fields=["org", "target", "-seq"], name="audit_by_target"),
        ]

    def __str__(self) -> str:
        return f"#{self.seq} {self.op} {self.target} {self.outcome}"


class ImportedAudit(models.Model):
    """An audit row that came with an imported namespace. History of another chain; append-only by trigger."""

    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="imported_audit")
    # JSON exactly as it came, hash included: it can be checked by itself and is exported again as it is.
    row = models.TextField()
    imported_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"imported #{self.pk}"


class Job(models.Model):
    """A piece of background work. This row is the truth; the queue only carries its id."""

    class State(models.TextChoices):
        """Where the work stands."""

        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    org = models.ForeignKey(Org, on_delete=models.CASCADE, related_name="jobs")
    namespace = models.ForeignKey(Namespace, null=True, on_delete=models.CASCADE, related_name="jobs")
    kind = models.CharField(max_length=64)
    input = models.JSONField(default=dict)
    state = models.CharField(max_length=8, choices=State.choices, default=State.QUEUED)
    progress = models.FloatField(default=0)
    result = models.JSONField(null=True)
    error = models.TextField(blank=True, default="")
    attempts = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField(default=5)
    # The attempt that owns the row: a worker that lost it can neither beat nor finish.
    lease = models.UUIDField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    run_after = models.DateTimeField(db_default=Now())
    enqueued_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    requested_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes = [
            models.Index(fields=["run_after"], name="job_open", condition=Q(state__in=["queued", "running"])),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk} {self.state}"


class WorkerBeat(models.Model):
    """When each worker was last heard from."""

    name = models.CharField(max_length=255, primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} {self.at:%H:%M:%S}"


class LoginFailure(models.Model):
    """A recent attempt with a password, counted until it turns out right; old ones are dropped."""

    # SHA-256 of what is throttled (such as user name and address): what was typed is not kept.
    key = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index("key", "at", name="login_failure_of_key"),
            models.Index("at", name="login_failure_old"),
        ]

    def __str__(self) -> str:
        return f"{self.key[:8]} {self.at:%H:%M:%S}"


class Policy(models.Model):
    """What a namespace lets its writers do at once, where it differs from the default table.

    The table, its defaults and which rows may not be looser are in `governance.review`.
    """

    namespace = models.OneToOneField(Namespace, on_delete=models.CASCADE, related_name="policy")
    # Action -> level, only where it is not the default.
    rows: models.JSONField[Any, Any] = models.JSONField(default=dict, blank=True)
    approvals = models.PositiveSmallIntegerField(default=1)
    plan_hours = models.PositiveSmallIntegerField(default=72)
    # How many memories `memory.apply` deletes or expires before the row for many counts.
    apply_at_once = models.PositiveIntegerField(default=25)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(db_default=Now())
    updated_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        verbose_name_plural = "policies"
        constraints = [
            models.CheckConstraint(
                name="policy_numbers_are_bounded",
                condition=Q(
                    approvals__gte=1,
                    approvals__lte=10,
                    plan_hours__gte=1,
                    plan_hours__lte=8760,
                    apply_at_once__lte=10_000,
                ),
            ),
            # What only a person may ever do is direct in no namespace.
            models.CheckConstraint(
                name="policy_starred_rows_are_not_looser",
                condition=~Q(rows__contains={"govern.acknowledge-pattern": "direct"})
                & ~Q(rows__contains={"memory.restore": "direct"})
                & ~Q(rows__contains={"memory.unlock": "direct"})
                & ~Q(rows__contains={"hold.release": "direct"}),
            ),
        ]

    def __str__(self) -> str:
        return f"policy of {self.namespace_id} v{self.version}"


class Plan(models.Model):
    """A destructive call that waits for a person: frozen as asked, applied exactly as shown, or not at all.

    `digest` is SHA-256 of the canonical JSON in `governance.plans`; a final state never changes again, by
    trigger. The rows that it is about are `PlanTarget`.
    """

    class State(models.TextChoices):
        """Where the plan stands. `approved` has all its approvals and is about to be applied."""

        PENDING = "pending"
        APPROVED = "approved"
        APPLIED = "applied"
        REJECTED = "rejected"
        EXPIRED = "expired"
        STALE = "stale"
        WITHDRAWN = "withdrawn"
        FAILED = "failed"

    OPEN = ("pending", "approved")

    org = models.ForeignKey(Org, on_delete=models.PROTECT, related_name="plans")
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="plans")
    op = models.CharField(max_length=64)
    # The policy's row that sent it to review, such as `govern.delete`.
    action = models.CharField(max_length=64)
    # The call's input as it came, for its dispatch; blanked when a text in it is erased.
    input: models.JSONField[Any, Any] = models.JSONField(default=dict)
    input_sha256 = models.CharField(max_length=64)
    requester = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="plans_asked")
    requested_by = models.CharField(max_length=150)
    # The person behind a service account's token: who made the token.
    behind = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="plans_behind")
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    acts_for = models.CharField(max_length=8, default="agent")
    door = models.CharField(max_length=8)
    # Who the call was for ("" where it named none), and what its token is bound to.
    agent = models.CharField(max_length=128, blank=True, default="")
    user_id = models.CharField(max_length=128, blank=True, default="")
    session_id = models.CharField(max_length=128, blank=True, default="")
    run_id = models.CharField(max_length=128, blank=True, default="")
    bound_agent = models.CharField(max_length=128, blank=True, default="")
    bound_user = models.CharField(max_length=128, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    reason = models.TextField(blank=True, default="")
    # What the call changes, in a few words that follow the action ("expires 60 s after it is applied").
    effect = models.CharField(max_length=256, blank=True, default="")
    digest = models.CharField(max_length=64)
    policy_level = models.CharField(max_length=16)
    policy_version = models.PositiveIntegerField(default=0)
    approvals_needed = models.PositiveSmallIntegerField(default=1)
    scanner = models.CharField(max_length=32, blank=True, default="")
    state = models.CharField(max_length=9, choices=State.choices, default=State.PENDING)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, blank=True, default="")
    comment = models.TextField(blank=True, default="")
    applied_at = models.DateTimeField(null=True, blank=True)
    self_approved = models.BooleanField(default=False)
    # Rows that it is about, and how many of them it changes.
    rows = models.PositiveIntegerField(default=0)
    changes = models.PositiveIntegerField(default=0)
    # What came of it: counts of an applied plan, the refusal of a failed one. No stored text.
    result: models.JSONField[Any, Any] = models.JSONField(default=dict)
    # Of a stale plan: how many rows moved (which and how stands at each), and what else did.
    moved_rows = models.PositiveIntegerField(default=0)
    moved: models.JSONField[Any, Any] = models.JSONField(default=list)
    refreshed_from = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="refreshed_by"
    )

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes = [
            models.Index(
                fields=["namespace", "created_at", "id"], name="plan_open", condition=Q(state="pending")
            ),
            models.Index(fields=["expires_at"], name="plan_expiring", condition=Q(state="pending")),
            models.Index(fields=["namespace", "-id"], name="plan_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                name="plan_state_known",
                condition=Q(
                    state__in=[
                        "pending", "approved", "applied", "rejected", "expired", "stale", "withdrawn",
                        "failed",
                    ]
                ),
            ),
            models.CheckConstraint(
                name="plan_applied_has_its_instant",
                condition=Q(state="applied", applied_at__isnull=False)
                | (~Q(state="applied") & Q(applied_at__isnull=True)),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"plan {self.pk}: {self.action}, {self.rows} rows, {self.state}"


class PlanTarget(models.Model):
    """One row that a plan is about, as it stood when the plan was made. No content, only its hash and title.

    `title` and `why` may repeat stored text, so an erasure blanks them.
    """

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="targets", db_index=False)
    # Which app's row: memory or fact.
    kind = models.CharField(max_length=16)
    node_id = models.BigIntegerField()
    key = models.CharField(max_length=600)
    title = models.CharField(max_length=200, blank=True, default="")
    version = models.BigIntegerField()
    content_sha256 = models.CharField(max_length=64, blank=True, default="")
    # The lock as it is compared: "none", or mode|until|holds.
    lock = models.CharField(max_length=64)
    status = models.CharField(max_length=16, blank=True, default="")
    # What it becomes: another status, or what the action does to it.
    planned = models.CharField(max_length=64, blank=True, default="")
    changes = models.BooleanField(default=True)
    # Why it is left as it is, where the action refuses a single row.
    why = models.TextField(blank=True, default="")
    flagged = models.BooleanField(default=False)
    # Of a stale plan: {what: {expected, current}} of a row that moved.
    drift: models.JSONField[Any, Any] = models.JSONField(null=True)

    class Meta:
        ordering: ClassVar = ["plan", "node_id"]
        constraints = [
            models.UniqueConstraint(fields=["plan", "node_id"], name="plan_names_a_row_once"),
        ]
        indexes = [
            models.Index(fields=["node_id"], name="plan_target_node"),
            models.Index(fields=["plan", "node_id"], name="plan_target_flagged", condition=Q(flagged=True)),
            models.Index(
                fields=["plan", "node_id"], name="plan_target_moved", condition=Q(drift__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key} v{self.version}"


class PlanApproval(models.Model):
    """A reviewer's yes to exactly this digest; void once the reviewer loses the role before the apply."""

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="approvals")
    reviewer = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    approved_by = models.CharField(max_length=150)
    role = models.CharField(max_length=8)
    comment = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())
    voided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["plan", "approved_by"],
                condition=Q(voided_at__isnull=True),
                name="one_standing_approval_each",
            )
        ]

    def __str__(self) -> str:
        return f"{self.approved_by} on plan {self.plan_id}"
