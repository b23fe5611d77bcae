"""Runs one claimed job and returns how it ended. Touches no table, but for an atomic task's own finish.

The only place that catches everything a task may raise.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_pgqueue import middleware, registry, signals
from django_pgqueue.arguments import decode_arguments, decode_headers
from django_pgqueue.context import TaskContext, running_job
from django_pgqueue.exceptions import (
    Cancel,
    Dead,
    LeaseLost,
    ResultNotStored,
    Retry,
    Snooze,
    TaskCancelled,
    TaskTimeout,
)

from . import atomic, describe, forks, policy, returned
from .describe import is_a
from .events import IN_JOB_THREAD, arguments_of
from .giving_up import CANCELLED, timeout_of
from .report import EXPIRED, STOPS, Ending, Report, last_resort

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.progress import Progress
    from django_pgqueue.task import Task

    from .notes import NoteSink


class DoesNotFit(BaseException):
    """The job cannot be run here: its task is unknown, or its arguments cannot be given to it.

    Not an `Exception`: no middleware is to take it for an error of the task's.
    """


class Attempt:
    """One claimed job on its way through its task's function."""

    __slots__ = (
        "alias",
        "args",
        "asked",
        "asked_elsewhere",
        "cancelled",
        "claimed",
        "committing",
        "context",
        "copy",
        "interrupted",
        "kwargs",
        "notes",
        "started_at",
        "task",
        "timed_out",
        "told",
    )

    task: Task[Any, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    context: TaskContext | None

    def __init__(
        self, claimed: Claimed, alias: str, notes: NoteSink, asked_elsewhere: Callable[[], bool] | None = None
    ) -> None:
        self.claimed = claimed
        self.alias = alias
        self.notes = notes
        self.context = None
        self.interrupted = False
        self.timed_out = False
        self.asked = False
        self.asked_elsewhere = asked_elsewhere
        self.cancelled = False
        self.committing = False
        self.told: Progress | None = None
        self.copy = forks.here.copy
        self.started_at = time.monotonic()

    def run(self) -> Report:
        """Run a task in this thread, a coroutine on a loop of its own; never raises but what is thrown in."""
        try:
            self._prepare()
            self._adapt_context()
            self._publish_started()
            if self.task.atomic:
                return self._run_atomic()
            call = async_to_sync(self._acall) if self.task.is_async else self._call
            return self._succeeded(call())
        except BaseException as exception:  # noqa: BLE001 -- whatever a task raises is its end, not the worker's
            return self.ended_by(exception)

    async def run_async(self) -> Report:
        """Run a coroutine task on the running loop; a cancellation is reported as "given back"."""
        try:
            self._prepare()
            if self.task.adapter is not None and self.task.takes_context:
                await sync_to_async(self._adapt_context)()
            if IN_JOB_THREAD.are_heard(signals.job_started, self.claimed.task_name):
                await sync_to_async(self._publish_started)()  # in a thread, for receivers may ask the database
            return self._succeeded(await self._acall())
        except BaseException as exception:  # noqa: BLE001 -- as in run()
            return self.ended_by(exception)

    def interrupt(self) -> None:
        """Note that the execution is no longer this worker's; the caller makes the function stop."""
        self.interrupted = True
        if self.context is not None:
            self.context.lost.set()

    def time_out(self) -> None:
        """Note that the task's time is over; the caller makes the function stop."""
        self.timed_out = True

    def ask_to_cancel(self) -> None:
        """Note that somebody wants the job cancelled: its context says so from now on."""
        self.asked = True

    def cancel(self) -> None:
        """Note that the task is not waited for any longer; the caller makes the function stop."""
        self.asked = self.cancelled = True

    def _was_asked(self) -> bool:
        return self.asked or (self.asked_elsewhere is not None and self.asked_elsewhere())

    def note(self, execution_id: int, progress: Progress) -> None:
        """Take note of how far the task is, as it tells its context."""
        self.told = progress
        self.notes.note(self.claimed.key, progress)

    # ---------------------------------------------------------------- steps

    def _prepare(self) -> None:
        running_job.set(self.claimed.job_id)
        if self.claimed.start_by is not None and self.started_at > self.claimed.start_by:
            raise Cancel(EXPIRED)
        task = registry.get(self.claimed.task_name)
        if task is None:
            raise DoesNotFit(f"this worker knows no task named {self.claimed.task_name!r}")
        self.task = task
        if task.atomic and task.database not in (None, self.alias):
            raise DoesNotFit(f"{task.name} is atomic on database {task.database!r}, and its job is on {self.alias!r}")
        try:
            self.args, self.kwargs = decode_arguments(self.claimed.arguments)
            headers = decode_headers(self.claimed.headers)
        except ValueError as error:
            raise DoesNotFit(str(error)) from None
        if task.takes_context or middleware.chain().run:
            self.context = TaskContext(
                job_id=self.claimed.job_id,
                execution_id=self.claimed.execution_id,
                attempt=self.claimed.attempt,
                max_attempts=self.claimed.max_attempts,
                queue_name=self.claimed.queue_name,
                database=self.alias,
                asked_to_cancel=self._was_asked,
                task_name=task.name,
                headers=headers,
                _notes=self,
            )
        if task.takes_context:
            self.args.insert(0, self.context)

    def _adapt_context(self) -> None:
        if self.task.adapter is not None and self.task.takes_context and self.context is not None:
            self.args[0] = self.task.adapter.context(self.context)

    def _publish_started(self) -> None:
        if IN_JOB_THREAD.are_heard(signals.job_started, self.claimed.task_name):
            about = arguments_of(self.claimed, self.alias)
            IN_JOB_THREAD.publish(signals.job_started, self.claimed.task_name, about)

    def _call(self) -> Any:
        if self.context is not None and middleware.chain().run:
            return middleware.run_inside(self.context, self._enter)
        return self._enter()

    async def _acall(self) -> Any:
        try:
            if self.context is not None and middleware.chain().arun:
                return await middleware.arun_inside(self.context, self._enter)
            return await self._enter()
        finally:
            self._end_a_copy()

    def _enter(self) -> Any:
        """Call the function itself."""
        try:
            value = self.task.func(*self.args, **self.kwargs)
            if not self.task.is_async and type(value) not in returned.PLAIN:
                returned.refuse_what_has_not_run(value)
            return value
        except TypeError as error:
            # Binding first would cost 3 us a job; a call that fails to bind has no frame of the function in it.
            if not returned.binds(self.task, self.args, self.kwargs):
                raise DoesNotFit(f"the job's arguments do not fit {self.task.name}(): {error}") from error
            raise
        finally:
            self._end_a_copy()

    def _end_a_copy(self) -> None:
        """End a process that the task has forked, and that comes back here: it would answer in its parent's place."""
        if forks.here.copy != self.copy:
            os._exit(1)

    def _run_atomic(self) -> Report:
        connection = connections[self.alias]
        with atomic.transaction_of(connection, self.claimed) as commits:
            report = self._succeeded(self._call())
            if commits:
                atomic.expect_commit(connection)
            try:
                atomic.finish(connection, report, self.told)
            except LeaseLost:
                self.interrupted = True
                raise
            self.committing = True
        report.ending = Ending.WRITTEN
        return report

    # ---------------------------------------------------------------- ends

    def _succeeded(self, value: Any) -> Report:
        finished_at = time.monotonic()
        result = returned.encoded(self.task, value)
        keeps_nothing = self.task.retention_for("succeeded") == (True, 0.0)
        ending = Ending.DISCARDED if keeps_nothing else Ending.SUCCEEDED
        return Report(self.claimed, ending, self.started_at, finished_at, self.task, result)

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that ended with an exception; raises nothing but what is thrown in."""
        try:
            return self._ended_by(exception)
        except STOPS:
            raise
        except BaseException:  # noqa: BLE001 -- the exception's own code may raise anything
            return last_resort(self.claimed, self.started_at, may_be_committed=self.committing)

    def _ended_by(self, exception: BaseException) -> Report:
        if self.timed_out and is_a(exception, TaskTimeout, asyncio.CancelledError):
            exception = timeout_of(self.claimed).with_traceback(exception.__traceback__)
        elif self.cancelled and is_a(exception, asyncio.CancelledError) and not self.interrupted:
            exception = TaskCancelled()
        report = Report(
            self.claimed,
            Ending.FAILED,
            self.started_at,
            time.monotonic(),
            exception=exception,
            exception_class=returned.class_on_record(getattr(self, "task", None), exception),
            error=describe.message(exception),
            may_be_committed=self.committing,
        )
        if is_a(exception, Snooze):
            report.ending, report.delay_seconds = Ending.SNOOZED, exception.after_seconds
        elif is_a(exception, Cancel, TaskCancelled):
            report.ending = Ending.CANCELLED
            report.error = report.error or CANCELLED
        elif self.interrupted and not self.timed_out and not is_a(exception, Dead):
            report.ending = Ending.RELEASED  # whatever it raised then, it may have raised because it was interrupted
        elif is_a(exception, DoesNotFit):
            self._does_not_fit(report)
        else:
            self._failed(report, exception)
        return report

    def _does_not_fit(self, report: Report) -> None:
        report.delay_seconds = policy.delay_while_unknown(self.claimed.unknown_seconds)
        report.ending = Ending.FAILED if report.delay_seconds is None else Ending.UNKNOWN

    def _failed(self, report: Report, exception: BaseException) -> None:
        report.traceback = describe.traceback_text(exception)
        if is_a(exception, Dead) or is_a(exception, ResultNotStored):
            return
        if is_a(exception, Retry) and exception.after_seconds is not None:
            last = self.claimed.attempt >= self.claimed.max_attempts
            report.delay_seconds = None if last else exception.after_seconds
        else:
            report.delay_seconds = policy.delay_after_failure(self.claimed, exception)
