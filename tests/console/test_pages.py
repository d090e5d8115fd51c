"""What the pages show: stored text as text, versions with their diffs, filters, empty lists."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from governance.console import sight_of
from governance.console_selectors import activity
from governance.diffs import MAX_LINES, diff
from governance.models import Job, WorkerBeat
from governance.templatetags.console import pretty, visible
from tests.console.conftest import Cast
from tests.console.plans import planned

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202egnp.exe"


def page_of(client: Client, name: str, *args: Any, **query: Any) -> str:
    """The page's HTML."""
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def test_stored_text_is_escaped_on_every_page(cast: Cast) -> None:
    memory = cast.remember(
        NASTY, {"x": NASTY, NASTY: 1}, tags=[NASTY], metadata={NASTY: NASTY}, source_trace=NASTY,
        reason=NASTY, memory_type="<i>t", agent="<b>agent", user_id="<b>user", session_id="<b>session",
    )  # fmt: skip
    answer = cast.call(
        "memory.lock", memory_key=NASTY, agent="<b>agent", user_id="<b>user", session_id="<b>session",
        # A lock's reason with hidden characters is refused, for others get it to read.
        mode="read_only", reason=NASTY.replace("\u202e", ""),
    )  # fmt: skip
    assert answer.ok, answer.body
    job = Job.objects.create(org=cast.org, namespace=cast.deploy, kind="<i>k", state="failed", error=NASTY)
    client = cast.client("owner")
    pages = [
        page_of(client, "admin:index"),
        page_of(client, "admin:memories_memory_changelist", q=NASTY),
        page_of(client, "admin:memories_memory_change", memory.pk),
        page_of(client, "admin:memories_memory_version", memory.pk, 1),
        page_of(client, "admin:memories_memory_act", memory.pk, "loosen"),
        page_of(client, "admin:memories_memory_locks"),
        page_of(client, "admin:governance_auditevent_changelist", target=NASTY),
        page_of(client, "admin:governance_job_changelist"),
        page_of(client, "admin:governance_job_change", job.pk),
    ]
    for html in pages:
        assert "<script>alert" not in html and "<img src=x" not in html
        assert "<b>" not in html and "<i>" not in html
    # What the reader typed stays in its field as it was typed; what is stored shows its hidden parts.
    typed = (pages[1], pages[6])
    assert [html for html in pages if "\u202e" in html and html not in typed] == []
    assert "&lt;script&gt;" in pages[2] and "U+202E" in pages[2] and "\\u202e" in pages[2]


def test_hidden_characters_are_named_and_scripts_of_the_world_are_not() -> None:
    assert "U+202E" in visible("a\u202eb") and "\u202e" not in visible("a\u202eb")
    assert visible("مرحبا 👩‍🚀") == '<bdi dir="auto">مرحبا 👩‍🚀</bdi>'
    assert visible("<b>") == '<bdi dir="auto">&lt;b&gt;</bdi>'
    assert pretty("a\u202e\u200b\x7f") == '"a\\u202e\\u200b\\u007f"'


def test_no_page_holds_an_inline_script_style_or_handler(cast: Cast) -> None:
    memory, plan = cast.remember("plan/alpha"), planned(cast, "tmp/1")
    client = cast.client("owner")
    names: list[tuple[str, list[Any]]] = [
        ("admin:index", []), ("admin:memories_memory_changelist", []),
        ("admin:memories_memory_change", [memory.pk]), ("admin:memories_memory_locks", []),
        ("admin:memories_memory_act", [memory.pk, "lock"]), ("admin:governance_auditevent_changelist", []),
        ("admin:governance_namespace_changelist", []),
        ("admin:governance_namespace_change", [cast.deploy.pk]),
        ("admin:governance_namespace_policy", [cast.deploy.pk]),
        ("admin:governance_plan_changelist", []), ("admin:governance_plan_change", [plan.pk]),
        ("admin:governance_token_changelist", []), ("admin:governance_token_new", []),
        ("admin:governance_job_changelist", []), ("admin:governance_user_changelist", []),
        ("admin:governance_user_new", []), ("admin:governance_user_change", [cast.people["viewer"].pk]),
        ("admin:auth_group_changelist", []), ("admin:password_change", []),
    ]  # fmt: skip
    for name, args in names:
        response = client.get(reverse(name, args=args))
        html = response.content.decode()
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*[^\s<]", html), name
        assert not re.search(r"<[^>]+\sstyle=", html) and "<style" not in html, name
        assert not re.search(r"<[^>]+\son[a-z]+=", html), name
        assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", html), name


def test_versions_show_what_each_changed(cast: Cast) -> None:
    cast.remember("window", {"days": ["Tue"], "from": "09:00"}, reason="first")
    memory = cast.remember(
        "window", {"days": ["Tue", "Thu"], "from": "09:00"}, reason="second", tags=["policy"]
    )
    html = page_of(cast.client("viewer"), "admin:memories_memory_change", memory.pk)
    assert "Version 2" in html and "Version 1" in html and "second" in html
    assert '<div class="add"><span class="sign">+</span><span class="line">    &quot;Thu&quot;' in html
    assert "tags: none → [&quot;policy&quot;]" in html
    one = page_of(cast.client("viewer"), "admin:memories_memory_version", memory.pk, 1)
    assert "first" in one and "Thu" not in one
    missing = cast.client("viewer").get(reverse("admin:memories_memory_version", args=[memory.pk, 9]))
    assert missing.status_code == 404


def test_many_versions_are_paged(cast: Cast) -> None:
    for number in range(45):
        memory = cast.remember("counter", number)
    client, before, seen = cast.client("viewer"), "", []
    while True:
        timeline = client.get(
            reverse("admin:memories_memory_change", args=[memory.pk]), {"before": before}
        ).context["timeline"]
        seen += [step.row.version for step in timeline.steps]
        if timeline.before is None:
            break
        before = str(timeline.before)
    assert seen == list(range(45, 0, -1))


def test_a_value_of_200_kb_is_shown_whole_and_compared_on_its_own_page(cast: Cast) -> None:
    cast.remember("big", "x" * 200_000)
    memory = cast.remember("big", "x" * 199_999 + "y")
    html = page_of(cast.client("viewer"), "admin:memories_memory_change", memory.pk)
    assert "x" * 199_999 + "y" in html and "a large value" in html
    assert len(html) < 300_000
    assert "more characters" in page_of(cast.client("viewer"), "admin:memories_memory_version", memory.pk, 2)


def test_diffs_are_bounded() -> None:
    assert diff("same", "same") == []
    many = "\n".join(str(n) for n in range(MAX_LINES + 1))
    assert [line.kind for line in diff(many, "1")] == ["gap"]
    halves = diff("\n".join("a" * 1000), "\n".join("b" * 1000))
    assert len(halves) == 401 and "more lines" in halves[-1].text


def test_filters_of_the_memory_list(cast: Cast) -> None:
    locked = cast.remember("release/window", "the winter freeze")
    cast.lock(locked)
    cast.remember("runbook/db", "how to fail over postgres")
    cast.remember("episode", "a talk", memory_type="episodic", namespace="secret")
    cast.call("memory.delete", memory_key="runbook/db", reason="gone")
    client = cast.client("owner")

    def keys(**query: str) -> list[str]:
        page = client.get(reverse("admin:memories_memory_changelist"), query).context["page"]
        return sorted(memory.memory_key for memory in page.rows)

    everything = ["episode", "release/window", "runbook/db"]
    assert keys() == everything
    assert keys(q="release/") == ["release/window"]
    assert keys(q="freezes winter") == ["release/window"]
    assert keys(q="failing over") == ["runbook/db"]
    assert keys(q="%") == keys(q="_x") == []
    assert keys(status="deleted") == ["runbook/db"]
    assert keys(lock="locked") == keys(lock="read_only") == ["release/window"]
    assert keys(lock="unlocked") == ["episode", "runbook/db"]
    assert keys(lock="no_delete") == []
    assert keys(type="episodic") == keys(namespace="acme/secret") == keys(namespace="secret") == ["episode"]
    assert keys(namespace="globex/deploy") == []
    assert keys(status="nonsense", lock="nonsense") == everything


@pytest.mark.parametrize(
    "after",
    ["x", "~", "2026-01-01~9", "2026-01-01T00:00:00+00:00~99999999999999999999", "\x00~1", "9" * 400, "a~1"],
)
def test_a_broken_cursor_is_no_error(cast: Cast, after: str) -> None:
    client = cast.client("owner")
    for name in (
        "memories_memory_changelist", "memories_memory_locks", "governance_auditevent_changelist",
        "governance_namespace_changelist", "governance_token_changelist", "governance_job_changelist",
        "governance_plan_changelist",
    ):  # fmt: skip
        assert client.get(reverse(f"admin:{name}"), {"after": after}).status_code == 200


@pytest.mark.parametrize("text", ["\x00", "' OR 1=1 --", "%", "\\", "🦜", "a" * 5000, "\ud7ff\u202e"])
def test_any_text_in_a_filter_is_only_text(cast: Cast, text: str) -> None:
    client = cast.client("owner")
    fields = (
        "q",
        "namespace",
        "status",
        "type",
        "lock",
        "op",
        "outcome",
        "principal",
        "target",
        "since",
        "state",
        "requested_by",
        "action",
        "at_least",
    )
    query = dict.fromkeys(fields, text)
    for name in (
        "memories_memory_changelist", "memories_memory_locks", "governance_auditevent_changelist",
        "governance_namespace_changelist", "governance_token_changelist", "governance_job_changelist",
        "governance_plan_changelist",
    ):  # fmt: skip
        assert client.get(reverse(f"admin:{name}"), query).status_code == 200


def test_a_lock_that_ended_is_no_lock(cast: Cast) -> None:
    memory = cast.remember("brief")
    cast.lock(memory, ttl_seconds=1)
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(1.1)")
    client = cast.client("owner")
    # The test's transaction began before the lock's end; the statement's own clock decides.
    assert "No lock is in force" in page_of(client, "admin:memories_memory_locks")
    assert (
        client.get(reverse("admin:memories_memory_change", args=[memory.pk])).context["memory"].lock_now
        == "none"
    )


def test_home_says_what_needs_somebody_and_links_to_it(cast: Cast) -> None:
    client = cast.client("owner")
    assert "background workers" in page_of(client, "admin:index")
    from django.utils import timezone

    WorkerBeat.objects.create(name="w", at=timezone.now())
    assert "Nothing needs you" in page_of(client, "admin:index")
    memory = cast.remember("release/window")
    cast.lock(memory, ttl_seconds=3600)
    Job.objects.create(org=cast.org, kind="embedding.fill", state="failed")
    cast.call("memory.delete", memory_key="release/window", reason="try")
    html = page_of(client, "admin:index")
    for text in (
        "<strong>1</strong> failed job<",
        "<strong>1</strong> lock ends",
        "?state=failed",
        "?ends=soon",
    ):
        assert text in html
    found = activity(sight_of(cast.people["owner"]))
    assert (found.applied, found.refused, len(found.hours), found.is_partial) == (2, 1, 24, False)
    assert (found.hours[-1].applied, found.hours[-1].refused) == (2, 1)


def test_empty_lists_say_what_fills_them(cast: Cast) -> None:
    client = cast.client("owner")
    for name, text in (
        ("memories_memory_changelist", "/v1/memory.set"), ("memories_memory_locks", "/v1/memory.lock"),
        ("governance_auditevent_changelist", "Every write"), ("governance_token_changelist", "No token yet"),
        ("governance_job_changelist", "No job yet"),
    ):  # fmt: skip
        assert text in page_of(client, f"admin:{name}")
    assert "no role on any namespace" in page_of(
        cast.client("nobody"), "admin:governance_namespace_changelist"
    )


def test_times_are_given_in_utc_for_the_script_to_turn(cast: Cast) -> None:
    cast.remember("a")
    html = page_of(cast.client("viewer"), "admin:memories_memory_changelist")
    assert re.search(
        r'<time datetime="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ">\d{4}-\d\d-\d\d \d\d:\d\d UTC</time>', html
    )


def test_an_audit_row_leads_to_its_memory(cast: Cast) -> None:
    memory = cast.remember("a", reason="why not")
    client = cast.client("reviewer")
    event = client.get(reverse("admin:governance_auditevent_changelist")).context["page"].rows[0]
    html = page_of(client, "admin:governance_auditevent_change", event.pk)
    assert "why not" in html and bytes(event.hash).hex() in html
    assert reverse("admin:memories_memory_change", args=[memory.pk]) in html
