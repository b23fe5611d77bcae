"""Removes finished jobs past their retention, in rounds of batches.

Called by the maintenance service, a batch at a time, and by `manage.py pgqueue prune`. It protects the table from
growing: neither a locked job nor one that the database refuses to remove keeps it from the jobs behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db import Connection
from django_pgqueue.lifecycle import EPOCH
from django_pgqueue.states import FINISHED, State

from .refusals import Refusals

MARK_LIMIT_SECONDS: Final = 3600.0
"""A mark is kept for this long: a finish that commits late may lie before it."""


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
        self.refusals = Refusals("the removal of job")

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
        refused: dict[int, Exception] = {}
        pruned = lifecycle.prune(
            connection,
            kind.state,
            kind.retention_seconds,
            task_name=kind.task_name,
            other_task_names=kind.other_task_names,
            mark=mark,
            on_refused=refused.__setitem__,
        )
        self._on_batch()
        self.removed += pruned.removed
        for job_id, error in refused.items():
            self.refusals.note(job_id, error)  # not tried again before the marks are forgotten: there may be many
        dealt_with = pruned.removed + len(refused)
        if dealt_with < pruned.found:
            self._left_behind.setdefault(its, mark)
        if pruned.mark is not None:
            self._marks[its] = pruned.mark
        moved_on = pruned.mark is not None and pruned.mark > mark  # past a batch whose executions are all locked
        return pruned.found >= lifecycle.PRUNE_LIMIT and (dealt_with > 0 or moved_on)

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
