"""Reads for the pages about erasures and imported audit rows."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from governance.console import Sight
from governance.models import ErasureRequest, Hold, ImportedAudit
from loomsite.ops import Role


def erasures(sight: Sight) -> QuerySet[ErasureRequest]:
    """Requests of the namespaces that the user administers."""
    return ErasureRequest.objects.filter(sight.where("namespace", Role.ADMIN)).select_related(
        "namespace__org", "job"
    )


def shown_guards(guards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What guards rows of an erasure, each with the matters of the holds that stand now."""
    matters: dict[int, list[str]] = {}
    ids = [int(guard["id"]) for guard in guards]
    for node, matter in (
        Hold.objects.filter(node_id__in=ids, released_at=None)
        .order_by("placed_at")
        .values_list("node_id", "matter")
    ):
        matters.setdefault(node, []).append(matter)
    return [
        {**guard, "matters": matters.get(int(guard["id"]), []), "is_fact": guard["key"].startswith("fact:")}
        for guard in guards
    ]


def imported(sight: Sight) -> QuerySet[ImportedAudit]:
    """Imported rows of the namespaces that the user reviews."""
    return ImportedAudit.objects.filter(sight.where("namespace", Role.REVIEWER)).select_related(
        "namespace__org"
    )
