"""The embedder is down while facts are written: words find them, and a job makes up for the rest."""

from __future__ import annotations

import pytest
from django.test import override_settings

from facts import tasks
from facts.models import FactEmbedding
from governance import jobs
from governance.models import Job
from memories.embedders import reset_embedder
from tests.conftest import Cast
from tests.facts.facts import correct, recall, remember
from tests.memories.test_embedding_fill import Outage

pytestmark = pytest.mark.django_db


def test_facts_written_while_the_embedder_is_down_are_embedded_by_a_job(cast: Cast) -> None:
    down = Outage()
    down.begin()
    try:
        made = remember(cast, "Acme", validFrom="2020-01-01")
        done = correct(cast, made["factId"], "Bolt", validFrom="2022-01-01")
        assert done["degraded"] == ["embedding"]
        assert [fact["value"] for fact in recall(cast, query="Bolt", valid_at="2023-01-01")] == ["Bolt"]
    finally:
        down.end()
    assert not FactEmbedding.objects.exists()
    assert jobs._HANDLERS["fact.embed"] is tasks.fill
    for job in Job.objects.filter(kind="fact.embed"):
        assert jobs.run(job.pk) == "done"
    # The version that was closed, what is left of it, and the one that holds now.
    assert FactEmbedding.objects.count() == 3


def test_without_an_embedder_no_job_waits_for_one(cast: Cast) -> None:
    with override_settings(LOOM_EMBEDDER="none"):
        reset_embedder()
        made = remember(cast, "Acme", validFrom="2020-01-01")
        correct(cast, made["factId"], "Bolt", validFrom="2022-01-01")
    reset_embedder()
    assert not Job.objects.filter(kind="fact.embed").exists()
