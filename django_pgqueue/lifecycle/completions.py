"""Write how a worker's own executions end, and the progress that they report before.

The completer calls these functions, as do atomic tasks in their own transaction, and the supervisor for a process that
died. Each statement contains the fence, so a worker that has lost an execution changes nothing. Every function may be
repeated: a reply that was lost is reported as `TransitionResult.ALREADY_DONE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django_pgqueue import sql
from django_pgqueue.db.arrays import numbers, sparse
from django_pgqueue.db.statements import Connection, Row, execute
from django_pgqueue.states import Outcome, State

from .execute import execute_with_retry
from .types import Cancelled, ExecutionKey, Failed, Moved, Noted, Released, Succeeded, TransitionResult


def succeed(connection: Connection, finished: Sequence[Succeeded]) -> dict[int, TransitionResult]:
    """Close executions as succeeded, and their jobs with them.

    On a Django connection this is the completion of an atomic task, in the task's own transaction.
    """
    rows = sorted(finished)
    keys = [row.key for row in rows]
    results = [row.result for row in rows]
    done = execute_with_retry(
        connection,
        sql.completions.SUCCEED,
        {
            **key_params(keys),
            "results": sparse(results),
            "started_seconds_ago": numbers(row.started_seconds_ago for row in rows),
            "finished_seconds_ago": numbers(row.finished_seconds_ago for row in rows),
        },
    )
    return _results(connection, keys, done, Outcome.SUCCEEDED)


def succeed_and_discard(connection: Connection, finished: Sequence[ExecutionKey]) -> dict[int, TransitionResult]:
    """Remove succeeded jobs whose task keeps none, with all their executions.

    An execution that no longer exists counts as `TransitionResult.ALREADY_DONE`, because only this transition or a
    user's DELETE removes an open execution.
    """
    keys = sorted(finished)
    done = execute_with_retry(connection, sql.completions.SUCCEED_AND_DISCARD, key_params(keys))
    return _results(connection, keys, done, Outcome.SUCCEEDED, missing=TransitionResult.ALREADY_DONE)


def fail(connection: Connection, failed: Sequence[Failed]) -> dict[int, Moved]:
    """Close executions as failed or crashed.

    Each job becomes ready for its next attempt, dead (no delay given), or cancelled (if a cancellation was requested).
    """
    rows = sorted(failed, key=lambda row: row.key)
    done = execute_with_retry(
        connection,
        sql.completions.FAIL,
        {
            **key_params(row.key for row in rows),
            "outcomes": [row.outcome.value for row in rows],
            "delays_seconds": sparse([row.delay_seconds for row in rows]),
            "started_seconds_ago": sparse([row.started_seconds_ago for row in rows]),
            "finished_seconds_ago": [row.finished_seconds_ago for row in rows],
            "exception_classes": [row.exception_class for row in rows],
            "errors": [row.error for row in rows],
            "tracebacks": [row.traceback for row in rows],
        },
    )
    wanted = {row.key: row.outcome for row in rows}
    return _moved(connection, wanted, done)


def release(connection: Connection, released: Sequence[Released], *, unknown: bool = False) -> dict[int, Moved]:
    """Release executions without counting the attempt.

    `unknown`: this worker does not know the task, or the arguments do not fit the task's function.
    """
    return _release(connection, released, Outcome.RELEASED, unknown=unknown)


def snooze(connection: Connection, snoozed: Sequence[Released]) -> dict[int, Moved]:
    """Release executions until later without counting the attempt, at the request of their tasks."""
    return _release(connection, snoozed, Outcome.SNOOZED, unknown=False)


def _release(
    connection: Connection, released: Sequence[Released], outcome: Outcome, *, unknown: bool
) -> dict[int, Moved]:
    rows = sorted(released, key=lambda row: row.key)
    done = execute_with_retry(
        connection,
        sql.completions.RELEASE,
        {
            **key_params(row.key for row in rows),
            "delays_seconds": sparse([row.delay_seconds for row in rows]),
            "errors": [row.error for row in rows],
            "outcome": outcome.value,
            "unknown": unknown,
        },
    )
    return _moved(connection, {row.key: outcome for row in rows}, done)


def end_cancelled(connection: Connection, cancelled: Sequence[Cancelled]) -> dict[int, TransitionResult]:
    """Close executions as cancelled, and their jobs with them."""
    rows = sorted(cancelled, key=lambda row: row.key)
    done = execute_with_retry(
        connection,
        sql.completions.END_CANCELLED,
        {
            **key_params(row.key for row in rows),
            "started_seconds_ago": sparse([row.started_seconds_ago for row in rows]),
            "finished_seconds_ago": [row.finished_seconds_ago for row in rows],
            "errors": [row.error for row in rows],
        },
    )
    return _results(connection, [row.key for row in rows], done, Outcome.CANCELLED)


def note_progress(connection: Connection, noted: Sequence[Noted]) -> dict[int, TransitionResult]:
    """Write the progress of running jobs.

    If an execution is closed, nothing is written for it, and its result is `TransitionResult.LOST`.
    """
    rows = sorted(noted, key=lambda row: row.key)
    done = execute_with_retry(
        connection,
        sql.completions.NOTE_PROGRESS,
        {
            **key_params(row.key for row in rows),
            "done": [row.progress.done for row in rows],
            "totals": sparse([row.progress.total for row in rows]),
            "messages": [row.progress.message for row in rows],
            "noted_seconds_ago": [row.noted_seconds_ago for row in rows],
        },
    )
    return _results(connection, [row.key for row in rows], done, None)


def _results(
    connection: Connection,
    keys: Sequence[ExecutionKey],
    done: Sequence[Row],
    wanted: Outcome | None,
    missing: TransitionResult = TransitionResult.LOST,
) -> dict[int, TransitionResult]:
    """Return the result of a transition for each execution, given the rows that it returned."""
    results = dict.fromkeys((row[0] for row in done), TransitionResult.DONE)
    if len(results) < len(keys):
        not_open = {key: wanted for key in keys if key.execution_id not in results}
        results |= _results_of_not_open(connection, not_open, missing)
    return results


def _moved(connection: Connection, wanted: Mapping[ExecutionKey, Outcome], done: Sequence[Row]) -> dict[int, Moved]:
    """Return the results of a transition that also returns the new state of each job."""
    moved = {row[0]: Moved(TransitionResult.DONE, State(row[1])) for row in done}
    if len(moved) < len(wanted):
        not_open = {key: outcome for key, outcome in wanted.items() if key.execution_id not in moved}
        results = _results_of_not_open(connection, not_open)
        moved |= {execution_id: Moved(result) for execution_id, result in results.items()}
    return moved


def _results_of_not_open(
    connection: Connection,
    wanted: Mapping[ExecutionKey, Outcome | None],
    missing: TransitionResult = TransitionResult.LOST,
) -> dict[int, TransitionResult]:
    """Read why a transition did not find these executions open and unlocked, and return their results.

    Apart from "crashed", only the worker that holds an execution writes these outcomes. If a row has the wanted
    outcome, this worker wrote it in an earlier call whose reply was lost.
    """
    keys = {key.execution_id: key for key in wanted}
    results = dict.fromkeys(keys, missing)
    orphans = []
    for execution_id, outcome, has_job in execute(connection, sql.completions.SETTLE, key_params(wanted)):
        if outcome is None and has_job:
            results[execution_id] = TransitionResult.LOCKED
        elif outcome is None:
            results[execution_id] = TransitionResult.LOST
            orphans.append(keys[execution_id])
        else:
            results[execution_id] = (
                TransitionResult.ALREADY_DONE if outcome == wanted[keys[execution_id]] else TransitionResult.LOST
            )
    remove_orphans(connection, orphans)
    return results


def remove_orphans(connection: Connection, keys: Sequence[ExecutionKey]) -> None:
    """Remove open executions whose job's row was deleted without them (not through Django).

    Without this, heartbeats would extend the leases of such executions forever.
    """
    if keys:
        execute(connection, sql.completions.REMOVE_ORPHANS, key_params(keys))


def key_params(keys: Iterable[ExecutionKey]) -> dict[str, str]:
    """Return the parameters that identify executions in a fenced statement."""
    keys = list(keys)
    return {
        "execution_ids": numbers(key.execution_id for key in keys),
        "claimed_ms": numbers(key.claimed_ms for key in keys),
    }
