"""Close the executions of one worker process that has ended: charge those that had started, and release the others.

Called by `settlement`, in a helper process or in the supervisor itself. It protects two rules:

* Only an execution that may have ended its process counts as a crash: it ran in the process, or it had ended there and
  its result was not written yet. If `os._exit()` ended the process, only the execution that called it counts, or none
  if a signal receiver called it. A job in an isolated process is never charged a crash of another process.
* An attempt that has ended counts, whatever ended the process. Otherwise a job whose result is never written would run
  again for ever. It counts without a crash if the attempt cannot have caused the end of the process. If a receiver
  ended the process, only results that had to wait for a lock, and those of isolated processes, count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import completions, leases, workers
from django_pgqueue.lifecycle.refused_rows import Divided, divided
from django_pgqueue.lifecycle.types import Failed, OpenExecution, Released, TransitionResult, TransitionStatus
from django_pgqueue.reactions import Reactions, ended
from django_pgqueue.states import Outcome
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion.writer import transitions_of
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.shared_memory import NO_EXECUTION, ExitReason

from .heartbeat import ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

DIED: Final = "the worker process died while the job was running"
DIED_LATER: Final = "the worker process died after the job had ended and before its result was stored"
UNWRITTEN: Final = "the result of the attempt could not be stored before its worker process ended"
OVERDUE: Final = "the job ran past its timeout and blocked its whole worker process, which was killed"
OTHER_IDS: Final = (ExitReason.PROMOTED, ExitReason.FOREIGN)
"""Reasons after which the ids that the process has recorded can belong to other executions."""
refusals: Final = Refusals("the completion of execution")


class Charge(NamedTuple):
    """How an execution is closed whose attempt counts."""

    ending: Ending
    error: str


UNWRITTEN_ATTEMPT: Final = Charge(Ending.FAILED, UNWRITTEN)


def settle(link: Link, process: ChildProcess, reactions: Reactions, *, by_default: bool) -> bool:
    """Close all executions that a worker process left open. `by_default` calls no backoff of the application.

    Return False if another session had locked some rows, time was up for some, or a claim was committed meanwhile:
    these rows need another settlement. An execution that the database refuses to close stays open, and is rescued after
    its lease has expired.
    """
    with link.use() as connection:
        left_open = leases.open_executions(connection, process.worker_id)
        charges = _charges(process, left_open)
        charged = [each for each in left_open if each.execution_id in charges and each.task_name]
        others = [each for each in left_open if each.execution_id not in charges or not each.task_name]
        failures = [
            _failure(connection.alias, each, charges[each.execution_id], by_default=by_default) for each in charged
        ]
        released, _, unreleased = _divided(connection, [Released(each.key) for each in others], completions.release)
        failed, _, unwritten = _divided(connection, failures, completions.fail)
        transitions = transitions_of(others, released)
        transitions += [
            ended(
                execution,
                failed[execution.execution_id],
                charges[execution.execution_id].ending,
                is_due=not failure.delay_seconds,
                error=charges[execution.execution_id].error,
                limit_key=execution.limit_key,
            )
            for execution, failure in zip(charged, failures, strict=True)
            if execution.execution_id in failed
        ]
        # Without the record of its stop, the rescue of an execution that could not be closed counts the attempt.
        is_closed = len(released) + len(failed) == len(others) + len(charged)
        is_complete = not is_closed or workers.unregister_worker(connection, process.worker_id)
        reactions.after(connection, transitions)
        # The commits above may have waited for a standby, and a claim of the process with them.
        known_ids = {execution.execution_id for execution in left_open}
        still_open = leases.open_executions(connection, process.worker_id)
        is_complete &= not unreleased and not unwritten
        is_complete &= all(execution.execution_id in known_ids for execution in still_open)
    results = (*released.values(), *failed.values())
    return is_complete and not any(result.status is TransitionStatus.LOCKED for result in results)


Write = TypeVar("Write", Released, Failed)


def _divided(
    connection: EngineConnection,
    rows: Sequence[Write],
    transition: Callable[[EngineConnection, Sequence[Write]], dict[int, TransitionResult]],
) -> Divided[Write, TransitionResult]:
    """Run a transition on these rows, and log those that the database refuses."""
    done = divided(connection, rows, partial(transition, connection))
    for row, refusal in done.refused:
        refusals.note(row.key.execution_id, refusal)
    return done


def _charges(process: ChildProcess, left_open: Sequence[OpenExecution]) -> dict[int, Charge]:
    """Return the executions whose attempts count, each with how it is closed."""
    charges: dict[int, Charge] = {}
    has_crashed = not process.overdue and not process.expected_to_end
    ended_by = process.state.ended_by if has_crashed else 0
    if process.state.exit_reason not in OTHER_IDS:
        here, elsewhere = process.state.ended_last()
        charges |= dict.fromkeys(elsewhere, UNWRITTEN_ATTEMPT)
        if ended_by != NO_EXECUTION:  # a receiver charges no job whose result was about to be written
            has_suspects = has_crashed and not ended_by
            charges |= dict.fromkeys(here, Charge(Ending.CRASHED, DIED_LATER) if has_suspects else UNWRITTEN_ATTEMPT)
    charges |= dict.fromkeys(process.state.unwritten(), UNWRITTEN_ATTEMPT)
    running = set(process.overdue or (process.state.suspects() if has_crashed else ()))
    if ended_by:
        running = {ended_by} - {NO_EXECUTION}
    running |= _others_of_chunks(left_open, running)
    return charges | dict.fromkeys(running, Charge(Ending.CRASHED, OVERDUE if process.overdue else DIED))


def _others_of_chunks(left_open: Sequence[OpenExecution], charged_ids: set[int]) -> set[int]:
    """Return the other executions of the chunks that were running: the process has recorded only the first of each.

    The jobs of a chunk were claimed together, at the same time.
    """
    if not registry.chunk_keys():
        return set()
    chunks = {(each.task_name, each.claimed_ms) for each in left_open if each.execution_id in charged_ids}
    return {
        each.execution_id
        for each in left_open
        if (each.task_name, each.claimed_ms) in chunks and chunk_key(each.task_name or "") in registry.chunk_keys()
    }


def _failure(alias: str, execution: OpenExecution, charge: Charge, *, by_default: bool) -> Failed:
    """Return the failure that charges an execution: with a crash, or with an attempt so that repeats are bounded."""
    if charge.ending is Ending.FAILED:
        delay_seconds = retry_policy.delay_after_crash(execution._replace(started=False), by_default=True)
        return Failed(execution.key, Outcome.FAILED, delay_seconds, None, 0.0, error=charge.error)
    started = execution._replace(started=True)
    try:
        delay_seconds = retry_policy.delay_after_crash(started, alias=alias, by_default=by_default)
    except BaseException:
        extra = event("backoff_failed", task=execution.task_name)
        logger.exception("the backoff of %s failed; the default is used", execution.task_name, extra=extra)
        delay_seconds = retry_policy.delay_after_crash(started, by_default=True)
    return Failed(execution.key, Outcome.CRASHED, delay_seconds, None, 0.0, error=charge.error)
