"""The operations behind the methods of `Job` and `JobQuerySet`: retry, cancel, run now, and wait; also move and delete.

They need `lifecycle`, `codecs`, `reactions` and `waiting`, which are layers above the models. The app's configuration
passes this module down: the models find it by `models.operations`. The admin and `manage.py pgqueue` call it directly.
It protects one invariant: if the caller passes what it has seen of a job, the transition applies only if the job has
not changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from . import lifecycle
from .codecs import readable as readable
from .reactions import after_operator
from .states import Seen, State
from .waiting.results import await_result as await_result
from .waiting.results import return_value as return_value
from .waiting.results import wait as wait

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models.operations import Transition


def retry(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
) -> dict[int, State]:
    """Make finished jobs ready again, and wake the workers after the commit."""
    return _run(connection, lifecycle.retry, task_names, seen, alone=alone, makes_due=True)


def cancel(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    running: bool = True,
) -> dict[int, State]:
    """Cancel ready jobs, and ask running ones to stop. Receivers of `job_cancelled` are called at once."""
    return _run(connection, partial(lifecycle.cancel, running=running), task_names, seen, alone=alone)


def run_now(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
) -> dict[int, State]:
    """Make ready jobs due at once, and wake the workers after the commit."""
    return _run(connection, lifecycle.run_now, task_names, seen, alone=alone, makes_due=True)


def move(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
    queue_name: str | None = None,
    priority: int | None = None,
) -> dict[int, State]:
    """Change the queue or the priority of ready jobs, and wake the workers after the commit."""
    transition = partial(lifecycle.move, queue_name=queue_name, priority=priority)
    return _run(connection, transition, task_names, seen, alone=alone, makes_due=True)


def delete(
    connection: BaseDatabaseWrapper,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None = None,
    *,
    alone: bool = False,
) -> dict[int, State]:
    """Delete finished jobs; return the state that each had. Nobody waits for a finished job, so nobody is notified."""
    return lifecycle.delete(connection, list(task_names), alone=alone, seen=seen)


def _run(
    connection: BaseDatabaseWrapper,
    transition: Transition,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None,
    *,
    alone: bool,
    makes_due: bool = False,
) -> dict[int, State]:
    """Run a transition on the jobs that still equal `seen`; return the state of each job that changed."""
    changed = transition(connection, list(task_names), alone=alone, seen=seen)
    after_operator(connection, changed, task_names, makes_due=makes_due)
    return changed
