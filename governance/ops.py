"""Ops about the server and the caller."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from pydantic import Field

from governance import selectors, tenancy
from governance.clock import iso
from loomsite.ops import AgentText, Context, OpInput, OpOutput, Role, all_ops, limits, op
from loomsite.ops.registry import Op


class WhoamiOutput(OpOutput):
    """The caller as the server sees it."""

    org: str
    principal: str
    token_prefix: str | None = None
    acts_for: str
    single_user: bool
    namespace: str | None = Field(None, description="The namespace used when a call names none.")
    role: str | None = Field(None, description="The role there.")
    role_ceiling: str
    agent: str | None = None
    user_id: str | None = None
    source_class_ceiling: str
    namespaces: list[str] | None = Field(None, description="The token's own list; null when it has none.")
    may_create_namespaces: bool


@op(
    "ops.whoami",
    input=OpInput,
    output=WhoamiOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    idempotent=True,
    summary="Who this token speaks for, and what it may do.",
    text=AgentText(
        what="Tells the organisation, principal, default namespace, role and narrowing of the token in use. "
        "Changes nothing.",
        when='"Who am I here?", "which namespace do I write to?", after a 403 or 404 that surprises.',
        when_not="To list namespaces (namespace.list) or ops (ops.capabilities).",
        args="none; namespace tells the role in that namespace.",
    ),
)
def ops_whoami(ctx: Context, data: OpInput) -> dict[str, Any]:
    """Describe the caller."""
    caller = ctx.caller
    return {
        "org": caller.org,
        "principal": caller.principal,
        "token_prefix": caller.token_prefix or None,
        "acts_for": caller.acts_for,
        "single_user": caller.single_user,
        "namespace": ctx.namespace or None,
        "role": ctx.role.label if ctx.namespace else None,
        "role_ceiling": caller.ceiling.label,
        "agent": caller.bound_agent,
        "user_id": caller.bound_user,
        "source_class_ceiling": caller.source_ceiling,
        "namespaces": None if caller.namespaces is None else sorted(caller.namespaces),
        "may_create_namespaces": caller.may_create_namespaces,
    }


class CapabilitiesOutput(OpOutput):
    """What this server can do, truthfully."""

    server: str
    version: str
    ops: list[dict[str, Any]]
    limits: dict[str, int]
    embedder: str
    toolsets: dict[str, list[str]]
    differences: list[str] = Field(description="Where this server differs from Loom's wire behaviour.")
    not_here_yet: list[str]


DIFFERENCES = [
    "memory.set on a value pinned by somebody else stores nothing and answers 409 PINNED_CONFLICT.",
    "memory.unlock is 403 to every token: an admin loosens locks in the console.",
    "An unknown key inside a selector is 400, for ignored there it would match everything.",
    "Identity fields given on a read narrow to exactly that value; left out they mean any the token covers.",
]
NOT_HERE_YET = ["procedure.evolve", "procedure.revise", "erasure.request", "audit.list"]


def described(op: Op) -> dict[str, Any]:
    """An op as `ops.capabilities` lists it."""
    return {
        "op": op.name,
        "summary": op.summary,
        "role": op.role.label,
        "kind": op.kind,
        "effects": sorted(str(effect) for effect in op.effects),
        "destructive": op.destructive,
        "idempotent": op.idempotent,
        "audited": op.audited and not op.is_read,
        "url": f"/v1/{op.name}",
        "tool": op.tool_name,
        "toolset": op.toolset,
        "fields": sorted(op.fields),
    }


@op(
    "ops.capabilities",
    input=OpInput,
    output=CapabilitiesOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    idempotent=True,
    summary="Every op and field that this server has, and where it differs from Loom.",
    text=AgentText(
        what="Lists ops with role, effects, tool name and fields; limits; the embedder; what is not here "
        "yet. Changes nothing.",
        when='"What can this memory server do?", before relying on an op that another server had.',
        when_not="To see who you are (ops.whoami).",
        args="none.",
    ),
)
def ops_capabilities(ctx: Context, data: OpInput) -> dict[str, Any]:
    """List what exists."""
    from loomsite import VERSION

    ops = all_ops()
    return {
        "server": "loomsite",
        "version": VERSION,
        "ops": [described(op) for op in ops],
        "limits": {
            "body_bytes": limits.BODY_BYTES,
            "value_bytes": limits.VALUE_BYTES,
            "key_characters": limits.KEY_CHARS,
            "identity_characters": limits.IDENTITY_CHARS,
            "tags": limits.TAGS,
            "tag_characters": limits.TAG_CHARS,
            "nesting": limits.NESTING,
            "page": limits.PAGE,
        },
        "embedder": settings.LOOM_EMBEDDER,
        "toolsets": {
            "core": sorted(op.tool_name for op in ops if op.toolset == "core"),
            "all": sorted(op.tool_name for op in ops if op.toolset in ("core", "all")),
        },
        "differences": DIFFERENCES,
        "not_here_yet": NOT_HERE_YET,
    }


class HealthOutput(OpOutput):
    """Is everything well?"""

    status: str = Field(description="ok, or degraded with the reason in `degraded`.")
    database: str
    worker: dict[str, Any]
    jobs: dict[str, int]
    embedder: str


@op(
    "ops.health",
    input=OpInput,
    output=HealthOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    idempotent=True,
    summary="Whether database, worker and queue are well.",
    text=AgentText(
        what="Reports the database, the background worker's last sign of life, open jobs, the embedder. "
        "Changes nothing.",
        when="Answers carry `degraded`, or background work does not finish.",
        when_not="As a liveness probe: GET /v1/health needs no token.",
        args="none.",
    ),
)
def ops_health(ctx: Context, data: OpInput) -> dict[str, Any]:
    """Report on the parts."""
    worker = selectors.worker_seen()
    if not worker["alive"]:
        ctx.degraded.append("worker")
    parts = {name: probe() for name, probe in sorted(selectors.HEALTH_PROBES.items())}
    ctx.degraded.extend(name for name, state in parts.items() if state != "ok")
    return {
        "status": "degraded" if ctx.degraded else "ok",
        # This answer came out of it.
        "database": "ok",
        "worker": worker,
        "jobs": selectors.queue_counts(ctx.caller.org_id),
        "embedder": parts.get("embedder", "unknown"),
    }


class NamespaceListOutput(OpOutput):
    """The namespaces of the caller."""

    namespaces: list[dict[str, Any]] = Field(description="`namespace`, `role`, `created_at` each, by name.")


@op(
    "namespace.list",
    input=OpInput,
    output=NamespaceListOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    idempotent=True,
    summary="The namespaces that this caller may see, with its role in each.",
    text=AgentText(
        what="Lists namespaces with the caller's role. Changes nothing.",
        when='"Which projects or spaces can I use?", before naming a namespace.',
        when_not="To make one: write to it; whoever may create namespaces makes it by the first write.",
        args="none.",
    ),
)
def namespace_list(ctx: Context, data: OpInput) -> dict[str, Any]:
    """List what the caller may see."""
    rows = tenancy.visible_namespaces(ctx.caller)
    return {
        "namespaces": [
            {"namespace": row["namespace"], "role": row["role"], "created_at": iso(row["created_at"])}
            for row in rows
        ]
    }


class JobGetInput(OpInput):
    """Which job."""

    job_id: str = Field(pattern=r"^[0-9]{1,18}$", description="The id that the enqueuing call answered.")


class JobGetOutput(OpOutput):
    """A job's state and, once it is done, its result."""

    job_id: str
    op: str
    state: str = Field(description="queued, running, done or failed.")
    progress: float
    attempts: int
    result: dict[str, Any] | None = None
    error: str | None = None
    created_at: str
    finished_at: str | None = None


@op(
    "job.get",
    input=JobGetInput,
    output=JobGetOutput,
    role=Role.VIEWER,
    kind="read",
    scoped=False,
    idempotent=True,
    summary="How a background job stands, and its result once it is done.",
    text=AgentText(
        what="Reads one job: state, progress, result or error. 404 for a job of a namespace that you cannot "
        "read. Changes nothing.",
        when="An answer carried a job_id and was not finished.",
        when_not="To start work: the op that needs it does so.",
        args="job_id as answered.",
    ),
)
def job_get(ctx: Context, data: JobGetInput) -> dict[str, Any]:
    """Read one job."""
    return selectors.job_get(ctx, int(data.job_id))
