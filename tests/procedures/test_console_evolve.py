"""The console's pages about evolve: the gate, revisions compared, evolve now, why, and stored settings."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from governance import jobs
from governance.models import AuditEvent, Job
from procedures.models import Procedure
from tests.console.conftest import Cast, build_cast
from tests.console.test_csp import faults_of
from tests.memories.helpers import sql
from tests.procedures.evolving import evolve_by_itself
from tests.procedures.helpers import KEY, RECIPE, graph
from tests.procedures.scene import report, with_a_past


@pytest.fixture
def cast(db: None) -> Cast:
    """The console's cast."""
    return build_cast()


def get(cast: Cast, procedure: Procedure, page: str = "change", who: str = "viewer", query: str = "") -> str:
    """A page about the procedure."""
    url = reverse(f"admin:procedures_procedure_{page}", args=[procedure.pk])
    response = cast.client(who).get(url + query)
    assert response.status_code == 200 and faults_of(response) == []
    return str(response.content.decode())


def test_the_pending_gate_is_drawn_with_the_runs_that_nobody_has_folded(cast: Cast) -> None:
    procedure = with_a_past(cast)
    text = get(cast, procedure)
    assert "Gate on revision 4" in text and "none yet" in text
    assert text.count('class="outcome ok"') == 3 and text.count('class="outcome failed"') == 1
    assert "3 of 4 runs succeeded" in text and "16 of 24 runs succeeded" in text
    assert text.count('class="trace ') >= 1 and text.count('class="bound"') == 2


def test_a_verdict_that_was_given_is_drawn_with_its_run(cast: Cast) -> None:
    procedure = with_a_past(cast)
    text = get(cast, procedure, query="?gate=2")
    assert "Gate on revision 2" in text and 'class="verdict"' in text
    assert "<strong>revert</strong> (success) at its run 4, number 28 of the ledger" in text
    assert text.count('class="outcome failed"') == 4
    assert 'class="trace s"' in text and 'class="trace r"' in text
    for query in ("?gate=1", "?gate=99", "?gate=x"):
        assert "Gate on revision 4" in get(cast, procedure, query=query), "what was not judged has no gate"


def test_revisions_are_compared_and_their_pasts_told(cast: Cast) -> None:
    procedure = with_a_past(cast)
    text = get(cast, procedure, "revisions", query="?before=1&after=2")
    assert "From revision 1 to 2" in text
    for said in ("+ node added", "− node removed", "~ node changed", "+ edge added", "− edge removed"):
        assert said in text
    assert "do fix at once" in text and 'class="node step removed"' in text and 'class="edge added"' in text
    assert "Faster" in text and "revision 2 was reverted (success)" in text
    for (digest,) in sql("SELECT digest FROM procedures_revision"):
        assert digest in text
    assert "0 of 12 folded runs succeeded" in text and "brings revision 1 back" in text
    assert "From revision 3 to 4" in get(cast, procedure, "revisions"), (
        "the one in force and what it replaces"
    )
    assert "the same in both" in get(cast, procedure, "revisions", query="?before=1&after=3")


def test_a_revision_that_is_not_there_is_404_and_one_alone_says_so(cast: Cast) -> None:
    assert cast.call("procedure.add", **RECIPE).ok
    procedure = Procedure.objects.get()
    assert "one revision only" in get(cast, procedure, "revisions")
    url = reverse("admin:procedures_procedure_revisions", args=[procedure.pk])
    for query in ("?before=1&after=7", "?before=0&after=1", "?before=x&after=1", "?after=99999999999999"):
        assert cast.client("viewer").get(url + query).status_code == 404


def press(cast: Cast, procedure: Procedure, who: str = "writer", **body: str) -> Any:
    """Evolve now."""
    url = reverse("admin:procedures_procedure_evolve", args=[procedure.pk])
    return cast.client(who).post(url, body)


def test_evolve_now_queues_and_the_page_shows_how_it_gets_on_and_what_came_of_it(cast: Cast) -> None:
    procedure = with_a_past(cast)
    response = press(cast, procedure)
    job = Job.objects.latest("pk")
    assert response.status_code == 302 and response["Location"].endswith(f"?job={job.pk}#evolve")
    assert job.kind == "procedure.evolve" and job.requested_by == "writer"
    state = reverse("admin:procedures_procedure_evolve_state", args=[procedure.pk]) + f"?job={job.pk}"
    client = cast.client("viewer")
    assert client.get(state).json() == {"state": "queued", "progress": 0.0, "lines": []}
    assert f'data-live="{state}"' in get(cast, procedure, query=f"?job={job.pk}")
    assert jobs.run(job.pk) == "done"
    answer = client.get(state).json()
    assert answer["state"] == "done" and "Runs folded: 4." in answer["lines"]
    assert any(line.startswith("Gate: undecided, 3 of 4") for line in answer["lines"])
    text = get(cast, procedure, query=f"?job={job.pk}")
    assert "Runs folded: 4." in text and "data-live=" not in text and "Every run is folded" in text


def test_a_dry_run_from_the_page_changes_nothing(cast: Cast) -> None:
    procedure = with_a_past(cast)
    before = sql("SELECT runs_folded, revision, evidence FROM procedures_procedure")
    press(cast, procedure, dry_run="1")
    job = Job.objects.latest("pk")
    assert jobs.run(job.pk) == "done"
    assert sql("SELECT runs_folded, revision, evidence FROM procedures_procedure") == before
    assert "this was a dry run" in get(cast, procedure, query=f"?job={job.pk}")


def test_evolve_is_for_writers_by_post_with_the_token_of_the_form(cast: Cast) -> None:
    procedure = with_a_past(cast)
    count = Job.objects.count()
    assert "Evolve now" not in get(cast, procedure)
    assert press(cast, procedure, "viewer").status_code == 302
    assert press(cast, procedure, "nobody").status_code == 404
    url = reverse("admin:procedures_procedure_evolve", args=[procedure.pk])
    assert cast.client("writer").get(url).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(cast.people["writer"], backend="django.contrib.auth.backends.ModelBackend")
    assert strict.post(url).status_code == 403
    assert Job.objects.count() == count


def test_the_state_of_an_evolve_is_told_to_those_who_see_the_procedure(cast: Cast) -> None:
    procedure = with_a_past(cast)
    press(cast, procedure)
    job = Job.objects.latest("pk")
    other = cast.recipe(name="Other")
    url = reverse("admin:procedures_procedure_evolve_state", args=[procedure.pk]) + f"?job={job.pk}"
    assert cast.client("nobody").get(url).status_code == 404
    theirs = reverse("admin:procedures_procedure_evolve_state", args=[other.pk]) + f"?job={job.pk}"
    assert cast.client("viewer").get(theirs).json()["state"] == "none", "another procedure's job"


def test_a_quarantine_shows_the_runs_sessions_and_principals_behind_it(cast: Cast) -> None:
    assert cast.call(
        "procedure.add", **{**RECIPE, "graph": graph("look>fix fix>check look>never never>check")}
    ).ok
    for number in range(4):
        report(cast, "look fix check", False, f"session {number % 2}", "broke <b>here</b>")
    evolve_by_itself()
    procedure = Procedure.objects.get()
    assert procedure.quarantined
    text = get(cast, procedure)
    assert "<strong>4</strong> failed runs in a row" in text and "quarantine at 3" in text
    assert "session 0" in text and "session 1" in text and "&lt;b&gt;here" in text
    assert "Missing: quarantined; fewer than 10 runs on this revision" in text
    assert "52.7 %" in text and "3/n" in text, "1 - 0.05 ** (1/4) for the step that nobody took"


def test_what_is_contrasted_is_shown_with_its_numbers(cast: Cast) -> None:
    text = get(cast, with_a_past(cast))
    assert "Base failure rate: 33.3 % of 24 runs" in text
    assert "look -&gt; ask" in text and "1.4e-06" in text, "8 of 8 failed with it, none of 16 without it"
    assert "after a success 8 of 16 runs succeeded again" in text
    assert "revert on revision 2" in text


def test_settings_are_stored_by_writers_judged_and_audited(cast: Cast) -> None:
    procedure = with_a_past(cast)
    url = reverse("admin:procedures_procedure_settings", args=[procedure.pk])
    before = get(cast, procedure, "settings")
    assert "the defaults" in before and "may change them" in before, "a viewer reads them"
    client = cast.client("writer")
    given = {"gate_min_drop": "0.3", "gate_mode": "sprt", "strike_limit": "0", "reason": "as agreed"}
    assert client.post(url, given).status_code == 302
    stored = {"gate_min_drop": 0.3, "gate_mode": "sprt", "strike_limit": 0}
    assert Procedure.objects.get().evolve_settings == stored
    row = AuditEvent.objects.latest("seq")
    assert (row.op, row.principal, row.target) == ("procedure.settings", "writer", KEY)
    assert row.detail["settings"] == {"before": None, "after": stored}
    assert "what is stored here" in get(cast, procedure, "settings")
    count = AuditEvent.objects.count()
    assert client.post(url, given).status_code == 302 and AuditEvent.objects.count() == count
    assert client.post(url, {}).status_code == 302
    assert Procedure.objects.get().evolve_settings is None


def test_settings_that_are_not_valid_are_refused_at_their_field(cast: Cast) -> None:
    procedure = with_a_past(cast)
    url = reverse("admin:procedures_procedure_settings", args=[procedure.pk])
    for field, value in (
        ("gate_alpha", "0.9"), ("min_runs", "0"), ("min_runs", "2.5"), ("gate_beta", "NaN"),
        ("gate_margin", "x"), ("gate_mode", "guess"), ("strike_limit", "true"),
    ):  # fmt: skip
        response = cast.client("writer").post(url, {field: value})
        assert response.status_code == 400 and f'id="id_{field}_error"' in response.content.decode(), value
    assert Procedure.objects.get().evolve_settings is None


def test_settings_are_kept_from_viewers_and_under_a_lock(cast: Cast) -> None:
    procedure = with_a_past(cast)
    url = reverse("admin:procedures_procedure_settings", args=[procedure.pk])
    assert cast.client("viewer").post(url, {"min_runs": "5"}).status_code == 403
    assert cast.client("nobody").post(url, {"min_runs": "5"}).status_code == 404
    cast.lock(procedure.memory)
    assert cast.client("writer").post(url, {"min_runs": "5"}).status_code == 423
    assert Procedure.objects.get().evolve_settings is None


def test_home_counts_pending_revisions_and_the_list_filters_by_status(cast: Cast) -> None:
    with_a_past(cast)
    cast.recipe(name="Untried")
    home = cast.client("viewer").get(reverse("admin:index")).content.decode()
    assert "pending revision" in home and "?status=pending" in home
    other = cast.client("stranger").get(reverse("admin:index")).content.decode()
    assert "pending revision" not in other
    url = reverse("admin:procedures_procedure_changelist")

    def listed(status: str) -> set[str]:
        text = cast.client("viewer").get(f"{url}?status={status}").content.decode()
        return {name for name in (RECIPE["name"], "Untried") if f">{name}<" in text}

    assert listed("pending") == {RECIPE["name"]} and listed("exercised") == {RECIPE["name"]}
    assert listed("authored") == {"Untried"}
    for status in ("template", "quarantined", "candidate"):
        assert listed(status) == set()


def test_authoring_under_a_name_that_stands_shows_the_change_and_keeps_tags_and_metadata(cast: Cast) -> None:
    made = cast.recipe(name="By hand", tags=["deploy"], metadata={"evolve": {"min_runs": 7}, "owner": "sre"})
    client, url = cast.client("writer"), reverse("admin:procedures_procedure_new")
    body = {
        "namespace": "acme/deploy",
        "name": "By hand",
        "situation": "Errors",
        "steps": "Stop\nLook\nGo on",
    }
    shown = client.post(url, {**body, "preview": "1"}).content.decode()
    assert "A procedure of this name" in shown and "~ changed" in shown and "+ added" in shown
    assert "Rewrite it" in shown
    assert client.post(url, {**body, "store": "1"}).status_code == 302
    memory = Procedure.objects.get(pk=made.pk).memory
    assert memory.value["steps"] == ["Stop", "Look", "Go on"]
    assert memory.metadata == {"evolve": {"min_runs": 7}, "owner": "sre"}
    assert sorted(memory.tags) == ["deploy", "procedure"]
    refused = client.post(url, {**body, "name": "By_hand", "store": "1"})
    assert refused.status_code == 409 and "belongs to the procedure" in refused.content.decode()


def test_too_many_steps_are_refused_at_the_field_and_not_cut(cast: Cast) -> None:
    url = reverse("admin:procedures_procedure_new")
    steps = "\n".join(f"Step {number}" for number in range(700))
    body = {"namespace": "acme/deploy", "name": "Long", "situation": "Always", "steps": steps, "store": "1"}
    response = cast.client("writer").post(url, body)
    assert response.status_code == 400 and "700 steps; the limit is 500" in response.content.decode()
    assert not Procedure.objects.exists()
