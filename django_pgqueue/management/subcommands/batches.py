"""Change many jobs in batches, at a rate, each only if it is still as it was read.

`jobs retry|cancel|move|delete` and `dead retry` call it. Each batch is one statement that commits by itself, so an
interruption leaves whole batches behind. A second operator, or a job that runs in the meantime, cannot make an act
change more than was shown, because the statements compare each job with what was read (`states.Seen`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from django.core.management.base import CommandError, OutputWrapper
from django.db import connections

from django_pgqueue.models import BATCH_SIZE
from django_pgqueue.models.operations import JobChange
from django_pgqueue.registry import in_words
from django_pgqueue.states import Seen

from .job_rows import SeenJob
from .output import counted
from .subcommand import user_name

logger = logging.getLogger("django_pgqueue.operator")

AfterBatch = Callable[[Sequence[int]], None]
"""Called with the ids of the jobs that a batch has changed. It raises `Stop` to end the act."""


class Stop(Exception):
    """An act ends before all jobs were changed. The message says why."""


def change_all(
    act: str,
    done: str,
    change: JobChange,
    jobs: Sequence[SeenJob],
    alias: str,
    rate: float | None,
    stdout: OutputWrapper,
    after_batch: AfterBatch,
) -> None:
    """Change the jobs, print how many were changed, and log each one with the user.

    Raises:
        CommandError: Ctrl-C or `after_batch` has ended the act. The message says how many jobs were changed.
    """
    count, reason = 0, ""
    size = BATCH_SIZE if rate is None else max(1, min(BATCH_SIZE, int(rate)))
    began = time.monotonic()
    try:
        for start in range(0, len(jobs), size):
            if rate is not None:
                time.sleep(max(0.0, began + start / rate - time.monotonic()))
            batch = jobs[start : start + size]
            changed = _change(act, change, batch, alias)
            count += len(changed)
            _show_progress(stdout, start + len(batch), len(jobs))
            after_batch(changed)
    except KeyboardInterrupt:
        reason = "Interrupted"
    except Stop as stop:
        reason = str(stop)
    if reason:
        raise CommandError(f"{reason}. {done} {count:,} of {counted(len(jobs))}. The others are unchanged.")
    stdout.write(f"{done} {counted(count)}.")
    if left := len(jobs) - count:
        stdout.write(
            f"Left {counted(left)} unchanged: they have changed since, are locked, or another job has their key."
        )


def _change(act: str, change: JobChange, batch: Iterable[SeenJob], alias: str) -> list[int]:
    names = {job.pk: job.task_name for job in batch}
    seen = {job.pk: Seen(job.state, job.finished_at, job.run_after) for job in batch}
    changed = sorted(change(connections[alias], names, seen))
    _log(act, changed, names)
    return changed


def _log(act: str, changed: Iterable[int], names: Mapping[int, str]) -> None:
    user = user_name()
    for job_id in changed:
        extra = {"job_id": job_id, "task": names[job_id], "act": act, "user": user}
        logger.info(
            "job %s (%s): %s by %s", job_id, in_words(names[job_id]), act, user or "an unknown user", extra=extra
        )


def _show_progress(stdout: OutputWrapper, done: int, total: int) -> None:
    if stdout.isatty() and total > BATCH_SIZE:
        stdout.write(f"\r{done:,} of {total:,}", ending="\r" if done < total else "\r\x1b[K")
        stdout.flush()
