"""A job has the attributes of the `TaskResult` of Django's framework, so that code can read either of them."""

from __future__ import annotations

import sys
import types
from unittest import mock

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue import TaskContext, exceptions
from django_pgqueue.backend.compat import TaskResultStatus
from django_pgqueue.ground.task_results import AttemptError
from django_pgqueue.models import Job
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("state", "status", "is_finished"),
    [
        ("ready", "READY", False),
        ("waiting", "READY", False),
        ("running", "RUNNING", False),
        ("succeeded", "SUCCESSFUL", True),
        ("dead", "FAILED", True),
        ("cancelled", "FAILED", True),
    ],
)
def test_job_status_equals_that_of_the_framework(state, status, is_finished):
    job = Job(state=state)
    assert job.status == status == TaskResultStatus(status)
    assert job.is_finished is is_finished


def test_every_state_has_a_status():
    assert {Job(state=state).status for state in State} == {str(status) for status in TaskResultStatus}
    assert Job(state="nonsense").status == "FAILED"


def test_succeeded_job_reads_like_a_task_result(django_assert_num_queries):
    job = tasks.add.enqueue(2, b=3)
    assert (job.status, job.attempts, job.args, job.kwargs) == ("READY", 0, [2], {"b": 3})
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = job.return_value
    run_jobs()
    with django_assert_num_queries(1):
        job.refresh()
    assert (job.status, job.attempts, job.return_value, job.is_finished) == ("SUCCESSFUL", 1, 5, True)
    with django_assert_num_queries(1):
        assert job.errors == []


def test_dead_job_has_the_errors_of_its_attempts():
    job = tasks.fail.using(max_attempts=2).enqueue("no")
    run_jobs()
    Job.objects.filter(pk=job.pk).run_now()
    run_jobs()
    job.refresh()
    assert (job.status, job.attempts) == ("FAILED", 2)
    assert [error.exception_class for error in job.errors] == [RuntimeError, RuntimeError]
    assert "RuntimeError: no" in job.errors[0].traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = job.return_value


def test_cancelled_job_has_one_error():
    job = tasks.noop.enqueue()
    job.cancel()
    job.refresh()
    assert [error.exception_class for error in job.errors] == [exceptions.Cancel]


def test_timeout_is_a_timeout_error_in_results():
    job = tasks.raise_timeout.enqueue()
    run_jobs()
    job.refresh()
    [error] = job.errors
    assert error.exception_class is exceptions.TaskTimedOut
    assert issubclass(error.exception_class, TimeoutError)
    assert job.executions.get().exception_class == "django_pgqueue.exceptions.TaskTimeout"


def test_attempt_error_imports_no_module_that_a_row_names():
    for path in ("this.s", "builtins.print", "nowhere", "", "builtins.ValueError.nothing"):
        with pytest.raises(ValueError, match="has imported no exception class"):
            _ = AttemptError(path, "").exception_class


def test_attempt_error_does_not_call_getattr_of_a_module(monkeypatch):
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = pytest.fail
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(ValueError, match="has imported no exception class"):
        _ = AttemptError("lazy.Error", "").exception_class


def test_arguments_of_a_bad_row_read_as_empty():
    assert (Job(arguments=[1]).args, Job(arguments={"kwargs": 5}).kwargs) == ([], {})


def test_partial_job_loads_missing_columns_in_one_query(django_assert_num_queries):
    enqueued = tasks.add.using(priority=7).enqueue(2)
    with django_assert_num_queries(0):
        job = Job.partial("default", id=enqueued.pk, state="running", attempt=3)
        assert (job.pk, job.status, job.attempts) == (enqueued.pk, "RUNNING", 3)
    with django_assert_num_queries(1):
        assert (job.priority, job.args, job.task_name) == (7, [2], tasks.add.name)
    assert job.status == "RUNNING", "a known value stays until the next refresh"


def test_partial_job_that_is_gone_loads_all_columns_when_it_is_back(django_assert_num_queries):
    job = Job.partial("default", id=tasks.add.enqueue(2).pk, state="running")
    with (
        mock.patch.object(Job._base_manager, "db_manager", side_effect=Job.DoesNotExist),
        pytest.raises(Job.DoesNotExist),
    ):
        _ = job.queue_name
    with django_assert_num_queries(1):
        assert (job.queue_name, job.args, job.priority) == ("default", [2], 0)


def test_partial_job_refresh_loads_all_columns(django_assert_num_queries):
    job = Job.partial("default", id=tasks.add.enqueue(2).pk, state="running")
    with django_assert_num_queries(1):
        job.refresh()
        assert (job.args, job.status) == ([2], "READY")


def test_job_arefresh_reloads_in_a_coroutine():
    job = tasks.noop.enqueue()
    run_jobs()
    async_to_sync(job.arefresh)()
    assert job.status == "SUCCESSFUL"


# ------------------------------------------------------------------ results by id, and in the context


@pytest.mark.parametrize("kind", [int, str])
def test_get_result_returns_the_job_of_an_id(kind, django_assert_num_queries):
    job = tasks.add.enqueue(2)
    with django_assert_num_queries(1):
        assert tasks.add.get_result(kind(job.pk)) == job


def test_get_result_finds_jobs_with_an_earlier_name_of_the_task():
    job = tasks.renamed.enqueue()
    Job.objects.update(task_name=tasks.renamed.aliases[0])
    assert tasks.renamed.get_result(job.pk) == job


@pytest.mark.parametrize("wrong", [0, -1, "", "x", "1.5", 2**70, "9" * 5000])
def test_get_result_unknown_id_is_job_does_not_exist(wrong):
    with pytest.raises(Job.DoesNotExist, match="has no job"):
        tasks.add.get_result(wrong)


def test_get_result_job_of_another_task_is_job_does_not_exist():
    with pytest.raises(Job.DoesNotExist):
        tasks.add.get_result(tasks.noop.enqueue().pk)


def test_aget_result_returns_the_job():
    job = tasks.noop.enqueue()
    assert async_to_sync(tasks.noop.aget_result)(job.pk) == job


@pytest.mark.parametrize("name", ["describe_result", "adescribe_result"])
def test_context_task_result_is_the_running_job(name):
    task = getattr(tasks, name)
    job = task.using(priority=3).enqueue("x")
    run_jobs(raising=True)
    job.refresh()
    assert job.return_value == [job.pk, "RUNNING", 1, ["x"], 3]


def test_context_without_job_has_no_task_result():
    with pytest.raises(RuntimeError, match="has no job"):
        _ = TaskContext().task_result
