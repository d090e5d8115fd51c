"""One action on the rows that were ticked: shown row by row, then done; what moved is shown again."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from governance.models import AuditEvent
from memories.models import Memory, Status
from tests.console.conftest import Cast

URL = "admin:memories_memory_bulk"


def show(client: Client, action: str, rows: list[Memory], **form: Any) -> Any:
    """The first step: what would happen."""
    return client.post(reverse(URL), {"action": action, "row": [memory.pk for memory in rows], **form})


def confirm(client: Client, seen: Any, action: str, rows: list[Memory], **form: Any) -> Any:
    """The second step, with what the first one showed."""
    (shown,) = re.findall(r'name="shown" value="([0-9a-f]*)"', seen.content.decode())
    return show(client, action, rows, **{"shown": shown, "reason": "tidy up", **form})


def statuses(rows: list[Memory]) -> list[str]:
    """As they are now."""
    return [str(Memory.objects.get(pk=memory.pk).status) for memory in rows]


@pytest.fixture
def rows(cast: Cast) -> list[Memory]:
    """Three memories, the last of them locked."""
    made = [cast.remember(f"tmp/{number}") for number in range(3)]
    cast.lock(made[2])
    return made


@pytest.mark.parametrize(
    ("action", "status"), [("delete", "deleted"), ("archive", "archived"), ("stale", "stale")]
)
def test_it_is_shown_first_and_then_done(cast: Cast, rows: list[Memory], action: str, status: str) -> None:
    client, events = cast.client("writer"), AuditEvent.objects.count()
    seen = show(client, action, rows)
    text = seen.content.decode()
    assert seen.status_code == 200 and "<strong>2</strong> of 3 would change" in text
    assert "2 memories</button>" in text and "agreed" in text
    assert statuses(rows) == ["active"] * 3 and AuditEvent.objects.count() == events
    done = confirm(client, seen, action, rows)
    assert done.status_code == 302
    assert statuses(rows) == [status, status, "active"]
    told = client.get(done.headers["Location"]).content.decode()
    assert "2 memories" in told
    assert {event.principal for event in AuditEvent.objects.filter(reason="tidy up")} == {"writer"}


def test_nothing_is_done_without_a_reason_or_without_having_been_shown(
    cast: Cast, rows: list[Memory]
) -> None:
    client = cast.client("writer")
    seen = show(client, "delete", rows)
    assert confirm(client, seen, "delete", rows, reason=" ").status_code == 400
    assert show(client, "delete", rows, shown="0" * 64, reason="now").status_code == 409
    assert statuses(rows) == ["active"] * 3


def test_what_moved_since_it_was_shown_is_shown_again(cast: Cast, rows: list[Memory]) -> None:
    client = cast.client("writer")
    seen = show(client, "delete", rows)
    cast.remember("tmp/0", "another value")
    again = confirm(client, seen, "delete", rows)
    assert again.status_code == 409 and "not what you saw" in again.content.decode()
    assert statuses(rows) == ["active"] * 3
    assert confirm(client, again, "delete", rows).status_code == 302
    assert statuses(rows) == ["deleted", "deleted", "active"]


def test_only_the_ticked_lineage_of_a_key_is_meant(cast: Cast) -> None:
    shared = cast.remember("note", "shared")
    own = cast.remember("note", "own", agent="codex", session_id="s1")
    client = cast.client("writer")
    assert confirm(client, show(client, "delete", [own]), "delete", [own]).status_code == 302
    assert statuses([shared, own]) == ["active", "deleted"]


def test_locks_are_put_on_all(cast: Cast, rows: list[Memory]) -> None:
    client = cast.client("writer")
    seen = show(client, "lock", rows)
    assert "Lock 3 memories</button>" in seen.content.decode()
    weaker = confirm(client, seen, "lock", rows, mode="no_delete")
    assert weaker.status_code == 409 and "Lock 2 memories</button>" in weaker.content.decode()
    assert confirm(client, weaker, "lock", rows, mode="no_delete").status_code == 302
    modes = dict(Memory.objects.values_list("memory_key", "lock_mode"))
    assert modes == {"tmp/0": "no_delete", "tmp/1": "no_delete", "tmp/2": "read_only"}


def test_labels_are_asked_for_shown_and_given(cast: Cast, rows: list[Memory]) -> None:
    client = cast.client("writer")
    first = show(client, "label", rows)
    assert "Show what would happen</button>" in first.content.decode()
    shown = confirm(client, first, "label", rows, tags="old\nq3\nold", how="add", reason="")
    assert "Label 2 memories</button>" in shown.content.decode()
    assert confirm(client, shown, "label", rows, tags="old\nq3\nold", how="add").status_code == 302
    tags = dict(Memory.objects.values_list("memory_key", "tags"))
    assert tags == {"tmp/0": ["old", "q3"], "tmp/1": ["old", "q3"], "tmp/2": []}


def test_rows_that_the_reader_does_not_see_are_not_there(cast: Cast) -> None:
    hidden, mine = cast.remember("x", namespace="secret"), cast.remember("y")
    client = cast.client("writer")
    seen = show(client, "delete", [hidden, mine])
    assert "1 memory</button>" in seen.content.decode() and "acme/secret" not in seen.content.decode()
    confirm(client, seen, "delete", [hidden, mine])
    assert statuses([hidden, mine]) == ["active", "deleted"]


def test_a_viewer_has_no_boxes_and_is_refused(cast: Cast, rows: list[Memory]) -> None:
    page = cast.client("viewer").get(reverse("admin:memories_memory_changelist")).content.decode()
    assert 'name="row"' not in page
    assert show(cast.client("viewer"), "delete", rows).status_code == 403
    assert (
        'name="row"'
        in cast.client("writer").get(reverse("admin:memories_memory_changelist")).content.decode()
    )


def test_more_deletes_than_a_call_may_do_take_an_admin(cast: Cast) -> None:
    # Each under an identity of its own, so that no single call would exceed the limit.
    rows = [cast.remember("note", f"v{n}", session_id=f"s{n}") for n in range(26)]
    seen = show(cast.client("writer"), "delete", rows)
    assert "take its admin" in seen.content.decode() and "memories</button>" not in seen.content.decode()
    assert confirm(cast.client("writer"), seen, "delete", rows).status_code in (200, 400)
    assert set(statuses(rows)) == {"active"}
    admin = cast.client("admin")
    assert confirm(admin, show(admin, "delete", rows), "delete", rows).status_code == 302
    assert set(statuses(rows)) == {"deleted"}


def test_no_more_than_a_page_of_rows_is_taken(cast: Cast) -> None:
    rows = [cast.remember(f"tmp/{number}") for number in range(52)]
    seen = show(cast.client("admin"), "stale", rows)
    assert "of 50 would change" in seen.content.decode()


def test_rows_of_other_statuses_are_refused_by_name(cast: Cast) -> None:
    gone, here = cast.remember("gone"), cast.remember("here")
    cast.call("memory.delete", memory_key="gone")
    for action in ("delete", "archive"):
        seen = show(cast.client("writer"), action, [gone, here]).content.decode()
        assert "<strong>1</strong> of 2 would change" in seen and Status.DELETED in seen


@pytest.mark.parametrize("form", [{"action": "burn"}, {"action": "delete", "row": []}, {"row": ["x", "-1"]}])
def test_nonsense_leads_back_to_the_list(cast: Cast, form: dict[str, Any]) -> None:
    response = cast.client("writer").post(reverse(URL), {"query": "?q=a", **form})
    assert response.status_code == 302
    assert response.headers["Location"] == reverse("admin:memories_memory_changelist") + "?q=a"


def test_it_leads_nowhere_but_to_the_list(cast: Cast) -> None:
    response = cast.client("writer").post(reverse(URL), {"query": "https://elsewhere.example/"})
    assert response.headers["Location"] == reverse("admin:memories_memory_changelist")


def test_a_key_with_markup_is_text(cast: Cast) -> None:
    memory = cast.remember("<script>alert(1)</script>")
    shown = show(cast.client("writer"), "delete", [memory]).content.decode()
    assert "<script>alert" not in shown and "&lt;script&gt;" in shown
