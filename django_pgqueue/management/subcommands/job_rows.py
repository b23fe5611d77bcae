"""Read jobs for the output of `pgqueue jobs`: the columns of their rows, their latest execution, and a word for each.

Nothing here reads arguments or results. Long texts are cut by PostgreSQL, so a list stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Subquery
from django.db.models.functions import Left

from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.job_search import PausedNames, is_limit_paused, latest, word_of
from django_pgqueue.models import BATCH_SIZE, Execution, Job
from django_pgqueue.models.operations_link import database_now, lease_end
from django_pgqueue.states import Outcome, State

ERROR_LIMIT: Final = 200
"""Characters of an error that a list reads."""
COLUMNS: Final = (
    *("pk", "task_name", "queue_name", "priority", "limit_key", "state", "attempt", "max_attempts"),
    *("enqueued_at", "run_after", "finished_at", "acknowledged_at", "cancel_requested_at"),
)

DECIDING: Final = ("unknown_since", "is_limit_paused")
"""Further values that the word for the state depends on."""


@dataclass(frozen=True)
class JobRow:
    """A job as a list shows it. `word` is the word for its state."""

    pk: int
    task_name: str
    queue_name: str
    priority: int
    limit_key: str | None
    state: str
    attempt: int
    max_attempts: int
    enqueued_at: datetime
    run_after: datetime
    finished_at: datetime | None
    acknowledged_at: datetime | None
    cancel_requested_at: datetime | None
    seen_at: datetime
    word: str
    execution: Execution | None

    @property
    def error(self) -> str:
        """The exception class and the start of the error of the latest attempt, without the module of the class."""
        if self.execution is None:
            return ""
        name = self.execution.exception_class.rpartition(".")[2]
        return ": ".join(filter(None, [name, vars(self.execution)["short_error"].strip()]))

    @property
    def own_limit_key(self) -> str | None:
        """The limit key of the job; None without one. The key of a chunk is no limit key."""
        return None if self.limit_key is None or is_chunk_key(self.limit_key) else self.limit_key

    @property
    def waits_for_event(self) -> bool:
        """Whether a step suspends the job until an event comes, without a timeout."""
        is_suspended = self.execution is not None and self.execution.outcome == Outcome.SUSPENDED
        return self.state == State.READY and is_suspended and is_endless(self.run_after, self.seen_at)

    def as_json(self) -> dict[str, Any]:
        """Return the job with the documented keys."""
        execution = self.execution
        return {
            "id": self.pk,
            "task": self.task_name,
            "queue": self.queue_name,
            "priority": self.priority,
            "limit_key": self.own_limit_key,
            "state": self.state,
            "status": self.word,
            "attempt": self.attempt,
            "max_attempts": self.max_attempts,
            "enqueued_at": self.enqueued_at,
            "due_at": self.run_after,
            "started_at": execution and execution.started_at,
            "finished_at": self.finished_at,
            "acknowledged_at": self.acknowledged_at,
            "error_class": execution.exception_class if execution else "",
            "error": vars(execution)["short_error"] if execution else "",
        }


def read_rows(alias: str, ids: Sequence[int]) -> list[JobRow]:
    """Return the jobs with these ids, in this order. Jobs that no longer exist are missing."""
    found: dict[int, JobRow] = {}
    pauses = PausedNames.of(alias)
    for start in range(0, len(ids), BATCH_SIZE):
        found |= _read_batch(alias, ids[start : start + BATCH_SIZE], pauses)
    return [found[job_id] for job_id in ids if job_id in found]


def _read_batch(alias: str, ids: Sequence[int], pauses: PausedNames) -> dict[int, JobRow]:
    jobs = Job.objects.using(alias).filter(pk__in=ids)
    seen = {"seen_at": database_now(), "latest_id": Subquery(latest("id")), "is_limit_paused": is_limit_paused()}
    rows = list(jobs.annotate(**seen).values(*COLUMNS, "unknown_since", *seen))
    executions = Execution.objects.using(alias).defer("error", "traceback")
    cut = executions.annotate(short_error=Left("error", ERROR_LIMIT), lease_end=lease_end())
    by_id = cut.in_bulk([row["latest_id"] for row in rows if row["latest_id"] is not None])
    found = {}
    for row in rows:
        execution = by_id.get(row.pop("latest_id"))
        open_until = vars(execution)["lease_end"] if execution is not None and execution.outcome is None else None
        word = word_of(row, open_until, pauses)
        values = {name: value for name, value in row.items() if name not in DECIDING}
        found[row["pk"]] = JobRow(**values, word=word, execution=execution)
    return found


@dataclass(frozen=True)
class SeenJob:
    """The values of a job that an action compares and reports."""

    pk: int
    task_name: str
    state: str
    finished_at: datetime | None
    run_after: datetime
    cancel_requested_at: datetime | None
    acknowledged_at: datetime | None
    attempt: int
    max_attempts: int


def read_seen(alias: str, ids: Sequence[int]) -> list[SeenJob]:
    """Return what an action has to know of these jobs, in the order of `ids`, in batches."""
    found: dict[int, SeenJob] = {}
    columns = (
        *("pk", "task_name", "state", "finished_at", "run_after", "cancel_requested_at", "acknowledged_at"),
        *("attempt", "max_attempts"),
    )
    for start in range(0, len(ids), BATCH_SIZE):
        jobs = Job.objects.using(alias).filter(pk__in=ids[start : start + BATCH_SIZE])
        found.update((row[0], SeenJob(*row)) for row in jobs.values_list(*columns))
    return [found[job_id] for job_id in ids if job_id in found]
