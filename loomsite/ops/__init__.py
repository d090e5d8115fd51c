"""The kernel's cellar: what an operation is. Pure: knows no model and no app."""

from loomsite.ops import limits
from loomsite.ops.context import AuditEntry, Caller, Context, Door, Effect, Role
from loomsite.ops.errors import CODES, OpError, invalid, not_found
from loomsite.ops.registry import AgentText, Op, all_ops, by_tool, get, load_ops, near, op
from loomsite.ops.schema import OpInput, OpOutput, ReviewedOutput, Selector, WriteInput

__all__ = [
    "CODES", "AgentText", "AuditEntry", "Caller", "Context", "Door", "Effect", "Op", "OpError", "OpInput",
    "OpOutput", "ReviewedOutput", "Role", "Selector", "WriteInput", "all_ops", "by_tool", "get", "invalid",
    "limits", "load_ops", "near", "not_found", "op",
]  # fmt: skip
