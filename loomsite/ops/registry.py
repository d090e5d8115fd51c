"""The registry: every operation is declared once, and every door is made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

from loomsite.ops.context import Context, Effect, Role
from loomsite.ops.schema import OpInput, OpOutput, spellings

Handler = Callable[[Context, Any], dict[str, Any]]
OPS_MODULES = (
    "governance.ops",
    "governance.plan_ops",
    "memories.ops",
    "memories.action_ops",
    "memories.raw_ops",
    "memories.pack_ops",
    "facts.ops",
    "procedures.ops",
    "procedures.pack",
)


@dataclass(frozen=True)
class AgentText:
    """Four short texts from which an agent picks the right op and knows what failure looks like."""

    what: str
    when: str
    when_not: str
    args: str

    def __str__(self) -> str:
        return f"WHAT: {self.what}\nWHEN: {self.when}\nWHEN NOT: {self.when_not}\nARGS: {self.args}"


@dataclass(frozen=True)
class Op:
    """An operation's single declaration.

    `handler(ctx, data)` runs inside the pipeline's transaction (writes) or in autocommit (reads) and
    returns the bare output object. `prepare(ctx, data)` runs before the transaction opens (slow work
    such as embedding). `scoped` ops act in one namespace; the others need a caller only.
    """

    name: str
    input: type[OpInput]
    output: type[OpOutput]
    role: Role
    kind: Literal["read", "write"]
    summary: str
    text: AgentText
    handler: Handler
    effects: frozenset[Effect] = frozenset({Effect.NONE})
    destructive: bool = False
    idempotent: bool = False
    audited: bool = True
    scoped: bool = True
    # May wait for a person by the namespace's policy: then it answers 202 and its `state` is pending_review.
    reviewed: bool = False
    # Of such an op for reviewers and admins: the role from which a call in the console makes a plan.
    planned_from: Role | None = None
    # Of an op that names a row by its id: puts the call where the row is, in whatever namespace of the
    # caller. False when this call names none.
    locate: Callable[[Context, Any], bool] | None = None
    tool: str = ""
    toolset: Literal["core", "all", "by_name"] = "all"
    prepare: Callable[[Context, Any], Any] | None = None
    after_commit: Callable[[Context, dict[str, Any]], dict[str, Any]] | None = None
    # Named in 404 messages of a scoped op and in the generated reference.
    see_also: tuple[str, ...] = ()

    @property
    def tool_name(self) -> str:
        """The MCP tool's name; a dot in any one name would hide every tool in some clients."""
        return self.tool or f"loom_{self.name.replace('.', '_')}"

    @property
    def is_read(self) -> bool:
        """True for an op that changes nothing."""
        return self.kind == "read"

    @cached_property
    def fields(self) -> frozenset[str]:
        """Every input name and alias that the op reads."""
        return frozenset(
            spelling for name, field in self.input.model_fields.items() for spelling in spellings(name, field)
        )


_REGISTRY: dict[str, Op] = {}


def op(
    name: str,
    *,
    input: type[OpInput],
    output: type[OpOutput],
    role: Role,
    kind: Literal["read", "write"],
    summary: str,
    text: AgentText,
    **options: Any,
) -> Callable[[Handler], Handler]:
    """Declare an operation; the decorated function is its handler. A second declaration is a defect."""

    def register(handler: Handler) -> Handler:
        if name in _REGISTRY:
            raise RuntimeError(f"The op {name} is declared twice.")
        _REGISTRY[name] = Op(
            name=name,
            input=input,
            output=output,
            role=role,
            kind=kind,
            summary=summary,
            text=text,
            handler=handler,
            **options,
        )
        return handler

    return register


def get(name: str) -> Op | None:
    """The op with this name, or None."""
    return _REGISTRY.get(name)


def all_ops() -> list[Op]:
    """Every declared op, sorted by name."""
    return [_REGISTRY[name] for name in sorted(_REGISTRY)]


def by_tool() -> dict[str, Op]:
    """Every op by its MCP tool name."""
    return {op.tool_name: op for op in all_ops()}


def near(name: str) -> Iterator[str]:
    """Names close to a mistyped one, for the error that leads on."""
    from difflib import get_close_matches

    yield from get_close_matches(name, _REGISTRY, n=3, cutoff=0.5)


def load_ops() -> None:
    """Import the apps' declarations (once; Python keeps the modules)."""
    for module in OPS_MODULES:
        import_module(module)
