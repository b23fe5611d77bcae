"""Enqueueing through Django's task framework.

`enqueue()` validates the task and its arguments, then runs one INSERT in the caller's transaction. Reading a result
takes one query.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.db import transaction
from django.utils import timezone

from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import InvalidTask, Task, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from django_pgqueue.backend.task_class import adopt
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import assert_enqueued, run_jobs, time_travel
from tests.framework import tasks

pytestmark = pytest.mark.django_db


def test_enqueue_needs_one_query_and_equals_stored_result(django_assert_num_queries, backend):
    with django_assert_num_queries(1):
        result = tasks.add.enqueue(1, b=2)
    with django_assert_num_queries(1):
        read = backend.get_result(result.id)
    assert result == read
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert (result.errors, result.worker_ids, result.attempts, result.backend) == ([], [], 0, "default")
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert isinstance(result.enqueued_at, datetime)
    assert not result.is_finished
    assert result.task == tasks.add
    assert len(result.id) < 64
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.priority, job.max_attempts) == (
        "tests.framework.tasks.add",
        "mail",
        7,
        1,
    )


@pytest.mark.parametrize(
    "task",
    [
        tasks.noop,
        tasks.add.using(priority=-3, queue_name="other"),
        tasks.noop.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)),
        tasks.noop.using(run_after=datetime(2020, 1, 1, tzinfo=UTC)),
        tasks.third_time,
        tasks.third_time.using(max_attempts=9),
        tasks.within,
    ],
    ids=lambda task: task.name,
)
def test_result_task_equals_the_enqueued_task(task, backend):
    result = task.enqueue(
        *(["x"] if task.func is tasks.within.func else []), **({"a": 1} if "add" in task.name else {})
    )
    assert result.task == task
    assert backend.get_result(result.id) == result


def test_enqueue_in_rolled_back_transaction_leaves_no_job(backend):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = tasks.noop.enqueue()
        assert backend.get_result(result.id) == result
        _ = 1 / 0
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_aenqueue_result_equals_the_stored_result(backend):
    async def enqueue_and_read():
        result = await tasks.aadd.aenqueue(1, b=2)
        assert await backend.aget_result(result.id) == result
        assert await tasks.aadd.aget_result(result.id) == result
        await result.arefresh()
        return result

    assert async_to_sync(enqueue_and_read)().args == [1]


def test_run_after_timedelta_becomes_a_datetime():
    before = timezone.now()
    result = tasks.noop.using(run_after=timedelta(hours=1)).enqueue()
    assert before < result.task.run_after - timedelta(hours=1) < timezone.now()


def test_enqueue_bytes_and_tuples_are_normalised_like_django(backend):
    result = tasks.noop.enqueue(b"caf\xc3\xa9", (1, 2), key={"a": (3,)})
    assert (result.args, result.kwargs) == (["café", [1, 2]], {"key": {"a": [3]}})
    assert backend.get_result(result.id) == result


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((object(),), TypeError), ((float("nan"),), ValueError), (("\x00",), ValueError), ((b"\xe9",), ValueError)],
)
def test_enqueue_unstorable_argument_is_refused_before_writing(arguments, error, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(error):
        tasks.noop.enqueue(*arguments)


def test_enqueue_missing_argument_is_refused():
    with pytest.raises(TypeError, match="cannot be called with these arguments"):
        tasks.add.enqueue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue_name": "unknown"}, "Queue 'unknown' is not valid for backend."),
        ({"priority": 101}, "priority must be a whole number between -100 and 100."),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime."),  # noqa: DTZ001 -- naive on purpose
    ],
)
def test_using_invalid_option_raises_djangos_message(change, message, configure):
    configure(QUEUES=["default"])
    with pytest.raises(InvalidTask, match=message):
        tasks.noop.using(**change)


def test_enqueue_queue_removed_since_using_is_refused(configure, django_assert_num_queries):
    changed = tasks.noop.using(queue_name="unknown")
    configure(QUEUES=["default"])
    with django_assert_num_queries(0), pytest.raises(InvalidTask, match="Queue 'unknown'"):
        changed.enqueue()


def test_options_of_this_package_invalid_are_refused(configure):
    with pytest.raises(InvalidTask, match="max_attempts"):
        tasks.noop.using(max_attempts=0).enqueue()
    with pytest.raises(InvalidTask, match="module level"):
        our_task(lambda: None)
    assert registry.get("tests.backend.test_enqueue.<lambda>") is None


def test_enqueue_task_unknown_to_workers_is_refused(django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))  # otherwise later tests' checks find the task
    from tests.framework import elsewhere

    with django_assert_num_queries(0), pytest.raises(InvalidTask, match=r"no worker would find .*elsewhere\.lost"):
        elsewhere.lost.enqueue()


def test_register_during_django_setup_makes_module_known(monkeypatch):
    for name in ("_tasks", "imported_at_setup"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    from tests.framework import elsewhere

    made = adopt(elsewhere.lost)
    assert not registry.is_found_by_workers(elsewhere.__name__)
    monkeypatch.setattr(apps, "ready", False)  # as during django.setup()
    registry.register(made)
    assert registry.is_found_by_workers(elsewhere.__name__)


def test_enqueue_task_of_another_backend_is_refused(backend, settings):
    settings.TASKS |= {"other": {"BACKEND": f"{Task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"}}
    stock = Task(func=tasks.noop.func, priority=0, backend="other", queue_name="default", run_after=None)
    with pytest.raises(InvalidTask, match=r"decorate it with @task\(backend='default'\)"):
        backend.enqueue(stock, [], {})


@pytest.mark.parametrize(
    "result_id", [0, None, "0", "-1", "", "nonsense", "1_0", "٣", str(2**63), str(2**70), "9" * 5000]
)
def test_get_result_unknown_id_raises(result_id, backend):
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id)


def test_enqueue_failing_signal_receiver_is_ignored():
    seen = []

    def receiver(sender, task_result, **_):
        seen.append((sender, task_result))
        raise RuntimeError("a receiver")

    task_enqueued.connect(receiver)
    try:
        result = tasks.noop.enqueue()
    finally:
        task_enqueued.disconnect(receiver)
    assert [(sender.__name__, sent) for sender, sent in seen] == [("PgQueueBackend", result)]


def test_backend_option_changed_applies_to_every_enqueue(configure):
    configure(OPTIONS={"MAX_ATTEMPTS": 4})
    ids = [tasks.noop.enqueue().id, tasks.noop.using(priority=3).enqueue().id]
    assert set(Job.objects.filter(pk__in=ids).values_list("max_attempts", flat=True)) == {4}


def test_run_after_timedelta_counts_from_the_enqueue():
    later = tasks.noop.using(run_after=timedelta(hours=1))
    with time_travel(days=3):
        later.using(priority=1).enqueue()
        assert run_jobs() == 0
        assert_enqueued(tasks.noop, run_after=timedelta(hours=1))
        assert run_jobs(until=timedelta(hours=2)) == 1
    assert later.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)).enqueue().task.run_after.year == 2030
