"""Real workers in ordinary operation: claiming, polling, retries, ordering, replacement and pruning.

A test of each kind of start has `fresh_start`: one process, several, a replaced one, an event loop, and a database
without our tables.
"""

from __future__ import annotations

import re

import pytest

from django_pgqueue.models import Execution, Job, Worker
from tests.app import tasks
from tests.helpers import wait_until

pytestmark = pytest.mark.process


@pytest.mark.quick
@pytest.mark.fresh_start
def test_until_empty_runs_due_jobs_and_exits(start):
    jobs = [tasks.add.enqueue(number, b=1) for number in range(20)]
    later = tasks.noop.using(run_after=3600).enqueue()
    assert start("--until-empty").has_drained()
    for number, job in enumerate(jobs):
        job.refresh_from_db()
        assert (job.state, job.result, job.attempt) == ("succeeded", number + 1, 1)
    later.refresh_from_db()
    assert later.state == "ready"
    assert Execution.objects.count() == 20


@pytest.mark.promise("mistyped-queue-warns")
def test_worker_warns_once_about_mistyped_queue(start):
    tasks.noop.enqueue()
    worker = start("--queues", "defualt,reports,default", "--processes", "2", "--until-empty")
    assert worker.has_drained()
    [line] = [line for line in worker.said.splitlines() if "--queues: " in line]
    assert line.endswith("uses the queue 'defualt': did you mean 'default', where due jobs wait?")
    assert "WARNING" in line


def test_enqueue_wakes_sleeping_worker(start):
    worker = start(POLL_INTERVAL=60.0)
    worker.wait_until_ready()
    job = tasks.add.enqueue(1, 2)
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


@pytest.mark.promise("lost-notification-costs-a-poll")
def test_worker_without_notifications_polls(start):
    worker = start("--no-listen")
    worker.wait_until_ready()
    job = tasks.add.enqueue(1, 2)
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


def test_delayed_job_starts_when_due_without_poll(start):
    worker = start(POLL_INTERVAL=60.0, POLL_INTERVAL_WITHOUT_LISTEN=60.0)
    worker.wait_until_ready()
    job = tasks.noop.using(run_after=1.5).enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")
    execution = Execution.objects.get(job=job)
    assert execution.claimed_at >= Job.objects.get(pk=job.pk).run_after


def test_retry_before_next_poll_starts_at_its_time(start, tmp_path):
    job = tasks.fail_slowly_once.enqueue(str(tmp_path / "failed"))
    worker = start(POLL_INTERVAL=120.0)
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")
    job.refresh_from_db()
    assert 0.3 <= job.result < 60


@pytest.mark.fresh_start
def test_async_and_sync_tasks_run_at_the_same_time(start, tmp_path):
    done, sync_started, async_started = (tmp_path / name for name in ("done", "sync", "async"))
    sync_job = tasks.wait_for_file.enqueue(str(done), started=str(sync_started))
    async_job = tasks.await_file.enqueue(str(done), started=str(async_started))
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: sync_started.exists() and async_started.exists())
    done.touch()
    worker.wait_until(lambda: set(Job.objects.values_list("state", flat=True)) == {"succeeded"})
    assert Execution.objects.filter(job__in=[sync_job, async_job], outcome="succeeded").count() == 2


def test_concurrency_limits_sync_and_async_jobs_together(start, tmp_path):
    record = tmp_path / "record"
    for number in range(30):
        (tasks.overlap if number % 2 else tasks.async_overlap).enqueue(str(record), 0.1)
    assert start("--concurrency", "3", "--until-empty").has_drained()
    marks = record.read_text().split()
    running = [sum(1 if mark == "begin" else -1 for mark in marks[: place + 1]) for place in range(len(marks))]
    assert max(running) in (2, 3)
    assert running[-1] == 0


def test_named_queues_are_served_in_the_order_named(start, tmp_path):
    record = tmp_path / "record"
    for queue_name in ("bulk", "critical", "ignored"):
        calls = [((str(record), queue_name), {}) for _ in range(5)]
        tasks.record.using(queue_name=queue_name, priority=100 if queue_name == "bulk" else 0).enqueue_many(calls)
    assert start("--queues", "critical,bulk", "--concurrency", "1", "--until-empty").has_drained()
    assert record.read_text().split() == ["critical"] * 5 + ["bulk"] * 5
    assert Job.objects.filter(queue_name="ignored", state="ready").count() == 5


def test_jobs_run_by_priority_then_by_due_time(start, tmp_path):
    record = tmp_path / "record"
    for priority in (0, 50, -50):
        for number in range(3):
            tasks.record.using(priority=priority).enqueue(str(record), f"{priority}/{number}")
    assert start("--concurrency", "1", "--until-empty").has_drained()
    assert record.read_text().split() == [f"{priority}/{number}" for priority in (50, 0, -50) for number in range(3)]


@pytest.mark.fresh_start
def test_two_processes_run_each_job_once(start, tmp_path):
    record = tmp_path / "record"
    tasks.record.enqueue_many([((str(record), str(number)), {}) for number in range(2000)])
    assert start("--processes", "2", "--until-empty").has_drained(60)
    assert sorted(map(int, record.read_text().split())) == list(range(2000))
    assert Execution.objects.count() == 2000
    assert Worker.objects.filter(stopped_at=None).count() == 0


@pytest.mark.fresh_start
def test_max_jobs_replaces_process_and_charges_nothing(start):
    tasks.noop.enqueue_many([((), {})] * 300)
    worker = start("--max-jobs", "50", "--until-empty")
    assert worker.has_drained(60)
    assert Job.objects.filter(state="succeeded").count() == 300
    assert Worker.objects.count() > 1
    assert not Execution.objects.filter(outcome__in=["failed", "crashed"]).exists()


def test_replaced_process_finishes_its_slow_job(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    slow = tasks.wait_for_file.enqueue(str(done), started=str(started))
    tasks.noop.enqueue()
    worker = start("--max-jobs", "2", "--concurrency", "2", GRACE=0.1)
    worker.wait_until(lambda: started.exists() and Job.objects.filter(state="succeeded").count() == 1)
    worker.wait_until(lambda: "will be replaced" in worker.said)
    assert "it finishes its running jobs first (it has started 2 jobs, --max-jobs is 2)" in worker.said
    first = worker.children
    waiting = tasks.noop.enqueue()
    assert worker.children == first
    done.touch()
    worker.wait_until(lambda: Job.objects.get(pk=waiting.pk).state == "succeeded")
    assert worker.children != first
    slow.refresh_from_db()
    assert (slow.state, slow.attempt) == ("succeeded", 1)
    assert Execution.objects.filter(job=slow).count() == 1


def test_max_rss_replaces_process_that_has_grown(start):
    worker = start("--max-rss-mb", "1")
    worker.wait_for_child()
    wait_until(lambda: Worker.objects.filter(stopped_at__isnull=False).exists(), 20)
    worker.wait_until(lambda: re.search(r"\(its memory is \d+ MiB, --max-rss-mb is 1\)", worker.said) is not None)


@pytest.mark.fresh_start
def test_worker_without_migrations_waits_and_logs_it(start, engine):
    engine.execute("UPDATE django_migrations SET app = 'elsewhere' WHERE app = 'pgqueue'")
    try:
        job = tasks.noop.enqueue()
        worker = start("--until-empty")
        worker.wait_until(lambda: "manage.py migrate" in worker.said)
        assert Job.objects.get(pk=job.pk).state == "ready"
    finally:
        engine.execute("UPDATE django_migrations SET app = 'pgqueue' WHERE app = 'elsewhere'")
    assert worker.has_drained()
    assert Job.objects.get(pk=job.pk).state == "succeeded"


def test_pruner_in_running_worker_deletes_finished_jobs(start):
    tasks.noop.enqueue_many([((), {})] * 20)
    worker = start(RETENTION={"succeeded": 0.01})
    worker.wait_until(lambda: not Job.objects.exists())
    assert not Execution.objects.exists()
