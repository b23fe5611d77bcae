"""Execute the bulk acts that operators have requested: one batch at a time, at the rate of each act.

The maintenance service calls `go_on()`. Any worker may execute any batch: the act's row lock keeps two workers apart,
and its cursor lets another worker continue (see `lifecycle.bulk_acts`). While there is no act, a call costs one look at
an empty index.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import concerns_all_statements, message_without_detail
from django_pgqueue.db.notifications import notify_cancel_requested, notify_keys_unblocked
from django_pgqueue.db.statements import repeat_if_stale
from django_pgqueue.ends.graphs import advanced_transitions
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import audit, bulk_acts
from django_pgqueue.lifecycle.bulk_acts import ActBatch, MayNotErase
from django_pgqueue.reactions import Reactions, operated
from django_pgqueue.states import ActOutcome, State, TransitionName
from django_pgqueue.worker.runtime.refusals import Refusals

logger = logging.getLogger("django_pgqueue.worker")

INVALID: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""Errors that a filter or a cursor raises after somebody has changed it by hand."""
PATIENCE_SECONDS: Final = 60.0
"""How long the database refuses all jobs of a page before an act that has changed others passes them by. A table that a
trigger needs can be away for a while."""


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
        self._refused_since: dict[int, float] = {}

    def go_on(self, connection: EngineConnection) -> float | None:
        """Execute one batch of each act that is due; return in how many seconds the next batch is. None: no act."""
        due_in = []
        for act in bulk_acts.waiting_acts(connection, self._refused.skipped_ids()):
            next_in = self._execute(connection, act.audit_id) if act.due_in <= 0 else act.due_in
            if next_in is not None:
                due_in.append(next_in)
        return min(due_in, default=None)

    def _execute(self, connection: EngineConnection, audit_id: int) -> float | None:
        """Execute a batch; return in how many seconds the next one is due. None: not here, or the act has ended."""
        self._progressed()
        try:
            batch = self._execute_batch(connection, audit_id)
        except (psycopg.Error, MayNotErase) as error:
            if is_lost(connection) or concerns_all_statements(error):
                raise
            self._refused.note(audit_id, error)  # the cause can end, and another worker may have the grants
            return None
        except INVALID as error:
            audit.end_audit(connection, audit_id, ActOutcome.FAILED, error=message_without_detail(error))
            self._log(audit_id, "?", ActOutcome.FAILED)
            return None
        if batch is None:
            return None
        self._react(connection, batch)
        if batch.outcome is not None:
            self._log(audit_id, batch.action, batch.outcome)
        return batch.due_in

    def _execute_batch(self, connection: EngineConnection, audit_id: int) -> ActBatch | None:
        """Execute a batch. If the database has refused all jobs of its page for long, let it pass them by."""
        since = self._refused_since.setdefault(audit_id, time.monotonic())
        has_waited = time.monotonic() - since >= PATIENCE_SECONDS
        batch = repeat_if_stale(lambda: bulk_acts.execute_batch(connection, audit_id, passes_refused=has_waited))
        del self._refused_since[audit_id]
        self._refused.forget(audit_id)
        return batch

    def _react(self, connection: EngineConnection, batch: ActBatch) -> None:
        if batch.action is TransitionName.ERASE:
            return
        if batch.action in (TransitionName.DELETE, TransitionName.ACKNOWLEDGE):  # nobody waits for a finished job
            if State.DEAD in batch.changed.values():  # it may have blocked its limit key
                notify_keys_unblocked(connection)
            return
        if State.RUNNING in batch.changed.values():
            notify_cancel_requested(connection)
        makes_due = batch.action is not TransitionName.CANCEL
        transitions = operated(batch.changed, batch.task_names, makes_due=makes_due)
        self._reactions.after(connection, [*transitions, *advanced_transitions(batch.advanced)])

    @staticmethod
    def _log(audit_id: int, action: str, outcome: ActOutcome) -> None:
        extra = event("bulk_act_ended", audit_id=audit_id, action=str(action), outcome=str(outcome))
        logger.info("bulk act %s (%s) ended: %s", audit_id, action, outcome, extra=extra)
