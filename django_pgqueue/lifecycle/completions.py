"""Write how a worker's own executions end, and the progress that they report before.

The completer calls these functions, as do atomic tasks in their own transaction, and the supervisor for a process that
died. Each statement contains the fence, so a worker that has lost an execution changes nothing. Every function may be
repeated: a reply that was lost is reported as `TransitionStatus.ALREADY_DONE`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, itemgetter, mul
from typing import Any, Final, Protocol

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, Row, execute, numbers, sparse
from django_pgqueue.states import Outcome, State

from .execute import execute_with_retry
from .refused_rows import Refused, divided
from .types import Cancelled, ExecutionKey, Failed, Noted, Released, Succeeded, TransitionResult, TransitionStatus

SUCCEEDED: Final = TransitionResult(TransitionStatus.DONE, State.SUCCEEDED)
"""One object for all successes, so that the completer can skip those that nobody observes."""
EXECUTION_ID: Final = attrgetter("execution_id")
CLAIMED_MS: Final = attrgetter("claimed_ms")
FIRST: Final = itemgetter(0)
IN_MICROSECONDS: Final = partial(map, mul, repeat(1e6))
"""Like those above, it loops over the rows in C: a batch has hundreds."""


def succeed(connection: Connection, finished: Sequence[Succeeded]) -> dict[int, TransitionResult]:
    """Close executions as succeeded, and their jobs with them.

    On a Django connection this is the completion of an atomic task, in the task's own transaction.
    """
    if not finished:
        return {}
    keys, texts, started_seconds_ago, finished_seconds_ago = zip(*sorted(finished), strict=True)
    done = execute_with_retry(
        connection,
        sql.completions.SUCCEED,
        {
            **key_params(keys),
            "results": sparse(texts),
            "started_us_ago": numbers(map(int, IN_MICROSECONDS(started_seconds_ago))),
            "finished_us_ago": numbers(map(int, IN_MICROSECONDS(finished_seconds_ago))),
        },
    )
    return results_of(connection, keys, _all_ended(done, SUCCEEDED), repeat(Outcome.SUCCEEDED))


def succeed_and_discard(connection: Connection, finished: Sequence[ExecutionKey]) -> dict[int, TransitionResult]:
    """Remove succeeded jobs whose task keeps none, with all their executions.

    An execution that no longer exists counts as `TransitionStatus.ALREADY_DONE`, because only this transition or a
    user's DELETE removes an open execution.
    """
    keys = sorted(finished)
    done = execute_with_retry(connection, sql.completions.SUCCEED_AND_DISCARD, key_params(keys))
    results = _all_ended(done, SUCCEEDED)
    return results_of(connection, keys, results, repeat(Outcome.SUCCEEDED), missing=TransitionStatus.ALREADY_DONE)


def fail(connection: Connection, failed: Sequence[Failed]) -> dict[int, TransitionResult]:
    """Close executions as failed or crashed.

    Each job becomes ready for its next attempt, dead (no delay given), or cancelled (if a cancellation was requested).
    A job that has no attempt left by its row becomes dead too: an operator can have lowered `max_attempts` since the
    claim. If it was raised, a job without a delay becomes ready after its `spare_seconds`.
    """
    rows = sorted(failed, key=attrgetter("key"))
    params = {
        "outcomes": [row.outcome.value for row in rows],
        "delays_seconds": sparse([row.delay_seconds for row in rows]),
        "spares_seconds": sparse([row.spare_seconds for row in rows]),
        "started_seconds_ago": sparse([row.started_seconds_ago for row in rows]),
        "finished_seconds_ago": [row.finished_seconds_ago for row in rows],
        "exception_classes": [row.exception_class for row in rows],
        "errors": [row.error for row in rows],
        "tracebacks": [row.traceback for row in rows],
    }
    return transition(connection, sql.completions.FAIL, rows, params, [row.outcome for row in rows])


def release(
    connection: Connection, released: Sequence[Released], *, unknown: bool = False
) -> dict[int, TransitionResult]:
    """Release executions without counting the attempt.

    `unknown`: this worker cannot run the job. It does not know the task, for example, or the arguments do not fit it.
    """
    return _release(connection, released, Outcome.RELEASED, unknown=unknown)


def snooze(connection: Connection, snoozed: Sequence[Released]) -> dict[int, TransitionResult]:
    """Release executions until later without counting the attempt, at the request of their tasks.

    The limit keys of rows with `holds_key` are held as long as the job waits.
    """
    return _release(connection, snoozed, Outcome.SNOOZED, unknown=False)


def _release(
    connection: Connection, released: Sequence[Released], outcome: Outcome, *, unknown: bool
) -> dict[int, TransitionResult]:
    rows = sorted(released, key=attrgetter("key"))
    params = {
        "delays_seconds": sparse([row.delay_seconds for row in rows]),
        "errors": [row.error for row in rows],
        "holds": [row.holds_key for row in rows],
        "outcome": outcome.value,
        "unknown": unknown,
    }
    return transition(connection, sql.completions.RELEASE, rows, params, repeat(outcome))


def end_cancelled(connection: Connection, cancelled: Sequence[Cancelled]) -> dict[int, TransitionResult]:
    """Close executions as cancelled, and their jobs with them."""
    rows = sorted(cancelled, key=attrgetter("key"))
    params = {
        "started_seconds_ago": sparse([row.started_seconds_ago for row in rows]),
        "finished_seconds_ago": [row.finished_seconds_ago for row in rows],
        "errors": [row.error for row in rows],
    }
    outcomes = repeat(Outcome.CANCELLED)
    return transition(connection, sql.completions.END_CANCELLED, rows, params, outcomes, State.CANCELLED)


def note_progress(connection: Connection, noted: Sequence[Noted]) -> dict[int, TransitionResult]:
    """Write the progress of running jobs.

    If an execution is closed, nothing is written for it, and its result is `TransitionStatus.LOST`.
    """
    rows = sorted(noted, key=attrgetter("key"))
    params = {
        "done": [row.progress.done for row in rows],
        "totals": sparse([row.progress.total for row in rows]),
        "messages": [row.progress.message for row in rows],
        "noted_seconds_ago": [row.noted_seconds_ago for row in rows],
    }
    return transition(connection, sql.completions.NOTE_PROGRESS, rows, params, repeat(None), State.RUNNING)


def _all_ended(done: Sequence[Row], result: TransitionResult) -> dict[int, TransitionResult]:
    """Return one result for all rows of a transition with one possible end state."""
    return dict.fromkeys(map(FIRST, done), result)


class Keyed(Protocol):
    """A row of a transition."""

    @property
    def key(self) -> ExecutionKey: ...


def transition(
    connection: Connection,
    statement: str,
    rows: Sequence[Keyed],
    params: Mapping[str, Any],
    outcomes: Iterable[Outcome | None],
    state: State | None = None,
) -> dict[int, TransitionResult]:
    """Run the statement of a transition of executions, which are sorted by their keys. Return the result of each.

    `outcomes` are as for `results_of()`. `state` is the new state of all jobs. None: the statement returns it.
    """
    keys = [row.key for row in rows]
    done = execute_with_retry(connection, statement, {**key_params(keys), **params})
    results = as_returned(done) if state is None else _all_ended(done, TransitionResult(TransitionStatus.DONE, state))
    return results_of(connection, keys, results, outcomes)


def as_returned(done: Sequence[Row]) -> dict[int, TransitionResult]:
    """Return the results of a transition whose rows contain the new state of each job."""
    return {row[0]: TransitionResult(TransitionStatus.DONE, State(row[1])) for row in done}


def results_of(
    connection: Connection,
    keys: Sequence[ExecutionKey],
    done: dict[int, TransitionResult],
    outcomes: Iterable[Outcome | None],
    missing: TransitionStatus = TransitionStatus.LOST,
) -> dict[int, TransitionResult]:
    """Complete the results of a transition by the executions that it did not find open and unlocked.

    `outcomes` are the outcomes that the transition writes, in the order of `keys`.
    """
    if len(done) < len(keys):
        wanted = {key: outcome for key, outcome in zip(keys, outcomes, strict=False) if key.execution_id not in done}
        done |= _results_of_not_open(connection, wanted, missing)
    return done


def _results_of_not_open(
    connection: Connection, wanted: Mapping[ExecutionKey, Outcome | None], missing: TransitionStatus
) -> dict[int, TransitionResult]:
    """Read why a transition did not find these executions open and unlocked, and return their results.

    Apart from "crashed", only the worker that holds an execution writes these outcomes. If a row has the wanted
    outcome, this worker wrote it in an earlier call whose reply was lost.
    """
    keys = {key.execution_id: key for key in wanted}
    statuses = dict.fromkeys(keys, missing)
    orphans = []
    for execution_id, outcome, has_job, is_current in execute(connection, sql.completions.SETTLE, key_params(wanted)):
        if outcome is None and is_current:
            statuses[execution_id] = TransitionStatus.LOCKED
        elif outcome is None:
            statuses[execution_id] = TransitionStatus.LOST
            if not has_job:
                orphans.append(keys[execution_id])
        elif outcome == wanted[keys[execution_id]]:
            statuses[execution_id] = TransitionStatus.ALREADY_DONE
        else:
            statuses[execution_id] = TransitionStatus.LOST
    remove_orphans(connection, orphans)
    return {execution_id: TransitionResult(status) for execution_id, status in statuses.items()}


def outcomes_of(connection: Connection, keys: Sequence[ExecutionKey]) -> dict[int, str | None]:
    """Return the outcomes of these executions by their ids: None for an open one, no entry for one that was removed."""
    rows = execute(connection, sql.completions.SETTLE, key_params(keys))
    return {execution_id: outcome for execution_id, outcome, *_ in rows}


def stored_results(connection: Connection, keys: Sequence[ExecutionKey]) -> dict[int, str | None]:
    """Return the stored results of the jobs that have succeeded in these executions, by the ids of the executions."""
    return dict(execute(connection, sql.completions.STORED_RESULTS, key_params(keys)))


def remove_orphans(connection: Connection, keys: Sequence[ExecutionKey]) -> list[Refused[ExecutionKey]]:
    """Remove open executions whose job's row was deleted without them (not through Django). Return the refused ones.

    Without this, heartbeats would extend the leases of such executions forever.
    """

    def remove(part: Sequence[ExecutionKey]) -> dict[int, bool]:
        execute(connection, sql.completions.REMOVE_ORPHANS, key_params(part))
        return {}

    return divided(connection, keys, remove).refused


def key_params(keys: Collection[ExecutionKey]) -> dict[str, str]:
    """Return the parameters that identify executions in a fenced statement."""
    return {"execution_ids": numbers(map(EXECUTION_ID, keys)), "claimed_ms": numbers(map(CLAIMED_MS, keys))}
