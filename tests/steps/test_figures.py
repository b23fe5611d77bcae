"""The gauges of suspended jobs, of events and of batches."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue import Batch, send_event, stats
from django_pgqueue.metrics import collect
from django_pgqueue.models import Job, JobStep
from django_pgqueue.stats import suspended
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks as app_tasks

from . import tasks

pytestmark = pytest.mark.django_db


def readings():
    return {gauge.name: dict(samples) for gauge, samples in collect()}


def run(code, queue_name="default"):
    """Run a job with this code until it is suspended, and return it."""
    tasks.CODE["code"] = code
    job = tasks.scripted.using(queue_name=queue_name).enqueue()
    run_jobs()
    return job


def suspensions(queue_name="default"):
    found = readings()["pgqueue_jobs_suspended"]
    return {state: count for (queue, state), count in found.items() if queue == queue_name and count}


def test_gauge_counts_suspended_jobs_by_what_they_wait_for():
    run(lambda context: context.sleep("long", 3600))
    run(lambda context: context.wait_for_event("approved", 7, timeout=60))
    waiting = run(lambda context: context.wait_for_event("approved", 8), "mail")
    assert suspensions() == {"sleeping": 1, "waiting": 1}
    assert suspensions("mail") == {"waiting": 1}
    waiting.cancel()  # its step stays
    assert suspensions("mail") == {}
    with time_travel(hours=2):
        assert suspensions() == {"waiting": 1}


def test_overview_counts_each_suspended_job_once():
    assert stats.overview().suspended == stats.Count(0)
    job = run(lambda context: context.wait_for_event("approved", 7))
    tasks.CODE["code"] = lambda context: context.sleep("long", 3600)  # the step of the event is left out
    job.refresh_from_db()
    assert job.run_now()
    run_jobs()
    run(lambda context: context.sleep("long", 3600), "mail")
    run(lambda context: context.sleep("long", 3600)).cancel()
    assert JobStep.objects.filter(finished_at=None).count() == 4
    assert stats.overview().suspended == stats.Count(2)


def test_gauge_counts_events_that_no_job_has_received():
    send_event("approved", 7)
    send_event("approved", 8)
    assert readings()["pgqueue_events_unreceived"] == {(): 2}
    run(lambda context: context.wait_for_event("approved", 7))
    assert readings()["pgqueue_events_unreceived"] == {(): 1}


def test_gauge_counts_batches_by_state_until_they_are_repaired():
    assert readings()["pgqueue_batches"] == {("open",): 0, ("running",): 0, ("failed",): 0}
    Batch().open()
    with Batch() as running:
        app_tasks.add.using(batch=running, run_after=timedelta(hours=1)).enqueue(1)
    with Batch() as failed:
        app_tasks.fail.using(batch=failed, max_attempts=1).enqueue()
    run_jobs()
    assert readings()["pgqueue_batches"] == {("open",): 1, ("running",): 1, ("failed",): 1}
    Job.objects.filter(batch_id=failed.id).update(task_name=app_tasks.noop.name)
    Job.objects.filter(batch_id=failed.id).retry()
    run_jobs()
    assert readings()["pgqueue_batches"]["failed",] == 0


def test_counts_stop_at_the_limit(monkeypatch):
    monkeypatch.setattr(suspended, "LIMIT", 2)
    for _ in range(3):
        send_event("approved", 7)
        Batch().open()
        tasks.CODE["code"] = lambda context: context.sleep("long", 3600)
        tasks.scripted.enqueue()
    run_jobs()
    assert suspended.unreceived_events() == suspended.batch_figures().by_state["open"] == 2
    assert {key: found.jobs for key, found in suspended.suspended_jobs().by_kind.items()} == {("default", "sleep"): 2}
    assert str(stats.overview().suspended) == "2+"


def test_gauge_has_age_of_the_oldest_suspended_step():
    run(lambda context: context.wait_for_event("approved", 7))
    run(lambda context: context.sleep("long", 7200))
    with time_travel(hours=1):
        run(lambda context: context.wait_for_event("approved", 8))
        ages = readings()["pgqueue_oldest_suspended_seconds"]
        assert {state: round(age, -2) for (_, state), age in ages.items() if age} == {"sleeping": 3600, "waiting": 3600}
        Job.objects.filter(state="ready").cancel()
        assert set(readings()["pgqueue_oldest_suspended_seconds"].values()) == {0.0}


def test_gauge_has_age_of_the_oldest_open_batch():
    assert readings()["pgqueue_oldest_open_batch_seconds"] == {(): 0.0}
    with Batch() as running:
        app_tasks.add.using(batch=running, run_after=timedelta(days=1)).enqueue(1)
    with time_travel(hours=1):
        first = Batch().open()
        Batch().open()
    with time_travel(hours=3):
        assert round(readings()["pgqueue_oldest_open_batch_seconds"][()], -2) == 7200
        first.close()
        assert round(readings()["pgqueue_oldest_open_batch_seconds"][()], -2) == 7200


def test_why_of_suspended_job_names_the_step_and_its_begin():
    job = run(lambda context: context.sleep("cooling-off", 3600))
    why = stats.why(job)
    ended = job.executions.get().finished_at
    assert f"It is suspended since {ended:%Y-%m-%d %H:%M:%S} UTC: step 'cooling-off' sleeps, until " in why.sentence
    job = run(lambda context: context.wait_for_event("approved", 7))
    assert stats.why(job).sentence.endswith("UTC: step 'approved' waits for the event approved.")
