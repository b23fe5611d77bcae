"""Running jobs of Django's task framework: statuses, attempts, errors, contexts and return values of their results."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from django_pgqueue import fixed
from django_pgqueue.backend import PgQueueBackend, result_translation
from django_pgqueue.backend.compat import TaskResultStatus, task_finished
from django_pgqueue.backend.task_class import for_engine
from django_pgqueue.exceptions import Cancel, TaskTimedOut, WorkerLost
from django_pgqueue.lifecycle.claims import claim
from django_pgqueue.lifecycle.completions import fail, release
from django_pgqueue.lifecycle.types import Cursor, Failed, Lane
from django_pgqueue.lifecycle.types import Released as GivenBack
from django_pgqueue.models import Job
from django_pgqueue.states import Outcome
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.backend.conftest import BACKEND
from tests.framework import tasks

pytestmark = pytest.mark.django_db


def run_and_refresh(task, *args, **kwargs):
    """Enqueue the task, run its job and return the refreshed result."""
    result = task.enqueue(*args, **kwargs)
    run_jobs()
    result.refresh()
    assert result == task.get_result(result.id)
    return result


def claim_one(worker_id=5):
    [claimed] = claim(
        connection, {Lane("default", 0): Cursor()}, limit=1, free_slots=1, worker_id=worker_id, lease_seconds=60.0
    )
    return claimed


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["sync", "async"])
def test_result_of_successful_task_has_value_and_times(task):
    result = run_and_refresh(task, 1, b=2)
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.is_finished
    assert result.errors == []


def test_failing_task_default_options_fails_after_one_attempt():
    result = run_and_refresh(tasks.boom, "at once")
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    [error] = result.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: at once\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_task_raising_system_exit_fails():
    result = run_and_refresh(tasks.leave)
    assert result.errors[0].exception_class is SystemExit


def test_refresh_several_attempts_reads_all_in_one_query(django_assert_num_queries):
    result = run_and_refresh(tasks.third_time)
    with django_assert_num_queries(1):
        result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
    assert [error.traceback.strip().rpartition(": ")[2] for error in result.errors] == ["attempt 1", "attempt 2"]
    assert result.started_at < result.last_attempted_at


def test_result_between_attempts_is_ready():
    result = tasks.always.enqueue()
    run_jobs(max_jobs=1)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    assert not result.is_finished


def test_backend_option_max_attempts_applies_to_its_tasks(configure):
    configure(OPTIONS={"MAX_ATTEMPTS": 4, "BACKOFF": 0})
    forgotten = registry._tasks.pop(tasks.boom.module_path)
    try:
        result = run_and_refresh(tasks.boom.using(priority=1))
    finally:
        registry._tasks[tasks.boom.module_path] = forgotten
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 4)


def test_result_of_running_task_counts_the_attempt():
    result = tasks.noop.enqueue()
    claim_one(worker_id=5)
    result.refresh()
    assert (result.status, result.worker_ids, result.attempts) == (TaskResultStatus.RUNNING, ["5"], 1)
    assert result.started_at == result.last_attempted_at is not None


def test_result_of_released_job_is_ready_without_workers():
    result = tasks.noop.enqueue()
    release(connection, [GivenBack(claim_one().key)])
    result.refresh()
    assert (result.status, result.worker_ids, result.errors) == (TaskResultStatus.READY, [], [])


def test_result_after_lost_worker_has_worker_lost_error():
    result = tasks.noop.enqueue()
    lost = Failed(claim_one().key, Outcome.CRASHED, None, 0.0, 0.0, "", "its worker was lost", "")
    fail(connection, [lost])
    result.refresh()
    assert (result.status, result.worker_ids) == (TaskResultStatus.FAILED, ["5"])
    assert [(error.exception_class, error.traceback) for error in result.errors] == [
        (WorkerLost, "its worker was lost")
    ]


def test_result_of_cancelled_job_is_failed_with_cancel_error():
    result = tasks.noop.enqueue()
    Job.objects.get(pk=result.id).cancel()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [Cancel]


@pytest.mark.parametrize("task", [tasks.told, tasks.atold], ids=["sync", "async"])
def test_task_context_has_the_result_id_and_attempt(task):
    result = run_and_refresh(task)
    assert result.return_value[:3] == [result.id, 1, 1]


def test_return_value_bytes_and_tuple_are_normalised():
    assert run_and_refresh(tasks.returns, "bytes").return_value == "café"
    assert run_and_refresh(tasks.returns, "tuple").return_value == [1, 2]


@pytest.mark.parametrize(("what", "kind"), [("set", TypeError), ("nan", ValueError), ("latin", ValueError)])
def test_return_value_not_storable_fails_with_the_reason(what, kind):
    result = run_and_refresh(tasks.returns, what)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is kind
    assert "ResultNotStored: the task succeeded" in result.errors[0].traceback
    assert "Unsupported" in result.errors[0].traceback or "JSON" in result.errors[0].traceback


def test_get_result_removed_task_and_queue_is_readable(backend, configure):
    result = run_and_refresh(tasks.add, 1)
    removed = registry._tasks.pop(tasks.add.module_path)
    try:
        read = configure(QUEUES=["another"]).get_result(result.id)
    finally:
        registry._tasks[tasks.add.module_path] = removed
    assert (read.return_value, read.task.module_path, read.task.queue_name) == (1, tasks.add.module_path, "mail")
    with pytest.raises(LookupError, match="renamed"):
        read.task.call()


def test_get_result_of_native_task_is_readable(backend):
    from tests.app.tasks import add

    job = add.enqueue(1, b=2)
    run_jobs()
    read = backend.get_result(str(job.pk))
    assert (read.return_value, read.task.func) == (3, add.func)


def test_run_job_under_task_alias_succeeds():
    Job.objects.filter(pk=tasks.within.enqueue("x").id).update(task_name="tests.framework.tasks.once_known_as")
    run_jobs()
    assert Job.objects.get().state == "succeeded"


def test_run_failing_context_query_loses_no_attempt(monkeypatch):
    def fails(*_):
        raise OperationalError("a hiccup")

    tasks.third_time.enqueue()
    monkeypatch.setattr(result_translation, "load", fails)
    assert run_jobs() == 3
    assert Job.objects.get().state == "succeeded"


@pytest.mark.parametrize(
    "entries", [{"renamed": {"BACKEND": BACKEND, "QUEUES": []}}, {"default": {"BACKEND": "no.such.Backend"}}]
)
def test_run_removed_tasks_entry_loses_no_attempt(settings, entries):
    seen = []
    receiver = lambda sender, **_: seen.append(sender)  # noqa: E731 -- named, because signals keep weak references
    task_finished.connect(receiver)
    tasks.third_time.enqueue()
    settings.TASKS = entries
    assert run_jobs() == 3
    task_finished.disconnect(receiver)
    assert Job.objects.get().state == "succeeded"
    assert seen == [PgQueueBackend]


@pytest.mark.parametrize("arguments", [[1], "x", {"args": [1]}, {"args": 1, "kwargs": []}])
def test_get_result_malformed_row_is_readable(arguments, backend):
    result = tasks.noop.enqueue()
    with connection.cursor() as cursor:  # the test's transaction rolls this back
        cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT pgqueue_job_state")
    Job.objects.update(arguments=arguments, state="weird")
    read = backend.get_result(result.id)
    assert (read.status, read.args in ([], [1]), read.kwargs) == (TaskResultStatus.FAILED, True, {})


@pytest.mark.pgqueue(IMMEDIATE=True)
def test_immediate_enqueue_result_equals_stored_result():
    result = tasks.always.using(max_attempts=3).enqueue()
    assert result == tasks.always.get_result(result.id)
    assert (result.attempts, len(result.errors)) == (1, 1)


@pytest.mark.parametrize(("text", "attempts"), [("at once", 1), ("later", 3)])
def test_backoff_of_task_result_gets_the_result_of_the_framework(text, attempts):
    result = tasks.by_result.enqueue(text)
    run_jobs(until=timedelta(minutes=1))
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, attempts, attempts)


@pytest.mark.parametrize("task", [tasks.told, tasks.third_time])
def test_running_result_knows_its_attempts_without_a_query(task, django_assert_num_queries):
    adapter = registry.get(task.module_path).adapter
    with django_assert_num_queries(0):
        assert adapter.task_result(1, "default", 3, "default").attempts == 3


def test_running_result_attempts_follow_a_refresh():
    result = tasks.boom.enqueue()
    running = registry.get(tasks.boom.module_path).adapter.task_result(int(result.id), "default", 3, "default")
    run_jobs()
    running.refresh()
    assert running.attempts == 1


def test_timeout_in_result_is_a_timeout_error():
    [error] = run_and_refresh(tasks.too_long).errors
    assert error.exception_class is TaskTimedOut
    assert issubclass(error.exception_class, TimeoutError)


@pytest.mark.parametrize("where", ["beside BACKEND", "in OPTIONS", "in PGQUEUE"])
def test_defaults_of_backend_and_settings_apply_to_its_tasks(where, settings, configure):
    options = {"BACKOFF": fixed(7), "TIMEOUT": 60}
    if where == "beside BACKEND":
        configure(MAX_ATTEMPTS=2, **options)
    elif where == "in OPTIONS":
        configure(OPTIONS={"MAX_ATTEMPTS": 2, **options})
    else:
        settings.PGQUEUE = {"MAX_ATTEMPTS": 2, **options}
    engine_task = for_engine(tasks.boom)
    assert (engine_task.delay_after(1, ValueError()), engine_task.timeout_seconds) == (7, 60)
    assert engine_task.max_attempts == (1 if where == "in PGQUEUE" else 2)


def test_option_beside_backend_overrides_options(configure):
    configure(MAX_ATTEMPTS=2, OPTIONS={"MAX_ATTEMPTS": 5})
    assert for_engine(tasks.boom).max_attempts == 2
