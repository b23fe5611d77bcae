"""Run the jobs of a chunk in one call of their task's function, and report how each of them ended.

The slots, the isolated process and the foreground run make attempts with `attempt_of()`. A chunk is one attempt for
them, under the execution of its first job. Each job keeps its own execution, and gets its own report: a success, or the
exception that ended it alone, or the one that ended the whole call.

A job whose arguments cannot be read, whose row is gone or that has expired is left out of the chunk, with its own
report. The others run without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from django_pgqueue import middleware
from django_pgqueue.arguments.plan import CallArguments
from django_pgqueue.declared.chunks import Chunk, ChunkJob, results_of
from django_pgqueue.exceptions import Cancel, Dead, ResultNotStored
from django_pgqueue.ground.endings import SUCCESSES, Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.signals import job_started
from django_pgqueue.tasks.context import TaskContext
from django_pgqueue.tasks.redaction import hidden_from_reports

from . import stored_values
from .attempt import Attempt
from .attempt_plan import AttemptPlan, plan_of
from .job_events import IN_JOB_THREAD, start_of
from .report import EXPIRED, ProgressSink, Report, binds, encoded_result, for_each_job, success_ending
from .stored_values import DoesNotFit, arguments_with_results, read_call

UNDONE: Final = "the call is undone, because the result of another job of its chunk cannot be stored"


def attempt_of(
    claimed: Claimed, alias: str, notes: ProgressSink, asked_elsewhere: Callable[[], bool] | None = None
) -> Attempt:
    """Return the attempt that runs a claimed job, or a chunk of jobs, outside of the slots."""
    attempt = planned_attempt(plan_of(claimed.task_name), claimed, alias, notes)
    attempt.asked_elsewhere = asked_elsewhere
    return attempt


def planned_attempt(plan: AttemptPlan, claimed: Claimed, alias: str, notes: ProgressSink) -> Attempt:
    """Return the attempt that runs a claimed job, or a chunk of jobs, by the plan of its task."""
    attempt_class = ChunkAttempt if plan.makes_chunks or claimed.others is not None else Attempt
    return attempt_class(plan, claimed, alias, notes)


class ChunkAttempt(Attempt):
    """One attempt at all jobs of a chunk. A job that was not claimed as a chunk is a chunk of one."""

    is_of_chunk = True

    def __init__(self, plan: AttemptPlan, claimed: Claimed, alias: str, notes: ProgressSink) -> None:
        super().__init__(plan, claimed, alias, notes)
        self.asked_ids: set[int] = set()
        self.calls: dict[int, tuple[CallArguments, dict[str, Any]]] = {}
        """The arguments and headers of each job that is not left out, by execution."""
        self.chunk: Chunk[Any] = Chunk(())
        self.jobs: dict[int, ChunkJob[Any]] = {}
        """The jobs of the chunk, by execution."""
        self.left_out: dict[int, BaseException] = {}
        """Why jobs are not in the chunk, by execution."""

    # ---------------------------------------------------------------- steps

    def _find_task(self) -> None:
        for job in self.claimed.members:
            if job.start_by is not None and self.started_at > job.start_by:
                self.left_out[job.execution_id] = Cancel(EXPIRED)
        super()._find_task()

    def _check_expiry(self, start_by: float) -> None:
        """Do nothing: the first job alone may have expired, and `_find_task()` leaves it out."""

    def _decode_call(self) -> None:
        """Decode the arguments and the headers of each job."""
        for job in self.claimed.members:
            if job.execution_id not in self.left_out:
                try:
                    self.calls[job.execution_id] = self._decoded(job)
                except (DoesNotFit, Dead) as error:
                    self.left_out[job.execution_id] = error
        if self.calls and middleware.chain().run:
            self.context = self._context()

    def _decoded(self, job: Claimed) -> tuple[CallArguments, dict[str, Any]]:
        """Return the arguments and the headers of a job. Raise `DoesNotFit` or `Dead` as `read_call()`."""
        args, kwargs, headers = read_call(job)
        is_plain = len(args) == 1 and not kwargs  # the usual call, without the 3 µs of a signature
        if not is_plain and not binds(self.task, args, kwargs):
            raise DoesNotFit(f"the job's arguments do not fit {self.task.name}(), which takes one argument")
        return (args, kwargs), headers

    def _add_results(self) -> None:
        """Replace the markers in the arguments of each node of a workflow."""
        for job in self.claimed.members:
            if job.in_graph and job.execution_id in self.calls:
                call, headers = self.calls[job.execution_id]
                try:
                    read = hidden_from_reports(arguments_with_results)  # results can be secret
                    args, kwargs = read(connections[self.alias], job.job_id, [list(call[0]), dict(call[1])])
                except (DoesNotFit, Dead) as error:
                    self.left_out[job.execution_id] = error
                else:
                    self.calls[job.execution_id] = (args, kwargs), headers

    def _context(self) -> TaskContext:
        """Return the context that middleware gets: that of the first job, with the headers that all jobs share."""
        lost = threading.Event()
        contexts = [
            TaskContext(
                job_id=job.job_id,
                execution_id=job.execution_id,
                attempt=job.attempt,
                max_attempts=job.max_attempts,
                queue_name=job.queue_name,
                database=self.alias,
                lost=lost,
                asked_to_cancel=partial(self._is_asked, job.execution_id),
                task_name=self.task.name,
                headers=self.calls[job.execution_id][1],
                error_in_chunk=partial(self._own_error, job.execution_id),
            )
            for job in self.claimed.members
            if job.execution_id in self.calls
        ]
        first, *others = contexts
        in_all = [item for item in first.headers.items() if all(_has(each.headers, *item) for each in others)]
        return replace(first, headers=dict(in_all), asked_to_cancel=self.was_asked, chunk=tuple(contexts))

    def _publish_start(self) -> None:
        for job in self.claimed.members:
            if job.execution_id not in self.left_out:
                IN_JOB_THREAD.publish(job_started, job.task_name, start_of(job, self.alias))

    def _converted_call(self) -> Any:
        """Make the chunk, and call the task's function unless no job is left."""
        self._make_chunk()
        return self._call_function() if self.chunk else None

    async def _aenter(self) -> Any:
        plan = self.task.plan
        if plan is not None and plan.loads_rows:
            await sync_to_async(self._make_chunk)()
        else:
            self._make_chunk()
        return await self._call_function() if self.chunk else None

    def _make_chunk(self) -> None:
        plan = self.task.plan
        if plan is not None:
            rows = stored_values.loaded_rows(plan, [call for call, _ in self.calls.values()], self.alias)
            convert = hidden_from_reports(stored_values.converted) if self.task.sensitive else stored_values.converted
            for execution_id, (call, headers) in self.calls.items():
                if execution_id not in self.left_out:
                    try:
                        self.calls[execution_id] = convert(self.task, plan, *call, rows), headers
                    except (DoesNotFit, Exception) as error:  # noqa: BLE001 -- only this job ends with it
                        self.left_out[execution_id] = error
        self.jobs = {
            job.execution_id: self._chunk_job(job, *self.calls[job.execution_id])
            for job in self.claimed.members
            if job.execution_id not in self.left_out
        }
        self.chunk = Chunk(list(self.jobs.values()))
        self.args, self.kwargs = [self.chunk], {}

    def _chunk_job(self, job: Claimed, call: CallArguments, headers: Mapping[str, Any]) -> ChunkJob[Any]:
        [item] = [*call[0], *call[1].values()]
        return ChunkJob(
            item=item,
            id=job.job_id,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            headers=headers,
            asked_to_cancel=partial(self._is_asked, job.execution_id),
        )

    def _is_asked(self, execution_id: int) -> bool:
        return execution_id in self.asked_ids or self.was_asked()

    # ---------------------------------------------------------------- reports

    def _succeeded(self, value: Any) -> Report:
        """Return the reports of a call that has returned. Raise `Dead` if it has not returned a result for each job.

        If a result of an atomic chunk cannot be stored, the writes for its job must be undone. Only the whole call can
        be, so its other jobs are released, and run again without this one.
        """
        finished_at, ending = time.monotonic(), success_ending(self.task, self.claimed)
        encoded = self._encoded(dict(zip(self.jobs, results_of(self.chunk, value), strict=True)))
        is_undone = self.task.atomic and any(isinstance(each, ResultNotStored) for each in encoded.values())

        def end_of(job: Claimed) -> Report:
            result = encoded[job.execution_id]
            if isinstance(result, ResultNotStored):
                return self._failure_of(job, result)
            if is_undone:
                return Report(job, Ending.RELEASED, self.started_at, finished_at, self.task, error=UNDONE)
            return Report(job, ending, self.started_at, finished_at, self.task, result)

        return self._reports(end_of)

    def _successes(self, report: Report) -> Sequence[Report]:
        """Return the reports of the jobs that have succeeded: each of them may have failed by itself."""
        return [each for each in (report, *report.others) if each.ending in SUCCESSES]

    def _encoded(self, results: Mapping[int, Any]) -> dict[int, str | ResultNotStored | None]:
        """Return what to store as the result of each job that has no error of its own, or why it cannot be stored."""
        encoded: dict[int, str | ResultNotStored | None] = {}
        for execution_id, result in results.items():
            if self._own_error(execution_id) is None:
                try:
                    encoded[execution_id] = encoded_result(self.task, result)
                except ResultNotStored as error:
                    encoded[execution_id] = error
        return encoded

    def ended_by(self, exception: BaseException) -> Report:
        """Return the reports of a call that ended with an exception. Raise only what another thread raises."""
        return self._reports(lambda job: self._failure_of(job, exception, ended_call=True))

    def _reports(self, of_others: Callable[[Claimed], Report]) -> Report:
        """Return the reports of all jobs: by the errors of single jobs, and by `of_others` for the others."""

        def report_of_job(job: Claimed) -> Report:
            own_error = self._own_error(job.execution_id)
            return of_others(job) if own_error is None else self._failure_of(job, own_error)

        return for_each_job(self.claimed, report_of_job)

    def _own_error(self, execution_id: int) -> BaseException | None:
        """Return the exception that ends a job alone: why it was left out, or that of `chunk.fail()`."""
        if execution_id in self.jobs:
            return self.chunk.error_of(self.jobs[execution_id])
        return self.left_out.get(execution_id)

    def _failure_of(self, job: Claimed, error: BaseException, *, ended_call: bool = False) -> Report:
        """Return the report of a job that ended with an exception of its own, or with that of the call."""
        attempt = Attempt(self.plan, job, self.alias, self.notes)
        attempt.started_at = self.started_at
        if ended_call:
            attempt.interrupted, attempt.timed_out = self.interrupted, self.timed_out
            attempt.cancelled, attempt.committing = self.cancelled, self.committing
        return attempt.ended_by(error)

    # ---------------------------------------------------------------- from other threads

    def ask_to_cancel(self, of_chunk: AbstractSet[int] = frozenset()) -> None:
        """Record that jobs of the chunk should be cancelled. Their `cancel_requested()` returns True from now on.

        `of_chunk` are their executions. An empty set stands for all jobs.
        """
        self.asked_ids |= of_chunk
        if not of_chunk or of_chunk >= {job.execution_id for job in self.claimed.members}:
            super().ask_to_cancel()


def _has(headers: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in headers and headers[name] == value and type(headers[name]) is type(value)
