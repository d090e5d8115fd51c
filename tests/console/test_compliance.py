"""Erasures in the console: shown first, with a password, parked by holds; and what came with imports."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from governance import jobs
from governance.models import AuditEvent, ErasureRequest, ImportedAudit, Job
from memories import transfer
from memories.models import Memory
from tests.console.conftest import PASSWORD, Cast

NEW = "admin:governance_erasurerequest_new"


def form(cast: Cast, **more: Any) -> dict[str, Any]:
    """What the form sends."""
    return {
        "namespace": cast.deploy.pk, "scope": "namespace", "user_id": "bob", "memory_ids": "", "subject": "",
        "reason": "letter 7", "step": "preview", **more,
    }  # fmt: skip


def preview(cast: Cast, client: Client, **more: Any) -> Any:
    """The page with the dry run."""
    page = client.post(reverse(NEW), form(cast, **more))
    assert page.status_code == 200, page.content.decode()
    return page


def erase(cast: Cast, client: Client, page: Any, **more: Any) -> Any:
    """The second step, as the page offers it."""
    last = {"step": "erase", "digest": page.context["preview"]["digest"], "password": PASSWORD}
    return client.post(reverse(NEW), form(cast, **{**last, **more}))


def told(cast: Cast) -> Memory:
    """A memory and a turn of bob's."""
    said = cast.call("raw.append", session_id="talk", role="user", content="hello", user_id="bob")
    assert said.ok
    return cast.remember("bob/home", "<b>Oslo</b>", user_id="bob")


def work() -> None:
    """Run what waits."""
    import governance.tasks  # noqa: F401 - registers the handler

    for job in Job.objects.filter(kind="erasure.run", state="queued"):
        assert jobs.run(job.pk) == "done"


def test_an_erasure_is_shown_then_confirmed_with_a_password_and_done(cast: Cast) -> None:
    told(cast)
    client = cast.client("org_admin")
    page = preview(cast, client)
    text = page.content.decode()
    assert "Turns of the raw archive" in text and "What stays" in text and "dry run" in text
    assert not ErasureRequest.objects.exists()
    wrong = erase(cast, client, page, password="not it")  # noqa: S106 - a wrong one
    assert wrong.status_code == 400 and "not your password" in wrong.content.decode()
    assert not ErasureRequest.objects.exists()
    done = erase(cast, client, page)
    row = ErasureRequest.objects.get()
    assert done.status_code == 302 and done.headers["Location"].endswith(f"/{row.pk}/")
    work()
    shown = client.get(reverse("admin:governance_erasurerequest_change", args=[row.pk])).content.decode()
    assert "Erased" in shown and "letter 7" in shown
    assert Memory.objects.get().status == "redacted"
    assert {event.principal for event in AuditEvent.objects.filter(op="erasure.request")} == {"org_admin"}


def test_what_moved_between_the_two_steps_is_not_erased(cast: Cast) -> None:
    told(cast)
    client = cast.client("org_admin")
    page = preview(cast, client)
    cast.remember("bob/second", user_id="bob")
    answer = erase(cast, client, page)
    assert answer.status_code == 400 and "no longer what was shown" in answer.content.decode()
    assert not ErasureRequest.objects.exists()
    # The page shows the fresh state, and confirming that works.
    assert erase(cast, client, answer).status_code == 302


def test_a_parked_erasure_says_what_is_in_the_way_and_is_resumed_with_a_password(cast: Cast) -> None:
    memory = told(cast)
    hold = cast.call("hold.add", memory_key="bob/home", user_id="bob", matter="<i>case</i>", reason="court")
    assert hold.ok
    client = cast.client("org_admin")
    page = preview(cast, client)
    assert "would be parked" in page.content.decode() and "&lt;i&gt;case" in page.content.decode()
    assert erase(cast, client, page).status_code == 302
    row = ErasureRequest.objects.get()
    url = reverse("admin:governance_erasurerequest_change", args=[row.pk])
    shown = client.get(url).content.decode()
    assert row.state == "parked" and "&lt;i&gt;case&lt;/i&gt;" in shown and "bob/home" in shown
    assert "erasure waits" in client.get(reverse("admin:index")).content.decode()
    still = client.post(url, {"password": PASSWORD}, follow=True).content.decode()
    assert "Parked: 1" in still
    body = {"memory_key": "bob/home", "user_id": "bob", "matter": "<i>case</i>", "reason": "closed"}
    assert cast.call("hold.release", **body).ok
    assert client.post(url, {"password": "no"}).status_code == 400
    assert client.post(url, {"password": PASSWORD}).status_code == 302
    work()
    memory.refresh_from_db()
    row.refresh_from_db()
    assert (memory.status, row.state) == ("redacted", "done")


@pytest.mark.parametrize("by", ["reviewer", "writer", "viewer", "nobody"])
def test_who_administers_nothing_asks_for_nothing(cast: Cast, by: str) -> None:
    told(cast)
    answer = cast.client(by).post(reverse(NEW), form(cast, step="erase", digest="", password=PASSWORD))
    assert answer.status_code == 403 and not ErasureRequest.objects.exists()


def test_an_admin_of_a_namespace_keeps_the_raw_archive(cast: Cast) -> None:
    told(cast)
    client = cast.client("admin")
    refused = client.post(reverse(NEW), form(cast))
    assert refused.status_code == 400 and "admin of the organisation" in refused.content.decode()
    page = preview(cast, client, keep_raw="on")
    assert "raw archive stay" in page.content.decode()
    assert erase(cast, client, page, keep_raw="on").status_code == 302
    other = client.post(reverse(NEW), form(cast, namespace=cast.foreign.pk))
    assert other.status_code == 400


@pytest.mark.parametrize(
    "given", [{"user_id": ""}, {"memory_ids": "x"}, {"reason": ""}, {"memory_ids": "99"}]
)
def test_a_form_that_names_nobody_says_so(cast: Cast, given: dict[str, str]) -> None:
    answer = cast.client("org_admin").post(reverse(NEW), form(cast, **given))
    assert answer.status_code == 400 and answer.context["preview"] is None


def test_audit_rows_that_came_with_an_import_are_shown_and_checked(cast: Cast) -> None:
    cast.remember("one", "<script>x</script>")
    file = io.BytesIO()
    transfer.export_namespace(cast.deploy, file.write)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    row = next(line["row"] for line in lines if line.get("section") == "audit")
    whole = ImportedAudit.objects.create(namespace=cast.deploy, row=json.dumps(row))
    forged = ImportedAudit.objects.create(
        namespace=cast.deploy, row=json.dumps({**row, "principal": "<b>nobody</b>"})
    )
    client = cast.client("reviewer")
    audit = client.get(reverse("admin:governance_auditevent_changelist")).content.decode()
    assert "Rows that came with imported namespaces" in audit
    listed = client.get(reverse("admin:governance_importedaudit_changelist")).content.decode()
    assert "memory.set" in listed and "&lt;b&gt;nobody" in listed and "<b>nobody" not in listed
    for pk, words in ((whole.pk, "It is what its hash says"), (forged.pk, "It is not what its hash says")):
        page = client.get(reverse("admin:governance_importedaudit_change", args=[pk])).content.decode()
        assert words in page
    assert not cast.client("writer").get(reverse("admin:governance_importedaudit_changelist")).context["rows"]


def test_the_audit_is_narrowed_to_one_request(cast: Cast) -> None:
    cast.remember("one")
    cast.remember("two")
    event = AuditEvent.objects.get(target="two")
    page = cast.client("reviewer").get(
        reverse("admin:governance_auditevent_changelist"), {"request_id": event.request_id}
    )
    assert [row.target for row in page.context["page"].rows] == ["two"]


def test_a_guarded_fact_leads_to_its_page(cast: Cast) -> None:
    line = cast.fact("deploy")
    version = line.versions.get()
    assert cast.call("hold.add", memory_key=f"fact:{version.pk}", matter="m", reason="court").ok
    page = preview(cast, cast.client("org_admin"), user_id="", memory_ids=str(line.pk))
    assert reverse("admin:facts_lineage_change", args=[line.pk]) in page.content.decode()
