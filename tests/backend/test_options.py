"""Options of this package on tasks of Django's framework: expiry, unique keys, headers, schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_pgqueue import DuplicateJob, cron, every, registry
from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from django_pgqueue.models import Job, Schedule
from django_pgqueue.schedules import declarations
from django_pgqueue.testing import run_jobs, time_travel
from tests.framework import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def told():
    """The ids of what `task_enqueued` is sent for."""
    ids = []

    def receiver(sender, task_result, **kwargs):
        ids.append(task_result.id)

    task_enqueued.connect(receiver)
    yield ids
    task_enqueued.disconnect(receiver)


# ------------------------------------------------------------------ unique keys


def test_another_call_with_the_key_has_the_result_of_the_job_that_is_there(backend, told):
    first, second = tasks.once_each.enqueue(1, text="a"), tasks.once_each.enqueue(1, text="b")
    other = tasks.once_each.enqueue(2)
    assert (second.id, second.is_duplicate, first.is_duplicate, other.is_duplicate) == (first.id, True, False, False)
    assert second == first == backend.get_result(first.id)
    assert (second.status, second.args, second.kwargs) == (TaskResultStatus.READY, [1], {"text": "a"})
    assert told == [first.id, other.id]
    assert Job.objects.count() == 2


def test_it_has_what_that_job_has_come_to(backend):
    """It is tried again, and has kept its key."""
    task = tasks.always.using(unique_key="k")
    first = task.enqueue()
    run_jobs(max_jobs=1)
    second = task.enqueue("another")
    assert (second.id, second.attempts, second.errors[0].exception_class_path) == (first.id, 1, "builtins.ValueError")
    run_jobs()
    assert not task.enqueue().is_duplicate


def test_of_one_that_is_gone_within_its_period_there_is_the_id(django_assert_num_queries):
    task = tasks.noop.using(unique_key="k", unique_while=timedelta(hours=1))
    first = task.enqueue()
    Job.objects.all().delete()
    second = task.enqueue()
    assert (second.id, second.is_duplicate, second.is_finished) == (first.id, True, False)
    with pytest.raises(TaskResultDoesNotExist):
        second.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        _ = second.enqueued_at
    with time_travel(hours=2):
        assert task.enqueue().id != first.id


def test_a_later_call_takes_its_place_where_it_is_to(told):
    task = tasks.once_each.using(on_conflict="replace")
    first, second = task.enqueue(1, text="a"), task.enqueue(1, text="b")
    assert (second.id, second.is_duplicate, second.kwargs) == (first.id, False, {"text": "b"})
    assert told == [first.id] * 2


def test_it_is_refused_where_it_is_to_be(told):
    task = tasks.once_each.using(on_conflict="raise")
    first = task.enqueue(1)
    with pytest.raises(DuplicateJob) as raised:
        task.enqueue(1)
    assert str(raised.value.job_id) == first.id
    assert told == [first.id]


# ------------------------------------------------------------------ what a result says of its task


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
def test_its_task_is_the_one_that_was_enqueued(task, backend):
    result = task.enqueue(1)
    assert result.task == backend.get_result(result.id).task == task


def test_an_expiry_of_using_is_an_instant_then(backend):
    result = tasks.once_each.using(expires=60).enqueue(1)
    assert result.task.expires == result.enqueued_at + timedelta(seconds=60)
    assert backend.get_result(result.id) == result
    with time_travel(minutes=2):
        assert run_jobs() == 1
    result.refresh()
    assert (result.status, tasks.noop.enqueue().task.expires) == (TaskResultStatus.FAILED, None)
    assert [error.exception_class_path for error in result.errors] == ["django_pgqueue.exceptions.Cancel"]


def test_headers_go_with_the_job_and_are_on_the_result_s_task():
    result = tasks.noop.using(headers={"tenant": "acme"}).enqueue()
    assert Job.objects.get().headers == result.task.headers == {"tenant": "acme"}


# ------------------------------------------------------------------ schedules


@pytest.fixture
def alone(monkeypatch):
    """A process without any task."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})


def test_a_schedule_of_a_task_is_one_of_the_code(alone, told):
    times = (each for each in [every(hours=1, args=[1]), every(hours=3, args=[2], name="rarely")])
    swept = our_task(schedule=times)(tasks.bare.func)
    assert run_jobs(until=timedelta(hours=3), schedules=True, raising=True) == 4
    assert {one.name for one in Schedule.objects.all()} == {swept.module_path, "rarely"}
    assert sorted(Job.objects.values_list("result", flat=True)) == [1, 1, 1, 2]
    assert set(Job.objects.values_list("max_attempts", flat=True)) == {1}
    assert sorted(told) == sorted(str(pk) for pk in Job.objects.values_list("pk", flat=True))


def test_it_is_where_the_backend_has_its_jobs(alone, configure):
    configure(OPTIONS={"DATABASE": "other"})
    our_task(schedule=every(hours=1, args=[1]))(tasks.bare.func)
    assert len(declarations.definitions("other")) == 1
    assert declarations.definitions("default") == {}


def test_a_copy_declares_no_schedule_anew(alone, monkeypatch):
    swept = our_task(schedule=every(hours=1, args=[1]))(tasks.bare.func)
    monkeypatch.setattr(declarations, "declare", None)
    copy = swept.using(priority=1)
    assert copy.enqueue(1).task == copy
    assert len(declarations.definitions("default")) == 1


# ------------------------------------------------------------------ what is wrong


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
def test_a_wrong_option_is_refused_at_its_import_and_nothing_is_known_of_the_task(alone, options, words):
    with pytest.raises(InvalidTask, match=words):
        our_task(**options)(tasks.bare.func)
    assert registry._tasks == declarations._declared == {}


@pytest.mark.parametrize(
    "change",
    [{"expires": -1}, {"unique_key": ""}, {"unique_key": "k", "unique_while": 0}, {"expires": 5, "run_after": 9}],
)
def test_a_wrong_one_of_using_is_refused_at_the_enqueue(change, django_assert_num_queries):
    if "run_after" in change:
        change = change | {"run_after": timedelta(seconds=9)}
    with django_assert_num_queries(0), pytest.raises(InvalidTask):
        tasks.noop.using(**change).enqueue()


def test_django_s_own_decorator_takes_them_where_it_takes_any():
    assert {"expires", "unique_key", "unique_while", "on_conflict", "schedule"} <= set(PgQueueTask.__dataclass_fields__)
