"""Dead jobs that are acknowledged: they stay dead, leave the dead letters and all counts, and block nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.admin.job.blocked_keys import blocked_keys
from django_pgqueue.composed.batches import Batch
from django_pgqueue.db.notifications import PAUSES_CHANGED
from django_pgqueue.ends import deletion, job_operations
from django_pgqueue.job_search import Filters, find
from django_pgqueue.lifecycle import history, operator, pruning
from django_pgqueue.models import ArchivedJob, Job, Rollup, Schedule, ScheduleRun
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Need, Seen, State
from django_pgqueue.stats.causes.cause import CauseKind
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.django_db

DIED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def dead(**columns: Any) -> Job:
    """Return a job that died a minute ago."""
    job = tasks.noop.enqueue()
    died_at = timezone.now() - timedelta(minutes=1)
    Job.objects.filter(pk=job.pk).update(**{"state": "dead", "finished_at": died_at, **columns})
    return Job.objects.get(pk=job.pk)


def ids(jobs: Any) -> list[int]:
    return sorted(jobs.values_list("pk", flat=True))


def found(**filters: Any) -> list[int]:
    return sorted(find(Filters("default", **filters), 100).ids)


def test_acknowledged_job_stays_dead_and_leaves_dead_letters():
    job, other = dead(), dead()
    assert job.acknowledge()
    job.refresh_from_db()
    assert (job.state, job.acknowledged_at is not None) == ("dead", True)
    assert ids(Job.objects.dead()) == [other.pk]
    assert ids(Job.objects.acknowledged()) == [job.pk]
    assert ids(Job.objects.filter(state="dead")) == [job.pk, other.pk]


def test_acknowledge_again_changes_nothing():
    job = dead()
    assert job.acknowledge()
    first = Job.objects.get(pk=job.pk).acknowledged_at
    assert not job.acknowledge()
    assert Job.objects.get(pk=job.pk).acknowledged_at == first


@pytest.mark.parametrize("state", ["ready", "succeeded", "cancelled"])
def test_acknowledge_of_job_that_is_not_dead_changes_nothing(state):
    job = dead(state=state, finished_at=None if state == "ready" else DIED_AT)
    assert not job.acknowledge()
    assert Job.objects.get(pk=job.pk).acknowledged_at is None


def test_acknowledge_of_job_that_died_again_changes_nothing():
    job = dead()
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    assert not job.acknowledge()
    seen = {job.pk: Seen("dead", job.finished_at)}
    assert operator.acknowledge(connection, [job.pk], seen=seen) == {}
    assert operator.acknowledge(connection, [job.pk]) == {job.pk: State.DEAD}


def test_queryset_acknowledges_only_its_dead_jobs():
    jobs = [dead(), dead(), dead(state="cancelled")]
    assert jobs[0].acknowledge()
    assert Job.objects.all().acknowledge() == 1
    assert ids(Job.objects.acknowledged()) == [jobs[0].pk, jobs[1].pk]


def test_retry_makes_job_a_dead_letter_again_when_it_dies():
    job = dead(limit_key="import:7", limit_order=2)
    assert job.acknowledge()
    job.refresh_from_db()
    assert job.limit_order == 3
    assert job.retry()
    job.refresh_from_db()
    assert (job.state, job.acknowledged_at, job.limit_order) == ("ready", None, 2)


def test_retry_with_an_erased_key_blocks_nobody():
    """All erased jobs of a limit have one key."""
    job = dead(limit_key="import:[erased]", limit_order=3, acknowledged_at=DIED_AT)
    assert job.retry()
    assert Job.objects.get(pk=job.pk).limit_order == 1


@pytest.mark.parametrize("transition", ["retry", "delete"])
def test_job_acknowledged_since_it_was_seen_is_left(transition):
    """An acknowledgement changes neither the state nor the end, and says that the job is not to run again."""
    job = dead()
    seen = {job.pk: Seen("dead", job.finished_at, None, is_acknowledged=False)}
    assert job.acknowledge()
    change = getattr(operator, transition)
    assert change(connection, [job.pk], seen=seen) == {}
    assert change(connection, [job.pk], seen={job.pk: seen[job.pk]._replace(is_acknowledged=True)}) != {}


@pytest.mark.parametrize("order", [None, 1])
def test_acknowledge_and_retry_leave_the_order_of_other_jobs(order):
    job = dead(limit_key="import:7", limit_order=order)
    assert job.acknowledge() and Job.objects.get(pk=job.pk).limit_order == order
    assert job.retry() and Job.objects.get(pk=job.pk).limit_order == order


@pytest.mark.parametrize(("order", "wakes"), [(2, True), (1, False), (None, False)])
def test_workers_are_woken_if_the_job_blocked_its_key(monkeypatch, order, wakes):
    woken: list[str] = []
    monkeypatch.setattr(job_operations, "wake_workers_after_commit", lambda on, payload: woken.append(payload))
    job = dead(limit_key="import:7", limit_order=order)
    assert job.acknowledge()
    assert woken == ([PAUSES_CHANGED] if wakes else [])
    assert not job.acknowledge()
    assert len(woken) == wakes


@pytest.mark.parametrize(("state", "wakes"), [("dead", True), ("succeeded", False)])
def test_workers_are_woken_if_a_dead_job_is_deleted(monkeypatch, state, wakes):
    """It may have blocked its key, whose later jobs would wait for a poll."""
    woken: list[str] = []
    monkeypatch.setattr(deletion, "wake_workers_after_commit", lambda on, payload: woken.append(payload))
    for count, delete in enumerate((lambda job: job.delete(), lambda job: Job.objects.filter(pk=job.pk).delete()), 1):
        delete(dead(limit_key="import:7", limit_order=2, state=state))
        assert woken == [PAUSES_CHANGED] * count * wakes


def test_acknowledged_job_that_blocked_its_key_can_be_removed():
    job = dead(limit_key="import:7", limit_order=2, finished_at=DIED_AT)
    assert pruning.needs_of(connection, [job.pk])[job.pk].need is Need.ORDER
    assert pruning.prune(connection, State.DEAD, 60.0).removed == 0
    assert blocked_keys("default")[0] == ["import:7"]
    assert job.acknowledge()
    assert blocked_keys("default")[0] == []
    assert pruning.prune(connection, State.DEAD, 60.0).removed == 1


def test_batch_still_counts_the_job_as_failed():
    with Batch() as batch:
        job = tasks.noop.using(batch=batch).enqueue()
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=DIED_AT)
    assert Job.objects.get(pk=job.pk).acknowledge()
    assert batch.progress().dead == 1


def test_archived_job_keeps_the_time_of_the_acknowledgement():
    job = dead()
    assert job.acknowledge()
    job.refresh_from_db()
    assert history.archive(connection, {job.pk: job.finished_at})
    [row] = ArchivedJob.objects.all()
    assert datetime.fromisoformat(row.document["acknowledged_at"]) == job.acknowledged_at


# ------------------------------------------------------------------ searches


def test_words_of_searches_part_dead_jobs():
    known, letter = dead(), dead()
    known.acknowledge()
    assert found(words=("dead",)) == [letter.pk]
    assert found(words=("acknowledged",)) == [known.pk]
    assert found(words=("dead", "acknowledged")) == [known.pk, letter.pk]
    assert found(words=("acknowledged",), ids=(known.pk, letter.pk)) == [known.pk, letter.pk], "ids come first"


def test_words_of_searches_part_dead_jobs_of_a_batch():
    with Batch() as batch:
        jobs = [tasks.noop.using(batch=batch).enqueue() for _ in range(2)]
    Job.objects.update(state="dead", finished_at=DIED_AT)
    known, letter = (Job.objects.get(pk=job.pk) for job in jobs)
    known.acknowledge()
    assert found(words=("dead",), batch=batch.id) == [letter.pk]
    assert found(words=("acknowledged",), batch=batch.id) == [known.pk]
    assert found(words=("dead", "acknowledged"), batch=batch.id) == found(batch=batch.id) == [known.pk, letter.pk]


# ------------------------------------------------------------------ figures


def test_counts_and_incidents_leave_acknowledged_jobs_out():
    known, letter = dead(), dead()
    known.acknowledge()
    overview = stats.overview()
    assert (overview.dead.value, overview.dead_24h.value) == (1, 1)
    assert [queue.dead.value for queue in stats.queues() if queue.name == "default"] == [1]
    found = stats.incidents()
    assert (found.jobs, [group.sample_ids for group in found.groups]) == (1, [(letter.pk,)])


def kinds() -> set[CauseKind]:
    return {cause.kind for cause in stats.causes()}


def test_task_whose_dead_jobs_are_acknowledged_is_no_cause():
    jobs = [dead(finished_at=timezone.now()) for _ in range(4)]
    at = timezone.now().replace(second=0, microsecond=0)
    Rollup.objects.create(
        span="minute", starts_at=at, queue_name="default", task_name=tasks.noop.name, dead=4,
        wait_buckets=[], wait_counts=[], run_buckets=[], run_counts=[],
    )  # fmt: skip
    assert get_settings().STATS
    [cause] = [cause for cause in stats.causes() if cause.kind is CauseKind.TASK_FAILING]
    assert cause.jobs == stats.Count(4)
    jobs[0].acknowledge()
    [cause] = [cause for cause in stats.causes() if cause.kind is CauseKind.TASK_FAILING]
    assert cause.jobs == stats.Count(3) and "died 3 times" in cause.sentence
    jobs[1].acknowledge()
    assert CauseKind.TASK_FAILING not in kinds()


def test_schedule_whose_dead_jobs_are_acknowledged_is_no_cause():
    schedule = Schedule.objects.create(
        name="nightly", task_name=tasks.noop.name, arguments={"args": [], "kwargs": {}}, expression="@daily",
        next_run_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip
    jobs = [dead() for _ in range(3)]
    for hours, job in enumerate(jobs):
        ScheduleRun.objects.create(schedule=schedule, tick_at=timezone.now() - timedelta(hours=hours), job_id=job.pk)
    assert CauseKind.SCHEDULE_FAILING in kinds()
    jobs[1].acknowledge()
    assert CauseKind.SCHEDULE_FAILING not in kinds()


def test_workflow_that_waits_for_an_acknowledged_job_is_no_cause():
    job, waiting = dead(in_graph=True), helpers.make_job(connection)
    Job.objects.filter(pk=waiting).update(state="waiting", in_graph=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_dependency (job_id, needs_id, policy) VALUES (%s, %s, 'block')", [waiting, job.pk]
        )
    assert CauseKind.DEPENDENCY_FAILED in kinds()
    assert job.acknowledge()
    assert CauseKind.DEPENDENCY_FAILED not in kinds()
    assert Job.objects.get(pk=waiting).state == "waiting", "the dependents stay as they are"
