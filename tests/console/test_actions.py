"""Lock, loosen, delete, restore, roles and the chain's check: through ops, with their refusals shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from governance import administration, throttle
from governance.administration import NOBODY
from governance.models import AuditEvent, Plan
from memories.models import Memory
from tests.console.conftest import PASSWORD, Cast


def act(cast: Cast, who: str, memory: Memory, action: str, **form: Any) -> Any:
    """The form, sent by that person."""
    url = reverse("admin:memories_memory_act", args=[memory.pk, action])
    data = {"version": memory.version, "reason": "because", **form}
    return cast.client(who).post(url, data)


def test_a_writer_locks_and_the_lock_says_who_and_why(cast: Cast) -> None:
    memory = cast.remember("release/window")
    assert act(cast, "writer", memory, "lock", mode="read_only", until="2126-01-31T09:00").status_code == 302
    memory.refresh_from_db()
    assert (memory.lock_mode, memory.lock_reason, memory.locked_by) == ("read_only", "because", "writer")
    assert memory.lock_until is not None and memory.lock_until.isoformat() == "2126-01-31T09:00:00+00:00"
    page = (
        cast.client("viewer").get(reverse("admin:memories_memory_change", args=[memory.pk])).content.decode()
    )
    assert "read only" in page and "because" in page and "2126-01-31T09:00:00Z" in page
    event = AuditEvent.objects.latest("id")
    assert (event.op, event.door, event.principal) == ("memory.lock", "console", "writer")


def test_a_weaker_lock_is_refused_in_words(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    response = act(cast, "writer", memory, "lock", mode="no_delete")
    assert response.status_code == 403
    memory.refresh_from_db()
    assert memory.lock_mode == "read_only"


def test_a_lock_in_the_past_is_a_form_error(cast: Cast) -> None:
    memory = cast.remember("release/window")
    response = act(cast, "writer", memory, "lock", mode="read_only", until="2020-01-01T00:00")
    assert response.status_code == 400
    assert "Must lie in the future" in response.content.decode()


def test_a_viewer_is_refused_by_the_pipeline(cast: Cast) -> None:
    memory = cast.remember("release/window")
    response = act(cast, "viewer", memory, "delete")
    assert response.status_code == 403
    assert "needs the role writer" in response.content.decode()


def test_loosening_takes_the_right_password(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    wrong = act(cast, "admin", memory, "loosen", password="not it")
    assert wrong.status_code == 400
    assert "That is not your password" in wrong.content.decode()
    memory.refresh_from_db()
    assert memory.lock_mode == "read_only"
    assert act(cast, "admin", memory, "loosen", password=PASSWORD).status_code == 302
    memory.refresh_from_db()
    assert memory.lock_mode == "none"
    event = AuditEvent.objects.latest("id")
    assert (event.op, event.principal, event.reason) == ("memory.unlock", "admin", "because")


def test_loosening_takes_a_reason(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    assert act(cast, "admin", memory, "loosen", password=PASSWORD, reason="  ").status_code == 400
    memory.refresh_from_db()
    assert memory.lock_mode == "read_only"


@pytest.mark.parametrize("who", ["reviewer", "writer", "viewer"])
def test_loosening_takes_the_role_admin_and_is_a_plan_for_other_members(cast: Cast, who: str) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    response = act(cast, who, memory, "loosen", password=PASSWORD)
    memory.refresh_from_db()
    assert memory.lock_mode == "read_only"
    if who == "viewer":
        assert response.status_code == 403 and "needs the role admin" in response.content.decode()
    else:
        assert response.status_code == 302 and Plan.objects.get().action == "memory.unlock"


def test_wrong_passwords_are_throttled_and_then_even_the_right_one_waits(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    for _ in range(throttle.ATTEMPTS):
        assert "not your password" in act(cast, "admin", memory, "loosen", password="no").content.decode()
    blocked = act(cast, "admin", memory, "loosen", password=PASSWORD)
    assert "Too many wrong passwords" in blocked.content.decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE governance_loginfailure SET at = at - interval '6 minutes'")
    assert act(cast, "admin", memory, "loosen", password=PASSWORD).status_code == 302


def test_the_password_never_comes_back(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    assert (
        "hunter2-typed" not in act(cast, "admin", memory, "loosen", password="hunter2-typed").content.decode()
    )


def test_delete_and_restore(cast: Cast) -> None:
    memory = cast.remember("old/note")
    assert act(cast, "writer", memory, "delete").status_code == 302
    memory.refresh_from_db()
    assert memory.status == "deleted"
    page = cast.client("viewer").get(reverse("admin:memories_memory_changelist"))
    assert "old/note" in page.content.decode() and "deleted" in page.content.decode()
    assert act(cast, "writer", memory, "restore").status_code == 302
    memory.refresh_from_db()
    assert memory.status == "active"


def test_deleting_a_locked_memory_shows_the_locks_reason(cast: Cast) -> None:
    memory = cast.remember("release/window")
    cast.lock(memory)
    response = act(cast, "writer", memory, "delete")
    assert response.status_code == 423
    assert "agreed" in response.content.decode() and "locked" in response.content.decode()


def test_what_changed_while_somebody_read_is_not_deleted(cast: Cast) -> None:
    memory = cast.remember("old/note")
    cast.remember("old/note", "another value")
    response = act(cast, "writer", memory, "delete")
    assert response.status_code == 409
    assert "changed while you read" in response.content.decode()
    memory.refresh_from_db()
    assert memory.status == "active"


def test_the_exact_lineage_is_meant_among_several_of_one_key(cast: Cast) -> None:
    cast.remember("note", "shared")
    own = cast.remember("note", "own", agent="codex", session_id="s1")
    assert act(cast, "writer", own, "delete").status_code == 302
    found = dict(Memory.objects.filter(memory_key="note").values_list("agent", "status"))
    assert found == {"-": "active", "codex": "deleted"}


def test_actions_need_post_and_a_csrf_token(cast: Cast) -> None:
    memory = cast.remember("old/note")
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.people["owner"], backend="django.contrib.auth.backends.ModelBackend")
    for name, args in (
        ("admin:memories_memory_act", [memory.pk, "delete"]),
        ("admin:governance_auditevent_verify", []),
        ("admin:governance_token_new", []),
        ("admin:governance_namespace_change", [cast.deploy.pk]),
        ("admin:logout", []),
    ):
        assert client.post(reverse(name, args=args), {"reason": "x", "version": 1}).status_code == 403
    assert client.get(reverse("admin:memories_memory_act", args=[memory.pk, "delete"])).status_code == 200
    assert client.get(reverse("admin:governance_auditevent_verify")).status_code == 405
    memory.refresh_from_db()
    assert memory.status == "active"


def test_an_admin_checks_the_chain(cast: Cast) -> None:
    cast.remember("one")
    cast.remember("two")
    url = reverse("admin:governance_auditevent_verify")
    page = cast.client("org_admin").post(url, {"org": "acme"}, follow=True).content.decode()
    assert "The chain of acme is whole: 2 rows" in page
    assert cast.client("reviewer").post(url, {"org": "acme"}).status_code == 403
    assert cast.client("stranger").post(url, {"org": "acme"}).status_code == 404


def test_a_changed_row_is_found(cast: Cast) -> None:
    cast.remember("one")
    cast.remember("two")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE governance_auditevent DISABLE TRIGGER USER")
        cursor.execute("UPDATE governance_auditevent SET principal = 'somebody else' WHERE seq = 2")
        cursor.execute("ALTER TABLE governance_auditevent ENABLE TRIGGER USER")
    url = reverse("admin:governance_auditevent_verify")
    page = cast.client("owner").post(url, {"org": "acme"}, follow=True).content.decode()
    assert "The chain of acme is broken at row 2: row 2 was changed" in page


def test_roles_are_given_by_admins_of_the_namespace_and_audited(cast: Cast) -> None:
    url = reverse("admin:governance_namespace_change", args=[cast.deploy.pk])
    data = {"kind": "user", "name": "nobody", "role": "reviewer"}
    assert cast.client("reviewer").post(url, data).status_code == 403
    # The organisation does not know this account yet, so its admins cannot tell that it exists.
    ghost = cast.client("admin").post(url, {**data, "name": "ghost"}).content.decode()
    unknown = cast.client("admin").post(url, data).content.decode()
    assert NOBODY in unknown and unknown.count("nobody") == ghost.count("ghost")
    administration.org_member_set(org=cast.org, member=cast.people["nobody"], is_member=True)
    assert cast.client("admin").post(url, data).status_code == 302
    page = cast.client("nobody").get(url)
    assert page.status_code == 200 and page.context["role"] == "reviewer"
    event = AuditEvent.objects.latest("id")
    assert (event.op, event.target, event.detail) == ("member.set_role", "user:nobody", {"role": "reviewer"})
    assert cast.client("admin").post(url, {**data, "role": "none"}).status_code == 302
    assert cast.client("nobody").get(url).status_code == 404


def test_a_role_for_nobody_is_a_form_error(cast: Cast) -> None:
    url = reverse("admin:governance_namespace_change", args=[cast.deploy.pk])
    page = cast.client("admin").post(url, {"kind": "group", "name": "ghosts", "role": "viewer"})
    assert NOBODY in page.content.decode()


def test_a_lock_that_was_tightened_since_the_page_was_shown_is_not_loosened_unseen(cast: Cast) -> None:
    memory = cast.remember("release/window")
    act(cast, "writer", memory, "lock", mode="no_delete", reason="mild")
    memory.refresh_from_db()
    assert memory.locked_at is not None
    seen = memory.locked_at.isoformat()
    act(cast, "writer", memory, "lock", mode="read_only", reason="LEGAL: never touch")
    answer = act(cast, "admin", memory, "loosen", reason="mild enough", password=PASSWORD, locked_at=seen)
    assert answer.status_code == 409
    assert "LEGAL: never touch" in answer.content.decode()
    memory.refresh_from_db()
    assert memory.lock_mode == "read_only"
