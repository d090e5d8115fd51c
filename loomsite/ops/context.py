"""Who calls, and what a handler may know and leave behind. Plain data: no model, no Django."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loomsite.ops.registry import Op


class Role(IntEnum):
    """Roles on a namespace; each includes the ones before it."""

    NONE = 0
    VIEWER = 1
    WRITER = 2
    REVIEWER = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """The word used on the wire and in permissions."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Role:
        """The role with this label; KeyError for another word."""
        return cls[label.upper()]


class Effect(StrEnum):
    """What a write does to a governed row; the lock matrix is derived from it."""

    VALUE = "value"
    EXPIRY_EARLIER = "expiry_earlier"
    EXPIRY_LATER = "expiry_later"
    EXISTENCE = "existence"
    LOCK = "lock"
    NONE = "none"


class Door(StrEnum):
    """Where a call came in."""

    REST = "rest"
    MCP = "mcp"
    STDIO = "stdio"
    CONSOLE = "console"
    SYSTEM = "system"


@dataclass(frozen=True)
class Caller:
    """An authenticated caller: a principal, narrowed by the token that speaks for it."""

    principal_id: int | None
    principal: str
    org_id: int
    org: str
    door: Door
    token_prefix: str = ""
    acts_for: str = "agent"
    bound_agent: str | None = None
    bound_user: str | None = None
    source_ceiling: str = "user_prompt"
    # None: every namespace that the principal's roles allow.
    namespaces: frozenset[str] | None = None
    ceiling: Role = Role.ADMIN
    may_create_namespaces: bool = False
    default_namespace: str = ""
    single_user: bool = False


@dataclass
class AuditEntry:
    """One row for the audit chain, before it is numbered and hashed."""

    target: str
    op: str = ""
    before_version: int | None = None
    after_version: int | None = None
    before_sha256: str = ""
    after_sha256: str = ""
    reason: str = ""
    outcome: str = "applied"
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """One call on its way through the pipeline."""

    op: Op
    caller: Caller
    request_id: str
    role: Role = Role.NONE
    namespace: str = ""
    namespace_id: int | None = None
    agent: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    run_id: str = ""
    reason: str = ""
    # What the op's `locate` found, and what its `prepare` made.
    located: Any = None
    prepared: Any = None
    is_dry_run: bool = False
    # Set by an op whose call waits for a person (a Review), and while an approved plan is applied (a Frozen).
    review: Any = None
    plan: Any = None
    # Of a dry run: the real one would wait for a person.
    needs_review: bool = False
    # A plan's request asked once more: versions that it expected are those of now.
    is_refresh: bool = False
    advisories: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    ignored_args: list[str] = field(default_factory=list)
    audit: list[AuditEntry] = field(default_factory=list)
    on_commit: list[Callable[[], None]] = field(default_factory=list)

    def record(self, entry: AuditEntry) -> None:
        """Leave an audit row; the pipeline writes it last in the same transaction."""
        self.audit.append(entry)
