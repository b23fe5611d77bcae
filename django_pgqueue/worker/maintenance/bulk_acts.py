"""Execute the bulk acts that operators have requested: one batch at a time, at the rate of each act.

The maintenance service calls `go_on()`. Any worker may execute any batch: the act's row lock keeps two workers apart,
and its cursor lets another worker continue (see `lifecycle.bulk_acts`). While there is no act, a call costs one look at
an empty index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import psycopg

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import is_of_rows, message_without_detail
from django_pgqueue.db.notifications import notify_cancel_requested
from django_pgqueue.db.statements import repeat_if_stale
from django_pgqueue.lifecycle.bulk_acts import Batch
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions, operated
from django_pgqueue.states import ActOutcome, State, TransitionName
from django_pgqueue.worker.runtime.refusals import Refusals

logger = logging.getLogger("django_pgqueue.worker")

INVALID: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""Errors that a filter or a cursor raises after somebody has changed it by hand."""


class BulkActs:
    """The bulk acts of one database.

    Args:
        reactions: Notifies those who wait for a changed job, and wakes workers.
        progressed: Called before each batch, because a round with many batches is no hang.
    """

    def __init__(self, reactions: Reactions, progressed: Callable[[], None]) -> None:
        self._reactions = reactions
        self._progressed = progressed
        self._refused = Refusals("a batch of the bulk act")

    def go_on(self, connection: EngineConnection) -> float | None:
        """Execute one batch of each act that is due; return in how many seconds the next batch is. None: no act."""
        skipped = set(self._refused.skipped_ids())
        due_in = []
        for act in lifecycle.bulk_acts.waiting_acts(connection):
            if act.audit_id in skipped:
                continue
            next_in = self._execute(connection, act.audit_id) if act.due_in <= 0 else act.due_in
            if next_in is not None:
                due_in.append(next_in)
        return min(due_in, default=None)

    def _execute(self, connection: EngineConnection, audit_id: int) -> float | None:
        """Execute a batch; return in how many seconds the next one is due. None: not here, or the act has ended."""
        self._progressed()
        try:
            batch = repeat_if_stale(lambda: lifecycle.bulk_acts.execute_batch(connection, audit_id))
        except psycopg.errors.InsufficientPrivilege as error:  # another worker may have the grants
            self._refused.note(audit_id, error)
            return None
        except (psycopg.Error, *INVALID) as error:
            if isinstance(error, psycopg.Error) and (is_lost(connection) or not is_of_rows(error)):
                raise
            lifecycle.end_audit(connection, audit_id, ActOutcome.FAILED, error=message_without_detail(error))
            self._log(audit_id, "?", ActOutcome.FAILED)
            return None
        if batch is None:
            return None
        self._react(connection, batch)
        if batch.outcome is not None:
            self._log(audit_id, batch.action, batch.outcome)
        return batch.due_in

    def _react(self, connection: EngineConnection, batch: Batch) -> None:
        if batch.action is TransitionName.DELETE:  # nobody waits for a finished job
            return
        if State.RUNNING in batch.changed.values():
            notify_cancel_requested(connection)
        makes_due = batch.action is not TransitionName.CANCEL
        self._reactions.after(connection, operated(batch.changed, batch.task_names, makes_due=makes_due))

    @staticmethod
    def _log(audit_id: int, action: str, outcome: ActOutcome) -> None:
        logger.info(
            "bulk act %s (%s) ended: %s",
            audit_id,
            action,
            outcome,
            extra=event("bulk_act_ended", audit_id=audit_id, action=str(action), outcome=str(outcome)),
        )
