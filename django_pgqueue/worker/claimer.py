"""Claims jobs by one statement; where a row makes that fail, one by one, and sets that row's job aside.

Called by the fetcher, in its thread. A row that no claim can take must not keep the others of its queue from running.
"""

from __future__ import annotations

import logging
from typing import Final

import psycopg

from django_pgqueue import db, lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import Claimed, Cursor, Lane

from .hand import Hand
from .lanes import Lanes
from .refusals import Refusals

logger = logging.getLogger("django_pgqueue.worker")

EXECUTION_KEY: Final = "pgqueue_execution_pkey"


class Claimer:
    """The claims of one worker process."""

    def __init__(self, hand: Hand, lanes: Lanes) -> None:
        self.hand = hand
        self.lanes = lanes
        self.worker_id = 0
        self._unclaimed = Refusals("the claim of job")

    def claim(self, connection: db.EngineConnection, cursors: dict[Lane, Cursor], room: int) -> list[Claimed]:
        """Claim up to `room` jobs of these lanes, and move the lanes' cursors."""
        taken_whole = min(room, self.hand.free_slots)
        """As many jobs a claim returns, if there are as many; of more it may return a part."""
        try:
            claimed = self._claim_rows(connection, cursors, room)
            self.lanes.move_cursors(claimed)
            self.lanes.pass_by(cursors, claimed, all_exhausted=len(claimed) < taken_whole)
        except lifecycle.FAILURES as error:
            if not lifecycle.may_divide(connection, error):
                raise
            logger.warning("a claim failed on its data (%s): one by one", db.told(error))
            claimed = self._one_by_one(connection, cursors, room)
            self.lanes.move_cursors(claimed)
        return claimed

    def _claim_rows(self, connection: db.EngineConnection, cursors: dict[Lane, Cursor], limit: int) -> list[Claimed]:
        return lifecycle.claim(
            connection,
            cursors,
            limit=limit,
            free_slots=self.hand.free_slots,
            worker_id=self.worker_id,
            lease_seconds=get_settings().LEASE,
            skipped_ids=self._unclaimed.skipped_ids(),
            paused_tasks=self.lanes.paused_tasks,
        )

    def _one_by_one(self, connection: db.EngineConnection, cursors: dict[Lane, Cursor], room: int) -> list[Claimed]:
        """Take jobs singly, up to the first whose row makes the claim fail; end that one, with the reason."""
        claimed: list[Claimed] = []
        for _ in range(room):
            job_id = lifecycle.next_in_line(
                connection,
                cursors,
                skipped_ids=self._unclaimed.skipped_ids(),
                paused_tasks=self.lanes.paused_tasks,
            )
            if job_id is None:
                break
            try:
                claimed += self._claim_rows(connection, cursors, 1)
            except lifecycle.FAILURES as error:
                if not lifecycle.may_divide(connection, error) or _is_of_sequence(error):
                    raise
                self._set_aside(connection, job_id, error)
                break
        return claimed

    def _set_aside(self, connection: db.EngineConnection, job_id: int, error: Exception) -> None:
        try:
            lifecycle.set_aside(
                connection,
                job_id,
                worker_id=self.worker_id,
                exception_class=f"{type(error).__module__}.{type(error).__qualname__}",
                error=f"the job's row cannot be claimed: {db.told(error)}"[:2000],
            )
        except lifecycle.FAILURES as why:
            if not lifecycle.may_divide(connection, why):
                raise
            self._unclaimed.note(job_id, error)
        else:
            logger.error("job %s cannot be claimed, and is dead: %s", job_id, db.told(error))


def _is_of_sequence(error: Exception) -> bool:
    """Return whether the sequence of executions is behind its table: no job is to blame for that."""
    return isinstance(error, psycopg.Error) and error.diag.constraint_name == EXECUTION_KEY
