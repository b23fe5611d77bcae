"""Application code hangs or raises anything at each boundary: the worker continues, and every job ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import hostile
from tests.app.hostile import MODULES

pytestmark = pytest.mark.process


@pytest.fixture
def start(start, settings):
    """Return a function that starts a worker that knows the hostile tasks."""
    settings.PGQUEUE = {"TASK_MODULES": MODULES}
    return lambda *arguments, **options: start(*arguments, **{"TASK_MODULES": MODULES} | options)


def receiver(name: str, file: Path | None = None) -> dict[str, str]:
    return {"PGQUEUE_TEST_RECEIVER": name, "PGQUEUE_TEST_RECEIVER_FILE": str(file)}


@pytest.mark.promise("receiver-stops-nothing")
@pytest.mark.parametrize("name", ["hang", "exit", "cancel"])
def test_receiver_that_misbehaves_stops_no_completion(start, name):
    hostile.work.enqueue_many([((number,), {}) for number in range(50)])
    worker = start("--concurrency", "4", variables=receiver(name))
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 50)
    later = hostile.work.enqueue(1)
    worker.wait_until(lambda: Job.objects.get(pk=later.pk).state == "succeeded")
    worker.send(signal.SIGTERM)
    assert worker.exit_code(15) == 0, "a stopping worker must wait at most 5 s for a receiver that hangs"
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}


def test_ten_second_receiver_costs_no_lease(start):
    hostile.work.enqueue()
    worker = start("--concurrency", "2", variables=receiver("long"), LEASE=6.0)
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    jobs = [hostile.work.enqueue(number) for number in range(5)]
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 6, 8)
    assert {Execution.objects.get(job=job).outcome for job in jobs} == {"succeeded"}
    assert "interrupted" not in worker.said


@pytest.mark.promise("defect-terminated-session-receivers")
def test_terminated_session_fails_one_receiver(start, tmp_path, watcher):
    file = tmp_path / "pids"
    worker = start("--concurrency", "1", variables=receiver("ask", file))
    hostile.work.enqueue()
    worker.wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
    for pid in set(file.read_text().split()):
        watcher.execute("SELECT pg_terminate_backend(%s)", [int(pid)])
    hostile.work.enqueue_many([((number,), {}) for number in range(15)])
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 16)
    worker.wait_until(lambda: len(file.read_text().split()) >= 2 + 30 - 2)


def test_receivers_with_until_empty_run_before_worker_exits(start, tmp_path):
    file = tmp_path / "pids"
    hostile.work.enqueue_many([((number,), {}) for number in range(100)])
    assert start("--until-empty", "--concurrency", "4", variables=receiver("ask", file)).has_drained()
    assert len(file.read_text().split()) == 2 * 100, "each job must send job_started and job_succeeded"


@pytest.mark.promise("defect-backoff-system-exit")
def test_backoff_that_exits_costs_neither_slot_nor_job(start):
    jobs = [hostile.fail_with_exiting_backoff.enqueue() for _ in range(4)]
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: Job.objects.filter(state="ready", attempt=1).count() == 4)
    after = [hostile.work.enqueue(number) for number in range(4)]
    worker.wait_until(lambda: Job.objects.filter(pk__in=[job.pk for job in after], state="succeeded").count() == 4)
    assert set(Execution.objects.filter(job__in=jobs).values_list("error", flat=True)) == {"as asked"}


@pytest.mark.parametrize("task", [hostile.crash_with_exiting_backoff, hostile.crash_with_hanging_backoff])
def test_backoff_that_fails_does_not_stop_rescue(start, tmp_path, task):
    started = tmp_path / "started"
    job = task.enqueue(str(started))
    lost = start("--concurrency", "1", LEASE=6.0)
    lost.wait_until(started.exists)
    lost.send_all(signal.SIGKILL)
    Job.objects.filter(pk=job.pk).update(crashes=1)  # the first crash is due at once, without calling the backoff
    rescuer = start("--concurrency", "1", LEASE=2.0)
    rescuer.wait_until(lambda: Execution.objects.get(job=job).outcome == "crashed", 40)
    after = hostile.work.enqueue()
    rescuer.wait_until(lambda: Job.objects.get(pk=after.pk).state == "succeeded")
    rescuer.wait_until(lambda: "the default is used" in rescuer.said)  # another process writes the log


@pytest.mark.promise("every-attempt-gets-outcome", "defect-hostile-exception")
@pytest.mark.parametrize(
    "task",
    [hostile.raise_hostile, hostile.raise_hostile_async, hostile.raise_hostile_isolated],
)
def test_hostile_exception_always_ends_its_job(start, task):
    jobs = {name: task.enqueue(name) for name in hostile.EXCEPTIONS}
    worker = start("--concurrency", "2", variables={"PGQUEUE_TEST_LOG": "DEBUG"})
    worker.wait_until(lambda: not Job.objects.filter(state__in=["ready", "running"]).exists(), 30)
    states = {name: Job.objects.get(pk=job.pk).state for name, job in jobs.items()}
    assert states == dict.fromkeys(jobs, "dead")
    after = [hostile.work.enqueue(number) for number in range(4)]
    worker.wait_until(lambda: Job.objects.filter(pk__in=[job.pk for job in after], state="succeeded").count() == 4)


@pytest.mark.promise("dead-service-replaces-process")
@pytest.mark.parametrize(
    "name",
    ["completer", "fetcher", "lease-monitor", "lease-guard", "maintenance", "deadlines", "schedules", "listener"],
)
def test_dead_service_replaces_its_process(start, tmp_path, name):
    worker = start("--concurrency", "2")
    first = worker.wait_until_ready()
    job = hostile.end_service.enqueue(name, str(tmp_path / "done"))
    worker.wait_until(lambda: set(worker.children) - {first})
    assert f"its service pgqueue-{name} has ended" in worker.said
    after = hostile.work.enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=after.pk).state == "succeeded")
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")
    assert Job.objects.get(pk=job.pk).crashes == 0, "the job must not be charged"


@pytest.mark.parametrize("name", ["completer", "fetcher", "maintenance"])
def test_service_survives_system_exit(start, name):
    hostile.throw_into_service.enqueue(name)
    worker = start("--concurrency", "2")
    child = worker.wait_until_ready()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    after = [hostile.work.enqueue(number) for number in range(4)]
    worker.wait_until(lambda: Job.objects.filter(pk__in=[job.pk for job in after], state="succeeded").count() == 4)
    assert worker.children == [child]


@pytest.mark.promise("defect-dead-thread-unnoticed")
def test_slot_thread_that_dies_is_replaced(start):
    worker = start("--concurrency", "1")
    child = worker.wait_until_ready()
    hostile.end_slot.enqueue()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    lost = hostile.work.enqueue()
    worker.wait_until(lambda: Execution.objects.filter(job=lost, outcome="failed").exists())
    after = hostile.work.enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=after.pk).state == "succeeded")
    assert worker.children == [child]
    assert "the thread of slot 0 has died; a new thread replaces it" in worker.said


@pytest.mark.promise("ended-job-counts-before-its-result-is-stored")
def test_job_that_ends_and_kills_its_process_is_charged(start):
    """The process dies before it stores the end of the job. The next attempt is isolated, so it is the last one."""
    hostile.work.enqueue_many([((number,), {}) for number in range(20)])
    poison = hostile.end_and_kill_process.using(priority=1).enqueue()
    worker = start("--concurrency", "4")
    worker.wait_until(lambda: not Job.objects.filter(state__in=["ready", "running"]).exists())
    poison.refresh_from_db()
    assert (poison.state, poison.attempt, poison.crashes) == ("dead", 2, 2)
    assert set(Execution.objects.filter(job=poison).values_list("outcome", flat=True)) == {"crashed"}
    assert Job.objects.filter(state="succeeded").count() == 20


@pytest.mark.promise("defect-hanging-key-stops-schedules", "hanging-code-blocks-only-its-owner")
def test_schedule_with_hanging_receivers_and_keys_goes_on(start, engine):
    """The service that fires schedules waits for no receiver, and for no unique key."""
    hanging = helpers.make_schedule(engine, "hanging", task_name=hostile.hanging_key.name)
    helpers.make_schedule(engine, "sound", task_name=hostile.work.name)
    worker = start("--concurrency", "1", variables=receiver("hang"))
    worker.wait_until(lambda: Job.objects.filter(task_name=hostile.work.name, state="succeeded").exists())
    worker.wait_until(lambda: "schedule hanging" in worker.said, 30)
    assert "did not return within 10 s" in worker.said
    assert not Job.objects.filter(task_name=hostile.hanging_key.name).exists()
    assert helpers.scalar(engine, "SELECT problem FROM pgqueue_schedule WHERE id = %s", [hanging])
