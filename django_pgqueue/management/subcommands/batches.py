"""Change many jobs in batches, at a rate, each only if it is still as it was read.

`jobs retry|cancel|move|delete` and `dead retry` call it. Each batch is a transaction that also adds its jobs to the
audit, so an interruption leaves whole batches behind. A second operator, or a job that runs in the meantime, cannot
make an action change more than was shown, because the statements compare each job with what was read (`states.Seen`).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from django.core.management.base import CommandError, OutputWrapper
from django.db import connections

from django_pgqueue import job_operations, lifecycle
from django_pgqueue.models import BATCH_SIZE, Job
from django_pgqueue.models.operations import JobChange, Tally, superseded_ids
from django_pgqueue.registry import in_words
from django_pgqueue.states import ActOutcome, Seen

from .job_rows import SeenJob
from .output import counted
from .subcommand import user_name

logger = logging.getLogger("django_pgqueue.operator")

TICK_SECONDS: Final = 0.1
"""How often a sleep ends to look for a Ctrl-C."""
AfterBatch = Callable[[Sequence[int]], None]
"""Called with the ids of the jobs that a batch has changed. It raises `Stop` to end the action."""


class Stop(Exception):
    """An action ends before all jobs were changed. The message says why, and the other values are for the audit."""

    def __init__(
        self, message: str, outcome: ActOutcome = ActOutcome.STOPPED, failed_job_id: int | None = None, error: str = ""
    ) -> None:
        super().__init__(message)
        self.outcome, self.failed_job_id, self.error = outcome, failed_job_id, error


class Audit:
    """The entry of the audit for one action: who changes which jobs, and why."""

    def __init__(
        self,
        alias: str,
        chosen: Mapping[str, Any],
        *,
        reason: str = "",
        rate: float | None = None,
        stops_on_repeat: bool = False,
    ) -> None:
        self.alias = alias
        self.rate = rate
        self.is_stop_asked = False
        self._chosen = chosen
        self._options: dict[str, Any] = {"reason": reason, "rate": rate, "stops_on_repeat": stops_on_repeat}
        self._id = 0

    def begin(self, action: str, total: int) -> None:
        """Write the entry."""
        self._id = lifecycle.begin_audit(
            connections[self.alias], action, self._chosen, done_by=user_name(), total=total, **self._options
        )

    def record(self, changed: Sequence[int], left: int) -> None:
        """Add the jobs that a batch has changed to the entry, in the same transaction. `left` more jobs are left."""
        self.is_stop_asked = lifecycle.record_audit(connections[self.alias], self._id, changed, left=left)

    def end(self, outcome: ActOutcome, *, failed_job_id: int | None = None, error: str = "") -> None:
        """Write how the action ended."""
        connection = connections[self.alias]
        lifecycle.end_audit(connection, self._id, outcome, failed_job_id=failed_job_id, error=error)


class Interruption:
    """Turns the first Ctrl-C into an end after the current batch, so that its jobs are counted. The second one aborts.

    Only the main thread can receive signals, so other threads ignore it.
    """

    def __init__(self) -> None:
        self._is_requested = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _request(self, number: int, frame: object) -> None:
        if self._is_requested:
            raise KeyboardInterrupt
        self._is_requested = True

    def sleep_until(self, instant: float) -> None:
        """Sleep until an instant of the monotonic clock. Raise `Stop` after a Ctrl-C, also during the sleep."""
        while not self._is_requested and (left := instant - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
        if self._is_requested:
            raise Stop("Interrupted")


def change_all(
    action: str,
    done: str,
    change: JobChange,
    jobs: Sequence[SeenJob],
    audit: Audit,
    stdout: OutputWrapper,
    after_batch: AfterBatch,
) -> None:
    """Change the jobs, print how many were changed, log each one with the user, and write the audit.

    Raises:
        CommandError: Ctrl-C, an operator in the admin, or `after_batch` has ended the action after a batch. The message
            says how many changed.
    """
    began, rate, total = time.monotonic(), audit.rate, len(jobs)
    if change is job_operations.retry:
        left_out = superseded_ids(Job.objects.using(audit.alias), [job.pk for job in jobs])
        # In the order of their ids: a node that is retried before its dependency would be ready at once.
        jobs = sorted((job for job in jobs if job.pk not in left_out), key=lambda job: job.pk)
    changes = _Changes(action, change, jobs, audit)
    size = BATCH_SIZE if rate is None else max(1, int(min(BATCH_SIZE, rate)))
    audit.begin(action, total)
    try:
        with Interruption() as interruption:
            for start in range(0, len(jobs), size):
                interruption.sleep_until(began if rate is None else began + start / rate)
                batch = jobs[start : start + size]
                changed = changes.change(batch)
                _show_progress(stdout, start + len(batch), len(jobs))
                after_batch(changed)
                if audit.is_stop_asked:
                    raise Stop("Stopped in the admin")
    except Stop as stop:
        audit.end(stop.outcome, failed_job_id=stop.failed_job_id, error=stop.error)
        of_all = f"{changes.count:,} of {counted(total)}"
        raise CommandError(f"{stop}. {done} {of_all}. The others are unchanged.") from None
    audit.end(ActOutcome.DONE)
    stdout.write(f"{done} {counted(changes.count)}.")
    if left := total - changes.count:
        why = "unfinished work needs them" if action == "delete" else "another job has their key"
        stdout.write(f"Left {counted(left)} unchanged: they have changed since, are locked, or {why}.")


class _Changes:
    """Changes jobs batch by batch, and records and logs each changed job once, whichever batch has changed it."""

    def __init__(self, action: str, change: JobChange, jobs: Sequence[SeenJob], audit: Audit) -> None:
        self._action, self._change, self._audit = action, change, audit
        self._names = {job.pk: job.task_name for job in jobs}
        self._tally = Tally(self._names)

    @property
    def count(self) -> int:
        """How many of the jobs have changed."""
        return len(self._tally.changed)

    def change(self, batch: Sequence[SeenJob]) -> list[int]:
        """Change a batch. Return the ids of the jobs that changed, which can be jobs of other batches."""
        names = {job.pk: job.task_name for job in batch}
        seen = {job.pk: Seen(job.state, job.finished_at, job.run_after) for job in batch}
        found: list[int] = []

        def record(changed: Collection[int]) -> None:
            new, left = self._tally.add(names, changed)
            self._audit.record(new, left)
            found.extend(new)

        self._change(connections[self._audit.alias], names, seen, record=record)
        _log(self._action, found, self._names)
        return found


def _log(action: str, changed: Iterable[int], names: Mapping[int, str]) -> None:
    user = user_name()
    for job_id in changed:
        extra = {"job_id": job_id, "task": names[job_id], "action": action, "user": user}
        logger.info(
            "job %s (%s): %s by %s", job_id, in_words(names[job_id]), action, user or "an unknown user", extra=extra
        )


def _show_progress(stdout: OutputWrapper, done: int, total: int) -> None:
    if stdout.isatty() and total > BATCH_SIZE:
        stdout.write(f"\r{done:,} of {total:,}", ending="\r" if done < total else "\r\x1b[K")
        stdout.flush()
