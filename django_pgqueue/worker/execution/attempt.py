"""Run one claimed job and return a report of how it ended.

A slot, the isolated process and the foreground run call this. It catches everything that a task raises, so every
attempt ends with a report. It writes to the database only to complete an atomic task.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from django_pgqueue import log, middleware
from django_pgqueue.exceptions import Cancel, LeaseLost
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.signals import job_started
from django_pgqueue.tasks.context import TaskContext, running_database, running_job
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.tasks.redaction import hidden_from_reports
from django_pgqueue.worker.runtime.process_info import call_here, end_copy, forks

from . import atomic, log_recorder, stored_values
from .attempt_plan import AttemptPlan
from .failure import report_of
from .job_events import IN_JOB_THREAD, start_of
from .report import EXPIRED, PLAIN, ProgressSink, Report, binds, encoded_result, refuse_unrun_value, success_ending
from .steps.runner import AttemptSteps
from .stored_values import DoesNotFit, arguments_with_results, read_call


class Attempt:
    """One attempt at a claimed job. One thread runs it; other threads only set its flags."""

    # The following are the same for most attempts, so they are values of the class.
    context: TaskContext | None = None
    steps: AttemptSteps | None = None
    outer_blocks = 0
    progress: Progress | None = None
    asked_elsewhere: Callable[[], bool] | None = None
    """Asks another process whether the job is to be cancelled."""
    interrupted = timed_out = committing = asked = cancelled = False
    is_of_chunk = False
    """Whether the function gets a chunk."""
    runs_here = True
    """Whether the function runs in this process."""
    args: list[Any]
    kwargs: dict[str, Any]

    def __init__(self, plan: AttemptPlan, claimed: Claimed, alias: str, notes: ProgressSink) -> None:
        self.plan = plan
        self.task: TaskDefinition = plan.task  # type: ignore[assignment]  # `_find_task()` raises if it is None
        self.claimed = claimed
        self.alias = alias
        self.notes = notes
        self.copy = forks.count
        self.started_at = time.monotonic()

    def run(self) -> Report:
        """Run the task in this thread. Raise nothing except what another thread raises in this one.

        The slot has cleaned the thread's database connections before, and does so again afterwards.
        """
        try:
            self._find_task()
            self._decode_call()
            if self.claimed.in_graph or self.claimed.others:
                self._add_results()
            if self.plan.adapts_context:
                self._adapt_context()
            if job_started.receivers or job_started in log.enabled:
                self._publish_start()
            return self._succeeded(self._call()) if self.plan.is_called_directly else self._run_specially()
        except BaseException as exception:  # noqa: BLE001 -- no exception of a task may end the worker
            return self.ended_by(exception)
        finally:
            if forks.count != self.copy:
                end_copy()

    async def run_async(self) -> Report:
        """Run a coroutine task on the running event loop. A cancellation by `interrupt()` is reported as released."""
        try:
            self._find_task()
            self._decode_call()
            if self.claimed.in_graph or self.claimed.others:
                await self._add_results_in_thread()
            if self.plan.adapts_context:
                await sync_to_async(self._adapt_context)()
            if job_started.receivers or job_started in log.enabled:
                await self._publish_start_in_thread()
            reporter = hidden_from_reports(self._succeeded) if self.plan.hides_result else self._succeeded
            return reporter(await self._acall())
        except BaseException as exception:  # noqa: BLE001 -- as in run()
            return self.ended_by(exception)
        finally:
            if forks.count != self.copy:
                end_copy()

    # ---------------------------------------------------------------- steps

    def _find_task(self) -> None:
        """Find the task. Raise `Cancel` if the job has expired, `DoesNotFit` if it cannot run here."""
        claimed = self.claimed
        running_job.set(claimed)
        running_database.set(self.alias)
        if claimed.start_by is not None:
            self._check_expiry(claimed.start_by)
        if self.plan.has_preparations:
            self._prepare()

    def _prepare(self) -> None:
        """Check that there is a task, and the database of an atomic one, and start to keep log lines."""
        if self.task is None:
            raise DoesNotFit(f"this worker has no task named {self.claimed.task_name!r}")
        alias, log_level = self.plan.only_database, self.plan.log_level
        if alias not in (None, self.alias):
            raise DoesNotFit(f"{self.task.name} is atomic on database {alias!r}, but its job is on {self.alias!r}")
        if log_level is not None:
            log_recorder.start(log_level, self.notes.open_log(self.claimed.key))

    def _check_expiry(self, start_by: float) -> None:
        if self.started_at > start_by:
            raise Cancel(EXPIRED)

    def _decode_call(self) -> None:
        """Decode the arguments and the headers, and build the context if the task or a middleware uses it."""
        self.args, self.kwargs, headers = read_call(self.claimed)
        if self.plan.takes_context or middleware.chain().run:
            self.context = context_of(self, headers)
            if self.plan.takes_context:
                self.args.insert(0, self.context)

    def _add_results(self) -> None:
        """Replace the markers in the arguments of a workflow's node by the results of other jobs."""
        read = hidden_from_reports(arguments_with_results)  # results can be secret
        self.args, self.kwargs = read(
            connections[self.alias], self.claimed.job_id, [self.args, self.kwargs], self.claimed.results
        )
        if self.claimed.results is not None:  # a report that waits to be written would keep them
            self.claimed = self.claimed._replace(results=None)

    async def _add_results_in_thread(self) -> None:
        """Do the same. Unless the claim has read the results, a thread does, because it queries the database."""
        if self.claimed.results is not None:
            self._add_results()
        else:
            await sync_to_async(self._add_results)()

    def _adapt_context(self) -> None:
        if self.task.adapter is not None and self.context is not None:
            self.args[0] = self.task.adapter.context(self.context)

    def _publish_start(self) -> None:
        IN_JOB_THREAD.publish(job_started, self.claimed.task_name, start_of(self.claimed, self.alias))

    async def _publish_start_in_thread(self) -> None:
        """Publish the start in a thread, because receivers may query the database."""
        if IN_JOB_THREAD.are_heard(job_started, self.claimed.task_name):
            await sync_to_async(self._publish_start)()

    def _call(self) -> Any:
        """Call the function inside the middleware. A copy must not get back: it would commit an atomic task."""
        if self.context is not None and middleware.chain().run:
            return call_here(partial(middleware.run_inside, self.context, self._enter))
        return self._enter()

    async def _acall(self) -> Any:
        """Call the coroutine function inside the middleware."""
        try:
            if self.context is None and self.task.known_plan is None and not self.is_of_chunk:
                return await self._call_function()  # as for most: nothing is around it, and nothing to convert
            if self.context is not None and middleware.chain().arun:
                return await middleware.arun_inside(self.context, self._aenter)
            return await self._aenter()
        finally:
            if forks.count != self.copy:
                end_copy()

    def _enter(self) -> Any:
        """Convert the arguments and call the task's function.

        A copy that a middleware has forked must not call it, and a copy that the function has forked must not get back.
        """
        if forks.count != self.copy:
            end_copy()
        try:
            return self._converted_call()
        finally:
            if forks.count != self.copy:
                end_copy()

    def _converted_call(self) -> Any:
        if self.task.known_plan is not None:
            self._convert_call()
        return self._call_function()

    def _aenter(self) -> Awaitable[Any]:
        """Return the coroutine of the function. If an argument is a row, load it in a thread first."""
        plan = self.task.plan
        call = self._load_and_call() if plan is not None and plan.loads_rows else self._converted_call()
        return call if self.steps is None else self.steps.calls.around(call)

    async def _load_and_call(self) -> Any:
        await sync_to_async(self._convert_call)()
        return await self._call_function()

    def _convert_call(self) -> None:
        """Turn the stored arguments into what the annotations say. Do nothing if they stay plain JSON."""
        plan = self.task.plan
        if plan is None:
            return
        first = int(self.task.takes_context)
        # A value that does not fit raises an error whose frames contain all arguments.
        decoded = hidden_from_reports(stored_values.decoded) if self.task.sensitive else stored_values.decoded
        args, self.kwargs = decoded(self.task, plan, self.args[first:], self.kwargs, self.alias)
        self.args[first:] = args

    def _call_function(self) -> Any:
        """Call the task's function."""
        try:
            value = self.task.entry(*self.args, **self.kwargs)
            if type(value) not in PLAIN and not self.task.is_async:
                refuse_unrun_value(value)
            return value
        except TypeError as error:
            # Check the binding only after a TypeError: checking before the call would cost 3 µs a job.
            if not binds(self.task, self.args, self.kwargs):
                raise DoesNotFit(f"the job's arguments do not fit {self.task.name}(): {error}") from error
            raise

    def _run_specially(self) -> Report:
        """Call the function of an atomic task, a coroutine function, or one with sensitive arguments."""
        reporter = hidden_from_reports(self._succeeded) if self.plan.hides_result else self._succeeded
        if self.task.atomic:
            return self._run_atomic(reporter)
        return reporter(async_to_sync(self._acall)() if self.task.is_async else self._call())

    def _run_atomic(self, reporter: Callable[[Any], Report]) -> Report:
        """Call the function and complete the job in one transaction. `reporter` makes the report of its result."""
        connection = connections[self.alias]
        with atomic.transaction_of(connection, self.claimed) as commits:
            report = reporter(self._call())
            succeeded = self._successes(report)
            if not succeeded:
                transaction.set_rollback(True, using=self.alias)
                return report
            if commits:
                atomic.expect_commit(connection)
            try:
                atomic.finish(connection, succeeded, self.progress)
            except LeaseLost:
                self.interrupted = True
                raise
            self.committing = True
        for each in succeeded:
            each.ending = Ending.WRITTEN
        return report

    def _successes(self, report: Report) -> Sequence[Report]:
        """Return the reports of the jobs that have succeeded. The call has returned, so a job that is alone has."""
        return (report,)

    def _succeeded(self, value: Any) -> Report:
        """Encode the result and return the report of a success."""
        finished_at = time.monotonic()
        task = self.task
        has_steps = False if self.steps is None else self.steps.end()
        result = None
        if value is not None or task.known_plan is not None or task.adapter is not None:  # of most tasks, it is None
            result = encoded_result(task, value)
        ending = Ending.SUCCEEDED if task.retention is None else success_ending(task, self.claimed)
        report = Report(self.claimed, ending, self.started_at, finished_at, task, result)
        if self.steps is not None:
            report.has_steps, report.has_compensations = has_steps, self.steps.has_compensations
        return report

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that ended with an exception. Raise only what another thread raises."""
        if self.steps is not None:
            self.interrupted = self.interrupted or self.steps.is_lost
            exception = self.steps.cause_of_end(exception)
        return report_of(self, exception)

    # ---------------------------------------------------------------- from other threads, and from the context

    def interrupt(self) -> None:
        """Record that the lease is lost. The caller stops the function."""
        self.interrupted = True
        if self.context is not None:
            self.context.lost.set()

    def time_out(self) -> None:
        """Record that the timeout has passed. The caller stops the function."""
        self.timed_out = True

    def ask_to_cancel(self, of_chunk: AbstractSet[int] = frozenset()) -> None:
        """Record that the job should be cancelled: `context.cancel_requested()` is true. `of_chunk` is for chunks."""
        self.asked = True

    def cancel(self) -> None:
        """Record that the time to stop after a cancellation has passed. The caller stops the function."""
        self.asked = self.cancelled = True

    def was_asked(self) -> bool:
        return self.asked or (self.asked_elsewhere is not None and self.asked_elsewhere())

    def note(self, execution_id: int, progress: Progress) -> None:
        """Record the progress that the task reports to its context."""
        self.progress = progress
        self.notes.note(self.claimed.key, progress)


def context_of(attempt: Attempt, headers: Mapping[str, Any]) -> TaskContext:
    """Return the context of an attempt. A task with a context can use steps."""
    claimed, task = attempt.claimed, attempt.task
    if task.takes_context:
        attempt.steps = AttemptSteps(claimed, attempt.alias, task, attempt.outer_blocks)
    context = TaskContext(
        job_id=claimed.job_id,
        execution_id=claimed.execution_id,
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        queue_name=claimed.queue_name,
        database=attempt.alias,
        asked_to_cancel=attempt.was_asked,
        task_name=task.name,
        headers=headers,
        _notes=attempt,
        _steps=attempt.steps,
    )
    if attempt.steps is not None:
        attempt.steps.context = context
    return context
