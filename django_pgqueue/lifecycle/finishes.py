"""The ways an execution ends by its own worker, and what it tells before; the fence is in every statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django_pgqueue import sql
from django_pgqueue.db import Connection, Row, execute
from django_pgqueue.states import Outcome, State

from .arrays import numbers, sparse
from .persistence import persistently
from .values import Cancelled, ExecutionKey, Failed, Fate, Moved, Noted, Released, Succeeded


def succeed(connection: Connection, finished: Sequence[Succeeded]) -> dict[int, Fate]:
    """Close executions as succeeded, and their jobs. On a Django connection this is an atomic task's own finish."""
    rows = sorted(finished)
    keys = [row.key for row in rows]
    results = [row.result for row in rows]
    done = persistently(
        connection,
        sql.SUCCEED,
        {
            **key_params(keys),
            "results": sparse(results),
            "started_seconds_ago": numbers(row.started_seconds_ago for row in rows),
            "finished_seconds_ago": numbers(row.finished_seconds_ago for row in rows),
        },
    )
    return _fates(connection, keys, done, Outcome.SUCCEEDED)


def succeed_and_discard(connection: Connection, finished: Sequence[ExecutionKey]) -> dict[int, Fate]:
    """Remove succeeded jobs that are not to be kept, with all their executions.

    An execution that is not there any more counts as done before: only this act, or somebody's DELETE, removes it.
    """
    keys = sorted(finished)
    done = persistently(connection, sql.SUCCEED_AND_DISCARD, key_params(keys))
    return _fates(connection, keys, done, Outcome.SUCCEEDED, missing=Fate.DONE_BEFORE)


def fail(connection: Connection, failed: Sequence[Failed]) -> dict[int, Moved]:
    """Close executions as failed or crashed; their jobs wait for the next attempt, or are dead, or cancelled."""
    rows = sorted(failed, key=lambda row: row.key)
    done = persistently(
        connection,
        sql.FAIL,
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
    return _moves(connection, wanted, done)


def release(connection: Connection, released: Sequence[Released], *, unknown: bool = False) -> dict[int, Moved]:
    """Give executions back, not counted. `unknown`: this worker does not know the task, or its arguments do not fit."""
    return _give_back(connection, released, Outcome.RELEASED, unknown=unknown)


def snooze(connection: Connection, snoozed: Sequence[Released]) -> dict[int, Moved]:
    """Give executions back until later, not counted, as their tasks wished."""
    return _give_back(connection, snoozed, Outcome.SNOOZED, unknown=False)


def _give_back(
    connection: Connection, released: Sequence[Released], outcome: Outcome, *, unknown: bool
) -> dict[int, Moved]:
    rows = sorted(released, key=lambda row: row.key)
    done = persistently(
        connection,
        sql.RELEASE,
        {
            **key_params(row.key for row in rows),
            "delays_seconds": sparse([row.delay_seconds for row in rows]),
            "errors": [row.error for row in rows],
            "outcome": outcome.value,
            "unknown": unknown,
        },
    )
    return _moves(connection, {row.key: outcome for row in rows}, done)


def end_cancelled(connection: Connection, cancelled: Sequence[Cancelled]) -> dict[int, Fate]:
    """Close executions as cancelled, and their jobs."""
    rows = sorted(cancelled, key=lambda row: row.key)
    done = persistently(
        connection,
        sql.END_CANCELLED,
        {
            **key_params(row.key for row in rows),
            "started_seconds_ago": sparse([row.started_seconds_ago for row in rows]),
            "finished_seconds_ago": [row.finished_seconds_ago for row in rows],
            "errors": [row.error for row in rows],
        },
    )
    return _fates(connection, [row.key for row in rows], done, Outcome.CANCELLED)


def note_progress(connection: Connection, noted: Sequence[Noted]) -> dict[int, Fate]:
    """Write how far jobs have come on their rows; of a closed execution nothing is written (`Fate.LOST`)."""
    rows = sorted(noted, key=lambda row: row.key)
    done = persistently(
        connection,
        sql.NOTE_PROGRESS,
        {
            **key_params(row.key for row in rows),
            "done": [row.progress.done for row in rows],
            "totals": sparse([row.progress.total for row in rows]),
            "messages": [row.progress.message for row in rows],
            "noted_seconds_ago": [row.noted_seconds_ago for row in rows],
        },
    )
    return _fates(connection, [row.key for row in rows], done, None)


def _fates(
    connection: Connection,
    keys: Sequence[ExecutionKey],
    done: Sequence[Row],
    wanted: Outcome | None,
    missing: Fate = Fate.LOST,
) -> dict[int, Fate]:
    fates = dict.fromkeys((row[0] for row in done), Fate.DONE)
    if len(fates) < len(keys):
        rest = {key: wanted for key in keys if key.execution_id not in fates}
        fates |= _settle(connection, rest, missing)
    return fates


def _moves(connection: Connection, wanted: Mapping[ExecutionKey, Outcome], done: Sequence[Row]) -> dict[int, Moved]:
    moves = {row[0]: Moved(Fate.DONE, State(row[1])) for row in done}
    if len(moves) < len(wanted):
        rest = {key: outcome for key, outcome in wanted.items() if key.execution_id not in moves}
        moves |= {execution_id: Moved(fate) for execution_id, fate in _settle(connection, rest).items()}
    return moves


def _settle(
    connection: Connection, wanted: Mapping[ExecutionKey, Outcome | None], missing: Fate = Fate.LOST
) -> dict[int, Fate]:
    """Tell why an act did not find these executions open, by what is written there now.

    Only the worker that holds an execution writes these outcomes ("crashed" apart), so to find the one that was
    wanted is to find one's own earlier write, whose reply was lost.
    """
    keys = {key.execution_id: key for key in wanted}
    fates = dict.fromkeys(keys, missing)
    orphans = []
    for execution_id, outcome, has_job in execute(connection, sql.SETTLE, key_params(wanted)):
        if outcome is None and has_job:
            fates[execution_id] = Fate.LOCKED
        elif outcome is None:
            fates[execution_id] = Fate.LOST
            orphans.append(keys[execution_id])
        else:
            fates[execution_id] = Fate.DONE_BEFORE if outcome == wanted[keys[execution_id]] else Fate.LOST
    remove_orphans(connection, orphans)
    return fates


def remove_orphans(connection: Connection, keys: Sequence[ExecutionKey]) -> None:
    """Remove open executions whose job somebody deleted past Django, so that no beat carries them on."""
    if keys:
        execute(connection, sql.REMOVE_ORPHANS, key_params(keys))


def key_params(keys: Iterable[ExecutionKey]) -> dict[str, str]:
    """Return the parameters by which a fenced statement names its executions."""
    keys = list(keys)
    return {
        "execution_ids": numbers(key.execution_id for key in keys),
        "claimed_ms": numbers(key.claimed_ms for key in keys),
    }
