"""Write reports to the database, and publish the transitions.

Each kind of ending has its own transition; all reports of one kind are written in one statement. The completer calls
this, and the foreground run and the testing kit in their own thread.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from django_pgqueue import lifecycle, log, signals
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import Moved, TransitionResult
from django_pgqueue.states import Outcome, State
from django_pgqueue.worker.execution.report import Ending, Report

from .events import IN_THIS_THREAD, Events, arguments_of
from .waiters import Waiters, may_be_over

logger = logging.getLogger("django_pgqueue.worker")

WARN_AGAIN_SECONDS: Final = 60.0
SUCCEEDED: Final = Moved(TransitionResult.DONE, State.SUCCEEDED)


class Finished(NamedTuple):
    """The reports that were not written: `locked` by another session, or `refused` by the database for their rows."""

    locked: list[Report]
    refused: list[lifecycle.Refused[Report]]


def finish(
    connection: Connection,
    reports: Sequence[Report],
    waiters: Waiters | None = None,
    events: Events = IN_THIS_THREAD,
) -> Finished:
    """Write these reports and publish their events. Return those that were not written.

    With `waiters`, applications that wait for these jobs are notified; the connection must commit each statement then.

    An error that concerns all rows is raised. Some of the reports may be written then; writing them again is harmless.
    """
    by_ending = defaultdict(list)
    for report in reports:
        by_ending[report.ending].append(report)
    locked, refused = [], []
    successes_are_heard = log.is_enabled_for(signals.job_succeeded) or bool(signals.job_succeeded.receivers)
    for ending, group in by_ending.items():
        parts = lifecycle.divided(connection, group, partial(WRITERS[ending], connection))
        moves = parts.answers
        refused += parts.refused
        written = [report for report in group if report.claimed.execution_id in moves] if parts.refused else group
        if waiters:
            over = [report.claimed for report in written if may_be_over(moves[report.claimed.execution_id])]
            waiters.notify(connection, [claimed.job_id for claimed in over])
        for report in written:
            moved = moves[report.claimed.execution_id]
            if moved is not SUCCEEDED or successes_are_heard:  # otherwise there is nothing to publish
                if moved.fate is TransitionResult.LOCKED:
                    locked.append(report)
                else:
                    publish(report, moved, connection.alias, events)
    return Finished(locked, refused)


def publish(report: Report, moved: Moved, database: str, events: Events) -> None:
    """Publish the transition of a written report, or log that the report does not count."""
    if moved.fate is TransitionResult.LOST and report.may_be_committed:
        logger.warning(
            "job %s: the reply to its COMMIT was lost; the execution is already closed in the database",
            report.claimed.job_id,
        )
    elif moved.fate is TransitionResult.LOST:
        logger.warning(
            "execution %s of job %s was closed by another process; its result (%s) does not count",
            report.claimed.execution_id,
            report.claimed.job_id,
            report.ending.value,
        )
    elif moved.fate is TransitionResult.DONE:
        if report.ending is Ending.UNKNOWN:
            _warn_unknown(report)
        elif report.ending is Ending.CRASHED:
            _warn_crashed(report, moved)
        _publish_event(report, moved.state, database, events)


_warned_at: dict[str, float] = {}


def _warn_unknown(report: Report) -> None:
    """Log that a job cannot run here, once a minute for each task, because there may be thousands of such jobs."""
    now, task_name = time.monotonic(), report.claimed.task_name
    if now - _warned_at.get(task_name, float("-inf")) > WARN_AGAIN_SECONDS:
        _warned_at[task_name] = now
        logger.warning(
            "job %s is released for now: %s (was this worker started before the code was deployed?)",
            report.claimed.job_id,
            report.error,
        )


def _warn_crashed(report: Report, moved: Moved) -> None:
    claimed = report.claimed
    logger.warning(
        "job %s (%s), attempt %d: %s; now %s",
        claimed.job_id,
        claimed.task_name,
        claimed.attempt,
        report.error,
        moved.state,
    )


def _publish_event(report: Report, state: State | None, database: str, events: Events) -> None:
    signal, extra = _signal_for(report, state)
    claimed = report.claimed
    if signal is None or not events.are_heard(signal, claimed.task_name):
        return
    extra |= {"duration_seconds": report.duration_seconds}
    events.publish(signal, claimed.task_name, arguments_of(claimed, database) | extra)


def _signal_for(report: Report, state: State | None) -> tuple[Any, dict[str, Any]]:
    if state is State.SUCCEEDED:
        return signals.job_succeeded, {}
    if state is State.DEAD:
        return signals.job_dead, {"exception": report.exception, "error": report.error}
    if state is State.CANCELLED:
        return signals.job_cancelled, {"error": report.error}
    if report.ending in (Ending.FAILED, Ending.CRASHED):
        retry = {"exception": report.exception, "error": report.error, "retry_seconds": report.delay_seconds}
        return signals.job_failed, retry
    return None, {}


# ------------------------------------------------------------------------------- one writer per ending

Writer = Callable[[Connection, Sequence[Report]], dict[int, Moved]]


def _ages(report: Report, now: float) -> tuple[float, float]:
    return now - report.started_at, now - report.finished_at


def _as_moved(results: dict[int, TransitionResult], done: Moved) -> dict[int, Moved]:
    result_done = done.fate
    return {key: done if result is result_done else Moved(result) for key, result in results.items()}


def _write_succeeded(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    now = time.monotonic()
    rows = [lifecycle.Succeeded(r.claimed.key, r.result, *_ages(r, now)) for r in reports]
    return _as_moved(lifecycle.succeed(connection, rows), SUCCEEDED)


def _write_discarded(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    return _as_moved(lifecycle.succeed_and_discard(connection, [r.claimed.key for r in reports]), SUCCEEDED)


def _already_written(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    return dict.fromkeys([report.claimed.execution_id for report in reports], SUCCEEDED)


def _write_failed(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    now = time.monotonic()
    rows = [
        lifecycle.Failed(
            r.claimed.key,
            Outcome.CRASHED if r.ending is Ending.CRASHED else Outcome.FAILED,
            r.delay_seconds,
            *_ages(r, now),
            r.exception_class,
            r.error,
            r.traceback,
        )
        for r in reports
    ]
    return lifecycle.fail(connection, rows)


def _released_rows(reports: Sequence[Report]) -> list[lifecycle.Released]:
    return [lifecycle.Released(r.claimed.key, r.delay_seconds, r.error) for r in reports]


def _write_released(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    return lifecycle.release(connection, _released_rows(reports))


def _write_unknown(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    return lifecycle.release(connection, _released_rows(reports), unknown=True)


def _write_snoozed(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    return lifecycle.snooze(connection, _released_rows(reports))


def _write_cancelled(connection: Connection, reports: Sequence[Report]) -> dict[int, Moved]:
    now = time.monotonic()
    rows = [lifecycle.Cancelled(r.claimed.key, *_ages(r, now), r.error) for r in reports]
    return _as_moved(lifecycle.end_cancelled(connection, rows), Moved(TransitionResult.DONE, State.CANCELLED))


WRITERS: Final[dict[Ending, Writer]] = {
    Ending.SUCCEEDED: _write_succeeded,
    Ending.DISCARDED: _write_discarded,
    Ending.WRITTEN: _already_written,
    Ending.FAILED: _write_failed,
    Ending.CRASHED: _write_failed,
    Ending.RELEASED: _write_released,
    Ending.UNKNOWN: _write_unknown,
    Ending.SNOOZED: _write_snoozed,
    Ending.CANCELLED: _write_cancelled,
}
