"""Set a job aside that no claim can process: end it as dead, and say why.

The claimer calls it, after it has found that only this job's row is to blame. It protects the other jobs: a refusal of
this transition too leaves the job as it is.
"""

from __future__ import annotations

import logging

from django_pgqueue import lifecycle
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import TransitionResult, TransitionStatus
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions, ended
from django_pgqueue.states import State

logger = logging.getLogger("django_pgqueue.worker")


def set_aside(connection: Connection, job_id: int, error: Exception, worker_id: int, reactions: Reactions) -> bool:
    """End a job as dead. Return False if the database refuses that too: then the job is skipped as before."""
    reason = f"the job's row cannot be claimed: {message_without_detail(error)}"[:2000]
    try:
        dead = lifecycle.set_aside(
            connection,
            job_id,
            worker_id=worker_id,
            exception_class=f"{type(error).__module__}.{type(error).__qualname__}",
            error=reason,
        )
    except lifecycle.FAILURES as refusal:
        if not lifecycle.may_divide(connection, refusal):
            raise
        return False
    if dead is None:  # another session has changed or locked the job
        return True
    logger.error(
        "job %s cannot be claimed and is now dead: %s",
        job_id,
        message_without_detail(error),
        extra=event("job_refused", job_id=job_id, reason=message_without_detail(error)),
    )
    result = TransitionResult(TransitionStatus.DONE, State.DEAD)
    reactions.after(connection, [ended(dead, result, Ending.FAILED, is_due=False, error=reason)])
    return True
