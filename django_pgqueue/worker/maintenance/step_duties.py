"""The duty of maintenance for durable steps: the sweep for missed events.

The sweep wakes the jobs whose event has come, but that neither the sender nor the completer has woken: because a
process was lost between its commit and that statement, because another session had locked the job, or because the event
was inserted by SQL.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.lifecycle import TransitionResult, TransitionStatus
from django_pgqueue.lifecycle.steps import FIRST_MARK
from django_pgqueue.reactions import JobTransition, Reactions
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .sweeps import UNUSED_SECONDS

WOKEN: Final = TransitionResult(TransitionStatus.DONE, State.READY)


class StepDuties:
    """The position of one process in its walk over the waits for events."""

    def __init__(self, link: ConnectionSource, reactions: Reactions) -> None:
        self._link = link
        self._reactions = reactions
        self._mark = FIRST_MARK

    def wake_missed(self) -> bool | float:
        """Wake jobs whose event has come, of one page. Return whether there is more to do, or in how many seconds."""
        with self._link.use() as connection:
            woken = lifecycle.steps.wake_missed(connection, self._mark)
            transitions = [JobTransition(job_id, None, WOKEN, is_due=True) for job_id in woken.job_ids]
            if transitions:
                self._reactions.after(connection, transitions)
        is_unused = woken.is_empty and self._mark == FIRST_MARK
        self._mark = woken.mark or FIRST_MARK
        return UNUSED_SECONDS if is_unused else False
