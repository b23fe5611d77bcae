"""The `Task` class: a function with options, and the methods that enqueue jobs for it.

`@task` creates tasks, and applications call them. The worker reads a task's options and its retry policy. A `Task` is
immutable, and its options are always valid. This module loads before Django's apps are ready, so it imports models only
inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from . import queues
from .db.transactions import run_after_commits_elsewhere
from .enqueue import bulk, inserting
from .enqueue.calls import Calls, TaskCall
from .enqueue.job_ids import JobIds
from .enqueue.mistaken_calls import called_in_coroutine, missing_attribute
from .enqueue.new_job import checked_call, connection_for, new_job, row_of
from .options.task_options import UNCHANGED, DatabaseOf, Unchanged, UsingOptions, changed_options
from .options.validation import RunAfter
from .reactions import after_enqueue
from .settings.conf import get_settings
from .tasks import registry
from .tasks.definition import TaskDefinition
from .tasks.patching import Patchable, patchable
from .tasks.redaction import hidden_from_reports, hiding_class

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .lifecycle.enqueueing import NewJob
    from .models import Job

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@patchable
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Task(Patchable, TaskDefinition, Generic[P, R_co]):
    """A function whose calls can be enqueued as jobs. Created by `@task`, which describes the options.

    Calling a task calls its function directly. A task is immutable: `using()` returns a changed copy.
    """

    func: Callable[..., R_co]

    if not TYPE_CHECKING:  # type checkers would take its arguments for those of `Task()`

        def __new__(cls, **fields):
            return object.__new__(hiding_class(cls) if fields.get("sensitive") else cls)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function directly, without a job. If it takes a context or a chunk, it gets one without a job."""
        result: R_co = self.call_function(args, kwargs)
        return result

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly and return its result. If it is a coroutine function, run it to its end."""
        if self.is_async:
            return async_to_sync(partial(self.acall, *args, **kwargs))()
        return self(*args, **kwargs)

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly from asynchronous code. A function that is not a coroutine runs in a thread."""
        if self.is_async:
            return await self(*args, **kwargs)  # type: ignore[misc]  # is_async
        return await sync_to_async(partial(self.__call__, *args, **kwargs))()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name):
            """Say what to call instead of another queue's method. Python calls this for a missing attribute."""
            raise missing_attribute(self, name)

    def using(
        self,
        /,
        *,
        run_after: RunAfter | None = None,
        database: str | DatabaseOf | Unchanged | None = UNCHANGED,
        **options: Unpack[UsingOptions],
    ) -> Task[P, R_co]:
        """Return a copy of this task with other options.

        None resets `max_attempts`, `unique_key` (with `unique_while` and `on_conflict`), `limit`, `expires`, `batch`,
        `headers` and `database`. For the other options None changes nothing, as in Django's framework.

        Args:
            run_after: When the job is due: seconds or a timedelta from the enqueue, or an aware datetime. 0 means now.
            database: Alias of the job's database, or a function of its arguments. None lets the routers choose it.
            **options: The keys of `options.task_options.UsingOptions`, such as `priority`, `queue_name`, `expires`,
                `headers` and `unique_key`. They mean the same as for `@task`; `expires` can also be an aware datetime.

        Raises:
            InvalidTask: An option is invalid, or no registered task declares the limit.

        Warns:
            UnknownQueueWarning: No task has this queue, and its name is one typing slip from that of a task's queue.

        Example::

            send_reminder.using(run_after=timedelta(days=3), priority=-10).enqueue(order.pk)
        """
        if (queue_name := options.get("queue_name")) is not None:
            queues.warn_if_mistyped(queue_name)
        changed = replace(self, **changed_options(options, run_after=run_after, database=database))
        if changed.limit is not None and changed.limit is not self.limit:
            registry.check_limit(changed.limit)
        return changed

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job for this call, with one INSERT in the caller's open transaction.

        Workers see the job when the transaction commits, and never if it rolls back, so you do not need
        `transaction.on_commit()`. Without an open transaction the job is committed at once. If another job has the
        unique key, further statements find and read that job. If an open transaction of another session has just taken
        the unique key, this call waits until that transaction ends.

        Args:
            *args: Positional arguments for the function, without the context.
            **kwargs: Keyword arguments for the function.

        Returns:
            The new job, or the job that `on_conflict="replace"` changed. If another job keeps the unique key, that job
            with `is_duplicate` set.

        Raises:
            TypeError: The arguments do not fit the function or its annotations, or JSON cannot represent the arguments
                or headers, or an argument that `search` names is a list or an object.
            ValueError: The arguments or headers cannot be stored or are too large, or the limit refuses the call.
            InvalidTask: No worker would find the task, or its database is unknown or not PostgreSQL.
            DuplicateJob: Another job has the unique key, and the task has `on_conflict="raise"`.
            QueueError: With another `on_conflict`: 20 times, another job had the unique key, and was gone when it was
                to be read. No job was added.
            Exception: An error of a middleware or of the database. Only a database error, `DuplicateJob` or this
                `QueueError` can be raised after the INSERT was sent. All others are raised before anything is written.

        Warns:
            RuntimeWarning: A transaction is open on another database alias, but not on the job's.

        Example::

            with transaction.atomic():
                order = Order.objects.create(email=email)
                send_receipt.enqueue(order.pk)
        """
        return self._announced(self.insert(args, kwargs))

    def _announced(self, job: Job) -> Job:
        if job.is_duplicate:
            return job
        self.send_enqueued(job)
        return inserting.reload(job) if get_settings().IMMEDIATE else job

    def insert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Insert a job without announcing it: the first half of `enqueue()`, for another framework's backend."""
        try:
            insert = hidden_from_reports(inserting.insert) if self.sensitive else inserting.insert
            return insert(*self._new_job(args, kwargs, 6 if self.sensitive else 5))
        except SynchronousOnlyOperation as error:
            raise called_in_coroutine(self.name) from error

    def _new_job(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], callers_level: int | None = None
    ) -> tuple[BaseDatabaseWrapper, NewJob]:
        """Check and encode a call. Return its job, and the connection on which to insert it."""
        call = checked_call(self, args, kwargs)
        connection = connection_for(self, args, kwargs, callers_level)
        return connection, new_job(self, call, row_of(self, connection.alias))

    def prepare_insert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inserting.PreparedInsert:
        """Check and encode a call, and return the insert of its job. Nothing is written before that runs."""
        connection, job = self._new_job(args, kwargs)
        run = partial(inserting.insert, connection, job)
        # It can run after a commit, when the method that hides variables has returned.
        return inserting.PreparedInsert(connection.alias, hidden_from_reports(run) if self.sensitive else run)

    def send_enqueued(self, job: Job) -> None:
        """Announce a job: wake the workers and send `job_enqueued`, which runs the job if `IMMEDIATE` is set."""
        after_enqueue(connections[str(job._state.db)], self.name, self.queue_name, [job.pk])

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job from asynchronous code, in a thread. Arguments and errors are those of `enqueue()`.

        Each call commits on its own, because Django has no asynchronous transactions. To share a transaction with
        other writes, put them and `enqueue()` into one function with `transaction.atomic()`. Call that function with
        `sync_to_async`.
        """
        return await sync_to_async(partial(self.enqueue, *args, **kwargs))()

    def get_result(self, result_id: str | int) -> Job:
        """Return a job of this task by its id, with one query.

        Args:
            result_id: The id of the job, as a number or as text.

        Raises:
            Job.DoesNotExist: There is no such job, or it has another task.
            InvalidTask: The database depends on the arguments, so the id does not identify one job.
        """
        return inserting.job_of(self, result_id)

    async def aget_result(self, result_id: str | int) -> Job:
        """Return a job of this task by its id, from asynchronous code."""
        return await sync_to_async(self.get_result)(result_id)

    def enqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> Job | None:
        """Add a job that workers see when the open transactions have committed, whichever database they are on.

        If a transaction is open on the job's database, the job becomes part of it, as with `enqueue()`. If transactions
        are open on other databases only, the job is added after they have committed, and never if one rolls back.
        Without an open transaction, the job is added at once.

        The call is checked and encoded now, so errors in it are raised now. An error of the later insert is raised at
        the end of the block whose transaction has committed.

        Returns:
            The job, as from `enqueue()`; None if it will be added after a commit.

        Raises:
            Exception: The errors of `enqueue()`.

        Example::

            with transaction.atomic(using="shop"):  # jobs are on the database "default"
                order = Order.objects.using("shop").create(email=email)
                send_receipt.enqueue_on_commit(order.pk)
        """
        try:
            alias, insert = self.prepare_insert(args, kwargs)
            return run_after_commits_elsewhere(alias, lambda: self._announced(insert()))
        except SynchronousOnlyOperation as error:
            raise called_in_coroutine(self.name, "task.aenqueue_on_commit(…)") from error

    async def aenqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> Job | None:
        """Do as `enqueue_on_commit()` from asynchronous code, in a thread."""
        return await sync_to_async(partial(self.enqueue_on_commit, *args, **kwargs))()

    @overload
    def s(self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[T]: ...
    @overload
    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R_co]: ...
    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[Any]:
        """Return a call of this task with these arguments and the task's options, without enqueueing it.

        Pass it to `enqueue_many()`, which checks whether the arguments fit the function.

        Example::

            enqueue_many([charge.s(order.pk), send_receipt.using(run_after=60).s(order.pk)])
        """
        return TaskCall(self, args, kwargs)

    @overload
    def enqueue_many(self, calls: Calls, *, returning: Literal[True] = ...) -> JobIds: ...
    @overload
    def enqueue_many(self, calls: Calls, *, returning: Literal[False]) -> int: ...
    def enqueue_many(self, calls: Calls, *, returning: bool = True) -> JobIds | int:
        """Add a job for each call, all or none, in the caller's open transaction or in one of its own.

        Reads `calls` in chunks of up to 2,000 calls or 1 MiB of arguments, so that memory use does not grow with the
        number of calls, except for the ids. Each chunk takes one INSERT; chunks with unique keys can take more
        statements. A single chunk in an open transaction takes no savepoint, unless the task has `on_conflict="raise"`.
        The errors are those of `enqueue()`.

        Args:
            calls: For each job a tuple or list of positional arguments, a dict of keyword arguments, a pair of a tuple
                and a dict for both, or `task.s(…)`, which can have other options than this task.
            returning: Whether to return the ids. False saves the memory for them.

        Returns:
            The ids of the jobs in the order of `calls`, or the number of calls if `returning` is False. For a call
            whose unique key another job has, the id of that job; `duplicates` has the positions of these calls.

        Raises:
            TypeError: A call has none of these forms, is ambiguous, or is a call of another function. A list and a dict
                as the only two positional arguments are ambiguous: write `task.s(…)`.
            InvalidTask: The jobs belong to different databases, or another error of `enqueue()`.

        Example::

            ids = send_reminder.enqueue_many((order.pk,) for order in Order.objects.iterator())
        """
        return bulk.insert_many(self, calls, returning=returning)

    @overload
    async def aenqueue_many(self, calls: Calls, *, returning: Literal[True] = ...) -> JobIds: ...
    @overload
    async def aenqueue_many(self, calls: Calls, *, returning: Literal[False]) -> int: ...
    async def aenqueue_many(self, calls: Calls, *, returning: bool = True) -> JobIds | int:
        """Add jobs from asynchronous code, in a thread, which also reads `calls`. Otherwise as `enqueue_many()`.

        Each call commits on its own, as with `aenqueue()`. `calls` cannot be an asynchronous iterator.
        """
        return await sync_to_async(bulk.insert_many)(self, calls, returning=returning)
