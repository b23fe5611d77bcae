"""The context of a running attempt: `TaskContext`, the first argument of tasks with `takes_context=True`.

The worker creates a `TaskContext` for each attempt if the task or a middleware needs one. The backend for Django's
tasks framework replaces the argument through a `TaskAdapter`. `last_progress()` runs a query. The methods for durable
steps check their arguments and pass the call to the runner of the attempt, which the worker sets. Without a job, as in
a unit test that calls the function of a task, a step is a plain call, and a sleep returns at once. The other methods
never wait, so coroutines can call them too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_pgqueue.declared.steps import (
    EventKey,
    Step,
    StepError,
    StepRunner,
    as_step,
    checked_name,
    key_text,
    seconds_until,
)
from django_pgqueue.ground.progress import Progress, checked

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgqueue.durations import Duration
    from django_pgqueue.ground.log_events import LoggedJob
    from django_pgqueue.models import Job

P = ParamSpec("P")
T = TypeVar("T")

running_job: Final[ContextVar[LoggedJob | None]] = ContextVar("pgqueue_running_job", default=None)
"""The attempt that runs in this thread or coroutine, or None."""
running_database: Final[ContextVar[str | None]] = ContextVar("pgqueue_running_database", default=None)
"""Alias of the database of that attempt's job, or None."""


class ProgressReporter(Protocol):
    """Receiver of an attempt's progress reports."""

    def note(self, execution_id: int, progress: Progress) -> None:
        """Remember a report and return at once."""


PROGRESS_FIELDS: Final = ("progress_done", "progress_total", "progress_message", "progress_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The attempt that a task is running in.

    A task that is called as a plain function gets a context without a job: `job_id` is None and `attempt` is 1.

    Example::

        @task(takes_context=True)
        def number_orders(context: TaskContext, order_ids: list[int]) -> None:
            for done, order_id in enumerate(order_ids, 1):
                if context.cancel_requested():
                    raise Cancel("cancelled by an operator")
                number(order_id)
                context.progress(done, len(order_ids))
    """

    job_id: int | None = None
    """Id of the job, or None without a job."""
    execution_id: int | None = None
    """Id of the execution, or None without a job."""
    attempt: int = 1
    """Number of the attempt, from 1. Attempts that were released or snoozed do not count."""
    max_attempts: int = 1
    """Maximum number of attempts of the job."""
    queue_name: str = "default"
    """Queue of the job."""
    database: str = "default"
    """Alias of the job's database."""
    lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Event that is set when the lease is lost. The result of this attempt will then not be recorded."""
    task_name: str = ""
    """Name of the task."""
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Headers of the job, set by middleware or by `Task.using(headers=…)`."""
    _notes: ProgressReporter | None = field(default=None, repr=False, compare=False)
    _task_result: Job | None = field(default=None, init=False, repr=False, compare=False)
    _steps: StepRunner | None = field(default=None, repr=False, compare=False)

    asked_to_cancel: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    """Set by the worker. Call `cancel_requested()` instead."""
    chunk: Sequence[TaskContext] = field(default=(), repr=False, compare=False)
    """For middleware, around a call of a task with `chunk`: the contexts of its jobs, in order. Otherwise empty."""
    error_in_chunk: Callable[[], BaseException | None] = field(default=lambda: None, repr=False, compare=False)
    """Set by the worker. Call `chunk_error()` instead."""

    def chunk_error(self) -> BaseException | None:
        """Return the exception that ends this job of a chunk alone: that of `chunk.fail()`, or of a row that is gone.

        Middleware can call it for each context in `chunk` when the function has ended.

        Returns:
            The exception. None if the job ends as the call does, and for tasks without `chunk`.
        """
        return self.error_in_chunk()

    def cancel_requested(self) -> bool:
        """Return whether this job was asked to cancel.

        The answer becomes True within a second of `job.cancel()`. The task should then end soon, best by raising
        `Cancel`. The call runs no query, so you can make it as often as you like.
        """
        return self.asked_to_cancel()

    @property
    def is_last_attempt(self) -> bool:
        """Whether this is the last attempt: the job is dead if it fails."""
        return self.attempt >= self.max_attempts

    @property
    def task_result(self) -> Job:
        """The running job, which has the attributes of the framework's `TaskResult`.

        Its id and its number of attempts are known. One query loads the other columns on first use; in a coroutine,
        call `await context.task_result.arefresh()` first. Raises `RuntimeError` without a job.
        """
        from django_pgqueue.models import Job  # tasks load before the apps are ready

        if self.job_id is None:
            raise RuntimeError("this context has no job, because the task was called as a function: check job_id first")
        if self._task_result is not None:
            return self._task_result
        known = {"task_name": self.task_name, "queue_name": self.queue_name, "max_attempts": self.max_attempts}
        job = Job.partial(self.database, id=self.job_id, state="running", attempt=self.attempt, **known)
        object.__setattr__(self, "_task_result", job)
        return job

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the progress of the job.

        The call only stores the values in memory. You can make it as often as you like, also in a coroutine. The worker
        writes the latest values of all its jobs once a second, and the last values when the attempt ends.

        Args:
            done: Amount of work done, in a unit of your choice.
            total: Total amount of work in the same unit, or None if unknown.
            message: Short text. It is cut to 200 characters.

        Raises:
            TypeError: `done` or `total` is not a number.
            ValueError: `done` or `total` is negative or not finite.
        """
        report = checked(done, total, message)
        if self._notes is not None and self.execution_id is not None:
            self._notes.note(self.execution_id, report)

    def last_progress(self) -> Progress | None:
        """Return the stored progress of the job.

        Until this attempt reports progress, that is the last report of an earlier attempt. If a worker was killed, its
        attempt may have been up to a second further. The call runs one query on the job's database.

        Returns:
            The stored progress. None before the first report, or without a job.
        """
        from django_pgqueue.models import Job  # tasks load before the apps are ready

        if self.job_id is None:
            return None
        job = Job.objects.using(self.database).filter(pk=self.job_id).only(*PROGRESS_FIELDS).first()
        return None if job is None else job.progress

    async def alast_progress(self) -> Progress | None:
        """Return the stored progress from a coroutine. The query runs in the thread of Django's asynchronous ORM."""
        return await sync_to_async(self.last_progress)()

    # ---------------------------------------------------------------- durable steps

    def step(self, step: Step[T] | str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function once for the job: return the stored value if an earlier attempt has stored it.

        The value is stored when the function returns, by one statement that commits at once. The call returns it as
        JSON represents it, so a tuple becomes a list. If the worker is lost between the return and that statement, the
        function runs again; `Step(…, atomic=True)` prevents that for what it writes to the job's database.

        Args:
            step: Name of the step, which is unique in the job, or a `Step` with options.
            function: The function. Its arguments follow.

        Returns:
            The value that the function returned, or that it returned in an earlier attempt.

        Raises:
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
            LeaseLost: The job belongs to another worker now. Nothing was stored.
        """
        runner = self._runner_in_thread("step", "astep")
        step = as_step(step)
        _check_function("step", step, function)
        return function(*args, **kwargs) if runner is None else runner.step(step, function, args, kwargs)

    @overload
    async def astep(
        self, step: Step[T] | str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def astep(self, step: Step[T] | str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(self, step: Step[Any] | str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `step()` in a coroutine. A coroutine function is awaited; a plain one runs in a thread."""
        runner, step = self._runner(), as_step(step)
        _check_function("astep", step, function)
        if runner is not None:
            return await runner.astep(step, function, args, kwargs)
        return await (function if iscoroutinefunction(function) else sync_to_async(function))(*args, **kwargs)

    def sleep(self, name: str, wake: Duration | datetime) -> None:
        """Suspend the job, and continue behind this call when the time has passed.

        A suspended job is in no slot. It survives restarts and deploys of its workers. The attempt is not counted: the
        function starts again from the beginning, and its stored steps return their values.

        Args:
            name: Name of the step, which is unique in the job.
            wake: How long to sleep, in seconds or as a timedelta; or an aware datetime.

        Raises:
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
        """
        runner = self._runner_in_thread("sleep", "asleep")
        if runner is not None:
            runner.sleep(name, wake)
        else:
            _check_sleep(name, wake)

    async def asleep(self, name: str, wake: Duration | datetime) -> None:
        """Do as `sleep()` from a coroutine."""
        runner = self._runner()
        if runner is not None:
            await runner.asleep(name, wake)
        else:
            _check_sleep(name, wake)

    def wait_for_event(
        self, event: str, key: EventKey = None, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Return the payload of an event. If it has not come, suspend the job until `send_event()` sends it.

        The job receives the earliest event with this name and key that it has not received, also one that was sent
        before this call. Other jobs that wait for the event receive it too.

        Args:
            event: Name of the event.
            key: Key of the event: a string, a whole number or a UUID.
            timeout: How long to wait from the first call on, in seconds or as a timedelta. None: without limit.
            name: Name of the step, which is unique in the job. By default the name of the event.

        Returns:
            The payload.

        Raises:
            EventTimeout: The event did not come in time.
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
        """
        runner = self._runner_in_thread("wait_for_event", "await_event")
        if runner is None:
            raise _no_job(event, key)
        return runner.wait_for_event(event, key, timeout, event if name is None else name)

    async def await_event(
        self, event: str, key: EventKey = None, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Do as `wait_for_event()` from a coroutine."""
        runner = self._runner()
        if runner is None:
            raise _no_job(event, key)
        return await runner.await_event(event, key, timeout, event if name is None else name)

    def _runner(self) -> StepRunner | None:
        """Return what runs the steps of this attempt. None without a job: steps are plain calls then."""
        if self._steps is None and self.job_id is not None:
            raise StepError(f"steps work only in the function of a task with takes_context=True, not in {self!r}")
        return self._steps

    def _runner_in_thread(self, method: str, form: str) -> StepRunner | None:
        """Return the runner. On the event loop, where Django refuses every query, name the form for coroutines."""
        runner = self._runner()
        if runner is not None and _is_on_event_loop():
            raise SynchronousOnlyOperation(
                f"context.{method}() was called in a coroutine: await context.{form}() there"
            )
        return runner


def _is_on_event_loop() -> bool:
    """Return whether Django refuses queries here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def _check_function(method: str, step: Step[Any], function: object) -> None:
    """Refuse the result of a call in place of the function."""
    if not callable(function):
        raise TypeError(
            f"the step {step.name!r} needs a function that it can call, not {type(function).__name__}: pass the "
            f"function and its arguments, as in {method}({step.name!r}, charge_card, order_id)"
        )


def _check_sleep(name: str, wake: Duration | datetime) -> None:
    """Check the arguments of a sleep without a job, which returns at once."""
    checked_name(name, "step")
    seconds_until(wake)


def _no_job(event: str, key: EventKey) -> StepError:
    checked_name(event, "event")
    key_text(key)
    return StepError("without a job, no event can be received: run the task with `testing.run_jobs()` instead")


class TaskAdapter(Protocol):
    """Hooks for tasks of another framework. `django_pgqueue.backend` implements them for Django's tasks framework."""

    task: Any
    """The other framework's task object."""

    @property
    def database(self) -> str | None:
        """Alias of the database for the task's jobs, or None if the framework names none."""

    def check_queue(self, queue_name: str) -> None:
        """Raise `InvalidTask` if the framework does not accept this queue for the task."""

    def enqueued(self, job_id: int, database: str, queue_name: str) -> None:
        """Notify the framework of a job that it did not enqueue itself, because a schedule did."""

    def context(self, job: TaskContext) -> Any:
        """Return the context argument for the task's function. May query the database."""

    def task_result(self, job_id: int, database: str, attempt: int, queue_name: str) -> Any:
        """Return the framework's result of a running job, without a query."""

    def result(self, value: Any) -> Any:
        """Return the value to store for the task's return value."""
