"""What workers do for all: rescue what lost workers held, prune what is past its time. Every worker does it; there is
no leader whose silence would stop it.

A table of (name, interval, function). No duty is done again before it has rested for ten times what it took, so that
none can take more than a tenth of the time, whatever it has to walk over. One that has found more than it does at once
rests only as long as it took: a backlog goes batch by batch, by half of one connection, and other duties come in
between.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django_pgqueue import lifecycle, signals
from django_pgqueue.conf import DAY_SECONDS, get_settings
from django_pgqueue.db import wake_workers
from django_pgqueue.lifecycle import Held

from . import policy
from .awaited import Awaited, may_be_over
from .crash_events import publish_crash
from .events import IN_THIS_THREAD, Events
from .link import Link
from .pruner import Pruner
from .pulse import pulse
from .refusals import Refusals
from .report import EXPIRED
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

REST: Final = 10
REST_AMID: Final = 1
"""The rest of a duty that has more to do. 1,000 jobs take 5 to 16 ms to prune, so it prunes 30,000 jobs a second and
more, and a process finishes 25,000."""
RECORD_SECONDS: Final = 7 * DAY_SECONDS
"""How long workers that have stopped, and pauses that are over, can be looked at."""
ABANDONED: Final = "the job ran without an open execution: somebody has removed it"
RESCUED: Final = "the worker was lost: its lease ran out"


@dataclass
class Duty:
    """One thing to be done again and again."""

    name: str
    interval_seconds: float
    function: Callable[[], bool]
    """Returns whether there is more to do than was done."""
    due_at: float = 0.0


class Maintenance(Service):
    """Does each duty when it is due."""

    def __init__(self, link: Link, worker_id: int = 0, events: Events = IN_THIS_THREAD) -> None:
        super().__init__("maintenance")
        self.link = link
        self.events = events
        self.worker_id = worker_id
        self.awaited = Awaited()
        """The jobs whose ends somebody waits to be told of."""
        self.pruner = Pruner(self.progressed)
        self.unrescued = Refusals("the rescue of execution")
        self.unexpired = Refusals("the expiry of job")
        self._seen_id = 0
        settings = get_settings()
        self.duties = [
            Duty("rescue", settings.RESCUE_INTERVAL, self._rescue),
            Duty("prune", settings.PRUNE_INTERVAL, self._prune),
            Duty("expire", settings.PRUNE_INTERVAL, self._expire),
            Duty("records", DAY_SECONDS / 24, self._prune_records),
            Duty("requeue", DAY_SECONDS / 24, self._requeue),
        ]
        for duty in self.duties:
            self._put_off(duty, took_seconds=0.0)

    def tick(self) -> float:
        """Do what is due; sleep until the next is."""
        for duty in self.duties:
            if not self.stopping and time.monotonic() >= duty.due_at:
                self._do(duty)
        return max(0.0, min(duty.due_at for duty in self.duties) - time.monotonic())

    def _do(self, duty: Duty) -> None:
        self.progressed()
        began = time.monotonic()
        self._put_off(duty, took_seconds=0.0)  # a failure is no measure: it may have waited for a server that is away
        more = duty.function()
        took_seconds = time.monotonic() - began
        if more:
            duty.due_at = time.monotonic() + REST_AMID * took_seconds
        else:
            self._put_off(duty, took_seconds)

    def _put_off(self, duty: Duty, took_seconds: float) -> None:
        jitter = random.uniform(0.9, 1)  # noqa: S311 -- spreads load, hides nothing
        duty.due_at = time.monotonic() + max(duty.interval_seconds * jitter, REST * took_seconds)

    def _rescue(self) -> bool:
        with self.link.use() as connection:
            # After an outage of the database all leases look over: their workers get two beats to say otherwise.
            if time.monotonic() - self.link.connected_at < 2 * get_settings().beat_seconds:
                return False
            rescued = lifecycle.rescue(
                connection,
                self._delay_after_crash,
                error=RESCUED,
                skipped_ids=self.unrescued.skipped_ids(),
                on_refused=lambda held, error: self.unrescued.note(held.execution_id, error),
            )
            pulse.answered("rescue")
            if rescued:
                wake_workers(connection)
                self.awaited.tell(connection, [held.job_id for held, moved in rescued if may_be_over(moved)])
        for held, moved in rescued:
            publish_crash(held, moved, self.link.alias, error=RESCUED, rescued=True, events=self.events)
        return False

    def _delay_after_crash(self, held: Held) -> float | None:
        """Ask the job's backoff; a hundred slow ones are no hang."""
        self.progressed()
        return policy.delay_after_crash(held)

    def _prune(self) -> bool:
        """Go on with the round: one full batch at the most, so that rescue and a stop wait for no more than that."""
        pruner = self.pruner
        with self.link.use() as connection:
            pruner.go_on(connection)
        more = pruner.under_way
        if more and pruner.round_seconds < get_settings().PRUNE_INTERVAL:
            return True
        if pruner.removed:
            logger.info("pruned %d finished jobs", pruner.removed)
        pruner.end_round()  # where one kind never ends, so that the others are looked at again
        return more

    def _expire(self) -> bool:
        """Cancel what nobody has claimed in time; what is claimed late ends at its start."""
        with self.link.use() as connection:
            expired = lifecycle.expire(
                connection,
                worker_id=self.worker_id,
                error=EXPIRED,
                skipped_ids=self.unexpired.skipped_ids(),
                on_refused=self.unexpired.note,
            )
            if expired:
                self.awaited.tell(connection, [job_id for job_id, _ in expired])
        for job_id, task_name in expired:
            about = {"job_id": job_id, "database": self.link.alias, "error": EXPIRED}
            self.events.publish(signals.job_cancelled, task_name, about)
        return len(expired) == lifecycle.PRUNE_LIMIT

    def _requeue(self) -> bool:
        """Make running jobs without an open execution ready again: a page of the table, then a rest, once an hour."""
        with self.link.use() as connection:
            found = lifecycle.requeue(
                connection, self._delay_after_crash, worker_id=self.worker_id, after_id=self._seen_id, error=ABANDONED
            )
            if found.requeued:
                wake_workers(connection)
                self.awaited.tell(connection, [held.job_id for held, moved in found.requeued if may_be_over(moved)])
        for held, moved in found.requeued:
            publish_crash(held, moved, self.link.alias, error=ABANDONED, rescued=False, events=self.events)
        self._seen_id = found.last_id or 0
        return found.last_id is not None

    def _prune_records(self) -> bool:
        with self.link.use() as connection:
            lifecycle.prune_workers(connection, RECORD_SECONDS)
            lifecycle.prune_pauses(connection, RECORD_SECONDS)
            return lifecycle.prune_holds(connection) == lifecycle.HOLDS_PRUNED
