"""What workers do for all: rescue what lost workers held, prune what is past its time. Every worker does it; there is
no leader whose silence would stop it.

A table of (name, interval, function). No task runs again before it has rested for ten times what it took, so that
none can take more than a tenth of the time, whatever it has to walk over.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_pgqueue import lifecycle, registry, signals
from django_pgqueue.conf import DAY_SECONDS, get_settings
from django_pgqueue.db import Connection, wake_workers
from django_pgqueue.lifecycle import EPOCH, Fate, Held, Moved
from django_pgqueue.states import FINISHED, State

from . import policy
from .link import Link
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

REST: Final = 10
BATCHES_A_ROUND: Final = 20
MARK_LIMIT_SECONDS: Final = 3600.0
"""A mark is kept for this long: a finish that commits late may lie before it."""
WORKER_RECORD_SECONDS: Final = 7 * DAY_SECONDS
RESCUED: Final = "the worker was lost: its lease ran out"


@dataclass
class Duty:
    """One thing to be done again and again."""

    name: str
    interval_seconds: float
    function: Callable[[], None]
    due_at: float = 0.0


class Maintenance(Service):
    """Does each duty when it is due."""

    def __init__(self, link: Link) -> None:
        super().__init__("maintenance")
        self.link = link
        self.pruner = Pruner()
        settings = get_settings()
        self.duties = [
            Duty("rescue", settings.RESCUE_INTERVAL, self._rescue),
            Duty("prune", settings.PRUNE_INTERVAL, self._prune),
            Duty("worker records", DAY_SECONDS / 4, self._prune_workers),
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
        began = time.monotonic()
        self._put_off(duty, took_seconds=0.0)  # a failure is no measure: it may have waited for a server that is away
        duty.function()
        self._put_off(duty, time.monotonic() - began)

    def _put_off(self, duty: Duty, took_seconds: float) -> None:
        jitter = random.uniform(0.9, 1)  # noqa: S311 -- spreads load, hides nothing
        duty.due_at = time.monotonic() + max(duty.interval_seconds * jitter, REST * took_seconds)

    def _rescue(self) -> None:
        with self.link.use() as connection:
            # After an outage of the database all leases look over: their workers get two beats to say otherwise.
            if time.monotonic() - self.link.connected_at < 2 * get_settings().beat_seconds:
                return
            rescued = lifecycle.rescue(connection, policy.delay_after_crash, error=RESCUED)
            if rescued:
                wake_workers(connection)
        for held, moved in rescued:
            tell_crash(held, moved, error=RESCUED, rescued=True)

    def _prune(self) -> None:
        with self.link.use() as connection:
            removed = self.pruner.prune(connection, BATCHES_A_ROUND)
        if removed:
            logger.info("pruned %d finished jobs", removed)

    def _prune_workers(self) -> None:
        with self.link.use() as connection:
            lifecycle.prune_workers(connection, WORKER_RECORD_SECONDS)


class Pruner:
    """Removes finished jobs past their retention: the settings' by state, and each task's own."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str | None, State], datetime] = {}
        self._marks_since = time.monotonic()

    def prune(self, connection: Connection, most_batches: int) -> int:
        """Remove what is over its time, up to `most_batches` batches of each kind; return how many jobs."""
        if time.monotonic() - self._marks_since > MARK_LIMIT_SECONDS:
            self._marks.clear()
            self._marks_since = time.monotonic()
        return sum(
            self._prune_kind(connection, task_name, state, retention, others, most_batches)
            for task_name, state, retention, others in kinds()
        )

    def _prune_kind(
        self,
        connection: Connection,
        task_name: str | None,
        state: State,
        retention_seconds: float,
        others: list[str],
        most_batches: int,
    ) -> int:
        removed = 0
        for _ in range(most_batches):
            pruned = lifecycle.prune(
                connection,
                state,
                retention_seconds,
                task_name=task_name,
                other_task_names=others,
                mark=self._marks.get((task_name, state), EPOCH),
            )
            removed += pruned.removed
            if pruned.mark is not None and pruned.removed == pruned.found:
                self._marks[task_name, state] = pruned.mark
            if pruned.found < lifecycle.PRUNE_LIMIT or not pruned.removed:
                break
        return removed

    def count(self, connection: Connection) -> dict[tuple[str | None, State], int]:
        """Return how many jobs there are to remove, by task (None: all others) and state; removes nothing."""
        return {
            (task_name, state): lifecycle.prunable(
                connection, state, retention, task_name=task_name, other_task_names=others
            )
            for task_name, state, retention, others in kinds()
        }


def kinds() -> Iterator[tuple[str | None, State, float, list[str]]]:
    """Yield (task, state, retention in seconds, other tasks): task None is all but the others, which have their own."""
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
            yield None, state, general, sorted(own)
        for name, seconds in own.items():
            if seconds is not None:
                yield name, state, seconds, []


def tell_crash(held: Held, moved: Moved, *, error: str, rescued: bool) -> None:
    """Log and signal what was done with an execution whose worker was lost, and how that showed."""
    if moved.fate is not Fate.DONE:
        return
    logger.warning(
        "job %s (%s), attempt %d: %s; now %s",
        held.job_id,
        registry.in_words(held.task_name),
        held.attempt,
        error,
        moved.state,
        extra={"job_id": held.job_id, "task": held.task_name, "queue": held.queue_name, "attempt": held.attempt},
    )
    about: dict[str, Any] = {"job_id": held.job_id, "execution_id": held.execution_id, "attempt": held.attempt}
    if rescued:
        signals.job_rescued.send_robust(sender=held.task_name, **about)
    about |= {"queue_name": held.queue_name}
    if moved.state is State.DEAD:
        signals.job_dead.send_robust(sender=held.task_name, exception=None, error=error, **about)
    elif moved.state is State.READY:
        signals.job_failed.send_robust(sender=held.task_name, exception=None, error=error, retry_seconds=None, **about)
    else:
        signals.job_cancelled.send_robust(sender=held.task_name, job_id=held.job_id, error=error)
