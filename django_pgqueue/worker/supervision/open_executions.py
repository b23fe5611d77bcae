"""Close the executions of one worker process that has ended: charge those that had started, and release the others.

Called by `settlement`, in a helper process or in the supervisor itself. The rule that it protects: only an execution
that may have ended its process counts as a crash. A job is never charged because its neighbour crashed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from django_pgqueue import lifecycle, registry
from django_pgqueue.chunks import chunk_key
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import Failed, OpenExecution, Released, TransitionResult, TransitionStatus
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions, ended
from django_pgqueue.states import Outcome
from django_pgqueue.worker.completion.release import transitions_of
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.refusals import Refusals

from .heartbeat import ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

DIED: Final = "the worker process died while the job was running"
UNWRITTEN: Final = "the result of the attempt could not be stored before its worker process ended"
OVERDUE: Final = "the job ran past its timeout and blocked its whole worker process, which was killed"
refusals: Final = Refusals("the completion of execution")


def settle(link: Link, process: ChildProcess, reactions: Reactions, *, by_default: bool) -> bool:
    """Close all executions that a worker process left open. `by_default` calls no backoff of the application.

    Return False if another session had locked some rows, or a claim was committed meanwhile: these rows need another
    settlement. An execution that the database refuses to close stays open, and is rescued after its lease has expired.
    """
    charged_ids = _executions_to_charge(process)
    error = OVERDUE if process.overdue else DIED
    with link.use() as connection:
        left_open = lifecycle.open_executions(connection, process.worker_id)
        charged_ids |= _others_of_chunks(left_open, charged_ids)
        crashed = [
            execution for execution in left_open if execution.execution_id in charged_ids and execution.task_name
        ]
        ended_ids = process.state.unwritten() - {execution.execution_id for execution in crashed}
        unwritten = [
            execution for execution in left_open if execution.execution_id in ended_ids and execution.task_name
        ]
        charged = {*crashed, *unwritten}
        others = [execution for execution in left_open if execution not in charged]
        failures = [_crash(connection.alias, execution, error, by_default=by_default) for execution in crashed]
        failures += [_unwritten(execution) for execution in unwritten]
        delays = {failed.key.execution_id: failed.delay_seconds for failed in failures}
        released = _divided(connection, [Released(execution.key) for execution in others], lifecycle.release)
        failed = _divided(connection, failures, lifecycle.fail)
        transitions = transitions_of(others, released)
        for ending, reason, executions in ((Ending.CRASHED, error, crashed), (Ending.FAILED, UNWRITTEN, unwritten)):
            transitions += [
                ended(
                    execution,
                    failed[execution.execution_id],
                    ending,
                    is_due=not delays[execution.execution_id],
                    error=reason,
                    limit_key=execution.limit_key,
                )
                for execution in executions
                if execution.execution_id in failed
            ]
        # Without the record of its stop, the rescue of an execution that could not be closed counts the attempt.
        is_closed = len(released) + len(failed) == len(others) + len(charged)
        is_complete = not is_closed or lifecycle.unregister_worker(connection, process.worker_id)
        reactions.after(connection, transitions)
        # The commits above may have waited for a standby, and a claim of the process with them.
        known_ids = {execution.execution_id for execution in left_open}
        still_open = lifecycle.open_executions(connection, process.worker_id)
        is_complete &= all(execution.execution_id in known_ids for execution in still_open)
    results = (*released.values(), *failed.values())
    return is_complete and not any(result.status is TransitionStatus.LOCKED for result in results)


Write = TypeVar("Write", Released, Failed)


def _divided(
    connection: EngineConnection,
    rows: Sequence[Write],
    transition: Callable[[EngineConnection, Sequence[Write]], dict[int, TransitionResult]],
) -> dict[int, TransitionResult]:
    """Run a transition on these rows, and log those that the database refuses."""
    results, refused = lifecycle.divided(connection, rows, partial(transition, connection))
    for row, refusal in refused:
        refusals.note(row.key.execution_id, refusal)
    return results


def _executions_to_charge(process: ChildProcess) -> set[int]:
    """Return the executions to charge with a crash: those it was killed for, or all that were running in it."""
    if process.overdue:
        return set(process.overdue)
    return set() if process.expected_to_end else set(process.state.suspects())


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


def _crash(alias: str, execution: OpenExecution, error: str, *, by_default: bool) -> Failed:
    """Return the failure that charges an execution with a crash."""
    started = execution._replace(started=True)
    try:
        delay_seconds = retry_policy.delay_after_crash(started, alias=alias, by_default=by_default)
    except BaseException:
        logger.exception(
            "the backoff of %s failed; the default is used",
            execution.task_name,
            extra=event("backoff_failed", task=execution.task_name),
        )
        delay_seconds = retry_policy.delay_after_crash(started, by_default=True)
    return Failed(execution.key, Outcome.CRASHED, delay_seconds, None, 0.0, error=error)


def _unwritten(execution: OpenExecution) -> Failed:
    """Return the failure of an execution whose result the database refuses. It counts, so that retries are bounded."""
    delay_seconds = retry_policy.delay_after_crash(execution._replace(started=False), by_default=True)
    return Failed(execution.key, Outcome.FAILED, delay_seconds, None, 0.0, error=UNWRITTEN)
