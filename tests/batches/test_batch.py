"""`Batch`: callbacks once, in the caller's transaction, and errors before anything is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, BatchFinished, BatchProgress, InvalidTask, Limit, TaskCall, enqueue_many, history
from django_pgqueue.enqueue import callbacks
from django_pgqueue.lifecycle import batches, claims, expiry, operator, pruning
from django_pgqueue.models import BatchRemoval, Job, JobBatch, SearchKey
from django_pgqueue.states import State
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.django_db

NOTHING: tuple[Any, ...] = ()
NOT_JSON: Any = object()


def marker(name: str) -> TaskCall[None]:
    """Return a callback that `calls()` finds."""
    return tasks.noop.s(name)


def calls() -> list[str]:
    """Return the names of the callbacks that were enqueued, in the order of their ids."""
    jobs = Job.objects.filter(task_name=tasks.noop.name, batch_id=None).order_by("pk")
    return [job.arguments["args"][0] for job in jobs]


def with_callbacks(prefix: str = "", **options: Any) -> Batch:
    return Batch(
        on_success=marker(f"{prefix}success"),
        on_complete=marker(f"{prefix}complete"),
        on_failure=marker(f"{prefix}failure"),
        **options,
    )


# ------------------------------------------------------------------ ends


def test_batch_block_enqueues_callbacks_after_the_last_job():
    with with_callbacks() as batch:
        tasks.add.using(batch=batch).enqueue_many([(1,), (2,), (3,)])
    assert run_jobs(max_jobs=2) == 2
    assert calls() == []
    run_jobs()
    assert calls() == ["complete", "success"]
    assert batch.progress() == BatchProgress(succeeded=3)
    assert batch.record.succeeded_at is not None


def test_batch_dead_job_calls_failure_at_once_and_never_success():
    with with_callbacks() as batch:
        tasks.fail.using(batch=batch, max_attempts=1).enqueue()
        tasks.add.using(batch=batch, priority=-1).enqueue(1)
    assert run_jobs(max_jobs=1) == 1
    assert calls() == ["failure"]
    run_jobs()
    assert calls() == ["failure", "complete"]
    assert batch.progress() == BatchProgress(succeeded=1, dead=1)


def test_batch_job_that_fails_and_is_retried_is_no_failure():
    with with_callbacks() as batch:
        tasks.fail_until.using(batch=batch, max_attempts=3).enqueue(2)
    run_jobs(until=timedelta(hours=1))
    assert calls() == ["complete", "success"]


def test_batch_repaired_by_a_retry_calls_success_later():
    with with_callbacks() as batch:
        dead = tasks.fail_until.using(batch=batch, max_attempts=1).enqueue(2)
        cancelled = tasks.add.using(batch=batch, run_after=60).enqueue(1)
    run_jobs()
    cancelled.cancel()
    run_jobs()
    assert calls() == ["failure", "complete"]
    Job.objects.filter(pk=dead.pk).update(task_name=tasks.add.name, arguments={"args": [1], "kwargs": {}})
    for job in batch.jobs:
        assert job.retry()
        run_jobs()
    assert calls() == ["failure", "complete", "success"]
    assert batch.record.completed_at < batch.record.succeeded_at


def test_batch_without_jobs_completes_when_it_is_closed():
    with with_callbacks() as batch:
        pass
    assert calls() == ["complete", "success"]
    assert not batch.close()
    assert calls() == ["complete", "success"]
    assert batch.progress().fraction == 0.0


def test_open_batch_does_not_complete_before_it_is_closed():
    batch = with_callbacks(description="import").open()
    assert batch.add([tasks.add.s(1), tasks.fail.using(max_attempts=1).s()])
    run_jobs()
    assert calls() == ["failure"]
    assert batch.add([tasks.add.s(2)])
    run_jobs()
    assert batch.record.completed_at is None
    assert batch.close()
    assert calls() == ["failure", "complete"]
    assert str(batch.record) == "import"


@pytest.mark.parametrize("option", ["on_success", "on_complete", "on_failure"])
def test_batch_with_one_callback_enqueues_only_it(option):
    batch = Batch(**{option: marker("one")})
    with batch:
        call = tasks.fail.s() if option == "on_failure" else tasks.add.s(1)
        call.task.using(batch=batch, max_attempts=1).enqueue(*call.args)
    run_jobs()
    assert calls() == ["one"]


@pytest.mark.promise("batch-end-found-by-sweep")
def test_cancel_ends_the_jobs_of_nested_batches_too():
    with Batch() as outer:
        tasks.add.using(batch=outer).enqueue(1)
        with Batch(parent=outer) as middle, Batch(parent=middle) as inner:
            tasks.add.using(batch=inner).enqueue(1)
    with Batch() as other:
        tasks.add.using(batch=other).enqueue(1)
    assert (middle.cancel(), outer.cancel()) == (1, 1)
    assert (outer.progress().cancelled, other.progress().ready) == (2, 1)


@pytest.mark.parametrize("end", ["cancel", "expire", "set aside", "SQL delete"])
def test_batch_job_that_ends_without_an_attempt_is_found_by_the_sweep(end):
    with with_callbacks() as batch:
        job = tasks.add.using(batch=batch, run_after=3600, expires=7200).enqueue(1)
    if end == "cancel":
        job.cancel()
    elif end == "expire":
        connection.cursor().execute("UPDATE pgqueue_job SET expires_at = '2020-01-01'")
        assert expiry.expire(connection, worker_id=1, error="")
    elif end == "set aside":
        claims.set_aside(connection, job.pk, worker_id=1, exception_class="", error="")
    else:
        connection.cursor().execute("DELETE FROM pgqueue_job")
    assert calls() == []
    run_jobs()
    assert calls() == (["complete", "success"] if end == "SQL delete" else ["failure", "complete"])


# ------------------------------------------------------------------ adding


@pytest.mark.promise("batch-misses-no-job")
def test_batch_complete_refuses_more_jobs_before_it_writes():
    with Batch() as batch:
        pass
    task = tasks.add.using(batch=batch)
    unique = task.using(unique_key="k")
    ways: list[Any] = [
        lambda: task.enqueue(1),
        lambda: unique.enqueue(1),
        lambda: unique.using(unique_while=60).enqueue(1),
        lambda: task.enqueue_many([(1,)]),
        lambda: unique.enqueue_many([(1,)]),
        lambda: enqueue_many([tasks.noop.s(), task.s(1)]),
        lambda: batch.add([tasks.add.s(1)]),
        lambda: framework_tasks.add.using(batch=batch).enqueue(1, 2),
        lambda: async_to_sync(batch.aadd)([tasks.add.s(1)]),
        lambda: Batch(parent=batch).open(),
        lambda: task.enqueue_on_commit(1),
    ]
    for way in ways:
        with pytest.raises(BatchFinished, match=f"batch {batch.id} is complete") as raised:
            way()
        assert raised.value.batch_id == batch.id
    assert not Job.objects.exists()
    assert JobBatch.objects.count() == 1


def test_every_way_to_enqueue_stores_the_batch():
    batch = Batch().open()
    task = tasks.add.using(batch=batch)
    task.enqueue(1)
    task.enqueue_many([(1,), (2,)])
    enqueue_many([task.s(1), tasks.noop.using(batch=batch).s()])
    for options in ({"unique_key": "a"}, {"unique_key": "b", "unique_while": 60}):
        unique = task.using(**options)
        unique.enqueue(1)
        unique.using(unique_key=str).enqueue_many([(3,), (4,)])
        unique.using(on_conflict="replace").enqueue(2)
    enqueue_many([task.using(unique_key="c").s(1), tasks.noop.using(batch=batch, unique_key="d").s()])
    framework_tasks.add.using(batch=batch).enqueue(1, 2)
    task.using(limit=None).enqueue_on_commit(1)
    assert set(Job.objects.values_list("batch_id", flat=True)) == {batch.id}
    assert batch.progress().total == Job.objects.count()


@pytest.mark.parametrize("unique_while", ["ready", 60])
def test_replaced_job_moves_to_the_batch_of_the_new_call(unique_while):
    first, second = Batch().open(), Batch().open()
    task = tasks.add.using(unique_key="k", unique_while=unique_while, on_conflict="replace")
    for batch in (first, second):
        task.using(batch=batch).enqueue(1)
    assert [batch.progress().total for batch in (first, second)] == [0, 1]


def test_duplicate_job_does_not_join_the_batch():
    tasks.add.using(unique_key="k").enqueue(1)
    with Batch() as batch:
        assert tasks.add.using(unique_key="k", batch=batch).enqueue(1).is_duplicate
    assert batch.progress().total == 0


def test_enqueue_without_a_batch_sends_no_further_statement():
    with CaptureQueriesContext(
        connection,
    ) as captured:
        tasks.add.enqueue(1)
    assert [query["sql"].split("*/")[0] for query in captured] == ["/* pgqueue:enqueue "]


def test_job_adds_jobs_to_its_own_batch():
    with with_callbacks() as batch:
        tasks.grow_batch.using(batch=batch).enqueue(2)
    run_jobs()
    assert batch.progress() == BatchProgress(succeeded=7)
    assert calls() == ["complete", "success"]
    assert Batch.current() is None


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (5, "batch must be a Batch, not int"),
        (Batch, "batch must be a Batch, not type"),
    ],
)
def test_using_batch_invalid_value_is_refused(option, words):
    with pytest.raises(InvalidTask, match=words):
        tasks.add.using(batch=option)


def test_batch_that_is_not_stored_is_refused():
    batch = Batch()
    assert repr(batch) == "<Batch, not stored>"
    for use in (
        lambda: tasks.add.using(batch=batch),
        batch.close,
        batch.progress,
        lambda: batch.add([]),
        lambda: Batch(parent=batch),
    ):
        with pytest.raises(InvalidTask, match="not stored yet"):
            use()
    with pytest.raises(InvalidTask, match="is stored already"):
        batch.open().open()


def test_batch_wrong_parent_or_call_is_refused():
    other: Any = 7
    with pytest.raises(TypeError, match=r"parent must be a Batch, not int: pass Batch.get\(id\)"):
        Batch(parent=other)
    other = tasks.add.s(1)
    with pytest.raises(TypeError, match=r"Batch.add\(\) takes a list of calls, not TaskCall"):
        Batch().open().add(other)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tasks.add, TypeError, r"on_success must be made by task.s\(…\), not Task"),
        (lambda: tasks.add.s(*NOTHING), TypeError, "cannot be called with these arguments"),
        (lambda: tasks.add.using(unique_key="k").s(1), InvalidTask, "has a unique key"),
        (lambda: tasks.add.using(batch=Batch().open()).s(1), InvalidTask, "a callback belongs to no batch"),
        (lambda: tasks.plus.s(NOT_JSON), TypeError, "JSON"),
    ],
)
def test_batch_invalid_callback_is_refused_before_it_writes(call, error, words):
    made = call()
    count = JobBatch.objects.count()
    with pytest.raises(error, match=words):
        Batch(on_success=made).open()
    assert JobBatch.objects.count() == count


def test_batch_of_another_database_is_refused():
    batch = Batch().open()
    batch.database = "other"
    with pytest.raises(InvalidTask, match="the jobs of a batch are in its database"):
        tasks.add.using(batch=batch, database="default").enqueue(1)
    with pytest.raises(InvalidTask, match="nested batches are in the database of their parent"):
        Batch(parent=batch, database="default")


def test_callback_of_another_database_is_refused(monkeypatch):
    monkeypatch.setattr(callbacks, "alias_of", lambda *call: "other")
    with pytest.raises(InvalidTask, match="belongs to database 'other', and the batch to 'default'"):
        Batch(on_success=tasks.add.s(1)).open()


def test_removed_batch_is_refused():
    batch = Batch().open()
    JobBatch.objects.all()._raw_delete("default")
    with pytest.raises(InvalidTask, match=f"there is no batch {batch.id}"):
        tasks.add.using(batch=batch).enqueue(1)
    with pytest.raises(JobBatch.DoesNotExist):
        Batch.get(batch.id or 0)


def test_add_takes_only_calls():
    with pytest.raises(TypeError, match=r"takes calls made by task.s\(…\), not tuple"):
        Batch().open().add([(1,)])


def test_batch_block_with_an_error_stores_nothing():
    batch = with_callbacks()
    with pytest.raises(RuntimeError), batch:
        tasks.add.using(batch=batch).enqueue(1)
        raise RuntimeError
    assert (batch.id, Job.objects.count(), JobBatch.objects.count()) == (None, 0, 0)


def test_batch_block_whose_close_fails_stores_nothing(monkeypatch):
    monkeypatch.setattr(batches, "close_batch", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError), Batch() as batch:
        tasks.add.using(batch=batch).enqueue(1)
    assert not connection.needs_rollback
    assert (Job.objects.count(), JobBatch.objects.count()) == (0, 0)


def test_batch_open_in_a_transaction_that_rolls_back_leaves_nothing():
    with transaction.atomic():
        with with_callbacks() as batch:
            tasks.add.using(batch=batch).enqueue(1)
        transaction.set_rollback(True)
    assert (Job.objects.count(), JobBatch.objects.count()) == (0, 0)


# ------------------------------------------------------------------ callbacks


def test_callback_job_has_the_options_of_its_call(monkeypatch):
    limit = Limit("reports", concurrency=1, weight=1)
    monkeypatch.setattr(registry, "_limits", {limit.name: limit})
    task = Task(func=tasks.add.func, name=tasks.add.name, search=["a"], limit=limit)
    changed = task.using(
        queue_name="reports", priority=7, max_attempts=3, run_after=60, expires=120, headers={"tenant": "a"}
    )
    with Batch(on_success=changed.s(12345678901234567890, b=2)):
        pass
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.priority, job.max_attempts) == (tasks.add.name, "reports", 7, 3)
    assert job.arguments == {"args": [12345678901234567890], "kwargs": {"b": 2}}
    assert job.headers == {"tenant": "a"}
    assert (job.run_after - job.enqueued_at, job.expires_at - job.enqueued_at) == (
        timedelta(seconds=60),
        timedelta(seconds=120),
    )
    assert (job.limit_key, job.batch_id, job.state, job.attempt) == ("reports", None, "ready", 0)
    assert SearchKey.objects.get().value == "12345678901234567890"


@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_immediate_mode_runs_jobs_and_callbacks():
    with with_callbacks() as batch:
        tasks.add.using(batch=batch).enqueue(1)
        assert calls() == []
    assert calls() == ["complete", "success"]
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


def test_batch_and_chunk_jobs_end_together():
    with with_callbacks() as batch:
        tasks.add.using(batch=batch).enqueue_many((number,) for number in range(5))
    assert run_jobs() == 7


# ------------------------------------------------------------------ nested batches


def test_nested_batch_ends_its_parent_like_a_job():
    with with_callbacks("outer ") as outer:
        with with_callbacks("inner ", parent=outer) as inner:
            tasks.add.using(batch=inner).enqueue(1)
        tasks.add.using(batch=outer).enqueue(1)
    assert outer.progress() == BatchProgress(ready=2)
    run_jobs()
    assert calls() == ["inner complete", "inner success", "outer complete", "outer success"]


def test_nested_batch_that_fails_fails_its_parent_when_it_ends():
    outer = with_callbacks("outer ").open()
    with with_callbacks("inner ", parent=outer) as inner:
        tasks.fail.using(batch=inner, max_attempts=1).enqueue()
        tasks.add.using(batch=inner, priority=-1).enqueue(1)
    outer.close()
    run_jobs(max_jobs=1)
    assert calls() == ["inner failure"]
    run_jobs()
    assert calls() == ["inner failure", "inner complete", "outer failure", "outer complete"]
    failed = inner.jobs.get(state="dead")
    Job.objects.filter(pk=failed.pk).update(task_name=tasks.add.name, arguments={"args": [1], "kwargs": {}})
    failed.retry()
    run_jobs()
    assert calls()[4:] == ["inner success", "outer success"]


def test_nested_open_batch_keeps_its_parent_unfinished():
    with with_callbacks("outer ") as outer:
        inner = with_callbacks("inner ", parent=outer).open()
    run_jobs()
    assert calls() == []
    inner.close()
    assert calls() == ["inner complete", "inner success", "outer complete", "outer success"]


def test_batch_that_fails_does_not_complete_before_its_nested_batch():
    with with_callbacks("outer ") as outer:
        inner = with_callbacks("inner ", parent=outer).open()
        tasks.fail.using(batch=outer, max_attempts=1).enqueue()
    run_jobs()
    assert calls() == ["outer failure"]
    inner.close()
    assert calls()[1:] == ["inner complete", "inner success", "outer complete"]


# ------------------------------------------------------------------ removed jobs


@pytest.mark.promise("batch-progress-exact")
def test_discarded_jobs_count_in_the_progress():
    with with_callbacks() as batch:
        tasks.keeps_nothing.using(batch=batch).enqueue_many([()] * 3)
        tasks.keeps_nothing.enqueue()
    run_jobs()
    assert batch.progress() == BatchProgress(succeeded=3)
    assert not batch.jobs.exists()
    assert calls() == ["complete", "success"]


@pytest.mark.promise("batch-progress-exact")
@pytest.mark.parametrize("way", ["prune", "prune task", "delete", "archive"])
def test_removed_dead_job_is_counted_and_prevents_success(way):
    with with_callbacks() as batch:
        job = tasks.fail.using(batch=batch, max_attempts=1).enqueue()
        tasks.add.using(batch=batch, run_after=3600).enqueue(1)
    run_jobs(max_jobs=1)
    if way == "archive":
        history.archive(states=["dead"], older_than=0)
    elif way == "delete":
        operator.delete(connection, [job.pk])
    else:
        task_name = tasks.fail.name if way == "prune task" else None
        pruning.prune(connection, State.DEAD, 0.0, task_name=task_name)
    assert not Job.objects.filter(pk=job.pk).exists()
    assert batch.progress() == BatchProgress(ready=1, dead=1)
    run_jobs(until=timedelta(hours=2))
    assert calls() == ["failure", "complete"]


def test_old_batch_is_removed_after_its_jobs():
    outer = Batch().open()
    with Batch(parent=outer) as inner:
        tasks.keeps_nothing.using(batch=inner).enqueue()
        tasks.add.using(batch=inner).enqueue(1)
    run_jobs()
    outer.close()

    def pruned() -> int:
        return batches.prune_batches(connection, 0.0).removed

    assert batches.prune_batches(connection, 3600.0).removed == 0
    assert pruned() == 0  # a job is left in the inner one, and the outer one has the inner one
    pruning.prune(connection, State.SUCCEEDED, 0.0)
    assert BatchRemoval.objects.count() == 2
    assert [pruned(), pruned(), JobBatch.objects.count(), BatchRemoval.objects.count()] == [1, 1, 0, 0]


@pytest.mark.promise("defect-removed-nested-batch")
@pytest.mark.promise("batch-progress-exact")
@pytest.mark.parametrize("is_open", [False, True])
def test_removed_nested_batch_is_counted_and_prevents_success(is_open):
    outer = with_callbacks().open()
    with Batch(parent=outer) as middle, Batch(parent=middle) as inner:
        tasks.fail.using(batch=inner, max_attempts=1).enqueue()
        tasks.keeps_nothing.using(batch=inner).enqueue()
    tasks.add.using(batch=outer).enqueue(1)
    if not is_open:
        outer.close()
    run_jobs()
    pruning.prune(connection, State.DEAD, 0.0)
    assert [batches.prune_batches(connection, 0.0).removed for _ in range(3)] == [1, 1, 0]
    assert outer.progress() == BatchProgress(succeeded=2, dead=1)
    if is_open:
        outer.close()
    run_jobs()
    assert calls() == ["failure", "complete"]


def test_open_batch_is_never_removed():
    Batch().open()
    assert batches.prune_batches(connection, 0.0).removed == 0


# ------------------------------------------------------------------ reading


def test_get_returns_the_stored_batch():
    batch = Batch(description="import").open()
    again = Batch.get(batch.id or 0)
    assert (again.id, again.database, repr(again)) == (batch.id, "default", f"<Batch {batch.id} on default>")
    tasks.add.using(batch=again).enqueue(1)
    assert batch.jobs.count() == 1


def test_progress_takes_one_query_whatever_it_counts(django_assert_num_queries):
    outer = Batch().open()
    for _ in range(3):
        with Batch(parent=outer) as inner:
            tasks.add.using(batch=inner).enqueue_many([(1,)] * 4)
    run_jobs(max_jobs=5)
    with django_assert_num_queries(1):
        progress = outer.progress()
    assert (progress.total, progress.finished, progress.fraction) == (12, 5, 5 / 12)


@pytest.mark.django_db(transaction=True)
def test_methods_for_coroutines_do_the_same():
    async def fill() -> BatchProgress:
        batch = await with_callbacks().aopen()
        await batch.aadd([tasks.add.s(1)])
        await (await Batch.aget(batch.id or 0)).aclose()
        return await batch.aprogress()

    assert async_to_sync(fill)() == BatchProgress(ready=1)
    run_jobs()
    assert calls() == ["complete", "success"]


@pytest.mark.django_db(transaction=True)
def test_batch_opened_in_coroutine_names_the_form_to_await():
    async def view():
        with Batch():
            pass

    with pytest.raises(SynchronousOnlyOperation, match=r"a batch was opened from a coroutine: use `await batch.aopen"):
        async_to_sync(view)()


@pytest.mark.django_db(transaction=True)
def test_batch_entered_in_its_own_block_is_stored_with_all_its_jobs():
    with with_callbacks() as batch:
        with batch:
            batch.add([tasks.add.s(1)])
        batch.add([tasks.add.s(2)])
    assert not connection.in_atomic_block
    assert batch.progress() == BatchProgress(ready=2)
    with pytest.raises(ZeroDivisionError), batch, batch:
        raise ZeroDivisionError
    assert not connection.in_atomic_block
    run_jobs()
    assert calls() == ["complete", "success"]
