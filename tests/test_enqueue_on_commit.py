"""`enqueue_on_commit()` with two databases: where a transaction is open decides when the job is added."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction

from django_pgqueue import signals
from django_pgqueue.backend.compat import task_backends, task_enqueued
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.framework import tasks as framework_tasks

both = pytest.mark.parametrize("task", [tasks.add, framework_tasks.add], ids=["own", "framework"])


def committed() -> int:
    """Return how many jobs others see."""
    with connections["other"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_job")
        return int(cursor.fetchone()[0])


@both
def test_no_transaction_open_adds_the_job_at_once(task, other):
    assert int(task.enqueue_on_commit(1).id) == Job.objects.get().pk
    assert committed() == 1


@both
@pytest.mark.parametrize("rolls_back", [False, True])
def test_transaction_on_its_database_contains_the_job(task, other, rolls_back):
    with transaction.atomic():
        assert int(task.enqueue_on_commit(1).id) == Job.objects.get().pk
        assert committed() == 0
        transaction.set_rollback(rolls_back)
    assert committed() == (0 if rolls_back else 1)


@both
@pytest.mark.parametrize("rolls_back", [False, True])
def test_transaction_elsewhere_delays_the_job_to_its_commit(task, other, rolls_back):
    with transaction.atomic(using="other"):
        assert task.enqueue_on_commit(2, b=3) is None
        assert not Job.objects.exists()
        transaction.set_rollback(rolls_back, using="other")
    assert [job.args for job in Job.objects.all()] == ([] if rolls_back else [[2]])
    assert run_jobs(raising=True) == (0 if rolls_back else 1)


@both
def test_call_in_coroutine_names_aenqueue_on_commit(task, other):
    async def call():
        task.enqueue_on_commit(1)

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.aenqueue_on_commit\(…\)"):
        asyncio.run(call())
    assert not Job.objects.exists()


@both
def test_transactions_on_both_databases_put_it_into_its_own(task, other):
    with transaction.atomic(using="other"):
        with transaction.atomic():
            assert task.enqueue_on_commit(1) is not None
        assert Job.objects.count() == 1
        transaction.set_rollback(True, using="other")
    assert Job.objects.count() == 1


ORDERS = pytest.mark.parametrize(("outer", "inner"), [("other", "third"), ("third", "other")])


@ORDERS
def test_two_transactions_elsewhere_delay_it_until_both_have_committed(other, third, outer, inner):
    with transaction.atomic(using=outer):
        with transaction.atomic(using=inner):
            assert tasks.noop.enqueue_on_commit() is None
        assert not Job.objects.exists()
    assert Job.objects.count() == 1


@ORDERS
def test_two_transactions_elsewhere_one_rolled_back_adds_nothing(other, third, outer, inner):
    with transaction.atomic(using=outer):
        with transaction.atomic(using=inner):
            assert tasks.noop.enqueue_on_commit() is None
        transaction.set_rollback(True, using=outer)
    assert not Job.objects.exists()


@pytest.fixture
def third(other):
    """Provide a third alias, with its own connection to the same database."""
    connections.settings["third"] = connections.settings["other"]
    connections["third"].connect()
    yield
    connections["third"].close()
    del connections["third"]
    del connections.settings["third"]


def test_savepoint_elsewhere_that_rolls_back_adds_nothing(other):
    with transaction.atomic(using="other"):
        with transaction.atomic(using="other"):
            tasks.noop.enqueue_on_commit()
            transaction.set_rollback(True, using="other")
        tasks.add.enqueue_on_commit(1)
    assert [job.task_name for job in Job.objects.all()] == [tasks.add.name]


@both
def test_invalid_call_is_refused_before_the_commit(task, other):
    with transaction.atomic(using="other"):
        with pytest.raises(TypeError):
            task.enqueue_on_commit(1, 2, 3, 4)
        with pytest.raises(TypeError):
            task.enqueue_on_commit(object())
    assert not Job.objects.exists()


def test_arguments_are_those_at_the_time_of_the_call(other):
    numbers = [1]
    with transaction.atomic(using="other"):
        tasks.noop.enqueue_on_commit(numbers)
        numbers.append(2)
    assert Job.objects.get().args == [[1]]


def test_signal_is_sent_when_the_job_is_added(other):
    seen = []

    def receiver(sender, job_id, **kwargs):
        seen.append(job_id)

    signals.job_enqueued.connect(receiver)
    try:
        with transaction.atomic(using="other"):
            tasks.noop.enqueue_on_commit()
            assert seen == []
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert seen == [Job.objects.get().pk]


def test_framework_signal_is_sent_when_the_job_is_added(other):
    seen = []

    def receiver(sender, task_result, **kwargs):
        seen.append(task_result.id)

    task_enqueued.connect(receiver)
    try:
        with transaction.atomic(using="other"):
            framework_tasks.noop.enqueue_on_commit()
            assert seen == []
    finally:
        task_enqueued.disconnect(receiver)
    assert seen == [str(Job.objects.get().pk)]


def test_unique_key_is_taken_when_the_job_is_added(other):
    task = tasks.noop.using(unique_key="k")
    with transaction.atomic(using="other"):
        task.enqueue_on_commit()
        task.enqueue_on_commit()
        first = task.using(database="other").enqueue()
    assert Job.objects.get().pk == first.pk


def test_aenqueue_on_commit_adds_the_job(committing):
    async def enqueue():
        try:
            return await tasks.noop.aenqueue_on_commit(), await framework_tasks.noop.aenqueue_on_commit()
        finally:
            await sync_to_async(lambda: connection.close())()  # the connection of that thread

    own, framework = asyncio.run(enqueue())
    assert {own.pk, int(framework.id)} == set(Job.objects.values_list("pk", flat=True))


def test_backend_for_tests_enqueues_at_once(settings, other):
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.testing.DummyBackend", "QUEUES": []}}
    with transaction.atomic(using="other"):
        framework_tasks.add.enqueue_on_commit(1)
    assert [result.args for result in task_backends["default"].results] == [[1]]
