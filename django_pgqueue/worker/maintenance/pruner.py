"""Remove finished jobs past their retention, in rounds of batches.

Called by the maintenance service, one batch at a time, and by `manage.py pgqueue prune`. It keeps the table from
growing. Neither a locked job nor a job that the database refuses to remove may keep it from removing the jobs behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import pruning
from django_pgqueue.lifecycle.pruning import FIRST_FINISHED, Prunable
from django_pgqueue.lifecycle.types import Cursor
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import FINISHED, State
from django_pgqueue.tasks import registry
from django_pgqueue.worker.runtime.refusals import Refusals

MARK_LIMIT_SECONDS: Final = 3600.0
"""How long marks are kept. A completion that commits late can lie before its mark, and so can a job that other work
needed before. They are found after this time."""


class Kind(NamedTuple):
    """Finished jobs with one retention: those of one task, or (None) those of all tasks except `other_task_names`."""

    task_name: str | None
    state: State
    retention_seconds: float
    other_task_names: list[str]


class Pruner:
    """Remove finished jobs past their retention: the retention of the settings, by state, and that of each task.

    It works in rounds. A round prunes each kind once, and again for as long as its batches are full.
    """

    def __init__(self, on_batch: Callable[[], None] = lambda: None) -> None:
        self._on_batch = on_batch
        """Called after each statement."""
        self.removed = 0
        """Jobs removed in the present round, or in the last one."""
        self._began_at = 0.0
        self._pending: deque[Kind] = deque()
        self._marks: dict[tuple[str | None, State], Cursor] = {}
        """Where the next page begins: behind what was removed, and behind what stays for its task or for other work."""
        self._restart_marks: dict[tuple[str | None, State], Cursor] = {}
        """Where the next round begins, because this round found locked jobs."""
        self._marks_since = time.monotonic()
        self.refusals = Refusals("the removal of job")

    @property
    def under_way(self) -> bool:
        """Whether the present round has more to remove."""
        return bool(self._pending)

    @property
    def round_seconds(self) -> float:
        """How long ago the present round began."""
        return time.monotonic() - self._began_at

    def prune(self, connection: Connection) -> int:
        """Remove all jobs past their retention, without intervals between batches. Return how many were removed."""
        self.end_round()
        self.go_on(connection)
        while self.under_way:
            self.go_on(connection)
        return self.removed

    def go_on(self, connection: Connection) -> None:
        """Continue the round, or begin one, until a batch was full or no kind is left."""
        if not self._pending:
            self._begin_round()
        while self._pending:
            kind = self._pending.popleft()  # before the attempt: a kind that fails must not block the others
            if self._remove_batch(connection, kind):
                self._pending.append(kind)
                return

    def end_round(self) -> None:
        """End the round. The next call begins a new one."""
        self._pending.clear()

    def _begin_round(self) -> None:
        self.removed = 0
        self._began_at = time.monotonic()
        self._pending.extend(kinds())
        if self._began_at - self._marks_since > MARK_LIMIT_SECONDS:
            self._marks_since, self._marks = self._began_at, {}
        else:
            self._marks |= self._restart_marks
        self._restart_marks = {}

    def _remove_batch(self, connection: Connection, kind: Kind) -> bool:
        """Remove a batch. Return whether it was full, so that there may be more."""
        mark_key = kind.task_name, kind.state
        mark = self._marks.get(mark_key, FIRST_FINISHED)
        refused: dict[int, Exception] = {}
        pruned = pruning.prune(
            connection,
            kind.state,
            kind.retention_seconds,
            task_name=kind.task_name,
            other_task_names=kind.other_task_names,
            after=mark,
            on_refused=refused.__setitem__,
        )
        self._on_batch()
        self.removed += pruned.removed
        for job_id, error in refused.items():
            self.refusals.note(job_id, error)  # not tried again until the marks expire: there may be many such jobs
        if pruned.locked:
            self._restart_marks.setdefault(mark_key, mark)
        self._marks[mark_key] = pruned.last
        return pruned.is_full

    def count(self, connection: Connection) -> dict[tuple[str | None, State], Prunable]:
        """Return how many jobs `prune()` would remove and keep, by task (None: all others) and state."""
        return {
            (task_name, state): pruning.prunable(
                connection, state, retention, task_name=task_name, other_task_names=others
            )
            for task_name, state, retention, others in kinds()
        }


def kinds() -> Iterator[Kind]:
    """Yield the kinds of jobs to prune, by the settings and the tasks."""
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
