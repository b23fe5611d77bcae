"""Write reports to the database, and react to the transitions.

Each kind of ending has its own transition; all reports of one kind are written in one statement. The completer calls
this, and the foreground run and the testing kit in their own thread.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, countOf
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.declared.retry import DEFAULT_BACKOFF
from django_pgqueue.declared.steps import FOREVER_SECONDS
from django_pgqueue.ground.endings import ENDINGS, SUCCESSES, Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle import completions, steps
from django_pgqueue.lifecycle.completions import SUCCEEDED
from django_pgqueue.lifecycle.refused_rows import Refused, divided
from django_pgqueue.lifecycle.types import (
    Cancelled,
    Claimed,
    Failed,
    OpenExecution,
    Released,
    Succeeded,
    TransitionResult,
    TransitionStatus,
)
from django_pgqueue.reactions import JobTransition, Reactions, ended
from django_pgqueue.states import State
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.atomic import NoTransaction
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.refusals import Refusals

logger = logging.getLogger("django_pgqueue.worker")

WARN_AGAIN_SECONDS: Final = 60.0
ENDING: Final = attrgetter("ending")
EXECUTION_ID: Final = attrgetter("claimed.execution_id")
refusals: Final = Refusals("the release of execution")


class Finished(NamedTuple):
    """The reports that were not written, or do not count.

    They were `locked` by another session or left because time was up, `refused` by the database for their rows, or
    `lost`: another process had closed their execution.
    """

    locked: list[Report]
    refused: list[Refused[Report]]
    lost: list[Report]
    repeated: list[Report]
    """These were written before: the reply to an earlier call was lost."""


def finish(connection: Connection, reports: Sequence[Report], reactions: Reactions = FOREGROUND) -> Finished:
    """Write these reports and react to their transitions. Return those that were not written.

    An error that concerns all rows is raised. Some of the reports may be written then; writing them again is harmless.
    """
    by_ending = defaultdict[Ending, list[Report]](list)
    for ending, in_a_row in groupby(reports, key=ENDING):
        by_ending[ending] += in_a_row
    refused, by_status = [], defaultdict[TransitionStatus, list[Report]](list)
    skipped = None if reactions.concern_successes() else SUCCEEDED
    for ending, group in by_ending.items():
        parts = divided(connection, group, partial(WRITERS[ending], connection))
        results = parts.answers
        refused += parts.refused
        by_status[TransitionStatus.LOCKED] += parts.left
        is_divided = parts.refused or parts.left
        written = [report for report in group if report.claimed.execution_id in results] if is_divided else group
        is_success = _count_successes(reactions, ending, written, results)
        if is_success and skipped is SUCCEEDED:
            continue
        transitions = []
        for report in written:
            result = results[report.claimed.execution_id]
            if result is skipped:
                continue
            by_status[result.status].append(report)
            if result.status is not TransitionStatus.LOCKED:
                _log(report, result)
                transitions.append(_transition_of(report, result))
        if transitions:
            reactions.after(connection, transitions)
    lost = [report for report in by_status[TransitionStatus.LOST] if not report.may_be_committed]
    return Finished(by_status[TransitionStatus.LOCKED], refused, lost, by_status[TransitionStatus.ALREADY_DONE])


def _count_successes(
    reactions: Reactions, ending: Ending, reports: Sequence[Report], results: Mapping[int, TransitionResult]
) -> bool:
    """Pass on the reports that this call has written as successes. Return whether these are all: they usually are."""
    if ending not in SUCCESSES:
        return False
    are_all = countOf(results.values(), SUCCEEDED) == len(reports) == len(results)
    if not are_all:
        reports = [report for report in reports if results[report.claimed.execution_id] is SUCCEEDED]
    for counter in reactions.counters:
        counter.count_successes(reports)
    return are_all


def _transition_of(report: Report, result: TransitionResult) -> JobTransition:
    claimed = report.claimed
    return JobTransition(
        claimed.job_id,
        claimed.task_name,
        result,
        report.ending,
        report.error,
        report.exception,
        None if report.delay_seconds == FOREVER_SECONDS else report.delay_seconds,
        is_due=not report.delay_seconds,
        exception_class=report.exception_class,
        traceback=report.traceback,
        attempt=report,
        details={
            "execution_id": claimed.execution_id,
            "queue_name": claimed.queue_name,
            "attempt": claimed.attempt,
            "duration_seconds": report.duration_seconds,
        },
    )


def _log(report: Report, result: TransitionResult) -> None:
    """Log that a report does not count, or that its job cannot run here."""
    if result.status is TransitionStatus.LOST and report.may_be_committed:
        logger.warning(
            "job %s: the reply to its COMMIT was lost; the execution is already closed in the database",
            report.claimed.job_id,
            extra=job_event("commit_reply_lost", report.claimed),
        )
    elif result.status is TransitionStatus.LOST:
        logger.warning(
            "execution %s of job %s was closed by another process; its result (%s) does not count",
            report.claimed.execution_id,
            report.claimed.job_id,
            report.ending.value,
            extra=job_event("result_discarded", report.claimed),
        )
    elif result.status is TransitionStatus.DONE and report.ending is Ending.UNKNOWN:
        _warn_unknown(report)
    elif report.holds_key and report.claimed.limit_key is None:
        _warn_throttled(report)


_throttled: set[str] = set()
"""Tasks without a limit that raised `Throttled`."""


def _warn_throttled(report: Report) -> None:
    """Log that `Throttled` held no limit key, once for each task."""
    claimed = report.claimed
    if claimed.task_name not in _throttled:
        _throttled.add(claimed.task_name)
        logger.warning(
            "job %s raised Throttled, but has no limit, so it is only snoozed: pass limit= to the task %s",
            claimed.job_id,
            registry.in_words(claimed.task_name),
            extra=job_event("throttled_without_limit", claimed),
        )


_warned_at: dict[str, float] = {}


def _warn_unknown(report: Report) -> None:
    """Log that a job cannot run here, once a minute for each task, because there may be thousands of such jobs."""
    now, task_name = time.monotonic(), report.claimed.task_name
    if now - _warned_at.get(task_name, float("-inf")) > WARN_AGAIN_SECONDS:
        _warned_at[task_name] = now
        is_outage = isinstance(report.exception, NoTransaction)
        logger.warning(
            "job %s is released for now: %s%s",
            report.claimed.job_id,
            report.error,
            "" if is_outage else " (was this worker started before the code was deployed?)",
            extra=job_event("task_unknown", report.claimed),
        )


# ------------------------------------------------------------------------------- one writer per ending

Writer = Callable[[Connection, Sequence[Report]], dict[int, TransitionResult]]


def _ages(report: Report, now: float) -> tuple[float, float]:
    return now - report.started_at, now - report.finished_at


def _write_succeeded(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    now = time.monotonic()
    rows = [Succeeded(r.claimed.key, r.result, now - r.started_at, now - r.finished_at) for r in reports]
    return completions.succeed(connection, rows)


def _write_discarded(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    results = completions.succeed_and_discard(connection, [r.claimed.key for r in reports])
    if with_steps := [r.claimed.job_id for r in reports if r.has_steps]:
        # The jobs are gone. If the database refuses this, their steps are removed as those of jobs deleted by SQL.
        divided(connection, with_steps, partial(_remove_steps, connection))
    return results


def _remove_steps(connection: Connection, job_ids: Sequence[int]) -> dict[int, bool]:
    steps.remove_steps(connection, job_ids)
    return {}


def _already_written(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    return dict.fromkeys(map(EXECUTION_ID, reports), SUCCEEDED)


def _write_failed(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    now = time.monotonic()
    rows = [
        Failed(
            r.claimed.key,
            ENDINGS[r.ending].outcome,
            r.delay_seconds,
            *_ages(r, now),
            r.exception_class,
            r.error,
            r.traceback,
            DEFAULT_BACKOFF(r.claimed.attempt, None) if r.is_exhausted else None,
        )
        for r in reports
    ]
    results = completions.fail(connection, rows)
    for report, row in zip(reports, rows, strict=True):
        _note_changed_attempts(report, row, results[report.claimed.execution_id])
    return results


def _note_changed_attempts(report: Report, row: Failed, result: TransitionResult) -> None:
    """Correct the delay of a report if an operator has changed the job's `max_attempts` since its claim."""
    if result.status is TransitionStatus.DONE and result.state is State.READY:
        report.delay_seconds = row.spare_seconds if row.delay_seconds is None else row.delay_seconds
    elif result.status is TransitionStatus.DONE and result.state is State.DEAD:
        report.delay_seconds = None


def _released_rows(reports: Sequence[Report]) -> list[Released]:
    return [Released(r.claimed.key, r.delay_seconds, r.error, r.holds_key) for r in reports]


def _write_released(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    return completions.release(connection, _released_rows(reports))


def _write_unknown(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    return completions.release(connection, _released_rows(reports), unknown=True)


def _write_snoozed(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    return completions.snooze(connection, _released_rows(reports))


def _write_suspended(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    """Suspend jobs. Then look for events that came before the jobs were waiting for them: such a job is due."""
    now = time.monotonic()
    suspended = steps.SuspendedExecution
    rows = [suspended(r.claimed.key, r.suspension, *_ages(r, now)) for r in reports if r.suspension]
    results = steps.suspend(connection, rows)
    waiting = {r.claimed.job_id: r for r in reports if r.suspension is not None and r.suspension.event_name}
    if waiting:
        for job_id in steps.wake_suspended(connection, waiting):
            waiting[job_id].delay_seconds = 0.0
    return results


def _write_cancelled(connection: Connection, reports: Sequence[Report]) -> dict[int, TransitionResult]:
    now = time.monotonic()
    rows = [Cancelled(r.claimed.key, *_ages(r, now), r.error) for r in reports]
    return completions.end_cancelled(connection, rows)


WRITERS: Final[dict[Ending, Writer]] = {
    Ending.SUCCEEDED: _write_succeeded,
    Ending.DISCARDED: _write_discarded,
    Ending.WRITTEN: _already_written,
    Ending.FAILED: _write_failed,
    Ending.CRASHED: _write_failed,
    Ending.RELEASED: _write_released,
    Ending.UNKNOWN: _write_unknown,
    Ending.POSTPONED: _write_released,
    Ending.SNOOZED: _write_snoozed,
    Ending.SUSPENDED: _write_suspended,
    Ending.CANCELLED: _write_cancelled,
}


Releasable = Claimed | OpenExecution
"""A claimed job, or an open execution as the database reports it."""


def release_executions(
    connection: Connection, executions: Sequence[Releasable], reactions: Reactions = FOREGROUND
) -> dict[int, TransitionResult]:
    """Release these executions in one statement, and react to that. The fetcher and a stopping process call it too.

    An execution whose release the database refuses stays open: the release is retried, or the lease expires and the job
    is rescued.

    Return the result for each execution, without those whose release the database refuses, or that time was up for.
    """
    if not executions:
        return {}
    rows = [Released(execution.key) for execution in executions]
    results, refused, _ = divided(connection, rows, lambda part: completions.release(connection, part))
    for row, error in refused:
        refusals.note(row.key.execution_id, error)
    reactions.after(connection, transitions_of(executions, results))
    return results


def transitions_of(executions: Iterable[Releasable], results: Mapping[int, TransitionResult]) -> list[JobTransition]:
    """Return the transitions of released executions. Jobs that were due at their claim are due now."""
    return [
        ended(execution, results[execution.execution_id], Ending.RELEASED, is_due=True)
        for execution in executions
        if execution.execution_id in results
    ]
