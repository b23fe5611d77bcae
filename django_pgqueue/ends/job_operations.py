"""The operations behind the methods of `Job` and `JobQuerySet`, such as retry, acknowledge and cancel; also move.

They need `lifecycle`, `codecs`, `reactions` and `waiting`, which are layers above the models. The app's configuration
passes this module down: the models find it by `models.operations_link`. The admin and `manage.py pgqueue` call it
directly. It protects one invariant: if the caller passes what it has seen of a job, the transition applies only if the
job has not changed since.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils import translation

from django_pgqueue.db.notifications import PAUSES_CHANGED, wake_workers_after_commit
from django_pgqueue.encoding.codecs import readable as readable
from django_pgqueue.ground.visible_text import in_line
from django_pgqueue.lifecycle import operator
from django_pgqueue.lifecycle.graphs import waiting_ids
from django_pgqueue.reactions import after_application, after_operator
from django_pgqueue.states import State
from django_pgqueue.waiting import result_wait
from django_pgqueue.waiting.result_wait import return_value as return_value

from .deletion import delete_batches as delete_batches
from .deletion import delete_job as delete_job
from .deletion import delete_jobs as delete_jobs
from .deletion import wake_for_keys
from .graphs import advanced_transitions

if TYPE_CHECKING:
    from django_pgqueue.durations import Duration
    from django_pgqueue.lifecycle.graphs import AdvancedJob, Restored
    from django_pgqueue.models import Job
    from django_pgqueue.models.operations_link import JobsToChange, Transition

logger = logging.getLogger("django_pgqueue")

WHY_CHARACTERS: Final = 500
"""Characters of the reason in the message of a timeout."""


def retry(act: JobsToChange, *, with_edited: bool = False) -> dict[int, State]:
    """Make finished jobs ready again, and wake the workers after the commit.

    The result also has those of these jobs that wait now because another one was retried that they depend on. `others`
    gets the ids of further jobs that wait now. Jobs that *Edit and retry* has made new jobs of are left, unless
    `with_edited`, or if there is a single job (`act.alone`).
    """

    def transition(*args: Any, **options: Any) -> dict[int, State]:
        restored: dict[int, Restored] = {}
        changed = operator.retry(*args, **options, restored=restored, with_edited=with_edited)
        act.others.update(found := waiting_ids(restored))
        return dict.fromkeys(found & act.task_names.keys(), State.WAITING) | changed

    return _run(act, transition, makes_due=True)


def acknowledge(act: JobsToChange) -> dict[int, State]:
    """Acknowledge dead jobs. If they blocked limit keys, let the workers look at these keys after the commit.

    The jobs have ended before, so nobody waits for them, and nothing follows.
    """
    unblocking: set[int] = set()
    changed = _run(act, partial(operator.acknowledge, unblocking=unblocking), reacts=False)
    if unblocking:
        wake_workers_after_commit(act.connection, PAUSES_CHANGED)
    return changed


def cancel(act: JobsToChange, *, running: bool = True) -> dict[int, State]:
    """Cancel ready and waiting jobs, and ask running ones to stop. Receivers of `job_cancelled` are called at once.

    `others` gets the ids of further jobs that were cancelled, because they depend on these.
    """
    advanced: list[AdvancedJob] = []

    def transition(*args: Any, **options: Any) -> dict[int, State]:
        changed = operator.cancel(*args, **options, running=running, advanced=advanced)
        act.others.update(job.job_id for job in advanced if job.state is State.CANCELLED)
        return changed

    changed = _run(act, transition)
    if advanced:
        after_application(act.connection, advanced_transitions(advanced))
    return changed


def run_now(act: JobsToChange) -> dict[int, State]:
    """Make ready jobs due at once, and wake the workers after the commit."""
    return _run(act, operator.run_now, makes_due=True)


def move(act: JobsToChange, *, queue_name: str | None = None, priority: int | None = None) -> dict[int, State]:
    """Change the queue or the priority of ready jobs, and wake the workers after the commit."""
    return _run(act, partial(operator.move, queue_name=queue_name, priority=priority), makes_due=True)


def set_max_attempts(act: JobsToChange, *, max_attempts: int) -> dict[int, State]:
    """Change how many attempts of unfinished jobs may count. Nothing follows."""
    return _run(act, partial(operator.set_max_attempts, max_attempts=max_attempts), reacts=False)


def delete(act: JobsToChange) -> dict[int, State]:
    """Delete finished jobs; return the state that each had.

    Nobody waits for a finished job. But a dead one can have blocked its limit key, so the workers look at keys again
    after the commit.
    """
    changed = _run(act, operator.delete, reacts=False)
    wake_for_keys(act.connection, changed)
    return changed


def wait(job: Job, timeout: Duration) -> Any:
    """Wait for the result of a job, as `waiting.wait` describes. A timeout says why the job has not finished."""
    return result_wait.wait(job, timeout, _why_unfinished)


async def await_result(job: Job, timeout: Duration) -> Any:
    """Do as `wait()` from asynchronous code."""
    return await result_wait.await_result(job, timeout, _why_unfinished)


def _why_unfinished(job: Job) -> str:
    """Return why a job has not finished, in English and on one line; "" if that cannot be read.

    It runs after the timeout only. A failure must not hide the timeout, so it raises nothing. If the caller has a
    transaction open, its statements are in a savepoint, so that they cannot abort the transaction.
    """
    from django_pgqueue.stats.explanation import why  # workers import this module, and need no figures

    alias = job.write_alias
    try:
        with transaction.atomic(using=alias), translation.override("en"):
            return in_line(why(job, alias).sentence)[:WHY_CHARACTERS]
    except Exception:
        logger.debug("the reason why job %s has not finished could not be read", job.pk, exc_info=True)
        return ""


def _run(
    act: JobsToChange, transition: Transition, *, makes_due: bool = False, reacts: bool = True
) -> dict[int, State]:
    """Run a transition on the jobs that still equal `seen`; return the state of each job that changed.

    The reactions come after the transaction of `record`, so that a receiver's failed query cannot roll it back.
    """
    with nullcontext() if act.record is None else transaction.atomic(using=act.connection.alias):
        changed = transition(act.connection, list(act.task_names), alone=act.alone, seen=act.seen)
        if act.record is not None:
            act.record({*changed, *act.others})
    if reacts:
        after_operator(act.connection, changed, act.task_names, makes_due=makes_due)
    return changed
