"""The gauges of suspended jobs, of events and of batches."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue import Batch, send_event, stats
from django_pgqueue.metrics import collect
from django_pgqueue.models import Job
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
    assert suspended.unreceived_events() == suspended.batches_by_state()["open"] == 2
    assert suspended.suspended_jobs() == {("default", "sleep"): 2}


def test_why_of_suspended_job_names_the_step_and_its_begin():
    job = run(lambda context: context.sleep("cooling-off", 3600))
    why = stats.why(job)
    ended = job.executions.get().finished_at
    assert f"It is suspended since {ended:%Y-%m-%d %H:%M:%S} UTC: step 'cooling-off' sleeps, until " in why.sentence
    job = run(lambda context: context.wait_for_event("approved", 7))
    assert stats.why(job).sentence.endswith("UTC: step 'approved' waits for the event approved, key 7.")
