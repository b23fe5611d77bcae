"""Causes in the workers and in workflows: jobs that hang, lost workers, mixed releases, and workflows that failed."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.lifecycle import rollups
from django_pgqueue.models import Execution, Job, JobBatch, JobDependency, Worker
from django_pgqueue.stats import CauseKind, Count
from django_pgqueue.stats.causes import current
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests import helpers

pytestmark = pytest.mark.django_db


def the_causes(kind: CauseKind) -> list[stats.Cause]:
    return [cause for cause in stats.causes() if cause.kind is kind]


def register(host: str = "web1", *, minutes: float = 60.0, silent_minutes: float = 0.0, **columns: Any) -> Worker:
    """Add a worker that started and sent its last heartbeat so long ago."""
    now = timezone.now()
    values = {"hostname": host, "pid": 7, "supervisor_pid": 6, "version": "1", "concurrency": 2, **columns}
    times = {"started_at": now - timedelta(minutes=minutes)}
    return Worker.objects.create(**values, **times, last_heartbeat_at=now - timedelta(minutes=silent_minutes))


def ran(task: str, *seconds: float) -> None:
    """Write the run times of attempts as a worker does."""
    tally = Tally(Counter(succeeded=len(seconds)))
    tally.add_times([], seconds)
    names = {"queue_name": "default", "task_name": task, "exception_class": ""}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], 60.0)


def running(task: str, *minutes: float) -> list[int]:
    """Add running jobs that started so long ago. Return their ids, in this order."""
    worker = Worker.objects.first() or register()
    ids = helpers.make_jobs(connection, len(minutes), task_name=task)
    claimed = {each.job_id: each for each in helpers.claim_all(connection, worker_id=worker.pk)}
    for job_id, each in zip(ids, minutes, strict=True):
        started_at = timezone.now() - timedelta(minutes=each)
        Execution.objects.filter(pk=claimed[job_id].execution_id).update(started_at=started_at)
    return ids


# ------------------------------------------------------------------ jobs that hang


def test_job_that_hangs_is_a_cause_of_its_task():
    ran("shop.export", *[2.0] * 40)
    [_short, first, second] = running("shop.export", 4, 40, 20)
    [cause] = the_causes(CauseKind.JOB_HANGING)
    assert (cause.name, cause.jobs, cause.job_id, cause.is_urgent) == ("shop.export", Count(2), first, False)
    assert cause.sentence == (
        "2 jobs of shop.export have been running for up to 40 min: 95 % of its attempts of the last 24 hours took at "
        "most 1.9 s, and none took as long."
    )
    Job.objects.filter(pk=second).update(state="succeeded", finished_at=timezone.now())
    [cause] = the_causes(CauseKind.JOB_HANGING)
    assert cause.sentence.startswith("1 job of shop.export has been running for 40 min: 95 % of its attempts")


@pytest.mark.parametrize(
    ("seconds", "minutes"),
    [
        ([], 600),
        ([2.0] * 19, 600),
        ([2.0] * 40, 4.9),
        ([60.0] * 40, 9),
        ([*[2.0] * 99, 3600.0], 55),
    ],
    ids=["no attempts", "few attempts", "five minutes", "ten times", "a longer attempt"],
)
def test_long_job_is_no_cause_without_evidence(seconds, minutes):
    ran("shop.export", *seconds)
    running("shop.export", minutes)
    assert the_causes(CauseKind.JOB_HANGING) == []


def test_hanging_jobs_are_not_read_without_long_jobs(django_assert_max_num_queries, settings):
    ran("shop.export", *[2.0] * 40)
    [job_id] = running("shop.export", 1)
    with django_assert_max_num_queries(60) as captured:
        stats.causes()
    assert not [query for query in captured if "run_times" in query["sql"] or "long_running" in query["sql"]]
    Execution.objects.filter(job_id=job_id).update(started_at=timezone.now() - timedelta(hours=1))
    assert the_causes(CauseKind.JOB_HANGING)
    settings.PGQUEUE = {"STATS": False}
    assert the_causes(CauseKind.JOB_HANGING) == []
    assert CauseKind.JOB_HANGING in current.current().unread_kinds


# ------------------------------------------------------------------ workers


def test_lost_worker_is_a_cause_for_an_hour():
    register()
    lost = register("web2", silent_minutes=12)
    register("web3", silent_minutes=12, stopped_at=timezone.now())
    register("web4", silent_minutes=12, supervisor_pid=None)
    [cause] = the_causes(CauseKind.WORKER_LOST)
    assert (cause.jobs, cause.is_urgent) == (Count(0), False)
    assert cause.sentence == (
        "1 worker process ended without a stop within the last hour (worker web2:7, silent for 12 min), and no other "
        "one has started on its host since. It was killed, or its host was lost. Workers that serve the queues "
        "of its jobs run these again."
    )
    Worker.objects.filter(pk=lost.pk).update(last_heartbeat_at=timezone.now() - timedelta(minutes=61))
    assert the_causes(CauseKind.WORKER_LOST) == []


def test_lost_worker_is_no_cause_once_replaced():
    register("web2", silent_minutes=12)
    beside = register("web2", minutes=60)
    assert the_causes(CauseKind.WORKER_LOST), "this one ran before"
    Worker.objects.filter(pk=beside.pk).update(started_at=timezone.now() - timedelta(minutes=2))
    assert the_causes(CauseKind.WORKER_LOST) == []


def test_lost_worker_with_lost_jobs_is_one_cause():
    register()
    lost = register("web2", silent_minutes=12)
    helpers.make_job(connection)
    claimed = helpers.claim_one(connection, worker_id=lost.pk)
    past = timezone.now() - timedelta(minutes=11)
    Worker.objects.filter(pk=lost.pk).update(lease_expires_at=past)
    Execution.objects.filter(pk=claimed.execution_id).update(lease_expires_at=past)
    assert [cause.kind for cause in stats.causes()] == [CauseKind.LOST]
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    assert [cause.kind for cause in stats.causes()] == [CauseKind.WORKER_LOST]


def test_mixed_releases_are_a_cause_after_a_quarter_hour():
    register(release="v1", minutes=600)
    register(release="v1", minutes=5)
    register(release="", minutes=600)
    assert stats.causes() == ()
    new = register(release="v2", minutes=14)
    assert stats.causes() == ()
    Worker.objects.filter(pk=new.pk).update(started_at=timezone.now() - timedelta(minutes=20))
    [cause] = stats.causes()
    assert (cause.kind, cause.is_urgent) == (CauseKind.MIXED_RELEASES, False)
    assert cause.sentence == (
        "Workers have run 2 releases for 20 min: v1 (2 processes), v2 (1 process). Finish the deploy, or restart the "
        "workers of the old release."
    )
    Worker.objects.filter(release="v1").update(stopped_at=timezone.now())
    assert stats.causes() == ()


# ------------------------------------------------------------------ workflows


def fail(job_id: int, *cancelled: int, hours: float = 0.0) -> None:
    """Make a node dead, and its dependents cancelled by it."""
    at = timezone.now() - timedelta(hours=hours)
    Job.objects.filter(pk=job_id).update(state="dead", finished_at=at)
    Job.objects.filter(pk__in=cancelled).update(state="cancelled", finished_at=at)
    JobDependency.objects.filter(job_id__in=cancelled, needs_id=job_id).update(has_cancelled=True)


def test_workflow_that_failed_is_a_cause_for_a_day():
    register()
    batch = JobBatch.objects.create()
    [root] = helpers.make_nodes(connection, batch_id=batch.pk)
    [after, other] = helpers.make_nodes(connection, 2, needs=[root], batch_id=batch.pk)
    fail(root, after)
    Job.objects.filter(pk=other).update(state="cancelled", finished_at=timezone.now())
    [cause] = the_causes(CauseKind.WORKFLOW_FAILED)
    assert (cause.job_id, cause.batch_id, cause.jobs, cause.name) == (root, batch.pk, Count(1), helpers.NOOP)
    assert cause.sentence == (
        f"1 workflow failed in the last 24 hours, because a job of {helpers.NOOP} died: jobs that depend on it were "
        "cancelled. A retry of the dead job restores them."
    )
    for change in ({"finished_at": timezone.now() - timedelta(hours=25)}, {"acknowledged_at": timezone.now()}):
        Job.objects.filter(pk=root).update(**{"finished_at": timezone.now(), "acknowledged_at": None, **change})
        assert the_causes(CauseKind.WORKFLOW_FAILED) == [], change


def test_workflow_that_failed_before_many_deaths_is_found():
    register()
    [root] = helpers.make_nodes(connection)
    fail(root, *helpers.make_nodes(connection, needs=[root]))
    plain = {"task_name": "shop.pay", "state": "dead", "attempt": 1, "arguments": {"args": [], "kwargs": {}}}
    Job.objects.bulk_create(Job(**plain, finished_at=timezone.now()) for _ in range(1_500))
    [cause] = the_causes(CauseKind.WORKFLOW_FAILED)
    assert cause.job_id == root and cause.sentence.startswith("1 workflow failed"), "the count is exact"


def test_workflows_that_failed_are_counted_by_their_batches():
    register()
    for _ in range(2):
        batch = JobBatch.objects.create()
        roots = helpers.make_nodes(connection, 2, batch_id=batch.pk)
        after = helpers.make_nodes(connection, 3, needs=roots, batch_id=batch.pk)
        for root in roots:
            fail(root, *after)
    [cause] = the_causes(CauseKind.WORKFLOW_FAILED)
    assert cause.jobs == Count(6)
    assert cause.sentence.startswith("2 workflows failed in the last 24 hours, because 4 jobs of ")
