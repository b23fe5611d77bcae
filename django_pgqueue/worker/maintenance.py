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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from django_pgqueue import lifecycle, registry, signals
from django_pgqueue.conf import DAY_SECONDS, get_settings
from django_pgqueue.db import Connection, wake_workers
from django_pgqueue.lifecycle import EPOCH
from django_pgqueue.states import FINISHED, State

from . import policy
from .awaited import Awaited, may_be_over
from .crash_events import publish_crash
from .events import IN_THIS_THREAD, Events
from .link import Link
from .pulse import pulse
from .refusals import Refusals
from .report import EXPIRED
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

REST: Final = 10
REST_AMID: Final = 1
"""The rest of a duty that has more to do. 1,000 jobs take 5 to 16 ms to prune, so it prunes 30,000 jobs a second and
more, and a process finishes 25,000."""
MARK_LIMIT_SECONDS: Final = 3600.0
"""A mark is kept for this long: a finish that commits late may lie before it."""
RECORD_SECONDS: Final = 7 * DAY_SECONDS
"""How long workers that have stopped, and pauses that are over, can be looked at."""
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
        settings = get_settings()
        self.duties = [
            Duty("rescue", settings.RESCUE_INTERVAL, self._rescue),
            Duty("prune", settings.PRUNE_INTERVAL, self._prune),
            Duty("expire", settings.PRUNE_INTERVAL, self._expire),
            Duty("records", DAY_SECONDS / 24, self._prune_records),
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
            expired = lifecycle.expire(connection, worker_id=self.worker_id, error=EXPIRED)
            if expired:
                self.awaited.tell(connection, [job_id for job_id, _ in expired])
        for job_id, task_name in expired:
            about = {"job_id": job_id, "database": self.link.alias, "error": EXPIRED}
            self.events.publish(signals.job_cancelled, task_name, about)
        return len(expired) == lifecycle.PRUNE_LIMIT

    def _prune_records(self) -> bool:
        with self.link.use() as connection:
            lifecycle.prune_workers(connection, RECORD_SECONDS)
            lifecycle.prune_pauses(connection, RECORD_SECONDS)
            return lifecycle.prune_holds(connection) == lifecycle.HOLDS_PRUNED


class Kind(NamedTuple):
    """Finished jobs of one retention: those of one task, or (None) of all but the others, which have their own."""

    task_name: str | None
    state: State
    retention_seconds: float
    other_task_names: list[str]


class Pruner:
    """Removes finished jobs past their retention: the settings' by state, and each task's own.

    In rounds: each kind is looked at once, and again for as long as its batches are full.
    """

    def __init__(self, on_batch: Callable[[], None] = lambda: None) -> None:
        self._on_batch = on_batch
        """Called after each statement."""
        self.removed = 0
        """Jobs, in the present round or the last."""
        self._began_at = 0.0
        self._left: deque[Kind] = deque()
        self._marks: dict[tuple[str | None, State], datetime] = {}
        """Where the next batch begins; unmarked it would walk again over what the last ones removed."""
        self._left_behind: dict[tuple[str | None, State], datetime] = {}
        """Where the next round begins, because this one met jobs that somebody holds."""
        self._marks_since = time.monotonic()

    @property
    def under_way(self) -> bool:
        """Whether the present round has more to remove."""
        return bool(self._left)

    @property
    def round_seconds(self) -> float:
        """How long ago the present round began."""
        return time.monotonic() - self._began_at

    def prune(self, connection: Connection) -> int:
        """Remove all that is over its time, without a rest; return how many jobs."""
        self.end_round()
        self.go_on(connection)
        while self.under_way:
            self.go_on(connection)
        return self.removed

    def go_on(self, connection: Connection) -> None:
        """Go on with the round, or begin one, until a batch was full or nothing is left."""
        if not self._left:
            self._begin_round()
        while self._left:
            kind = self._left.popleft()  # one that fails must not keep the others from their turn
            if self._remove_batch(connection, kind):
                self._left.append(kind)
                return

    def end_round(self) -> None:
        """Have the next call begin a round."""
        self._left.clear()

    def _begin_round(self) -> None:
        self.removed = 0
        self._began_at = time.monotonic()
        self._left.extend(kinds())
        if self._began_at - self._marks_since > MARK_LIMIT_SECONDS:
            self._marks_since, self._marks = self._began_at, {}
        else:
            self._marks |= self._left_behind
        self._left_behind = {}

    def _remove_batch(self, connection: Connection, kind: Kind) -> bool:
        """Remove a batch; return whether it was full, so that there may be more."""
        its = kind.task_name, kind.state
        mark = self._marks.get(its, EPOCH)
        pruned = lifecycle.prune(
            connection,
            kind.state,
            kind.retention_seconds,
            task_name=kind.task_name,
            other_task_names=kind.other_task_names,
            mark=mark,
        )
        self._on_batch()
        self.removed += pruned.removed
        if pruned.removed < pruned.found:
            self._left_behind.setdefault(its, mark)
        if pruned.mark is not None:
            self._marks[its] = pruned.mark
        moved_on = pruned.mark is not None and pruned.mark > mark  # past a batch whose executions are all locked
        return pruned.found >= lifecycle.PRUNE_LIMIT and (pruned.removed > 0 or moved_on)

    def count(self, connection: Connection) -> dict[tuple[str | None, State], int]:
        """Return how many jobs there are to remove, by task (None: all others) and state; removes nothing."""
        return {
            (task_name, state): lifecycle.prunable(
                connection, state, retention, task_name=task_name, other_task_names=others
            )
            for task_name, state, retention, others in kinds()
        }


def kinds() -> Iterator[Kind]:
    """Yield what there is to prune, by the settings and the tasks."""
    tasks = registry.all_tasks()
    for state in sorted(FINISHED):
        own = {
            name: task.retention_for(state)[1]
            for task in tasks
            if task.retention_for(state)[0]
            for name in (task.name, *task.aliases)
        }
        general = get_settings().retention_seconds(state)
        if general is not None:
            yield Kind(None, state, general, sorted(own))
        for name, seconds in own.items():
            if seconds is not None:
                yield Kind(name, state, seconds, [])
