"""The duties of maintenance for durable steps: the sweep for missed events, and the removal of old rows.

The sweep wakes the jobs whose event has come, but that neither the sender nor the completer has woken: because a
process was lost between its commit and that statement, because another session had locked the job, or because the event
was inserted by SQL.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import TransitionResult, TransitionStatus
from django_pgqueue.lifecycle.steps import FIRST_MARK
from django_pgqueue.reactions import JobTransition, Reactions
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .sweeps import UNUSED_SECONDS

WOKEN: Final = TransitionResult(TransitionStatus.DONE, State.READY)


class StepDuties:
    """The duties for durable steps. Each method returns whether there is more to do, or in how many seconds."""

    def __init__(self, link: ConnectionSource, reactions: Reactions) -> None:
        self._link = link
        self._reactions = reactions
        self._mark = FIRST_MARK
        self._after_id = self._events_after_id = 0

    def wake_missed(self) -> bool | float:
        """Wake jobs whose event has come: one page of the waits per call."""
        with self._link.use() as connection:
            woken = lifecycle.steps.wake_missed(connection, self._mark)
            transitions = [JobTransition(job_id, None, WOKEN, is_due=True) for job_id in woken.job_ids]
            if transitions:
                self._reactions.after(connection, transitions)
        is_unused = woken.is_empty and self._mark == FIRST_MARK
        self._mark = woken.mark or FIRST_MARK
        return UNUSED_SECONDS if is_unused else False

    def prune_steps(self) -> bool:
        """Remove the steps of jobs that were deleted by SQL: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.steps.prune_steps(connection, self._after_id).last_id
        self._after_id = last_id or 0
        return last_id is not None

    def prune_events(self) -> bool:
        """Remove events that are past their retention: one page per call."""
        with self._link.use() as connection:
            retention_seconds = get_settings().EVENT_RETENTION
            last_id = lifecycle.events.prune_events(connection, retention_seconds, self._events_after_id).last_id
        self._events_after_id = last_id or 0
        return last_id is not None
