"""`--limit-key` of `pgqueue jobs` and `pgqueue dead`: the jobs of one limit key, or of all keys of a limit."""

from __future__ import annotations

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.models import AuditEntry, Execution, Job
from tests import helpers
from tests.management.conftest import claim, die, succeed

KEY, OTHER, NEAR = "import:customer:7", "import:customer:70", "importer:7"


@pytest.fixture
def jobs(db: None) -> dict[str, int]:
    """Make jobs with the key in some states, and ready jobs with keys whose texts are near."""
    found = {
        "dead": die(),
        "succeeded": succeed(helpers.make_job(connection)),
        "running": helpers.make_job(connection),
        "ready": helpers.make_job(connection),
        OTHER: helpers.make_job(connection),
        NEAR: helpers.make_job(connection),
        "plain": helpers.make_job(connection),
    }
    claim(found["running"])
    for name, job_id in found.items():
        limit_key = None if name == "plain" else name if ":" in name else KEY
        Job.objects.filter(pk=job_id).update(limit_key=limit_key)
        Execution.objects.filter(job_id=job_id).update(limit_key=limit_key, limit_weight=limit_key and 1)
    return found


def states() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "state"))


def test_list_has_jobs_of_the_key_or_of_all_keys_of_the_limit(pgqueue, jobs):
    document = pgqueue("jobs", "list", "--limit-key", KEY, "--json").document
    names = ("running", "ready", "succeeded", "dead")
    assert [job["id"] for job in document["jobs"]] == [jobs[name] for name in names]
    assert {job["limit_key"] for job in document["jobs"]} == {KEY}
    of_limit = pgqueue("jobs", "list", "--limit-key", "import", "--state", "ready", "--json").document
    assert [job["id"] for job in of_limit["jobs"]] == [jobs["ready"], jobs[OTHER]]
    assert f"Limit key        {KEY}" in pgqueue("jobs", "show", jobs["ready"]).out


def test_job_that_runs_in_chunks_has_no_limit_key(pgqueue, jobs):
    Job.objects.filter(pk=jobs["ready"]).update(limit_key=chunk_key(helpers.NOOP))
    assert "Limit key" not in pgqueue("jobs", "show", jobs["ready"]).out
    assert pgqueue("jobs", "show", jobs["ready"], "--json").document["limit_key"] is None


def test_actions_change_jobs_of_the_key_only(pgqueue, jobs):
    before = states()
    pgqueue("jobs", "retry", "--limit-key", KEY, "--yes")
    pgqueue("jobs", "cancel", "--limit-key", OTHER, "--yes")
    assert states() == {**before, jobs["dead"]: "ready", jobs[OTHER]: "cancelled"}
    assert list(AuditEntry.objects.order_by("pk").values_list("filter__limit_key", flat=True)) == [KEY, OTHER]
    out = pgqueue("jobs", "move", "--limit-key", "import", "--to-queue", "mail", "--dry-run").out
    assert out.startswith("2 jobs to move:")
    pgqueue("jobs", "delete", "--limit-key", "import", "--yes")
    assert set(states()) == set(jobs.values()) - {jobs["succeeded"], jobs[OTHER]}


def test_dead_commands_take_a_limit_key(pgqueue, jobs):
    other = die()
    document = pgqueue("dead", "list", "--limit-key", "import", "--json").document
    assert [group["jobs"] for group in document["groups"]] == [1]
    pgqueue("dead", "retry", "--limit-key", KEY, "--yes")
    assert (states()[jobs["dead"]], states()[other]) == ("ready", "dead")


@pytest.mark.parametrize("key", ["two words", "import:", "\0"])
def test_invalid_limit_key_is_refused(pgqueue, db, key):
    with pytest.raises(CommandError, match="Invalid --limit-key") as caught:
        pgqueue("jobs", "list", "--limit-key", key)
    assert caught.value.returncode == 2
