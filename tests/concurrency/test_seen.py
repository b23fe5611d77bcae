"""Tests that an operator transition changes a job only if it is still as the caller saw it.

The statement compares the state, `finished_at` and `run_after` with the values that the caller saw.
"""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection

from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import completions, operator, ticks
from django_pgqueue.models import Job
from django_pgqueue.states import Seen
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("committing")


def die(engine) -> int:
    """Claim the due job, let its last attempt fail, and return its id."""
    claimed = helpers.claim_one(engine)
    completions.fail(engine, helpers.failed(claimed.key, delay_seconds=None))
    return claimed.job_id


def dead_jobs(engine, count: int = 1) -> list[int]:
    helpers.make_jobs(engine, count)
    return sorted(die(engine) for _ in range(count))


def test_retry_job_dead_again_is_refused(engine):
    [job_id] = dead_jobs(engine)
    first, second = Job.objects.get(pk=job_id), Job.objects.get(pk=job_id)
    assert first.retry()
    assert not second.retry()
    assert die(engine) == job_id
    assert not second.retry(), "the job is dead again, but with a later finished_at than the instance has"
    assert not first.retry()
    second.refresh_from_db()
    assert second.retry()


@pytest.mark.promise("operator-compares")
def test_retry_two_clicks_at_once_retry_job_once(engine, second):
    for _ in range(5):
        [job_id] = dead_jobs(engine)
        row = Job.objects.get(pk=job_id)
        seen = {job_id: Seen(row.state, row.finished_at)}
        click_on = partial(operator.retry, job_ids=[job_id], seen=seen)
        clicks = [helpers.Background(partial(click_on, connection)) for connection in (engine, second)]
        assert sorted(len(click.result()) for click in clicks) == [0, 1]
        helpers.clear_tables(engine)


def test_retry_of_a_stale_instance_changes_nothing(engine):
    job = tasks.noop.enqueue()
    die(engine)
    assert not job.retry(), "the instance was read while the job was ready"
    job.refresh_from_db()
    assert job.retry()


@pytest.mark.promise("operator-compares")
@pytest.mark.parametrize("microseconds", [1, -1])
def test_retry_finished_at_one_microsecond_off_is_refused(engine, microseconds):
    [job_id] = dead_jobs(engine)
    job = Job.objects.get(pk=job_id)
    engine.execute("UPDATE pgqueue_job SET finished_at = finished_at + %s * interval '1 microsecond'", [microseconds])
    assert not job.retry()
    engine.execute("UPDATE pgqueue_job SET finished_at = finished_at - %s * interval '1 microsecond'", [microseconds])
    assert job.retry()


@pytest.mark.parametrize("setting", ["SET TIME ZONE 'Asia/Kathmandu'", "SET datestyle = 'German, DMY'"])
def test_retry_unusual_session_settings_still_matches(engine, setting):
    [job_id] = dead_jobs(engine)
    job = Job.objects.get(pk=job_id)
    with connection.cursor() as cursor:
        cursor.execute(setting)
    try:
        assert job.retry()
    finally:
        connection.close()


def test_queryset_retry_job_died_since_start_is_skipped(engine, monkeypatch):
    ids = dead_jobs(engine, 4)
    monkeypatch.setattr("django_pgqueue.models.operations_link.BATCH_SIZE", 2)
    retried: list[list[int]] = []
    original_retry = operator.retry

    def retry_beside_another_operator(connection, job_ids, **options):
        if not retried:  # another operator retries the jobs of the second batch, and one of them fails again
            assert original_retry(engine, ids[2:])
            assert die(engine) in ids[2:]
        retried.append(list(job_ids))
        return original_retry(connection, job_ids, **options)

    monkeypatch.setattr(operator, "retry", retry_beside_another_operator)
    assert Job.objects.filter(state="dead").retry() == 2
    assert [job_id for batch in retried for job_id in batch] == ids[:2]


def test_cancel_stale_dead_job_leaves_later_retry(engine):
    [job_id] = dead_jobs(engine)
    seen_dead = Job.objects.get(pk=job_id)
    assert Job.objects.get(pk=job_id).retry()
    assert not seen_dead.cancel()
    assert helpers.state_of(engine, job_id) == "ready"


def test_cancel_job_started_since_read_reaches_it(engine):
    job = tasks.noop.enqueue()
    helpers.claim_one(engine)
    assert job.cancel()


def test_cancel_state_differs_from_seen_changes_nothing(engine):
    job_id = helpers.make_job(engine)
    helpers.claim_one(engine)
    assert operator.cancel(engine, [job_id], seen={job_id: Seen("ready")}) == {}
    assert operator.cancel(engine, [job_id], seen={job_id: Seen("running")}) == {job_id: "running"}


def test_run_now_stale_instance_leaves_later_backoff(engine):
    job = tasks.noop.using(run_after=3600).enqueue()
    stale = Job.objects.get(pk=job.pk)
    assert job.run_now()
    claimed = helpers.claim_one(engine)
    completions.fail(engine, helpers.failed(claimed.key, delay_seconds=3600.0))
    assert not stale.run_now()
    assert not job.run_now()
    stale.refresh_from_db()
    assert stale.run_now()


@pytest.mark.promise("shell-compares")
def test_move_job_changed_since_seen_leaves_it(engine):
    job_id = helpers.make_job(engine)
    seen = {job_id: Seen("ready", run_after=helpers.job_row(engine, job_id)["run_after"])}
    claimed = helpers.claim_one(engine)
    assert operator.move(engine, [job_id], priority=5, seen=seen) == {}
    completions.fail(engine, helpers.failed(claimed.key, delay_seconds=3600.0))
    assert operator.move(engine, [job_id], priority=5, seen=seen) == {}, "the job is ready again, but due later"
    assert helpers.job_row(engine, job_id)["priority"] == 0


@pytest.mark.promise("shell-compares")
def test_delete_job_dead_again_leaves_it(engine):
    [job_id] = dead_jobs(engine)
    seen = {job_id: Seen("dead", helpers.job_row(engine, job_id)["finished_at"])}
    assert Job.objects.get(pk=job_id).retry()
    assert operator.delete(engine, [job_id], seen=seen) == {}
    die(engine)
    assert operator.delete(engine, [job_id], seen=seen) == {}, "the job is dead again, with a later finished_at"
    seen = {job_id: Seen("dead", helpers.job_row(engine, job_id)["finished_at"])}
    assert operator.delete(engine, [job_id], seen=seen) == {job_id: "dead"}
    assert not helpers.rows_of(engine, "pgqueue_execution")


def test_delete_job_with_locked_execution_leaves_it(engine, second, monkeypatch):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.05)
    [job_id] = dead_jobs(engine)
    with helpers.transaction(second, "SELECT FROM pgqueue_execution FOR UPDATE"):
        assert operator.delete(engine, [job_id]) == {}
        with pytest.raises(JobLocked):
            operator.delete(engine, [job_id], alone=True)
    assert operator.delete(engine, [job_id]) == {job_id: "dead"}


def test_run_schedule_repeated_click_adds_one_job(engine):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine, due_in=3600.0))
    job = helpers.new_job()
    first = ticks.run_schedule(engine, schedule, job, seen_last_run=None)
    assert first is not None and first.what == "fired"
    assert ticks.run_schedule(engine, schedule, job, seen_last_run=None) is None
    last = engine.execute("SELECT last_run_at FROM pgqueue_schedule").fetchone()[0]
    assert ticks.run_schedule(engine, schedule, job, seen_last_run=last) is not None
    assert Job.objects.count() == 2
