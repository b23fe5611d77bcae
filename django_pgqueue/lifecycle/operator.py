"""Transitions that an operator or the application requests: cancel, retry, acknowledge, run now, move, change attempts
and delete.

`job_operations` calls them for `Job`, `JobQuerySet` and the admin, on the caller's connection and in the caller's
transaction. They protect what the operator decided on: a job that has changed since it was read stays as it is. None
of them waits for a row lock in the database. A locked row is tried again, for at most `LOCK_WAIT_SECONDS`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

import psycopg
from django.db import IntegrityError

from django_pgqueue import sql
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection, exact, execute, texts
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.ground.log_events import event
from django_pgqueue.states import FINISHED, Seen, State

from . import graphs, sagas
from .execute import LockWait, execute_with_retry, savepoint, transaction_of
from .graphs import AdvancedJob, Restored
from .refused_rows import FAILURES, Divided, Refused, divided, may_divide

logger = logging.getLogger("django_pgqueue.lifecycle")

UNIQUE_VIOLATIONS: Final = (psycopg.errors.UniqueViolation, IntegrityError)
LOCK_WAIT_SECONDS: Final = 5.0
"""How long a transition tries to get rows that another session has locked."""


SEEN_ACKNOWLEDGED: Final[dict[bool | None, str]] = {None: "", True: "true", False: "false"}
NOT_SEEN: Final = Seen("")
"""Stands for a job of which the caller has seen nothing: any state fits."""


class Treatment(TypedDict, total=False):
    """The options of all these transitions."""

    alone: bool
    """Whether there is a single job: if it stays locked, that raises `JobLocked`."""
    seen: Mapping[int, Seen] | None
    """The jobs as the caller has seen them. Jobs that have changed since are left alone. None: change any."""
    lock_seconds: float | None
    """How long to try to get locked rows. None: `LOCK_WAIT_SECONDS`. Jobs that stay locked are not in the result."""


def cancel(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    running: bool = True,
    advanced: list[AdvancedJob] | None = None,
    **treatment: Unpack[Treatment],
) -> dict[int, State]:
    """Cancel ready and waiting jobs, and with `running` request the cancellation of running ones.

    Return the state of each job that changed. The jobs of workflows that depend on them are advanced in the same
    transaction, and added to `advanced`. A running job stays `running` until its worker stops it, or until its
    attempt ends without success.
    """
    nodes: set[int] = set()
    changed = _repeat_while_locked(
        connection, sql.operator.CANCEL, job_ids, treatment, "finished_at", nodes, running=running
    )
    if ended := [job_id for job_id in nodes if changed[job_id] is State.CANCELLED]:
        jobs = graphs.advance(connection, ended).jobs
        if advanced is not None:
            advanced += jobs
    return changed


def retry(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    restored: dict[int, Restored] | None = None,
    with_edited: bool = False,
    **treatment: Unpack[Treatment],
) -> dict[int, State]:
    """Make finished jobs ready now, with all their attempts; return the state of each job that changed.

    These jobs are left alone: those that differ from `seen` (another operator has retried them since), those whose
    unique key another job has, all but the latest of several with the same key, and those that *Edit and retry* has
    made new jobs of (`touch()`), unless `with_edited`. A single job (`alone`) is retried in spite of its new job. If
    another session takes a key at that moment, the database refuses a job, or a dependent stays locked, the jobs are
    retried one by one.

    A job of a workflow waits if its dependencies are not over. Those that its end had cancelled wait again, and so do
    those that depend on it and are ready. A job that has to wait and has another failed dependency is cancelled again,
    and is not in the result. All jobs that have to wait are added to `restored`, also those that are cancelled again.

    A job whose compensation has begun and is not over is left alone too. For a single job (`alone`), that raises
    `CompensationUnfinished`.
    """
    nodes: dict[int, Restored] = {}
    alone = treatment.get("alone", False)
    params = {"with_edited": with_edited or alone}
    try:
        with savepoint(connection):
            changed = _repeat_while_locked(
                connection, sql.operator.RETRY, job_ids, treatment, "finished_at", nodes, **params
            )
            if alone and not changed:
                sagas.check_compensation(connection, job_ids[0])
        graphs.add_restored({} if restored is None else restored, nodes)
        return changed
    except UNIQUE_VIOLATIONS:
        if len(job_ids) == 1:
            return {}
    except JobLocked:  # one locked dependent must not keep the other jobs from being retried
        if len(job_ids) == 1:
            raise
        treatment["lock_seconds"] = 0.0
    except FAILURES as error:
        if len(job_ids) == 1 or not may_divide(connection, error):
            raise
    return _retry_one_by_one(connection, job_ids, restored=restored, with_edited=with_edited, **treatment)


def _retry_one_by_one(connection: Connection, job_ids: Sequence[int], **options: Any) -> dict[int, State]:
    changed: dict[int, State] = {}
    refused: list[Refused[int]] = []
    for job_id in _retry_order(connection, job_ids):
        try:
            changed |= retry(connection, [job_id], **options)
        except (JobLocked, *FAILURES) as error:
            if not isinstance(error, JobLocked) and not may_divide(connection, error):
                raise
            refused.append(Refused(job_id, error))
    _report(refused, some_changed=bool(changed))
    return changed


def _retry_order(connection: Connection, job_ids: Sequence[int]) -> list[int]:
    """Return jobs in the order in which to retry them one by one: the latest job with a unique key gets it.

    Nodes of workflows have no keys, and come in the order of their dependencies. Otherwise a node would be ready before
    the dead job that it depends on is retried, and would run without its result.
    """
    nodes = graphs.nodes_of(connection, job_ids)
    return nodes + sorted(set(job_ids).difference(nodes), reverse=True)


def touch(connection: Connection, job_id: int, seen: Seen) -> bool:
    """Lock a finished job and write it as it is; return False if it differs from `seen` or is locked.

    Call it in the transaction that makes a new job of this one. `retry()` of many jobs then finds the entry of the
    audit, also if it has begun before the transaction commits.
    """
    params = {"job_id": job_id, "state": seen.state, "instant": exact(seen.finished_at)}
    return bool(execute(connection, sql.operator.TOUCH, params))


def acknowledge(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    unblocking: set[int] | None = None,
    **treatment: Unpack[Treatment],
) -> dict[int, State]:
    """Acknowledge dead jobs; return the state of each job that changed. They stay dead.

    Jobs that were acknowledged before are left alone. The changed jobs that blocked their limit key, and block it no
    longer, are added to `unblocking`: workers have to look for the later jobs of the key.
    """
    blocking = set[int]() if unblocking is None else unblocking
    return _repeat_while_locked(connection, sql.operator.ACKNOWLEDGE, job_ids, treatment, "finished_at", blocking)


def run_now(connection: Connection, job_ids: Sequence[int], **treatment: Unpack[Treatment]) -> dict[int, State]:
    """Make ready jobs that are due later due at once; return the state of each job that changed.

    A job that waits for others is due at once when these have ended.
    """
    return _repeat_while_locked(connection, sql.operator.RUN_NOW, job_ids, treatment, "run_after")


def move(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    queue_name: str | None = None,
    priority: int | None = None,
    **treatment: Unpack[Treatment],
) -> dict[int, State]:
    """Change the queue or the priority of ready jobs; return the state of each job that changed.

    None leaves the queue or the priority as it is. The due time stays.
    """
    to = {"queue_name": queue_name, "priority": priority}
    return _repeat_while_locked(connection, sql.operator.MOVE, job_ids, treatment, "run_after", **to)


def set_max_attempts(
    connection: Connection, job_ids: Sequence[int], *, max_attempts: int, **treatment: Unpack[Treatment]
) -> dict[int, State]:
    """Change how many attempts of unfinished jobs may count; return the state of each job that changed.

    Jobs that would have no attempt left are left alone (see `states.least_attempts()`). For a running job, the number
    counts when its attempt ends.
    """
    to = {"max_attempts": max_attempts}
    return _repeat_while_locked(connection, sql.operator.SET_MAX_ATTEMPTS, job_ids, treatment, "run_after", **to)


def delete(connection: Connection, job_ids: Sequence[int], **treatment: Unpack[Treatment]) -> dict[int, State]:
    """Delete finished jobs and their executions; return the state that each deleted job had."""
    return _repeat_while_locked(connection, sql.operator.DELETE, job_ids, treatment, "finished_at")


def _repeat_while_locked(
    connection: Connection,
    statement: str,
    job_ids: Sequence[int],
    treatment: Treatment,
    instant: str,
    nodes: set[int] | dict[int, Restored] | None = None,
    /,
    **params: bool | str | int | None,
) -> dict[int, State]:
    """Run an operator's transition, and repeat it for the rows that other sessions have locked.

    The statement is repeated, because waiting under a `lock_timeout` would change the caller's session.

    `instant` is the field of `Seen` that is compared besides the state.

    `nodes` is a set for CANCEL, which returns whether a job is a node of a workflow, and for ACKNOWLEDGE, which returns
    whether it blocked its key: the changed ones are added to it.
    RETRY adds the jobs that have to wait to a dict.
    """
    seen, alone = treatment.get("seen") or {}, treatment.get("alone", False)

    def transition(ids: Sequence[int]) -> dict[int, str | None]:
        as_seen = [seen.get(job_id, NOT_SEEN) for job_id in ids]
        compared = {
            "job_ids": list(ids),
            "seen_states": texts(job.state for job in as_seen),
            "seen_instants": texts(exact(getattr(job, instant)) for job in as_seen),
        }
        if instant == "finished_at":
            compared["seen_acknowledged"] = texts(SEEN_ACKNOWLEDGED[job.is_acknowledged] for job in as_seen)
        return _answers(connection, statement, {**compared, **params}, nodes, limit)

    changed: dict[int, State] = {}
    waiting = sorted(set(job_ids))
    limit = LOCK_WAIT_SECONDS if (given := treatment.get("lock_seconds")) is None else given
    wait = LockWait(limit)
    while waiting:
        if alone or statement is sql.operator.RETRY:  # their callers handle the error
            answered, refused = transition(waiting), list[int]()
        else:
            answered, refused = _in_parts(connection, waiting, transition)
        changed |= {job_id: State(state) for job_id, state in answered.items() if state}
        waiting = existing(connection, sorted(set(waiting) - set(answered) - set(refused)))
        if waiting and not wait.sleep():
            if alone:
                raise JobLocked(f"job {waiting[0]} is locked by another session: nothing was changed, try again")
            break
    return changed


def _answers(
    connection: Connection,
    statement: str,
    params: Mapping[str, object],
    nodes: set[int] | dict[int, Restored] | None,
    lock_seconds: float,
) -> dict[int, str | None]:
    if isinstance(nodes, dict):
        return _retry_and_restore(connection, params, lock_seconds, nodes)
    rows = execute_with_retry(connection, statement, params)
    if nodes is not None:
        nodes.update(job_id for job_id, state, is_wanted in rows if state and is_wanted)
    return {row[0]: row[1] for row in rows}


def _retry_and_restore(
    connection: Connection, params: Mapping[str, object], limit: float, restored: dict[int, Restored]
) -> dict[int, str | None]:
    """Run RETRY, and restore the dependents of the retried nodes in the same transaction. Add them to `restored`.

    A node that is cancelled again counts as unchanged.
    """
    with transaction_of(connection):
        rows = execute_with_retry(connection, sql.operator.RETRY, params)
        answered = {job_id: state for job_id, state, _ in rows}
        retried = {job_id for job_id, state, in_graph in rows if state and in_graph}
        nodes = graphs.restore(connection, retried, limit) if retried else {}
        graphs.add_restored(restored, nodes)
        own = {job_id: nodes[job_id].state for job_id in retried & nodes.keys()}
        return answered | {job_id: None if state in FINISHED else state.value for job_id, state in own.items()}


def _in_parts(
    connection: Connection, job_ids: Sequence[int], transition: Callable[[Sequence[int]], dict[int, str | None]]
) -> tuple[dict[int, str | None], list[int]]:
    """Run a transition on many jobs; return its answers, and the ids of the jobs that the database refuses to change.

    Raises the first job's error if the database refuses all of them.
    """
    done: Divided[int, str | None] = divided(connection, job_ids, transition, most_seconds=math.inf)
    _report(done.refused, some_changed=bool(done.answers))
    return done.answers, [job_id for job_id, _ in done.refused]


def _report(refused: Sequence[Refused[int]], *, some_changed: bool) -> None:
    """Log the jobs that the database refuses to change; raise the first job's error if none was changed."""
    if refused and not some_changed:
        raise refused[0].error
    for job_id, error in refused:
        logger.warning(
            "job %s was not changed because the database refused the write: %s",
            job_id,
            message_without_detail(error),
            extra=event("job_refused", job_id=job_id, reason=message_without_detail(error)),
        )


def existing(connection: Connection, job_ids: Sequence[int]) -> list[int]:
    """Return the ids of the jobs that exist, as this connection's transaction sees them."""
    return sorted(row[0] for row in execute(connection, sql.operator.EXISTING, {"job_ids": job_ids})) if job_ids else []
