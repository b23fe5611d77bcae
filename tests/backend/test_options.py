"""Options of this package on tasks of Django's framework: expiry, unique keys, headers, schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_pgqueue import DuplicateJob, cron, every
from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from django_pgqueue.models import Job, Schedule
from django_pgqueue.queues import UnknownQueueWarning
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs, time_travel
from tests.framework import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def signalled_ids():
    """Yield the list of result ids for which `task_enqueued` was sent."""
    ids = []

    def receiver(sender, task_result, **kwargs):
        ids.append(task_result.id)

    task_enqueued.connect(receiver)
    yield ids
    task_enqueued.disconnect(receiver)


# ------------------------------------------------------------------ unique keys


def test_enqueue_duplicate_key_returns_existing_result(backend, signalled_ids):
    first, second = tasks.once_each.enqueue(1, text="a"), tasks.once_each.enqueue(1, text="b")
    other = tasks.once_each.enqueue(2)
    assert (second.id, second.is_duplicate, first.is_duplicate, other.is_duplicate) == (first.id, True, False, False)
    assert second == first == backend.get_result(first.id)
    assert (second.status, second.args, second.kwargs) == (TaskResultStatus.READY, [1], {"text": "a"})
    assert signalled_ids == [first.id, other.id]
    assert Job.objects.count() == 2


def test_enqueue_duplicate_key_after_failure_shows_the_attempt(backend):
    """The existing job waits for its second attempt and still has its key."""
    task = tasks.always.using(unique_key="k")
    first = task.enqueue()
    run_jobs(max_jobs=1)
    second = task.enqueue("another")
    assert (second.id, second.attempts, second.errors[0].exception_class_path) == (first.id, 1, "builtins.ValueError")
    run_jobs()
    assert not task.enqueue().is_duplicate


def test_enqueue_key_of_deleted_job_in_window_returns_its_id(django_assert_num_queries):
    task = tasks.noop.using(unique_key="k", unique_while=timedelta(hours=1))
    first = task.enqueue()
    Job.objects.all()._raw_delete("default")
    second = task.enqueue()
    assert (second.id, second.is_duplicate, second.is_finished) == (first.id, True, False)
    with pytest.raises(TaskResultDoesNotExist):
        second.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        _ = second.enqueued_at
    with time_travel(hours=2):
        assert task.enqueue().id != first.id


def test_enqueue_on_conflict_replace_updates_the_job(signalled_ids):
    task = tasks.once_each.using(on_conflict="replace")
    first, second = task.enqueue(1, text="a"), task.enqueue(1, text="b")
    assert (second.id, second.is_duplicate, second.kwargs) == (first.id, False, {"text": "b"})
    assert signalled_ids == [first.id] * 2


def test_enqueue_on_conflict_raise_raises_duplicate_job(signalled_ids):
    task = tasks.once_each.using(on_conflict="raise")
    first = task.enqueue(1)
    with pytest.raises(DuplicateJob) as raised:
        task.enqueue(1)
    assert str(raised.value.job_id) == first.id
    assert signalled_ids == [first.id]


# ------------------------------------------------------------------ the task of a result


@pytest.mark.parametrize(
    "task",
    [
        tasks.once_each,
        tasks.once_each.using(priority=5),
        tasks.once_each.using(expires=datetime(2040, 1, 1, tzinfo=UTC)),
        tasks.once_each.using(unique_key=tasks.by_number),
        tasks.bare.using(unique_key="k"),
    ],
    ids=range(5),
)
def test_result_task_with_options_equals_enqueued_task(task, backend):
    result = task.enqueue(1)
    assert result.task == backend.get_result(result.id).task == task


def test_using_expires_becomes_a_time_and_expires_the_job(backend):
    result = tasks.once_each.using(expires=60).enqueue(1)
    assert result.task.expires == result.enqueued_at + timedelta(seconds=60)
    assert backend.get_result(result.id) == result
    with time_travel(minutes=2):
        assert run_jobs() == 1
    result.refresh()
    assert (result.status, tasks.noop.enqueue().task.expires) == (TaskResultStatus.FAILED, None)
    assert [error.exception_class_path for error in result.errors] == ["django_pgqueue.exceptions.Cancel"]


def test_headers_are_stored_with_job_and_result_task():
    result = tasks.noop.using(headers={"tenant": "acme"}).enqueue()
    assert Job.objects.get().headers == result.task.headers == {"tenant": "acme"}


# ------------------------------------------------------------------ schedules


@pytest.fixture
def empty_registry(monkeypatch):
    """Empty the registries of tasks and schedules, as in a process that has imported no task."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})


def test_task_schedule_is_declared_and_enqueues_jobs(empty_registry, signalled_ids):
    times = (each for each in [every(hours=1, args=[1]), every(hours=3, args=[2], name="rarely")])
    swept = our_task(schedule=times)(tasks.bare.func)
    assert run_jobs(until=timedelta(hours=3), schedules=True, raising=True) == 4
    assert {one.name for one in Schedule.objects.all()} == {swept.module_path, "rarely"}
    assert sorted(Job.objects.values_list("result", flat=True)) == [1, 1, 1, 2]
    assert set(Job.objects.values_list("max_attempts", flat=True)) == {1}
    assert sorted(signalled_ids) == sorted(str(pk) for pk in Job.objects.values_list("pk", flat=True))


def test_task_schedule_with_own_queue_and_priority_enqueues_jobs_there(empty_registry, configure):
    configure(QUEUES=["default", "reports"])
    times = every(hours=1, args=[1], queue_name="reports", priority=-10)
    swept = our_task(schedule=times)(tasks.bare.func)
    run_jobs(until=timedelta(hours=2), schedules=True, raising=True)
    job = Job.objects.first()
    assert (job.queue_name, job.priority, job.state) == ("reports", -10, "succeeded")
    result = swept.get_result(str(job.pk))
    assert (result.task.queue_name, result.task.priority) == ("reports", -10)


def test_task_schedule_with_queue_that_backend_lacks_is_refused(empty_registry, configure):
    configure(QUEUES=["default", "reports"])
    with pytest.raises(InvalidTask, match=r"queue 'report' is not one of the backend's QUEUES \(default, reports\)"):
        our_task(schedule=every(hours=1, args=[1], queue_name="report"))(tasks.bare.func)
    assert registry.all_tasks() == []


def test_task_schedule_is_declared_in_database_of_backend(empty_registry, configure):
    configure(OPTIONS={"DATABASE": "other"})
    our_task(schedule=every(hours=1, args=[1]))(tasks.bare.func)
    assert len(declarations.definitions("other")) == 1
    assert declarations.definitions("default") == {}


def test_using_copy_does_not_declare_the_schedule_again(empty_registry, monkeypatch):
    swept = our_task(schedule=every(hours=1, args=[1]))(tasks.bare.func)
    monkeypatch.setattr(declarations, "declare", None)
    copy = swept.using(priority=1)
    assert copy.enqueue(1).task == copy
    assert len(declarations.definitions("default")) == 1


# ------------------------------------------------------------------ invalid options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expires": 0}, "expires must be longer than 0 seconds"),
        ({"expires": "soon"}, "expires"),
        ({"unique_key": 7}, "unique_key must be a string or a function"),
        ({"unique_while": "ready"}, "need a unique_key"),
        ({"unique_key": "k", "unique_while": "running"}, "unique_while must be"),
        ({"unique_key": "k", "on_conflict": "ignore"}, "on_conflict must be one of"),
        ({"schedule": "@daily"}, r"schedule must be cron\(…\)"),
        ({"schedule": cron("@daily", kwargs={"nothing": 1})}, "cannot call the task"),
        ({"schedule": cron("@daily", args=[1], jitter=60), "expires": 60}, "make jitter shorter"),
    ],
)
def test_decorator_invalid_option_registers_nothing(empty_registry, options, words):
    with pytest.raises(InvalidTask, match=words):
        our_task(**options)(tasks.bare.func)
    assert registry._tasks == declarations._declared == {}


@pytest.mark.parametrize(
    "change",
    [{"expires": -1}, {"unique_key": ""}, {"unique_key": "k", "unique_while": 0}, {"expires": 5, "run_after": 9}],
)
def test_enqueue_invalid_option_of_using_is_refused(change, django_assert_num_queries):
    if "run_after" in change:
        change = change | {"run_after": timedelta(seconds=9)}
    with django_assert_num_queries(0), pytest.raises(InvalidTask):
        tasks.noop.using(**change).enqueue()


def test_setting_queues_refuses_other_queues_of_the_framework(settings, django_assert_num_queries):
    settings.PGQUEUE = {"QUEUES": ["default", "mail"]}
    assert tasks.add.enqueue(1).task.queue_name == "mail"
    with django_assert_num_queries(0), pytest.raises(InvalidTask, match="did you mean 'mail'"):
        tasks.add.using(queue_name="mial").enqueue(1)


def test_using_mistyped_queue_of_framework_task_warns(django_assert_num_queries):
    with django_assert_num_queries(0), pytest.warns(UnknownQueueWarning, match="did you mean 'mail'") as caught:
        assert tasks.add.using(queue_name="mial").queue_name == "mial"
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("listed", ["by the backend", "in the settings"])
def test_using_listed_queue_of_framework_task_is_silent(configure, settings, listed):
    if listed == "by the backend":
        configure(QUEUES=["mail", "mial"])
    else:
        settings.PGQUEUE = {"QUEUES": ["default", "mail", "mial"]}
    assert tasks.add.using(queue_name="mial").queue_name == "mial"


def test_task_class_has_fields_for_package_options():
    assert {"expires", "unique_key", "unique_while", "on_conflict", "schedule"} <= set(PgQueueTask.__dataclass_fields__)
