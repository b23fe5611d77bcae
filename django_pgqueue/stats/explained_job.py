"""A job that `why()` explains, with what lies around it: pauses, overrides of its limit, and live workers.

Each part is read once, when the first explainer asks for it, so a job whose own rows show the reason costs one
statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from django_pgqueue.db.statements import Connection

from .answers import BusyTask, Reason, WorkerStats
from .fleet import OpenGroup, Pauses, SlotsOfQueues, busy_tasks, read_open_groups, read_workers
from .limits.controls import Controls, controls_of


class FoundReason(NamedTuple):
    """The answer of an explainer: a reason, its sentence, and further fields of `Why`."""

    reason: Reason
    sentence: str
    fields: Mapping[str, Any] = MappingProxyType({})


class ExplainedJob:
    """One job. `row` has the columns of JOB_WITH_LAST_EXECUTION, and `time_text` writes the times of the sentence."""

    def __init__(self, connection: Connection, row: Any, time_text: Callable[[datetime], str]) -> None:
        self.connection = connection
        self.row = row
        self.time_text = time_text

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses of all queues and tasks."""
        return Pauses(self.connection)

    @cached_property
    def controls(self) -> Controls:
        """The pauses, overrides and open breakers of its limit key. It must have one."""
        return controls_of(self.connection, [self.row.limit_key])

    @cached_property
    def live_workers(self) -> list[WorkerStats]:
        """All live workers."""
        return [worker for worker in read_workers(self.connection, self._open_groups) if worker.is_live]

    @cached_property
    def workers(self) -> list[WorkerStats]:
        """The live workers that serve its queue."""
        return [worker for worker in self.live_workers if worker.serves(self.row.queue_name)]

    def slots(self) -> tuple[int, int]:
        """Return how many slots of these workers are busy for the queue, and how many there are."""
        return SlotsOfQueues(self.workers, self._open_groups).sums(self.row.queue_name, self.workers)

    def busy_tasks(self) -> tuple[BusyTask, ...]:
        """Return the tasks that occupy the slots, the one with the longest attempt first."""
        return busy_tasks(self.row.queue_name, self.workers, self._open_groups)

    @cached_property
    def _open_groups(self) -> list[OpenGroup]:
        return read_open_groups(self.connection)
