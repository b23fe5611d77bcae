"""The words for the states of jobs that people read: `due`, `retrying`, `lost` and so on.

The state in a job's row is coarser: a ready job can be due, scheduled, retrying or paused. `word_of()` is the only
function that decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import connections

from django_pgqueue import lifecycle, registry
from django_pgqueue.states import State


class Pauses:
    """The names of the queues and tasks that are paused. A paused task is paused under its former names too."""

    def __init__(self, queues: Iterable[str], tasks: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.tasks = frozenset(name for paused in tasks for name in registry.names_of(paused))

    @classmethod
    def of(cls, alias: str) -> Pauses:
        """Read the active pauses of a database."""
        scan = lifecycle.scan_lanes(connections[alias])
        return cls(scan.paused_queues, scan.paused_tasks)

    def stop(self, queue_name: str, task_name: str) -> bool:
        """Return whether a pause keeps a ready job of this queue and task from starting."""
        return queue_name in self.queues or task_name in self.tasks


def word_of(row: Mapping[str, Any], open_until: datetime | None, pauses: Pauses) -> str:
    """Return the word for the state of a job.

    Args:
        row: The columns `state`, `attempt`, `run_after`, `cancel_requested_at`, `queue_name` and `task_name` of the
            job, and `seen_at`, the time of the database when they were read.
        open_until: The end of the lease of the open execution; None without an open execution.
        pauses: The active pauses.
    """
    if row["state"] == State.RUNNING:
        if open_until is not None and open_until < row["seen_at"]:
            return "lost"
        return "cancelling" if row["cancel_requested_at"] is not None else "running"
    if row["state"] != State.READY:
        return str(row["state"])
    if row["run_after"] > row["seen_at"]:
        return "retrying" if row["attempt"] else "scheduled"
    return "paused" if pauses.stop(row["queue_name"], row["task_name"]) else "due"
