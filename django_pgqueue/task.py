"""The `Task` class: a function with options, and the methods that enqueue jobs for it.

`@task` creates tasks, and applications call them. The worker reads a task's options and its retry policy. A `Task` is
immutable, and its options are always valid. This module loads before Django's apps are ready, so it imports models only
inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, router, transaction

from . import lifecycle
from .conf import get_settings
from .context import TaskContext
from .definition import TaskDefinition
from .enqueue import plain, unique
from .options import UNCHANGED, Unchanged, UsingOptions, changed_options
from .serialization import chunks, encode_arguments, normalise_call
from .validation import RunAfter, as_call, check_call

if TYPE_CHECKING:
    from .models import Job

P = ParamSpec("P")
R = TypeVar("R")

Calls = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
"""Calls for `enqueue_many()`: pairs (args, kwargs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(TaskDefinition, Generic[P, R]):
    """A function whose calls can be enqueued as jobs. Created by `@task`, which describes the options.

    Calling a task calls its function directly. A task is immutable: `using()` returns a changed copy.
    """

    func: Callable[..., R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a job. If it takes a context, it gets one without a job."""
        return self.func(*self._with_context(args), **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly and return its result. If it is a coroutine function, run it to its end."""
        if self.is_async:
            return async_to_sync(self.func)(*self._with_context(args), **kwargs)  # type: ignore[arg-type]  # is_async
        return self(*args, **kwargs)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly from asynchronous code. A function that is not a coroutine runs in a thread."""
        if self.is_async:
            return await self(*args, **kwargs)  # type: ignore[misc]  # is_async
        return await sync_to_async(self.func)(*self._with_context(args), **kwargs)

    def _with_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (TaskContext(), *args) if self.takes_context else args

    def using(
        self,
        *,
        run_after: RunAfter | None = None,
        database: str | Unchanged | None = UNCHANGED,
        **options: Unpack[UsingOptions],
    ) -> Task[P, R]:
        """Return a copy of this task with other options.

        None resets `max_attempts`, `unique_key` (with `unique_while` and `on_conflict`), `expires`, `headers` and
        `database`. For the other options None changes nothing, as in Django's framework.

        Args:
            run_after: When the job is due: seconds or a timedelta from the enqueue, or an aware datetime. 0 means now.
            database: Alias of the job's database. None lets the database routers choose it.
            **options: The keys of `django_pgqueue.options.UsingOptions`, such as `priority`, `queue_name`, `expires`,
                `headers` and `unique_key`. They mean the same as for `@task`; `expires` can also be an aware datetime.

        Raises:
            InvalidTask: An option is invalid.

        Example::

            send_reminder.using(run_after=timedelta(days=3), priority=-10).enqueue(order.pk)
        """
        return replace(self, **changed_options(options, run_after=run_after, database=database))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job for this call, with one INSERT in the caller's open transaction.

        Workers see the job when the transaction commits, and never if it rolls back, so you do not need
        `transaction.on_commit()`. Without an open transaction the job is committed at once. If an open transaction of
        another session has just taken the unique key, this call waits until that transaction ends.

        Args:
            *args: Positional arguments for the function, without the context.
            **kwargs: Keyword arguments for the function.

        Returns:
            The new job, or the job that `on_conflict="replace"` changed. If another job keeps the unique key, that job
            with `is_duplicate` set.

        Raises:
            TypeError: The arguments do not fit the function or its annotations, or JSON cannot represent the arguments
                or headers.
            ValueError: The arguments or headers cannot be stored or are too large.
            InvalidTask: No worker would find the task, or its database is unknown or not PostgreSQL.
            DuplicateJob: Another job has the unique key, and the task has `on_conflict="raise"`.
            Exception: An error of a middleware or of the database. Only a database error, or `DuplicateJob`, can be
                raised after the INSERT was sent. All others are raised before anything is written.

        Warns:
            RuntimeWarning: A transaction is open on another database alias, but not on the job's.

        Example::

            with transaction.atomic():
                order = Order.objects.create(email=email)
                send_receipt.enqueue(order.pk)
        """
        job = self.insert(args, kwargs)
        if job.is_duplicate:
            return job
        self.send_enqueued(job)
        return plain.as_it_is(job) if get_settings().IMMEDIATE else job

    def insert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Insert a job without announcing it: the first half of `enqueue()`, for another framework's backend."""
        self._check(args, kwargs)
        arguments = encode_arguments(*self.encoded_call(args, kwargs))
        connection = plain.connection_for(self, callers_level=4)
        row = plain.row_of(self, connection)
        if (key := unique.key_of(self, args, kwargs)) is not None:
            return unique.insert(self, connection, key, arguments, row)
        enqueued = lifecycle.enqueue(connection, arguments=arguments, **row)
        return plain.as_job(connection.alias, enqueued, arguments, row)

    def send_enqueued(self, job: Job) -> None:
        """Announce a job: wake the workers and send `job_enqueued`, which runs the job if `IMMEDIATE` is set."""
        plain.send_enqueued(self, connections[str(job._state.db)], [job.pk])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job from asynchronous code, in a thread. Arguments and errors are those of `enqueue()`.

        Each call commits on its own, because Django has no asynchronous transactions. To share a transaction with
        other writes, put them and `enqueue()` into one function with `transaction.atomic()`. Call that function with
        `sync_to_async`.
        """
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    def get_result(self, result_id: str | int) -> Job:
        """Return a job of this task by its id, with one query.

        Args:
            result_id: The id of the job, as a number or as text.

        Raises:
            Job.DoesNotExist: There is no such job, or it has another task.
        """
        from .models import Job  # tasks load before the apps are ready

        alias = self.database or router.db_for_write(Job)
        try:
            return Job.objects.using(alias).get(pk=int(result_id), task_name__in=(self.name, *self.aliases))
        except (ValueError, OverflowError, Job.DoesNotExist):
            raise Job.DoesNotExist(f"{self.name} has no job {result_id!r} in the database {alias!r}") from None

    async def aget_result(self, result_id: str | int) -> Job:
        """Return a job of this task by its id, from asynchronous code."""
        return await sync_to_async(self.get_result)(result_id)

    @overload
    def enqueue_many(self, calls: Calls) -> list[int]: ...
    @overload
    def enqueue_many(self, calls: Calls, *, returning: Literal[True]) -> list[int]: ...
    @overload
    def enqueue_many(self, calls: Calls, *, returning: Literal[False]) -> int: ...
    def enqueue_many(self, calls: Calls, *, returning: bool = True) -> list[int] | int:
        """Add a job for each call, all or none, in the caller's open transaction or in one of its own.

        Without a unique key, this reads `calls` in chunks and inserts each chunk with one INSERT, so that memory use
        does not grow with the number of calls, except for the ids. The errors are those of `enqueue()`.

        Args:
            calls: Pairs (args, kwargs), for example from a generator.
            returning: Whether to return the ids. Without a unique key, False saves the memory for them.

        Returns:
            The ids of the jobs in the order of `calls`, or the number of calls if `returning` is False. For a call
            whose unique key another job has, the id of that job.

        Example::

            ids = send_reminder.enqueue_many(((order.pk,), {}) for order in Order.objects.iterator())
        """
        connection = plain.connection_for(self)
        row = plain.row_of(self, connection)
        if self.unique_key is not None:
            job_ids = unique.insert_many(self, connection, calls, self._prepare, row)
            return job_ids if returning else len(job_ids)
        ids: list[int] = []
        count = 0
        with transaction.atomic(using=connection.alias):
            normalised = (self._normalise(*as_call(call, number)) for number, call in enumerate(calls))
            for arguments in chunks(normalised):
                new_ids = lifecycle.enqueue_many(connection, arguments=arguments, **row)
                count += len(new_ids)
                if returning:
                    ids += new_ids
                plain.send_enqueued(self, connection, new_ids)
        return ids if returning else count

    def _prepare(self, call: Any, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = as_call(call, number)
        self._check(args, kwargs)
        return args, kwargs

    def _normalise(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self._check(args, kwargs)
        return normalise_call(*self.encoded_call(args, kwargs))

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            check_call(self.func, len(args) + self.takes_context, tuple(kwargs))
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot be called with these arguments: {error}") from None
