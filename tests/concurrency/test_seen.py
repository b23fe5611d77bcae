"""Acts apply only to what their caller has seen: state, `finished_at` and `run_after`, compared in the statement."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection

from django_pgqueue import lifecycle
from django_pgqueue.models import Job
from django_pgqueue.states import Seen
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("committing")


def die(engine) -> int:
    """Claim the job that is due, and let its last attempt fail; return its id."""
    claimed = helpers.claim_one(engine)
    lifecycle.fail(engine, helpers.failed(claimed.key, delay_seconds=None))
    return claimed.job_id


def dead_jobs(engine, count: int = 1) -> list[int]:
    helpers.make_jobs(engine, count)
    return sorted(die(engine) for _ in range(count))


def test_retry_in_code_repeats_nothing_that_died_again(engine):
    [job_id] = dead_jobs(engine)
    first, second = Job.objects.get(pk=job_id), Job.objects.get(pk=job_id)
    assert first.retry()
    assert not second.retry()
    assert die(engine) == job_id
    assert not second.retry(), "it is dead again, but that is another death"
    assert not first.retry()
    second.refresh_from_db()
    assert second.retry()


@pytest.mark.promise("operator-compares")
def test_retry_two_clicks_at_once_run_the_job_once(engine, second):
    for _ in range(5):
        [job_id] = dead_jobs(engine)
        row = Job.objects.get(pk=job_id)
        seen = {job_id: Seen(row.state, row.finished_at)}
        click_on = partial(lifecycle.retry, job_ids=[job_id], seen=seen)
        clicks = [helpers.Background(partial(click_on, connection)) for connection in (engine, second)]
        assert sorted(len(click.result()) for click in clicks) == [0, 1]
        helpers.clear_tables(engine)


def test_retry_of_a_stale_instance_changes_nothing(engine):
    job = tasks.noop.enqueue()
    die(engine)
    assert not job.retry(), "it was read as ready"
    job.refresh_from_db()
    assert job.retry()


@pytest.mark.promise("operator-compares")
@pytest.mark.parametrize("microseconds", [1, -1])
def test_retry_compares_to_the_microsecond(engine, microseconds):
    [job_id] = dead_jobs(engine)
    job = Job.objects.get(pk=job_id)
    engine.execute("UPDATE pgqueue_job SET finished_at = finished_at + %s * interval '1 microsecond'", [microseconds])
    assert not job.retry()
    engine.execute("UPDATE pgqueue_job SET finished_at = finished_at - %s * interval '1 microsecond'", [microseconds])
    assert job.retry()


@pytest.mark.parametrize("setting", ["SET TIME ZONE 'Asia/Kathmandu'", "SET datestyle = 'German, DMY'"])
def test_retry_in_a_foreign_session_still_compares(engine, setting):
    [job_id] = dead_jobs(engine)
    job = Job.objects.get(pk=job_id)
    with connection.cursor() as cursor:
        cursor.execute(setting)
    try:
        assert job.retry()
    finally:
        connection.close()


def test_queryset_retry_leaves_what_died_since_it_began(engine, monkeypatch):
    ids = dead_jobs(engine, 4)
    monkeypatch.setattr("django_pgqueue.models.operations.BATCH_SIZE", 2)
    retried: list[list[int]] = []
    plain = lifecycle.retry

    def retry_beside_another_operator(connection, job_ids, **options):
        if not retried:  # another operator has retried the jobs of the second batch, and one fails again
            assert plain(engine, ids[2:])
            assert die(engine) in ids[2:]
        retried.append(list(job_ids))
        return plain(connection, job_ids, **options)

    monkeypatch.setattr(lifecycle, "retry", retry_beside_another_operator)
    assert Job.objects.filter(state="dead").retry() == 2
    assert [job_id for batch in retried for job_id in batch] == ids[:2]


def test_cancel_of_a_finished_job_leaves_a_later_retry(engine):
    [job_id] = dead_jobs(engine)
    seen_dead = Job.objects.get(pk=job_id)
    assert Job.objects.get(pk=job_id).retry()
    assert not seen_dead.cancel()
    assert helpers.state_of(engine, job_id) == "ready"


def test_cancel_reaches_a_job_that_began_to_run(engine):
    job = tasks.noop.enqueue()
    helpers.claim_one(engine)
    assert job.cancel()


def test_cancel_compares_what_was_seen(engine):
    job_id = helpers.make_job(engine)
    helpers.claim_one(engine)
    assert lifecycle.cancel(engine, [job_id], seen={job_id: Seen("ready")}) == {}
    assert lifecycle.cancel(engine, [job_id], seen={job_id: Seen("running")}) == {job_id: "running"}


def test_run_now_leaves_the_backoff_of_a_later_attempt(engine):
    job = tasks.noop.using(run_after=3600).enqueue()
    twice = Job.objects.get(pk=job.pk)
    assert job.run_now()
    claimed = helpers.claim_one(engine)
    lifecycle.fail(engine, helpers.failed(claimed.key, delay_seconds=3600.0))
    assert not twice.run_now()
    assert not job.run_now()
    twice.refresh_from_db()
    assert twice.run_now()


def test_run_schedule_twice_makes_one_job(engine):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine, due_in=3600.0))
    options = lifecycle.JobOptions("default", 0, 10)
    first = lifecycle.run_schedule(engine, one, options, seen_last_run=None)
    assert first is not None and first.what == "fired"
    assert lifecycle.run_schedule(engine, one, options, seen_last_run=None) is None
    last = engine.execute("SELECT last_run_at FROM pgqueue_schedule").fetchone()[0]
    assert lifecycle.run_schedule(engine, one, options, seen_last_run=last) is not None
    assert Job.objects.count() == 2
