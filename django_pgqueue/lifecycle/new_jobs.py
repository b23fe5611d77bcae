"""`NewJob`: everything that is written for one job, before it is written.

`enqueue.new_job()` makes it from the call of a task. The functions of `enqueue`, and the transitions that add jobs
themselves, write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django_pgqueue.limits import CallLimit

Row = dict[str, Any]
"""The name, the headers and the options of a job, as the insert statements take them. Jobs can share a row."""
SearchKeys = Mapping[str, str]
"""Texts by the names of the arguments."""


class Uniqueness(NamedTuple):
    """How the jobs of a task keep their unique keys, and what a call does whose key another job has."""

    ready_only: bool
    """Whether a job has its key until it is claimed for the first time. Otherwise it has it until it has ended."""
    period_seconds: float | None
    """Length of the uniqueness window. None: the key depends on the state of the job that has it."""
    on_conflict: str
    has_steps: bool
    """Whether the jobs can have durable steps, which a replacement removes."""

    def columns(self) -> Row:
        """Return the column of a row that says how long a job keeps its key."""
        return {"unique_ready_only": self.ready_only or None}

    @property
    def can_share_statement(self) -> bool:
        """Whether one statement can add jobs of this task and other such jobs, with any tasks and options."""
        return self.on_conflict != "replace" and self.period_seconds is None


class NewJob(NamedTuple):
    """A job to add. `arguments` is the text to store."""

    row: Row
    arguments: str
    search_keys: SearchKeys | None = None
    """None: its task has no search keys."""
    limit: CallLimit | None = None
    uniqueness: Uniqueness | None = None
    """None: its task has no unique key."""
    key: str | None = None
    """None: the job is not unique."""

    @property
    def task_name(self) -> str:
        return str(self.row["task_name"])

    @property
    def queue_name(self) -> str:
        return str(self.row["queue_name"])

    def columns(self) -> Row:
        """Return the values that the statement which adds this job alone needs, apart from the arguments."""
        return self.row if self.limit is None else {**self.row, **self.limit._asdict()}
