# ruff: noqa: E501 (a case a line)
"""The text beside a tool's structured content says what happened, and never more."""

from __future__ import annotations

from typing import Any

import pytest

from loomsite.doors import wording
from loomsite.ops import all_ops, get

Body = dict[str, Any]


def said(name: str, body: Body, **given: Any) -> str:
    op = get(name)
    assert op is not None
    return wording.outcome(op, given, body)


KEY = {"memory_key": "k", "memory_id": "7", "version": 3}
ROW = {**KEY, "agent": "crawler", "session_id": "s1", "user_id": "-", "namespace": "team"}
HOLD = {**KEY, "matter": "m", "holds": 1}
CASES: list[tuple[str, Body, Body, str]] = [
    ("memory.set", {**KEY}, {}, "Stored k, version 3."),
    ("memory.set", {**KEY, "noop": True}, {}, "k already holds exactly this, version 3; nothing has changed."),
    ("memory.set", {**KEY, "revived": True}, {}, "Stored k, version 3. It had ended before (deleted, stale or expired) and lives again."),
    ("memory.set", {**KEY, "duplicate_of": "j"}, {}, "Stored k, version 3. The same content is also under j."),
    ("memory.set", {**KEY, "dry_run": True}, {}, "Dry run, nothing changed: k would be stored as version 3."),
    ("memory.set", {**KEY, "dry_run": True, "revived": True}, {}, "Dry run, nothing changed: k would be stored as version 3. It has ended and would live again."),
    ("memory.set_many", {"stored": 1, "refused": 1, "results": [KEY, {"memory_key": "j", "error": {"code": "LOCKED", "message": "no"}}]}, {}, "1 item stored, 1 refused.\n- k (v3)\n- j: LOCKED: no"),
    ("memory.set_many", {"stored": 1, "results": [{**KEY, "noop": True}], "dry_run": True}, {}, "Dry run, nothing changed: 1 item would be stored, 0 refused.\n- k (v3, unchanged)"),
    ("memory.set_many", {"stored": 0, "refused": 1, "results": [{"memory_key": "j", "error": "no"}]}, {}, "No items stored, 1 refused.\n- j: no"),
    ("memory.update", {**KEY, "updated": True}, {}, "Updated k, version 3."),
    ("memory.update", {**KEY, "updated": True, "noop": True}, {}, "k is so already, version 3; nothing has changed."),
    ("memory.update", {**KEY, "updated": True, "dry_run": True}, {}, "Dry run, nothing changed: k would become version 3."),
    ("memory.update", {"updated": False, "reason": "not_found"}, {"memory_key": "k"}, "Not updated: nothing is stored under k (not_found)."),
    ("memory.delete", {**KEY, "found": True, "tombstoned": True, "recoverable_until": "May"}, {}, "Deleted k; it can be restored until May."),
    ("memory.delete", {**KEY, "found": True, "tombstoned": True, "noop": True, "recoverable_until": "May"}, {}, "k was deleted already; nothing has changed. It can be restored until May."),
    ("memory.delete", {**KEY, "found": True, "tombstoned": True, "dry_run": True, "recoverable_until": "May"}, {}, "Dry run, nothing changed: k would be deleted; it could be restored until May."),
    ("memory.delete", {"found": False, "memory_key": "k"}, {}, "Nothing is stored under k; there is nothing to delete."),
    ("memory.restore", {**KEY, "restored": True, "status": "active"}, {}, "Restored k; it is active, version 3."),
    ("memory.restore", {**KEY, "restored": False, "status": "active"}, {}, "k was not restored; it is active, version 3."),
    ("memory.get", {"found": False}, {"memory_key": "k"}, "Nothing is stored under k."),
    ("memory.get", {**KEY, "found": True, "unchanged": True}, {}, "k is unchanged, version 3."),
    ("memory.get", {"found": True, "unchanged": True}, {"memory_key": "k"}, "k is unchanged."),
    ("memory.get", {**KEY, "found": True, "value": None, "status": "active"}, {}, "k (version 3, active): null"),
    ("memory.get", {**KEY, "found": True, "value": "v", "agent": "a", "lock": {"mode": "read_only", "reason": "r"}, "held": True}, {}, "k in agent a (version 3): v Locked read_only: r. Held: its content may not end."),
    ("memory.get", {"found": True, "tags": ["x"]}, {"memory_key": "k", "fields": ["tags"]}, 'k: {"tags": ["x"]}'),
    ("memory.get", {"found": True, "version": 3}, {"memory_key": "k", "fields": ["version"]}, "k (version 3)."),
    ("memory.get", {"found": True, "value": "v"}, {"memory_key": "k", "fields": ["value"]}, "k: v"),
    ("memory.list", {"memories": []}, {}, "No memories."),
    ("memory.list", {"memories": [ROW], "next_cursor": "c"}, {}, '1 memory.\n- k in namespace team, agent crawler, session s1 (v3)\nMore follow: cursor "c".'),
    ("memory.list", {"memories": [{**KEY, "value": None}, {**KEY, "value": 1}]}, {"include_values": True}, "2 memories.\n- k (v3): null\n- k (v3): 1"),
    ("memory.search", {"results": [{**ROW, "value": "v", "similarity": 0.5}]}, {"query": "q"}, "1 hit for 'q'.\n1. k in namespace team, agent crawler, session s1 (v3, similarity 0.50): v"),
    ("memory.search", {"results": [{**KEY, "excerpt": "e"}], "abstain": True, "abstain_reason": "Nothing is near."}, {"query": "q"}, "1 hit for 'q'.\nNothing is near.\n1. k (v3): e"),
    ("memory.search", {"results": [], "abstain": True, "namespaces_skipped": ["x"]}, {"query": "q"}, "No hits for 'q'.\nThe hits are weak.\nNot searched: x."),
    ("memory.history", {"found": False}, {"memory_key": "k"}, "Nothing was ever stored under k."),
    ("memory.history", {**KEY, "found": True, "status": "active", "versions": [{"version": 3, "kind": "set", "by": "", "at": "May", "reason": "r", "value": 1}]}, {}, "k, active: 1 version, newest first.\n- v3, set by the server at May (r): 1"),
    ("memory.lock", {**KEY, "mode": "read_only", "reason": "r", "changed": True}, {}, "k is locked read_only until an admin loosens it. Reason: r"),
    ("memory.lock", {**KEY, "mode": "read_only", "reason": "r", "changed": False, "until": "May"}, {}, "k was locked so already: it stays read_only until May. Reason: r"),
    ("memory.unlock", {**KEY, "mode_before": "no_delete", "changed": True}, {}, "k is no longer locked; it was no_delete."),
    ("memory.unlock", {**KEY, "mode_before": "none", "changed": False}, {}, "k had no lock; nothing has changed."),
    ("memory.pin", {**KEY, "pinned": True, "pinned_by": "ann", "changed": True}, {}, "k is now pinned by ann, version 3."),
    ("memory.pin", {**KEY, "pinned": True, "pinned_by": "ann", "changed": False}, {}, "k was pinned already by ann, version 3; nothing has changed."),
    ("memory.unpin", {**KEY, "pinned": False, "changed": True}, {}, "k is no longer pinned, version 3."),
    ("memory.unpin", {**KEY, "pinned": False, "changed": False}, {}, "k was not pinned already, version 3; nothing has changed."),
    ("hold.add", {**HOLD, "changed": True}, {}, "k is held for m; it has 1 hold."),
    ("hold.add", {**HOLD, "changed": False}, {}, "k was held for m already; nothing has changed, it has 1 hold."),
    ("hold.release", {**HOLD, "holds": 0, "changed": True}, {}, "The hold on k for m is released; it has no holds."),
    ("hold.release", {**HOLD, "changed": False}, {}, "k had no hold for m; nothing has changed, it has 1 hold."),
    ("lock.list", {"locks": []}, {}, "No memories locked or held."),
    ("lock.list", {"locks": [{**ROW, "mode": "read_only", "reason": "r", "locked_by": "ann", "until": "May", "holds": [{"matter": "m", "reason": "w"}]}]}, {}, "1 memory locked or held.\n- k in namespace team, agent crawler, session s1: read_only until May by ann: r; held for m: w"),
    ("memory.apply", {"action": "delete", "dry_run": True, "matched": 2, "rows": [{**KEY, "outcome": "would_apply"}, {"memory_key": "j", "version": 1, "outcome": "refused", "why": "locked"}]}, {}, "Dry run, nothing changed: delete, 2 matches: would do it to 1, refused 1.\n- k (v3) would apply\n- j (v1) refused: locked\nSend it with dry_run false to do it."),
    ("memory.apply", {"action": "lock", "dry_run": False, "matched": 1, "rows": [{**KEY, "outcome": "applied"}]}, {}, "lock, 1 match: done to 1, refused 0.\n- k (v3) applied"),
    ("memory.clear", {"action": "clear", "dry_run": True, "matched": 0, "rows": []}, {}, "Dry run, nothing changed: clear, no matches: would do it to 0, refused 0."),
    ("memory.govern", {"action": "stale", "dry_run": True, "expected_versions": {"7": 3}, "affected": [{"id": "7", "title": "t", "previous_status": "active", "new_status": "stale"}]}, {}, 'Dry run, nothing changed: stale: would change 1, refused 0.\n- 7 t: active to stale\nFor the real run: expected_versions {"7": 3}, confirm_destructive true.'),
    ("memory.govern", {"action": "stale", "dry_run": False, "affected": [{"id": "7", "refused": True, "why": "locked"}]}, {}, "stale: changed 0, refused 1.\n- 7: refused, locked"),
    ("memory.govern", {"action": "stale", "state": "pending_review", "plan_id": "p"}, {}, "Nothing has changed yet: a person must approve. Plan p."),
    ("memory.govern", {"state": "pending_review", "plan_id": "7", "plan_expires_at": "soon", "review_url": "u"}, {}, "Nothing has changed yet: a person must approve. Plan 7. It is open until soon; plan.get tells what was decided. Tell the person where: u"),
    ("plan.get", {"plan_id": "7", "action": "govern.delete", "rows": 1, "state": "rejected", "decision": {"by": "ada", "at": "now", "comment": "keep it"}}, {}, "Plan 7: govern.delete of 1 row, rejected.\nDecided by ada at now: keep it."),
    ("plan.withdraw", {"plan_id": "7", "state": "withdrawn"}, {}, "Plan 7 is withdrawn; nothing was changed by it."),
    ("memory.govern", {"action": "stale", "state": "pending_review"}, {}, "Nothing has changed yet: a person must approve."),
    ("memory.promote", {**KEY, "namespace": "team", "changed": True}, {}, "k is now shared in namespace team, version 3."),
    ("memory.promote", {**KEY, "namespace": "team", "changed": False}, {}, "k stands in namespace team, version 3 already with this content; nothing has changed."),
    ("memory.promote", {**KEY, "namespace": "team", "changed": True, "dry_run": True}, {}, "Dry run, nothing changed: k would be shared in namespace team, version 3."),
    ("memory.consolidate", {**KEY, "superseded": [{"memory_key": "a"}, {"memory_key": "b"}]}, {}, "k, version 3, takes the place of a, b."),
    ("memory.consolidate", {**KEY, "superseded": [], "dry_run": True}, {}, "Dry run, nothing changed: k, version 3, would take the place of nothing."),
    ("memory.redact", {**KEY}, {}, "The content of k is erased in every version, version 3; no way back."),
    ("memory.redact", {**KEY, "dry_run": True}, {}, "Dry run, nothing changed: the content of k would be erased in every version; no way back."),
    ("raw.append", {"seq": 1, "session_id": "s", "namespace": "team"}, {}, "Appended turn 1 to session s in namespace team."),
    ("raw.get", {"found": False, "session_id": "s"}, {}, "No session s is kept."),
    ("raw.get", {"found": True, "session_id": "s", "turns": [{"seq": 1, "role": "user", "content": "c"}]}, {}, "Session s: 1 turn.\n1. user: c"),
    ("raw.list_sessions", {"sessions": [{"session_id": "s", "agent": "a", "turns": 2, "last_at": "May"}]}, {}, "1 session.\n- s in agent a: 2 turns, last at May"),
    ("raw.search", {"results": [{"session_id": "s", "agent": "a", "seq": 1, "role": "user", "content": "c"}]}, {"query": "q"}, "1 turn for 'q'.\n- session s in agent a, 1. user: c"),
    ("context.pack", {"text": "t", "omitted": 2}, {}, "t\n2 more did not fit."),
    ("context.pack", {"text": "", "omitted": 0}, {}, "Nothing is remembered of this."),
    ("ops.whoami", {"org": "o", "role": None}, {}, 'ops.whoami: {"org": "o"}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "given", "text"), CASES)
def test_the_text_tells_what_happened(name: str, body: Body, given: Body, text: str) -> None:
    assert said(name, body, **given) == text


@pytest.mark.parametrize("name", [op.name for op in all_ops() if "dry_run" in op.output.model_fields])
def test_every_answer_of_a_dry_run_begins_by_saying_so(name: str) -> None:
    for extra in ({}, {"found": True, "tombstoned": True, "updated": True}, {"noop": True}):
        assert said(name, {**KEY, **extra, "dry_run": True}).startswith("Dry run, nothing changed:")


def test_every_op_that_touches_memories_or_turns_has_a_sentence_of_its_own() -> None:
    ours = ("memory.", "hold.", "lock.", "raw.", "context.")
    assert not [op.name for op in all_ops() if op.name.startswith(ours) and op.name not in wording._SENTENCES]


def test_notes_follow_the_sentence() -> None:
    body = {**KEY, "advisories": ["mind"], "ignored_args": ["a"], "degraded": ["no_embedding"]}
    assert said("memory.set", body).splitlines()[1:] == [
        "Note: mind", "Not used: a.", "Worked less well: no_embedding.",
    ]  # fmt: skip
