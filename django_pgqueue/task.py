"""Tasks: a function with options, and how a call of it becomes a job.

This module loads before Django's apps are ready, so models are imported only inside functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from . import enqueueing, lifecycle, uniqueness
from .arguments import chunks, encode_arguments, normalise_call
from .conf import Retention, get_settings, retention_seconds
from .context import Adapter, TaskContext
from .exceptions import Duration, InvalidTask, Retry, seconds
from .retry import Backoff, as_backoff, delay_after
from .validation import RunAfter, as_call, as_errors, as_names, check_call, validate

if TYPE_CHECKING:
    from .models import Job

P = ParamSpec("P")
R = TypeVar("R")

Errors = tuple[type[BaseException], ...]
Isolation = Literal["process"]
UniqueKey = str | Callable[..., str | None]
UniqueWhile = Literal["ready", "ready+running"] | Duration
OnConflict = Literal["skip", "replace", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Task(Generic[P, R]):
    """A function whose calls can be made jobs. Immutable: `using()` returns a changed copy.

    Called itself, it is still the plain function. The options are those of `task()`.
    """

    func: Callable[..., R]
    name: str = ""
    """Its key in the registry and in the rows: the dotted path of the function, unless `name=` was given."""
    aliases: tuple[str, ...] = ()
    queue_name: str = "default"
    priority: int = 0
    run_after: RunAfter | None = None
    takes_context: bool = False
    max_attempts: int | None = None
    backoff: Backoff | Duration | None = None
    retry_for: Errors = (BaseException,)
    no_retry_for: Errors = ()
    atomic: bool = False
    retention: Retention | Mapping[str, Retention] | None = None
    store_result: bool = True
    database: str | None = None
    timeout: Duration | None = None
    isolation: Isolation | None = None
    expires: RunAfter | None = None
    unique_key: UniqueKey | None = None
    unique_while: UniqueWhile = "ready+running"
    on_conflict: OnConflict = "skip"
    headers: Mapping[str, Any] | None = field(default=None, compare=False)
    """Set by `using()`, and by no option."""
    adapter: Adapter | None = field(default=None, repr=False, compare=False)
    """Set for tasks of another framework, and by no option."""
    timeout_seconds: float | None = field(init=False, repr=False, compare=False)
    signature: inspect.Signature = field(init=False, repr=False, compare=False)
    is_async: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not inspect.isfunction(self.func):
            raise InvalidTask(f"{self.func!r} is no function: a task is made of one at module level, that workers find")
        object.__setattr__(self, "signature", inspect.signature(self.func))
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.func))
        object.__setattr__(self, "name", self.name or self.module_path)
        object.__setattr__(self, "aliases", as_names(self.aliases))
        object.__setattr__(self, "retry_for", as_errors(self.retry_for))
        object.__setattr__(self, "no_retry_for", as_errors(self.no_retry_for))
        validate(self)
        object.__setattr__(self, "timeout_seconds", None if self.timeout is None else seconds(self.timeout))

    @property
    def module_path(self) -> str:
        """The dotted path of the function."""
        return f"{self.func.__module__}.{self.func.__qualname__}"

    # ---------------------------------------------------------------- calling it

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it were no task; a context is supplied where it takes one."""
        return self.func(*self._with_context(args), **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function and return its result, also if it is a coroutine function."""
        if self.is_async:
            return async_to_sync(self.func)(*self._with_context(args), **kwargs)  # type: ignore[arg-type]  # is_async
        return self(*args, **kwargs)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function from asynchronous code; one that is not a coroutine function runs in a thread."""
        if self.is_async:
            return await self(*args, **kwargs)  # type: ignore[misc]  # is_async
        return await sync_to_async(self.func)(*self._with_context(args), **kwargs)

    def _with_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (TaskContext(), *args) if self.takes_context else args

    # ---------------------------------------------------------------- enqueueing it

    def using(
        self,
        *,
        run_after: RunAfter | None = None,
        priority: int | None = None,
        queue_name: str | None = None,
        max_attempts: int | None = None,
        database: str | None = None,
        headers: Mapping[str, Any] | None = None,
        expires: RunAfter | None = None,
        unique_key: UniqueKey | None = None,
        unique_while: UniqueWhile | None = None,
        on_conflict: OnConflict | None = None,
    ) -> Task[P, R]:
        """Return a copy of this task with other options; what is None stays as it is.

        `run_after`, `expires`: seconds or a timedelta from the enqueue, or an aware datetime. `database` is an alias;
        `headers` are what the job carries for middleware, and its context: see `enqueue()` for what they may hold.
        Raises `InvalidTask` for a value out of its range.
        """
        given: dict[str, Any] = {
            "run_after": run_after,
            "priority": priority,
            "queue_name": queue_name,
            "max_attempts": max_attempts,
            "database": database,
            "headers": headers,
            "expires": expires,
            "unique_key": unique_key,
            "unique_while": unique_while,
            "on_conflict": on_conflict,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job for this call and return it, after one INSERT in the transaction the caller has open.

        Workers see the job when that transaction commits, and never if it rolls back; `transaction.on_commit()` is
        not wanted here. Without a transaction it is there at once. With a unique key that another job has, that one is
        returned, `is_duplicate`, or `DuplicateJob` raised; a transaction that has just taken the key is waited for.

        Raises `TypeError` if the arguments do not fit the function, or have no form in JSON, `ValueError` if they
        cannot be stored, both for headers that are not names to strings, numbers, booleans or None, in 4 KiB;
        `InvalidTask` if no worker would find the task; what a middleware raises: all before anything is written.
        Errors of the database pass through.
        """
        job = self.insert(args, kwargs)
        if job.is_duplicate:
            return job
        self.tell(job)
        return enqueueing.as_it_is(job) if get_settings().IMMEDIATE else job

    def insert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Do the first half of `enqueue()`, for another framework's backend: nobody is told of the job yet."""
        self._check(args, kwargs)
        arguments = encode_arguments(args, kwargs)
        connection = enqueueing.connection_for(self, callers_level=4)
        row = enqueueing.row_of(self, connection)
        if (key := uniqueness.key_of(self, args, kwargs)) is not None:
            return uniqueness.insert(self, connection, key, arguments, row)
        enqueued = lifecycle.enqueue(connection, arguments=arguments, **row)
        return enqueueing.as_job(self, connection.alias, enqueued, arguments, row["headers"])

    def tell(self, job: Job) -> None:
        """Do the second half: wake the workers, and send `job_enqueued`, at which an immediate job runs."""
        enqueueing.tell(self, connections[str(job._state.db)], [job.pk])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job from asynchronous code, in a thread: Django has no asynchronous transactions.

        Each `aenqueue` is committed on its own. To share a transaction with other writes, put both into one
        function with `transaction.atomic()` and `enqueue()`, and call that by `sync_to_async`.
        """
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    @overload
    def enqueue_many(self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[int]: ...
    @overload
    def enqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, returning: Literal[True]
    ) -> list[int]: ...
    @overload
    def enqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, returning: Literal[False]
    ) -> int: ...
    def enqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, returning: bool = True
    ) -> list[int] | int:
        """Add a job for each `(args, kwargs)` of `calls`, all or none; return their ids in order, or their number.

        `calls` is read in chunks, so memory stays flat however many there are (ids apart); each chunk is one INSERT.
        All of them are in the caller's transaction, or in one of their own. Raises as `enqueue()`, and then none
        of the jobs exist.
        """
        connection = enqueueing.connection_for(self)
        row = enqueueing.row_of(self, connection)
        if self.unique_key is not None:
            found = uniqueness.insert_many(self, connection, calls, self._prepare, row)
            return found if returning else len(found)
        ids: list[int] = []
        count = 0
        with transaction.atomic(using=connection.alias):
            normalised = (self._normalise(*as_call(call, number)) for number, call in enumerate(calls))
            for arguments in chunks(normalised):
                added = lifecycle.enqueue_many(connection, arguments=arguments, **row)
                count += len(added)
                if returning:
                    ids += added
                enqueueing.tell(self, connection, added)
        return ids if returning else count

    def _prepare(self, call: Any, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = as_call(call, number)
        self._check(args, kwargs)
        return args, kwargs

    def _normalise(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self._check(args, kwargs)
        return normalise_call(args, kwargs)

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            check_call(self.func, len(args) + self.takes_context, tuple(kwargs))
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot be called like this: {error}") from None

    # ---------------------------------------------------------------- policy, asked by the worker

    def delay_after(self, attempt: int, exception: BaseException | None) -> float | None:
        """Return the seconds before the next attempt, or None if this failure is not to be tried again.

        Raises whatever the task's own backoff raises.
        """
        if exception is not None and not self._is_retried(exception):
            return None
        return delay_after(as_backoff(self.backoff), attempt, exception)

    def _is_retried(self, exception: BaseException) -> bool:
        if isinstance(exception, Retry):
            return True
        return isinstance(exception, self.retry_for) and not isinstance(exception, self.no_retry_for)

    def retention_for(self, state: str) -> tuple[bool, float | None]:
        """Return whether this task says how long jobs that end in `state` are kept, and the seconds (None: ever)."""
        if self.retention is None:
            return (False, None)
        own = self.retention.get(state) if isinstance(self.retention, Mapping) else self.retention
        return (False, None) if own is None else (True, retention_seconds(own))
