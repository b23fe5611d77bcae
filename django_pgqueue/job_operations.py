"""The operations behind the methods of `Job` and `JobQuerySet`: retry, cancel, run now, and wait; also move and delete.

They need `lifecycle`, `codecs`, `reactions` and `waiting`, which are layers above the models. The app's configuration
passes this module down: the models find it by `models.operations`. The admin and `manage.py pgqueue` call it directly.
It protects one invariant: if the caller passes what it has seen of a job, the transition applies only if the job has
not changed since. `record` is called in the transaction of the change, and writes the audit of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import transaction

from . import lifecycle
from .codecs import readable as readable
from .deletion import delete_batches as delete_batches
from .deletion import delete_job as delete_job
from .deletion import delete_jobs as delete_jobs
from .ends.graphs import advanced_transitions
from .lifecycle.graphs import waiting_ids
from .reactions import after_application, after_operator
from .states import Seen, State
from .waiting.results import await_result as await_result
from .waiting.results import return_value as return_value
from .waiting.results import wait as wait

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .lifecycle.graphs import AdvancedJob, Restored
    from .models.operations import Record, Transition


def retry(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    record: Record | None = None,
    others: set[int] | None = None,
) -> dict[int, State]:
    """Make finished jobs ready again, and wake the workers after the commit.

    The result also has those of these jobs that wait now because another one was retried that they depend on. `others`
    gets the ids of further jobs that wait now.
    """
    waiting = set[int]() if others is None else others

    def transition(*args: Any, **options: Any) -> dict[int, State]:
        restored: dict[int, Restored] = {}
        changed = lifecycle.retry(*args, **options, restored=restored)
        waiting.update(found := waiting_ids(restored))
        return dict.fromkeys(found & task_names.keys(), State.WAITING) | changed

    return _run(connection, transition, task_names, seen, waiting, alone=alone, record=record, makes_due=True)


def cancel(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    record: Record | None = None,
    running: bool = True,
    others: set[int] | None = None,
) -> dict[int, State]:
    """Cancel ready and waiting jobs, and ask running ones to stop. Receivers of `job_cancelled` are called at once.

    `others` gets the ids of further jobs that were cancelled, because they depend on these.
    """
    advanced: list[AdvancedJob] = []
    cancelled = set[int]() if others is None else others

    def transition(*args: Any, **options: Any) -> dict[int, State]:
        changed = lifecycle.cancel(*args, **options, running=running, advanced=advanced)
        cancelled.update(job.job_id for job in advanced if job.state is State.CANCELLED)
        return changed

    changed = _run(connection, transition, task_names, seen, cancelled, alone=alone, record=record)
    if advanced:
        after_application(connection, advanced_transitions(advanced))
    return changed


def run_now(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    record: Record | None = None,
) -> dict[int, State]:
    """Make ready jobs due at once, and wake the workers after the commit."""
    return _run(connection, lifecycle.run_now, task_names, seen, alone=alone, record=record, makes_due=True)


def move(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    record: Record | None = None,
    queue_name: str | None = None,
    priority: int | None = None,
) -> dict[int, State]:
    """Change the queue or the priority of ready jobs, and wake the workers after the commit."""
    transition = partial(lifecycle.move, queue_name=queue_name, priority=priority)
    return _run(connection, transition, task_names, seen, alone=alone, record=record, makes_due=True)


def delete(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    record: Record | None = None,
) -> dict[int, State]:
    """Delete finished jobs; return the state that each had. Nobody waits for a finished job, so nobody is notified."""
    return _run(connection, lifecycle.delete, task_names, seen, alone=alone, record=record, reacts=False)


def _run(
    connection: BaseDatabaseWrapper,
    transition: Transition,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None,
    others: Collection[int] = (),
    *,
    alone: bool,
    record: Record | None,
    makes_due: bool = False,
    reacts: bool = True,
) -> dict[int, State]:
    """Run a transition on the jobs that still equal `seen`; return the state of each job that changed.

    The transition adds the further jobs that it changes to `others`, which are recorded too.
    The reactions come after the transaction of `record`, so that a receiver's failed query cannot roll it back.
    """
    with nullcontext() if record is None else transaction.atomic(using=connection.alias):
        changed = transition(connection, list(task_names), alone=alone, seen=seen)
        if record is not None:
            record({*changed, *others})
    if reacts:
        after_operator(connection, changed, task_names, makes_due=makes_due)
    return changed
