"""The public class `Batch`: a group of jobs with callbacks that are enqueued when the group has ended; its progress.

Applications call it. It never changes the ends of a batch itself: `ends` decides them from the rows of the jobs.
The module loads before Django's apps are ready, so it imports models only inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, router, transaction

from django_pgqueue.ends.batches import settle
from django_pgqueue.enqueue import bulk, inserting
from django_pgqueue.enqueue.callbacks import stored_call
from django_pgqueue.enqueue.calls import TaskCall
from django_pgqueue.enqueue.job_ids import JobIds
from django_pgqueue.enqueue.mistaken_calls import called_in_coroutine, listed
from django_pgqueue.exceptions import InvalidTask, suggesting
from django_pgqueue.ground.batch_reference import BatchReference, check_parent
from django_pgqueue.lifecycle import batches
from django_pgqueue.states import FINISHED, State
from django_pgqueue.tasks.context import running_database, running_job

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.models import JobBatch, JobQuerySet
    from django_pgqueue.tasks.definition import TaskDefinition


class BatchProgress(NamedTuple):
    """How many jobs a batch and the batches nested in it have, by state. Jobs that were removed are counted too.

    The fields are `ready`, `running`, `succeeded`, `dead`, `cancelled`, and `waiting` for jobs of workflows that wait
    for others.
    """

    ready: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    waiting: int = 0

    @property
    def finished(self) -> int:
        """Jobs that have ended."""
        return self.succeeded + self.dead + self.cancelled

    @property
    def total(self) -> int:
        """All jobs that were added so far."""
        return self.waiting + self.ready + self.running + self.finished

    @property
    def fraction(self) -> float:
        """The part of the jobs that have ended, from 0 to 1. 0 without jobs."""
        return self.finished / self.total if self.total else 0.0


class Batch(BatchReference):
    """A group of jobs, and the calls to enqueue when it fails, completes or succeeds.

    As a context manager, it opens a transaction, stores the batch, and closes it at the end of the block. The batch and
    the jobs that the block adds are stored together or not at all. A batch that grows over hours or days is stored by
    `open()`, filled in any number of transactions, and closed by `close()`.

    Each callback is enqueued exactly once:

    - `on_failure` when the first job of the batch is dead or cancelled, even if the batch is still open.
    - `on_complete` when the batch is closed and has no unfinished job and no unfinished nested batch.
    - `on_success` when it is complete and no job is dead or cancelled. If an operator's retry repairs the last such
      job later, `on_success` follows then.

    Args:
        on_success: A call made by `task.s(…)`, which may have options but neither a unique key nor a batch.
        on_complete: As `on_success`.
        on_failure: As `on_success`.
        description: Text for operators.
        parent: A batch in which this one is nested. The parent completes after this batch. If this batch completes
            without success, that counts for the parent like a dead job.
        database: Alias of the database of the batch and its jobs. By default that of `parent`, or the one that the
            routers choose.

    Attributes:
        id: The id, or None before the batch is stored.
        database: Alias of its database.

    Example::

        with Batch(on_success=send_report.s(import_id)) as batch:
            load_row.using(batch=batch).enqueue_many((row.pk,) for row in rows)
    """

    __slots__ = ("_callbacks", "_description", "_parent", "_saved_by_block")

    @suggesting("Batch(on_success=task.s(…))", {"callback": "on_success", "errback": "on_failure"})
    def __init__(
        self,
        *,
        on_success: TaskCall[Any] | None = None,
        on_complete: TaskCall[Any] | None = None,
        on_failure: TaskCall[Any] | None = None,
        description: str = "",
        parent: Batch | None = None,
        database: str | None = None,
    ) -> None:
        from django_pgqueue.models import JobBatch  # tasks load before the apps are ready

        check_parent(parent)
        super().__init__(None, database or (parent.database if parent else router.db_for_write(JobBatch)))
        if parent is not None and parent.database != self.database:
            raise InvalidTask(
                f"a batch on database {self.database!r} cannot be nested in one on {parent.database!r}: "
                "nested batches are in the database of their parent"
            )
        self._callbacks = {"on_success": on_success, "on_complete": on_complete, "on_failure": on_failure}
        self._description = description
        self._parent = parent
        self._saved_by_block = False

    def __repr__(self) -> str:
        return f"<Batch {self.id} on {self.database}>" if self.id is not None else "<Batch, not stored>"

    # ------------------------------------------------------------------ create and close

    def open(self) -> Self:
        """Store the batch in the caller's transaction, open for jobs, and return it.

        Raises:
            BatchFinished: The parent is complete.
            InvalidTask: The batch is stored already, or another error of the callbacks, as of `Task.enqueue()`.
            TypeError: A callback was not made by `task.s(…)`, or its arguments do not fit.
        """
        if self.id is not None:
            raise InvalidTask(f"batch {self.id} is stored already: make a new Batch")
        try:
            connection = self._connection
            callbacks = {name: stored_call(name, call, connection) for name, call in self._callbacks.items()}
            parent_id = None if self._parent is None else self._parent.id
            # Without a nested block: an error in one would make the caller's transaction roll back.
            with nullcontext() if connection.in_atomic_block else transaction.atomic(using=self.database):
                inserting.check_open(connection, parent_id)
                created = batches.create_batch(
                    connection, description=self._description, parent_id=parent_id, callbacks=callbacks
                )
        except SynchronousOnlyOperation as error:
            raise called_in_coroutine("a batch", "batch.aopen()") from error
        self.id = created.batch_id
        return self

    def close(self) -> bool:
        """Close the batch in the caller's transaction, so that it completes when its last job has ended.

        A batch without an unfinished job completes now. Jobs of the batch can still add jobs until it is complete.

        Returns:
            Whether the batch was open.
        """
        connection, batch_id = self._connection, self._stored_id
        was_open = batches.close_batch(connection, batch_id)
        settle(connection, [batch_id]).raise_refused()
        if connection.in_atomic_block:
            # A job that ends while this transaction is open does not see that the batch is closed. And this transaction
            # may not see the end of that job. One of both looks again.
            transaction.on_commit(partial(settle, connection, [batch_id]), using=self.database, robust=True)
        return was_open

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                stack.enter_context(transaction.atomic(using=self.database))
            except SynchronousOnlyOperation as error:
                raise called_in_coroutine("a batch", "batch.aopen()", "opened") from error
            self._saved_by_block = self.id is None
            if self._saved_by_block:
                self.open()
            stack.pop_all()  # __exit__() leaves the block: Django keeps its state on the connection
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = transaction.atomic(using=self.database)
        if error is None:
            with ExitStack() as stack:
                stack.push(block)
                self.close()
            return
        if self._saved_by_block:
            self.id = None  # its row is rolled back
        block.__exit__(kind, error, traceback)

    # ------------------------------------------------------------------ fill

    def add(self, calls: Iterable[TaskCall[Any]]) -> JobIds:
        """Add a job of this batch for each call, all or none, as `enqueue_many()` does.

        Args:
            calls: Calls made by `task.s(…)`, of any tasks.

        Raises:
            BatchFinished: The batch is complete. Nothing was written.
            Exception: The errors of `enqueue_many()`.

        Example::

            batch.add([resize.s(image.pk), publish.using(priority=5).s(image.pk)])
        """
        self._stored_id  # noqa: B018 -- raises for a batch that is not stored
        tasks: dict[int, tuple[TaskDefinition, TaskDefinition]] = {}

        def own(call: TaskCall[Any]) -> TaskCall[Any]:
            if not isinstance(call, TaskCall):
                raise TypeError(f"Batch.add() takes calls made by task.s(…), not {type(call).__name__}")
            if id(call.task) not in tasks:
                tasks[id(call.task)] = call.task, replace(call.task, batch=self)
            return TaskCall(tasks[id(call.task)][1], call.args, call.kwargs)

        if isinstance(calls, TaskCall):
            calls = listed("Batch.add()", calls, "calls")
        return bulk.enqueue_many(map(own, calls))

    # ------------------------------------------------------------------ find and read

    @classmethod
    def get(cls, id: int, *, database: str | None = None) -> Batch:  # noqa: A002 -- the name of the column
        """Read a stored batch with one query. Raise `JobBatch.DoesNotExist` if no batch has this id."""
        from django_pgqueue.models import JobBatch  # as above

        batch = cls(database=database)
        batch.id = JobBatch.objects.using(batch.database).only("id").get(pk=id).pk
        return batch

    @classmethod
    def current(cls, *, database: str | None = None) -> Batch | None:
        """Return the batch of the job that runs in this thread or coroutine, without a query. None without one.

        A job adds further jobs to its own batch by it, for example when it has found out how many there are.

        Args:
            database: Alias of the database of the batch. By default that of the job, where its batch is too.
        """
        batch_id = getattr(running_job.get(), "batch_id", None)
        if batch_id is None:
            return None
        batch = cls(database=database or running_database.get())
        batch.id = batch_id
        return batch

    @property
    def record(self) -> JobBatch:
        """The row of the batch, with the times of its ends. Each access runs a query."""
        from django_pgqueue.models import JobBatch  # as above

        return JobBatch.objects.using(self.database).get(pk=self._stored_id)

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs of the batch itself, without those of nested batches, as a queryset."""
        from django_pgqueue.models import Job  # as above

        return Job.objects.using(self.database).filter(batch_id=self._stored_id)

    def progress(self) -> BatchProgress:
        """Return how many jobs the batch and the batches nested in it have, by state, with one query."""
        counts = batches.count_jobs(self._connection, [self._stored_id])
        return BatchProgress(**counts[self._stored_id])

    def cancel(self) -> int:
        """Cancel the unfinished jobs of the batch and of the batches nested in it, and return their number.

        Running jobs are asked to stop. Jobs that wait for others come first, so that none of them starts meanwhile.
        """
        from django_pgqueue.models import Job, JobBatch  # as above

        batch_ids = JobBatch.ids_with_nested(self._stored_id, self.database)
        jobs = Job.objects.using(self.database).filter(batch_id__in=batch_ids)
        return jobs.filter(state=State.WAITING).cancel() + jobs.exclude(state__in=FINISHED).cancel()

    # ------------------------------------------------------------------ from asynchronous code

    async def aopen(self) -> Self:
        """Do as `open()` from asynchronous code, in a thread. It commits on its own."""
        return await sync_to_async(self.open)()

    async def aclose(self) -> bool:
        """Do as `close()` from asynchronous code, in a thread. It commits on its own."""
        return await sync_to_async(self.close)()

    async def aadd(self, calls: Iterable[TaskCall[Any]]) -> JobIds:
        """Do as `add()` from asynchronous code, in a thread. It commits on its own."""
        return await sync_to_async(self.add)(calls)

    @classmethod
    async def aget(cls, id: int, *, database: str | None = None) -> Batch:  # noqa: A002 -- the name of the column
        """Do as `get()` from asynchronous code."""
        return await sync_to_async(cls.get)(id, database=database)

    async def acancel(self) -> int:
        """Do as `cancel()` from asynchronous code."""
        return await sync_to_async(self.cancel)()

    async def aprogress(self) -> BatchProgress:
        """Do as `progress()` from asynchronous code."""
        return await sync_to_async(self.progress)()

    @property
    def _connection(self) -> BaseDatabaseWrapper:
        return connections[self.database]

    @property
    def _stored_id(self) -> int:
        if self.id is None:
            raise InvalidTask("the batch is not stored yet: use it in a with statement, or call its open() first")
        return self.id
