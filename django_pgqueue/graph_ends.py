"""Advance the dependents of ended jobs, and react: wake workers, notify those who wait, and send signals.

The worker calls `advance()` after it has written the ends of nodes, and the foreground run after each node. The sweep
of the maintenance calls `sweep()`, which finds the jobs whose dependencies have ended in another way, and those that a
process had no time for before it died.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from . import lifecycle
from .db.statements import Connection
from .lifecycle.graphs import Advanced, AdvancedJob
from .reactions import JobTransition, advanced_transitions, after_application
from .states import State

After = Callable[[Any, Sequence[JobTransition]], None]
"""Reacts to transitions on a connection, as `Reactions.after()`."""


def advance(
    connection: Connection,
    ended_ids: Collection[int],
    after: After = after_application,
    *,
    found_ids: Collection[int] = (),
) -> Advanced:
    """Advance the dependents of jobs that have ended, and of those that this cancels. React after each page of them.

    `found_ids` are waiting jobs that another session had locked.
    """

    def react(jobs: Sequence[AdvancedJob]) -> None:
        after(connection, advanced_transitions(jobs))

    return lifecycle.graphs.advance(connection, ended_ids, found_ids, on_advanced=react)


class Swept(NamedTuple):
    """The result of one page of the sweep. `last_id` is the end of the page, or None after the last."""

    advanced: Advanced
    last_id: int | None
    is_empty: bool
    """Whether the page had no waiting job."""


def sweep(connection: Connection, after_id: int = 0, after: After = after_application) -> Swept:
    """Advance those jobs of one page of the waiting ones, behind the job `after_id`, whose dependencies have ended."""
    found = lifecycle.graphs.find_missed(connection, after_id)
    return Swept(advance(connection, (), after, found_ids=found.job_ids), found.last_id, found.is_empty)


def batches_of(jobs: Sequence[AdvancedJob]) -> set[int]:
    """Return the batches that the cancellation of these jobs may have ended."""
    return {job.batch_id for job in jobs if job.batch_id is not None and job.state is State.CANCELLED}
