"""A module of tasks moves from Django's decorator to this package's by changing its import only."""

from __future__ import annotations

import re
import sys
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_pgqueue import InvalidTask, Task, TaskContext
from django_pgqueue.backend import compat
from django_pgqueue.backend.compat import TaskResultStatus
from django_pgqueue.models import Job
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.django_db

MODULE = """
{imported}


@task
def add(a, b=0):
    return a + b


@task()
async def double(number):
    return 2 * number


@task(queue_name="mail", priority=5, takes_context=True)
def describe(context, *args):
    result = context.task_result
    return [int(result.id), context.attempt, result.attempts, str(result.status), result.args]


@task
def fail(text):
    raise LookupError(text)
"""
ANNOTATED = """
from datetime import datetime

{imported}


@task
def describe_time(at: datetime):
    return [type(at).__name__, str(at)]
"""
IMPORTS = {
    "tests.framework.moving": "from django_pgqueue.backend.compat import task  # from django.tasks import task",
    "tests.app.tasks.moved": "from django_pgqueue import task",
}


@pytest.fixture(params=IMPORTS)
def module(request, monkeypatch, settings):
    """Return the module with one of the two imports."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    monkeypatch.setattr(declarations, "_declared", {**declarations._declared})
    settings.PGQUEUE = {"MAX_ATTEMPTS": 1, "TASK_MODULES": ["tests.framework.moving"]}
    made = types.ModuleType(request.param)
    monkeypatch.setitem(sys.modules, request.param, made)
    exec(compile(MODULE.format(imported=IMPORTS[request.param]), request.param, "exec"), vars(made))  # noqa: S102 -- our own text
    return made


def test_moved_task_returns_a_result_that_refreshes(module):
    result = module.add.enqueue(2, b=3)
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.READY, False, 0)
    assert (result.args, result.kwargs, result.errors, result.finished_at) == ([2], {"b": 3}, [], None)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert run_jobs(raising=True) == 1
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.SUCCESSFUL, True, 1)
    assert (result.return_value, result.errors) == (5, [])
    assert isinstance(result.enqueued_at, datetime)
    assert result.enqueued_at <= result.finished_at


def test_moved_task_result_is_found_by_its_id(module):
    result = module.add.enqueue(1)
    for result_id in (result.id, str(result.id)):
        assert module.add.get_result(result_id) == result
        assert async_to_sync(module.add.aget_result)(result_id) == result


def test_moved_coroutine_runs_and_refreshes_asynchronously(module):
    result = async_to_sync(module.double.aenqueue)(4)
    assert run_jobs(raising=True) == 1
    async_to_sync(result.arefresh)()
    assert result.return_value == 8


def test_moved_task_gets_the_same_context(module):
    result = module.describe.enqueue(7)
    assert run_jobs(raising=True) == 1
    result.refresh()
    assert result.return_value == [int(result.id), 1, 1, "RUNNING", [7]]


def test_moved_task_that_fails_has_the_same_errors(module):
    result = module.fail.enqueue("no")
    run_jobs()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    [error] = result.errors
    assert (error.exception_class_path, error.exception_class) == ("builtins.LookupError", LookupError)
    assert error.traceback.endswith("LookupError: no\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_moved_task_keeps_the_options_of_using(module):
    later = timezone.now() + timedelta(hours=1)
    changed = module.add.using(priority=-7, queue_name="reports", run_after=later)
    assert changed.using(priority=None, queue_name=None, run_after=None) == changed
    result = changed.enqueue(1)
    assert run_jobs() == 0
    job = Job.objects.get(pk=int(result.id))
    assert (job.priority, job.queue_name, job.run_after) == (-7, "reports", later)


def test_moved_task_can_be_called_directly(module):
    assert module.add.call(2, b=3) == 5
    assert async_to_sync(module.add.acall)(2) == 2
    assert module.double.call(4) == 8
    assert module.add.func(1) == 1
    assert module.add.module_path == f"{module.__name__}.add"


@pytest.mark.parametrize("options", [{"priority": 101}, {"priority": 1.5}, {"takes_context": True}])
def test_moved_task_refuses_the_same_options(module, options):
    with pytest.raises((compat.InvalidTask, InvalidTask)):
        module.task(**options)(module.add.func)


def test_waiting_job_runs_after_its_task_has_moved(monkeypatch, settings):
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    settings.PGQUEUE = {"TASK_MODULES": ["tests.framework.moving"]}
    before, after = types.ModuleType("tests.framework.moving"), types.ModuleType("tests.framework.moving")
    exec(MODULE.format(imported=IMPORTS["tests.framework.moving"]), vars(before))  # noqa: S102 -- our own text
    result = before.add.enqueue(2, b=3)
    exec(MODULE.format(imported=IMPORTS["tests.app.tasks.moved"]), vars(after))  # noqa: S102 -- our own text
    assert run_jobs(raising=True) == 1
    job = after.add.get_result(result.id)
    assert (job.return_value, job.max_attempts, after.add.enqueue(1).max_attempts) == (5, 1, 10)


# ------------------------------------------------------------------ documented differences


def test_annotations_convert_only_after_the_move(monkeypatch, settings):
    """They have no effect on a task of the framework. A job that waits at the move is converted when it runs."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    settings.PGQUEUE = {"TASK_MODULES": ["tests.framework.moving"]}
    before, after = types.ModuleType("tests.framework.moving"), types.ModuleType("tests.framework.moving")
    exec(ANNOTATED.format(imported=IMPORTS["tests.framework.moving"]), vars(before))  # noqa: S102 -- our own text
    moment, text = datetime(2026, 7, 1, 9, 30, tzinfo=UTC), "2026-07-01T09:30:00+00:00"
    with pytest.raises(TypeError):
        before.describe_time.enqueue(moment)
    result = before.describe_time.enqueue(text)
    assert run_jobs(raising=True) == 1
    result.refresh()
    assert result.return_value == ["str", text]
    waiting = before.describe_time.enqueue(text)
    exec(ANNOTATED.format(imported=IMPORTS["tests.app.tasks.moved"]), vars(after))  # noqa: S102 -- our own text
    with pytest.raises(TypeError, match="argument 'at' must be datetime, not str"):
        after.describe_time.enqueue(text)
    later = after.describe_time.enqueue(moment)
    assert run_jobs(raising=True) == 2
    for result_id in (waiting.id, later.id):
        assert after.describe_time.get_result(result_id).return_value == ["datetime", str(moment)]


def test_documented_differences_of_moved_tasks(monkeypatch):
    job = tasks.add.enqueue(1)
    assert isinstance(job.id, int)
    for result_id in ("0", tasks.noop.enqueue().pk):
        with pytest.raises(Job.DoesNotExist):
            tasks.add.get_result(result_id)
    assert (tasks.add.name, tasks.add.func.__name__) == ("tests.app.tasks.add", "add")
    with pytest.raises(TypeError, match="bytes"):
        tasks.noop.enqueue(b"text")
    assert tasks.attempt_number.call() == 1
    run_jobs()
    assert [each.worker_id is not None for each in job.executions.all()] == [True]


@pytest.mark.parametrize("name", ["worker_ids", "started_at", "last_attempted_at", "task", "backend"])
def test_documented_missing_attributes_of_jobs_are_missing(name):
    assert not hasattr(Job(), name)


@pytest.mark.parametrize(
    ("theirs", "ours", "variable"),
    [(compat.TaskResult, Job, "result"), (compat.Task, Task, "task"), (compat.TaskContext, TaskContext, "context")],
)
def test_every_attribute_of_the_framework_exists_or_is_documented(theirs, ours, variable):
    page = (Path(__file__).parents[2] / "docs/start/choose_api.md").read_text()
    missing = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    assert {name for name in missing if not re.search(rf"`({variable}\.)?{name}(\(\))?`", page)} == set()
