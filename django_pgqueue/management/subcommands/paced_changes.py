"""Change many jobs in batches, at a rate, each only if it is still as it was read.

`jobs retry|acknowledge|cancel|move|delete` and `dead retry|acknowledge` call it. Each batch is a transaction that also
adds its jobs to the audit, so an interruption leaves whole batches behind. A second operator, or a job that runs in the
meantime, cannot make an action change more than was shown, because the statements compare each job with what was read
(`states.Seen`).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from django.core.management.base import CommandError

from django_pgqueue.acts import DELETE, RETRY, JobAct
from django_pgqueue.acts.job_changes import ActAudit, ActRun
from django_pgqueue.models import BATCH_SIZE
from django_pgqueue.states import ActOutcome
from django_pgqueue.tasks.registry import in_words

from .consent import progress
from .output import Output, counted
from .subcommand import user_name

logger = logging.getLogger("django_pgqueue.operator")

EDITED: Final = "edited and retried as new jobs in the admin"
"""Why a retry leaves out a job."""
WHY_LEFT: Final[dict[JobAct, str]] = {
    RETRY: "they have changed since, are locked, were edited and retried meanwhile, or another job has their key",
    DELETE: "they have changed since, are locked, or unfinished work needs them",
}
"""Why an act leaves jobs unchanged that it has chosen."""
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
    done: str,
    changes: ActRun,
    audit: ActAudit,
    out: Output,
    rate: float | None,
    after_batch: AfterBatch,
) -> None:
    """Change the jobs, print how many were changed, log each one with the user, and write the audit.

    Raises:
        CommandError: Ctrl-C, an operator in the admin, or `after_batch` has ended the act after a batch. The message
            says how many changed.
    """
    began, count = time.monotonic(), len(changes.ids)
    size = BATCH_SIZE if rate is None else max(1, int(min(BATCH_SIZE, rate)))
    show = progress(out, count)
    audit.begin()
    try:
        with Interruption() as interruption:
            batches = changes.batches(size)
            for start in range(0, count, size):
                interruption.sleep_until(began if rate is None else began + start / rate)
                changed = next(batches)
                _log(changes.act.name, changed)
                show(min(start + size, count))
                after_batch(list(changed))
                if audit.is_stop_asked:
                    raise Stop("Stopped in the admin")
    except Stop as stop:
        audit.end(stop.outcome, failed_job_id=stop.failed_job_id, error=stop.error)
        of_all = f"{len(changes.changed):,} of {counted(len(changes.changed) + changes.unchanged_count)}"
        raise CommandError(f"{stop}. {done} {of_all}. The others are unchanged.") from None
    audit.end()
    out.write(f"{done} {counted(len(changes.changed))}.")
    if changes.edited:
        out.write(f"Left out {counted(len(changes.edited))}: {EDITED}.")
    if left := changes.unchanged_count:
        why = WHY_LEFT.get(changes.act, "they have changed since or are locked")
        out.write(f"Left {counted(left)} unchanged: {why}.")


def _log(action: str, names: Mapping[int, str]) -> None:
    user = user_name()
    for job_id, name in names.items():
        extra = {"job_id": job_id, "task": name, "action": action, "user": user}
        logger.info("job %s (%s): %s by %s", job_id, in_words(name), action, user or "an unknown user", extra=extra)
