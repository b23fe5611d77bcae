"""Tasks that run longer than their timeout: each fails with the correct outcome and affects no other job."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group

from django_pgqueue.models import Execution, Job
from tests.app import tasks
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.process

TIMEOUT = "django_pgqueue.exceptions.TaskTimeout"


def only_execution(job: Job) -> Execution:
    return Execution.objects.get(job_id=job.pk)


def is_timed_out(job: Job) -> bool:
    return Execution.objects.filter(job_id=job.pk, outcome="failed", exception_class=TIMEOUT).exists()


def test_timeout_stops_thread_coroutine_and_query(start):
    spinning = tasks.spin.enqueue()
    waiting = tasks.await_for_ever.enqueue()
    querying = tasks.wait_for_the_server.enqueue()
    tidy = tasks.clean_up_in_time.enqueue()
    worker = start("--until-empty")
    assert worker.has_drained()
    for job in (spinning, waiting, querying):
        job.refresh_from_db()
        execution = only_execution(job)
        assert (job.state, execution.exception_class) == ("dead", TIMEOUT)
        assert execution.error == "ran for longer than its timeout of 0.5 s"
        assert (execution.finished_at - execution.started_at).total_seconds() < 15
        assert f"in {job.task_name.rsplit('.', 1)[1]}" in execution.traceback
    tidy.refresh_from_db()
    assert (tidy.state, tidy.result) == ("succeeded", "cleaned up")


@pytest.mark.promise("except-exception-lets-stops-pass")
def test_setting_timeout_limits_tasks_without_their_own(start, tmp_path):
    own = tasks.catch_every_exception.using(max_attempts=1).enqueue(str(tmp_path / "started"))
    framework = framework_tasks.spin.enqueue()
    worker = start("--until-empty", TIMEOUT=0.5)
    assert worker.has_drained()
    for job in (own, Job.objects.get(pk=int(framework.id))):
        job.refresh_from_db()
        assert (job.state, only_execution(job).exception_class) == ("dead", TIMEOUT)
        assert only_execution(job).error == "ran for longer than its timeout of 0.5 s"
    framework.refresh()
    assert isinstance(framework.errors[0].exception_class(), TimeoutError)


@pytest.mark.promise("defect-exception-in-log-lock")
def test_timeout_while_logging_leaves_log_handler_unlocked(start):
    """A timeout throws an exception into a job that logs.

    Between a handler's lock and its `try`, the exception would leave the handler locked, and no thread could log.
    """
    jobs = [tasks.log_all_the_time.enqueue() for _ in range(24)]
    worker = start("--concurrency", "6", LEASE=60.0)
    child = worker.wait_until_ready()
    worker.wait_until(lambda: all(map(is_timed_out, jobs)), 60)
    after = tasks.pid.enqueue()
    worker.wait_until(lambda: Job.objects.filter(pk=after.pk, state="succeeded").exists())
    after.refresh_from_db()
    assert after.result == child


@pytest.mark.promise("atomic-abandoned-rolls-back")
def test_timeout_of_stuck_job_frees_slot_and_rolls_back(start, tmp_path):
    end = tmp_path / "end"
    stuck = [tasks.await_stubbornly.enqueue(str(end)), tasks.create_group_and_stay.enqueue("late", str(end))]
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: all(map(is_timed_out, stuck)))
    for job in stuck:
        execution = only_execution(job)
        assert "Stack 5 s after the job should have stopped" in execution.traceback
        assert f"in {job.task_name.rsplit('.', 1)[1]}" in execution.traceback
    after = [tasks.pid.enqueue(), tasks.async_add.enqueue(1, 2)]
    worker.wait_until(lambda: Job.objects.filter(pk__in=[job.pk for job in after], state="succeeded").count() == 2)
    end.touch()
    worker.wait_until(lambda: worker.said.count("has now ended") == 2)
    assert set(Execution.objects.filter(job__in=stuck).values_list("outcome", flat=True)) == {"failed"}
    assert not Group.objects.filter(name="late").exists()
    assert "no longer belong to this worker" not in worker.said


def test_blocked_event_loop_is_replaced_and_releases_other_jobs(start, tmp_path):
    end, neighbour_may_end = tmp_path / "end", tmp_path / "neighbour"
    started = tmp_path / "started"
    neighbour = tasks.await_file.enqueue(str(neighbour_may_end), started=str(started))
    worker = start()
    worker.wait_until(started.exists)
    blocking = tasks.block_the_loop.enqueue(str(end))
    worker.wait_until(lambda: is_timed_out(blocking))
    assert "time.sleep(0.05)" in only_execution(blocking).traceback
    neighbour_may_end.touch()
    worker.wait_until(lambda: Job.objects.filter(pk=neighbour.pk, state="succeeded").exists())
    neighbour.refresh_from_db()
    assert (neighbour.attempt, neighbour.crashes) == (1, 0)
    assert tuple(Execution.objects.filter(job=neighbour).order_by("id").values_list("outcome", flat=True)) == (
        "released",
        "succeeded",
    )
    end.touch()


def test_timeout_of_three_stuck_jobs_replaces_process(start, tmp_path):
    """The replacement runs jobs while the old process still finishes its running job."""
    may_end, started = tmp_path / "may end", tmp_path / "started"
    slow = tasks.wait_for_file.enqueue(str(may_end), started=str(started))
    worker = start("--concurrency", "4")
    worker.wait_until(started.exists)
    [first] = worker.children
    stuck = [tasks.sleep_in_c.enqueue(600) for _ in range(3)]
    worker.wait_until(lambda: all(map(is_timed_out, stuck)))
    worker.wait_until(lambda: len(worker.children) == 2)
    job = tasks.pid.enqueue()
    worker.wait_until(lambda: Job.objects.filter(pk=job.pk, state="succeeded").exists())
    job.refresh_from_db()
    assert job.result == worker.children[1]
    may_end.touch()
    worker.wait_until(lambda: worker.children == [job.result])
    slow.refresh_from_db()
    assert (slow.state, slow.attempt, slow.crashes) == ("succeeded", 1, 0)
    assert first != job.result


def test_timeout_that_blocks_process_charges_only_its_job(start, tmp_path):
    started, may_end = tmp_path / "started", tmp_path / "may end"
    neighbour = tasks.wait_for_file.enqueue(str(may_end), started=str(started))
    worker = start(LEASE=60.0)
    worker.wait_until(started.exists)
    guilty = tasks.hold_the_interpreter_for_ever.enqueue()
    worker.wait_until(lambda: Execution.objects.filter(job=guilty, outcome="crashed").exists(), 30)
    assert "ran past its timeout" in Execution.objects.get(job=guilty, outcome="crashed").error
    may_end.touch()
    worker.wait_until(lambda: Job.objects.filter(pk=neighbour.pk, state="succeeded").exists())
    neighbour.refresh_from_db()
    assert (neighbour.attempt, neighbour.crashes) == (1, 0)
    # From now on, the job runs isolated, where its timeout is enforced exactly.
    worker.wait_until(lambda: Job.objects.filter(pk=guilty.pk, state="dead").exists())
    assert Execution.objects.filter(job=guilty).latest("id").exception_class == TIMEOUT


def test_timeout_of_job_waiting_for_log_lock_is_retried(start, tmp_path):
    """No exception can be thrown into the job, so it does not learn of its timeout. It is retried all the same."""
    end = tmp_path / "end"
    job = tasks.log_behind_another.enqueue(str(tmp_path / "started"), str(end))
    worker = start(LEASE=60.0)
    worker.wait_until(lambda: Execution.objects.filter(job_id=job.pk, finished_at__isnull=False).exists())
    job.refresh_from_db()
    assert (job.state, only_execution(job).exception_class) == ("ready", TIMEOUT)
    end.touch()
