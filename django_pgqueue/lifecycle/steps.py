"""Read and store the durable steps of jobs; suspend jobs, and wake them.

A running attempt calls `load_steps()` and `store_step()` on the Django connection of its thread, and the completer
calls `suspend()` and `wake_suspended()`. It protects two invariants: an attempt that has lost its execution stores no
step, and a committed event wakes the jobs that wait for it. For the second, the sender and the completer look for each
other after their own commit, so at least one of them sees the other. If a crash prevents this, `wake_missed()` finds
the job later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.prepared import execute_prepared
from django_pgqueue.db.statements import Connection, numbers, texts
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.states import Outcome, StepKind

from .completions import results_of, transition
from .execute import execute_with_retry
from .ranges import Written, rows_in_ranges, written
from .types import ExecutionKey, TransitionResult, TransitionStatus

WAKE_LIMIT: Final = 1000
"""Jobs that one statement wakes at most."""
SWEEP_LIMIT: Final = 10_000
"""Waits that one call of `wake_missed()` looks at."""


class StoredStep(NamedTuple):
    """A stored step. `result` is JSON text, not decoded yet.

    `wakes_in_seconds`: until a sleep ends, a wait times out or the function is tried again; None if it has no end.
    """

    name: str
    kind: StepKind
    result: str | None
    is_finished: bool
    event_id: int | None
    tries: int
    event_name: str | None
    event_key: str | None
    wakes_in_seconds: float | None
    position: float
    has_compensation: bool = False


class EndedStep(NamedTuple):
    """A step to store. `result` is JSON text, and so are both parts of the compensation."""

    name: str
    position: float
    kind: StepKind
    result: str | None
    started_seconds_ago: float
    tries: int = 1
    event_name: str | None = None
    event_key: str | None = None
    event_id: int | None = None
    compensation: str | None = None
    compensation_arguments: str | None = None


class SuspendedExecution(NamedTuple):
    """An execution that was suspended. Times are seconds ago."""

    key: ExecutionKey
    suspension: Suspension
    started_seconds_ago: float
    finished_seconds_ago: float


class SweepMark(NamedTuple):
    """Where a page of the sweep ended."""

    event_name: str = ""
    event_key: str = ""
    job_id: int = 0


FIRST_MARK: Final = SweepMark()


class Woken(NamedTuple):
    """The result of one call of `wake_missed()`. `mark` is the end of its page, or None after the last page."""

    job_ids: list[int]
    mark: SweepMark | None
    is_empty: bool
    """Whether the page had no wait."""


def load_steps(connection: Connection, job_id: int) -> list[StoredStep]:
    """Return the stored steps of a job in their order."""
    rows = execute_prepared(connection, sql.steps.LOAD_STEPS, {"job_id": job_id})
    return [StoredStep(row[0], StepKind(row[1]), *row[2:]) for row in rows]


def store_step(connection: Connection, key: ExecutionKey, step: EndedStep) -> TransitionStatus:
    """Store a step that has ended. Return `TransitionStatus.LOST` if the execution is no longer open."""
    params = {"execution_id": key.execution_id, "claimed_ms": key.claimed_ms, **step._asdict(), "kind": step.kind.value}
    statement = sql.steps.STORE_STEP_AND_UNDO
    if step.compensation is None:
        statement = sql.steps.STORE_STEP
        del params["compensation"], params["compensation_arguments"]
    if execute_prepared(connection, statement, params):
        return TransitionStatus.DONE
    return results_of(connection, [key], {}, repeat(None))[key.execution_id].status


def suspend(connection: Connection, suspended: Sequence[SuspendedExecution]) -> dict[int, TransitionResult]:
    """Close executions as suspended and store their steps. Their jobs become ready for later, or are cancelled."""
    rows = sorted(suspended, key=attrgetter("key"))
    given = [row.suspension for row in rows]
    params = {
        "started_seconds_ago": numbers(row.started_seconds_ago for row in rows),
        "finished_seconds_ago": numbers(row.finished_seconds_ago for row in rows),
        "reasons": [each.reason for each in given],
        "names": texts(each.name for each in given),
        "positions": numbers(each.position for each in given),
        "kinds": texts(each.kind.value for each in given),
        "delays_seconds": numbers(each.delay_seconds for each in given),
        "have_end": [each.has_end for each in given],
        "tries": numbers(each.tries for each in given),
        "errors": [each.error for each in given],
        "event_names": texts(each.event_name or "" for each in given),
        "event_keys": texts(each.event_key or "" for each in given),
    }
    return transition(connection, sql.steps.SUSPEND, rows, params, repeat(Outcome.SUSPENDED))


def wake(connection: Connection, event_name: str, event_key: str, after_id: int = 0) -> tuple[list[int], int | None]:
    """Make up to `WAKE_LIMIT` jobs due that wait for an event. Return their ids, and where the next page begins."""
    params = {"event_name": event_name, "event_key": event_key, "after_id": after_id, "limit": WAKE_LIMIT}
    rows = rows_in_ranges(connection, "the wake-up of job", sql.steps.WAKE, params)
    found, last_id, _ = rows[0]
    return [job_id for *_, job_ids in rows for job_id in job_ids], last_id if found == WAKE_LIMIT else None


def wake_suspended(connection: Connection, job_ids: Collection[int]) -> set[int]:
    """Make a job due if its event has come. Return the ids of the jobs that are due now."""

    return set(_wake_waiting(connection, "the wake-up of job", job_ids).done)


def wake_for_events(connection: Connection, event_ids: Collection[int]) -> list[int]:
    """Make up to `SWEEP_LIMIT` jobs due that wait for these events. Return the ids of the jobs that are due now."""
    params = {"event_ids": numbers(event_ids), "limit": SWEEP_LIMIT}
    rows = execute_with_retry(connection, sql.steps.WAITING_FOR_EVENTS, params)
    return _wake_waiting(connection, "the wake-up of job", [job_id for [job_id] in rows]).done


def wake_missed(connection: Connection, after: SweepMark = FIRST_MARK, limit: int = SWEEP_LIMIT) -> Woken:
    """Read one page of all waits behind `after`, and make a job due if its event has come.

    If time was up before it tried all jobs of the page, and it woke others, the next call reads the same page.
    """
    params = {"after_name": after.event_name, "after_key": after.event_key, "after_id": after.job_id, "limit": limit}
    [(found, *mark, job_ids)] = execute_with_retry(connection, sql.steps.MISSED_WAKE_UPS, params)
    woken, left = _wake_waiting(connection, "the missed wake-up of job", job_ids)
    if woken and left:
        return Woken(woken, after, is_empty=False)
    return Woken(woken, SweepMark(*mark) if found == limit else None, not found)


def _wake_waiting(connection: Connection, subject: str, job_ids: Iterable[int]) -> Written[int]:
    """Make jobs due whose event has come. `subject` is for the log."""

    def wake(part: Sequence[int]) -> list[int]:
        rows = execute_with_retry(connection, sql.steps.WAKE_SUSPENDED, {"job_ids": numbers(part)})
        return [row[0] for row in rows]

    return written(connection, subject, sorted(set(job_ids)), wake)


def remove_steps(connection: Connection, job_ids: Collection[int]) -> set[int]:
    """Remove the steps of jobs. Return the jobs that have lost a compensation by this."""
    rows = execute_with_retry(connection, sql.steps.REMOVE_STEPS, {"job_ids": numbers(sorted(job_ids))})
    return {job_id for job_id, has_compensation in rows if has_compensation}
