"""Ops for people who answer for what is kept: the audit, and erasures. All act in the console."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import BeforeValidator, Field, model_validator

from governance import audit, audit_selectors, erasure
from governance.models import Org
from loomsite.ops import AgentText, Context, OpInput, OpOutput, Role, WriteInput, op
from loomsite.ops.schema import Count, Identity, Instant, Reason

PAGE = 50
PAGE_MAX = 200
Filter = Annotated[str, Field(max_length=600)]


class AuditListInput(OpInput):
    """Which rows of the audit."""

    op: Filter | None = Field(None, description="Rows of exactly this op, such as memory.delete.")
    target: Filter | None = Field(None, description="Rows about exactly this key, fact:<id> or other target.")
    principal: Filter | None = Field(None, description="Rows of this account.")
    outcome: Filter | None = Field(None, description="applied, refused, parked or erased.")
    request_id: Filter | None = Field(None, description="Rows of the call with this X-Request-ID.")
    since: Instant | None = Field(None, description="Rows from this instant on.")
    until: Instant | None = Field(None, description="Rows before this instant.")
    limit: Annotated[Count, Field(ge=1, le=PAGE_MAX)] = Field(PAGE, description="Rows in a page, 1 to 200.")
    cursor: Filter | None = Field(None, description="next_cursor of the page before.")


class AuditListOutput(OpOutput):
    """A page of the audit."""

    events: list[dict[str, Any]] = Field(
        description="Newest first: seq, at, op, target, outcome, principal, token_prefix, door, agent, "
        "user_id, session_id, run_id, before_version, after_version, before_sha256, after_sha256, reason, "
        "request_id, detail, hash each."
    )
    next_cursor: str | None = None


@op(
    "audit.list",
    input=AuditListInput,
    output=AuditListOutput,
    role=Role.REVIEWER,
    kind="read",
    idempotent=True,
    toolset="by_name",
    summary="Who did what in this namespace, newest first; for reviewers in the console.",
    text=AgentText(
        what="Lists audit rows of one namespace: every change, and every refused destructive or locked call. "
        "Changes nothing. 403 for a token: a reviewer reads the audit in the console.",
        when='"Who deleted this?", "what did that token do yesterday?", asked by a reviewer.',
        when_not="For the versions of one memory (memory.history) or of one fact (fact.history).",
        args="all optional; agent, user_id and session_id narrow as everywhere; limit and cursor page.",
    ),
)
def audit_list(ctx: Context, data: AuditListInput) -> dict[str, Any]:
    """One page."""
    exact = {
        name: value
        for name in ("op", "target", "principal", "outcome", "request_id")
        if (value := getattr(data, name)) is not None
    }
    for name in ("agent", "user_id", "session_id"):
        asked = getattr(ctx, name)
        if asked is not None:
            # The audit writes "" for none.
            exact[name] = "" if asked == "-" else asked
    rows, following = audit_selectors.audit_list(
        ctx, exact, since=data.since, until=data.until, limit=data.limit, cursor=data.cursor
    )
    return {"events": rows, "next_cursor": following}


class AuditVerifyOutput(OpOutput):
    """The verdict on the organisation's chain."""

    whole: bool = Field(description="True when every row is what was written, and none is missing.")
    rows: int = Field(description="How many rows are whole, from the first on.")
    anchored: int = Field(description="The last row that the anchor file knows; 0 when it knows none.")
    fault_seq: int | None = Field(None, description="Number of the first bad or missing row.")
    fault: str | None = Field(None, description="What is wrong with it.")
    note: str | None = Field(None, description="What this verdict cannot tell.")


@op(
    "audit.verify",
    input=OpInput,
    output=AuditVerifyOutput,
    role=Role.ADMIN,
    kind="read",
    idempotent=True,
    toolset="by_name",
    summary="Whether the organisation's audit chain is whole; for admins in the console.",
    text=AgentText(
        what="Walks the hash chain of the organisation from its first row to the head anchored outside the "
        "database, and names the first row that was changed, is missing or was moved. Changes nothing. "
        "403 for a token: an admin does it in the console.",
        when='"Can we prove that nobody touched the audit?", asked by an admin.',
        when_not="To read rows (audit.list).",
        args="none.",
    ),
)
def audit_verify(ctx: Context, data: OpInput) -> dict[str, Any]:
    """Walk the chain."""
    org = Org.objects.get(pk=ctx.caller.org_id)
    report = audit.verify(org.pk, org.slug)
    body: dict[str, Any] = {"whole": report.fault is None, "rows": report.events, "anchored": report.anchored}
    if report.fault is not None:
        return body | {"fault_seq": report.fault.seq, "fault": report.fault.what}
    if report.events and not report.anchored:
        body["note"] = (
            f"{settings.LOOM_AUDIT_ANCHOR.name} knows nothing of this chain, so that rows cut off at its end "
            "would not be seen"
        )
    return body


# Erasure


def _id(value: Any) -> Any:
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 0 < int(text) < 2**63):
        raise ValueError("must be an id, as a string or a number")
    return int(text)


NodeId = Annotated[int, BeforeValidator(_id)]


class ErasureRequestInput(WriteInput):
    """Whose text goes, and why."""

    user_id: Identity | None = Field(
        None, description="The end user whose memories, facts, run notes and raw turns go; agent and session "
        "narrow it."
    )  # fmt: skip
    memory_ids: Annotated[list[NodeId], Field(max_length=10_000)] | None = Field(
        None, description="Memories, procedures and facts by id, whoever they belong to."
    )
    subject: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Facts about this subject, whoever remembered them."
    )
    scope: Literal["namespace", "org"] = Field(
        "namespace", description="org: every namespace of the organisation; for its admins."
    )
    raw: bool = Field(True, description="False: the raw archive keeps what the person said.")
    digest: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="The digest of the dry run that was looked at; 409 when it is another by now."
    )
    dry_run: bool = Field(False, description="Tell what would go and what guards it; change nothing.")
    reason: Reason | None = Field(
        None, description="Why; kept in the audit for good, so that it should name no personal data."
    )

    @model_validator(mode="after")
    def _whose_and_why(self) -> ErasureRequestInput:
        if self.user_id in ("-", "*"):
            raise ValueError(f'user_id: "{self.user_id}" names nobody; whose text is meant?')
        if self.subject is not None and not self.subject.strip():
            raise ValueError("subject: must not be blank; leave it out instead")
        if not (self.user_id or self.memory_ids or self.subject):
            raise ValueError("one of user_id, memory_ids and subject is needed: whose text is meant?")
        if not self.dry_run and not (self.reason or "").strip():
            raise ValueError("reason: is needed; why is it erased?")
        return self


class ErasureOutput(OpOutput):
    """How the request stands."""

    state: str = Field(description="previewed, requested, parked, running, done or failed.")
    counts: dict[str, int] = Field(description="Rows that go, by kind.")
    guards: list[dict[str, Any]] = Field(
        description="What stands in its way, 100 at most: id, key, mode, holds each."
    )
    guarded: int = Field(description="How many guarded rows there are.")
    erasure_id: str | None = None
    job_id: str | None = Field(None, description="The job that erases; null while it is parked.")
    digest: str | None = None
    notes: list[str] | None = Field(None, description="What holds the same text and stays.")
    dry_run: bool = False


@op(
    "erasure.request",
    input=ErasureRequestInput,
    output=ErasureOutput,
    role=Role.ADMIN,
    kind="write",
    destructive=True,
    toolset="by_name",
    summary="Erase a person's text everywhere for good; an admin asks, a hold parks it.",
    text=AgentText(
        what="Takes the text of a person out of every table: memories with all versions, facts, run notes, "
        "indexes, stored answers, jobs and, unless raw is false, the raw archive. Ids, keys, labels, hashes "
        "and the audit stay. It cannot be undone. A row under a hold or a lock parks the whole "
        "request until an admin resumes it (erasure.resume). 403 for a token: an admin does it in the "
        "console; 404 names ids that are not here; 409 VERSION_CONFLICT: the digest is of another state.",
        when='"Forget everything about this person", as the law may demand it, asked by an admin.',
        when_not="For one memory (memory.redact), or for what may come back (memory.delete).",
        args="at least one of user_id, memory_ids, subject; reason. First dry_run true, then the same call "
        "with its digest.",
    ),
)
def erasure_request(ctx: Context, data: ErasureRequestInput) -> dict[str, Any]:
    """Preview or ask."""
    asked = erasure.Asked(
        scope=data.scope,
        user_id=data.user_id or "",
        agent=ctx.agent if ctx.agent and data.user_id else "",
        session_id=ctx.session_id if ctx.session_id and data.user_id else "",
        node_ids=tuple(sorted(set(data.memory_ids or ()))),
        subject=(data.subject or "").strip(),
        raw=data.raw,
    )
    return erasure.erasure_request(ctx, asked, data.digest, dry_run=data.dry_run)


class ErasureResumeInput(WriteInput):
    """Which request goes on."""

    erasure_id: Annotated[int, BeforeValidator(_id)] = Field(description="As erasure.request answered it.")


@op(
    "erasure.resume",
    input=ErasureResumeInput,
    output=ErasureOutput,
    role=Role.ADMIN,
    kind="write",
    destructive=True,
    toolset="by_name",
    summary="Take up a parked erasure once its holds are released; for admins in the console.",
    text=AgentText(
        what="Looks again at what guards the rows of a parked (or failed) erasure request and hands it to a "
        "worker when nothing does; else it stays parked and says what guards. It cannot be undone. 403 "
        "for a token: an admin does it in the console. 409 INVALID_TRANSITION: it is not parked.",
        when='"The hold is released, go on with the erasure."',
        when_not="To release the hold (hold.release) or loosen the lock (memory.unlock).",
        args="erasure_id.",
    ),
)
def erasure_resume(ctx: Context, data: ErasureResumeInput) -> dict[str, Any]:
    """Go on."""
    return erasure.erasure_resume(ctx, data.erasure_id)
