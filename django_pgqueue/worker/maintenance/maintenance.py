"""Do the maintenance duties: rescue the jobs of lost workers, prune finished jobs, cancel expired jobs, and so on.

Every worker process runs this service. There is no leader whose failure could stop the maintenance.

The duties form a table of name, interval and function. Those of capabilities are in `DUTIES`. After each run, a duty
waits at least ten times as long as it took, so no duty can take more than a tenth of the time, however many rows it has
to walk over. A duty that found more than it handles at once waits only as long as it took. A backlog is therefore
handled batch by batch, with half of one connection, and other duties run in between.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from django_pgqueue.db.errors import concerns_all_statements
from django_pgqueue.ends.end_check import Publish, Reactor, send_now
from django_pgqueue.ends.end_checks import EndChecks
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import expiry, rollups, stranded
from django_pgqueue.lifecycle.pruning import PRUNE_LIMIT
from django_pgqueue.lifecycle.rollups import ROLLUPS_MERGED
from django_pgqueue.lifecycle.types import OpenExecution, TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition, Reactions, ended
from django_pgqueue.settings.conf import DAY_SECONDS, get_settings
from django_pgqueue.states import State
from django_pgqueue.worker.completion.attempt_counter import INTERVAL_SECONDS, AttemptCounter
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import EXPIRED
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.outages import in_a_line, is_expected, outage_log
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import health_memory

from .bulk_acts import BulkActs
from .duties import DUTIES
from .end_sweeps import SWEEP_SECONDS, LaterChecks, SentEvents, end_sweeps
from .pruner import Pruner
from .rescuer import Rescuer

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_FACTOR: Final = 10
BACKLOG_INTERVAL_FACTOR: Final = 1
"""The factor for a duty that has more to do. 1,000 jobs take 5 to 16 ms to prune, so it prunes 30,000 jobs a second and
more, and a process finishes 25,000."""
OUTAGE_RETRY_SECONDS: Final = 4.0
"""How long a duty waits at most that an outage has interrupted. It is less than `outages.QUIET_SECONDS`."""
FAILURE_LIMIT_SECONDS: Final = 60.0
"""How long a duty that fails again and again waits at most, unless its interval is longer. After the repair of its
cause, lost jobs are rescued within this time and the usual one."""
MERGE_SECONDS: Final = 60.0
"""How often a worker merges the rollup."""
ABANDONED: Final = "the job was running without an open execution: its execution row was removed"
RESCUE: Final = "rescue"
CANCELLED: Final = TransitionResult(TransitionStatus.DONE, State.CANCELLED)


@dataclass
class Duty:
    """One recurring piece of work."""

    name: str
    interval_seconds: float
    function: Callable[[], bool | float]
    """Returns whether there is more to do, or in how many seconds there is."""
    is_new: Callable[[], bool] = lambda: False
    """Whether another thread has something for it to do now. Then it is due, whatever `due_at` says."""
    due_at: float = 0.0
    failures: int = 0
    """How often it has failed in a row."""

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at or self.is_new()


class Maintenance(Service):
    """Run each duty when it is due."""

    def __init__(
        self,
        link: ConnectionSource,
        worker_id: int = 0,
        reactions: Reactions = FOREGROUND,
        counter: AttemptCounter | None = None,
        publish: Publish = send_now,
        later: LaterChecks | None = None,
        sent: SentEvents | None = None,
    ) -> None:
        super().__init__("maintenance")
        self.link, self.reactions, self.worker_id = link, reactions, worker_id
        self.pruner = Pruner(self.progressed)
        self.bulk_acts = BulkActs(reactions, self.progressed)
        self.rescuer = Rescuer(link, reactions, self._delay_after_crash, self._on_wait)
        self._failed: set[str] = set()
        """The duties whose last call has failed because of an outage."""
        self._waited_seconds = 0.0
        """How long the duty that runs now has waited for the server without work on its side."""
        self.unexpired = Refusals("the expiry of job")
        self._requeue_after_id = 0
        self.duties = self._duties()
        reactor = Reactor(reactions.react, publish)
        if later is None:
            later = LaterChecks(self.wake)
        run_later = partial(later.run, link, EndChecks(reactor))
        self.duties.append(Duty("ends", SWEEP_SECONDS, run_later, later.is_new))
        if sent is not None:
            self.duties.append(Duty("sent events", SWEEP_SECONDS, partial(sent.run, link, reactions), sent.is_new))
        sweeps = end_sweeps(link, reactor._replace(later=later.add))
        self.duties += [Duty(each.name, each.interval_seconds, each.run) for each in sweeps]
        if counter is not None:
            self.duties += [
                Duty("counts", INTERVAL_SECONDS, partial(self._write_counts, counter)),
                Duty("rollups", MERGE_SECONDS, self._merge_rollups),
            ]
        for duty in self.duties:
            # A random moment, so that duties also run if every process lives for less than their interval. The first
            # look for lost leases is due at once, because a rescue takes two heartbeats of observation.
            if duty.name != RESCUE:
                duty.due_at = time.monotonic() + random.uniform(0, duty.interval_seconds)  # noqa: S311 -- as in _postpone

    def _duties(self) -> list[Duty]:
        settings = get_settings()
        return [
            Duty(RESCUE, settings.RESCUE_INTERVAL, self.rescuer.rescue),
            Duty("prune", settings.PRUNE_INTERVAL, self._prune),
            Duty("expire", settings.PRUNE_INTERVAL, self._expire),
            Duty("bulk acts", settings.RESCUE_INTERVAL, self._execute_bulk_acts),
            Duty("requeue", DAY_SECONDS / 24, self._requeue),
            *(Duty(kind.name, kind.interval_seconds(), kind.start(self.link, self.reactions)) for kind in DUTIES),
        ]

    def tick(self) -> float:
        """Run the duties that are due. Return the seconds until the next one is.

        A duty that fails does not stop the others. An outage ends the round, because they would fail too.
        """
        for duty in self.duties:
            if not self.stopping and duty.is_due:
                try:
                    self._run_duty(duty)
                except BaseException as error:  # code of the application may raise SystemExit here too
                    if concerns_all_statements(error):
                        self._try_soon(duty)
                        raise
                    self._note_failure(duty, error)
        return max(0.0, min(duty.due_at for duty in self.duties) - time.monotonic())

    def has_recovered(self) -> bool:
        """Return whether no duty has failed because of an outage. Such a duty is tried again within seconds."""
        return not self._failed

    def _try_soon(self, duty: Duty) -> None:
        """Try a duty again soon after an outage, also an hourly one: the outage is over when it works.

        Not at once: a duty that loses its connection each time must not keep the others from their turns.
        """
        longest = min(duty.interval_seconds, OUTAGE_RETRY_SECONDS)
        duty.due_at = time.monotonic() + longest * random.uniform(0.5, 1)  # noqa: S311 -- as in _postpone

    def _run_duty(self, duty: Duty) -> None:
        self.progressed()
        began, self._waited_seconds = time.monotonic(), 0.0
        self._postpone(duty, took_seconds=0.0)  # in case of a failure, whose duration is no measure
        self._failed.add(duty.name)
        has_more = duty.function()
        self._failed.discard(duty.name)
        self._note_success(duty)
        took_seconds = time.monotonic() - began - self._waited_seconds
        if isinstance(has_more, float):
            duty.due_at = time.monotonic() + max(has_more, BACKLOG_INTERVAL_FACTOR * took_seconds)
        elif has_more:
            duty.due_at = time.monotonic() + BACKLOG_INTERVAL_FACTOR * took_seconds
        else:
            self._postpone(duty, took_seconds)

    def _note_failure(self, duty: Duty, error: BaseException) -> None:
        """Log a failure of one duty, and try the duty again after a time that grows with each failure."""
        self._failed.discard(duty.name)
        health_memory.errors += 1
        pause_seconds = min(duty.interval_seconds * 2**duty.failures, max(duty.interval_seconds, FAILURE_LIMIT_SECONDS))
        duty.failures = min(duty.failures + 1, 20)
        duty.due_at = time.monotonic() + pause_seconds
        if outage_log.may_log():
            logger.error(
                "the duty %r of the maintenance failed; retrying in %.0f s: %s",
                duty.name,
                pause_seconds,
                in_a_line(error),
                exc_info=None if isinstance(error, Exception) and is_expected(error) else error,
                extra=event("duty_failed", duty=duty.name, retry_seconds=round(pause_seconds)),
            )

    def _note_success(self, duty: Duty) -> None:
        """Log that a duty works again, if it has failed before."""
        if duty.failures:
            duty.failures = 0
            logger.info(
                "the duty %r of the maintenance works again", duty.name, extra=event("duty_recovered", duty=duty.name)
            )

    def _on_wait(self, seconds: float) -> None:
        """Do not count this time as work. The duty would wait ten times as long, although it has cost nothing."""
        self._waited_seconds += seconds

    def _postpone(self, duty: Duty, took_seconds: float) -> None:
        jitter = random.uniform(0.9, 1)  # noqa: S311 -- spreads load, hides nothing
        duty.due_at = time.monotonic() + max(duty.interval_seconds * jitter, INTERVAL_FACTOR * took_seconds)

    def _delay_after_crash(self, execution: OpenExecution) -> float | None:
        """Return the job's backoff in seconds, or None for no further attempt.

        Report progress first, because a hundred slow backoff functions must not look like a hang.
        """
        self.progressed()
        return retry_policy.delay_after_crash(execution, alias=self.link.alias)

    def _prune(self) -> bool:
        """Continue the round with at most one full batch, so that rescues and a stop wait no longer than that."""
        pruner = self.pruner
        with self.link.use() as connection:
            pruner.go_on(connection)
        has_more = pruner.under_way
        if has_more and pruner.round_seconds < get_settings().PRUNE_INTERVAL:
            return True
        if pruner.removed:
            logger.info("pruned %d finished jobs", pruner.removed, extra=event("jobs_pruned", count=pruner.removed))
        pruner.end_round()  # even if one kind always has more, so that a new round prunes the other kinds again
        return has_more

    def _expire(self) -> bool:
        """Cancel jobs that no worker claimed before they expired. A job claimed too late is cancelled at its start."""
        with self.link.use() as connection:
            expired = expiry.expire(
                connection,
                worker_id=self.worker_id,
                error=EXPIRED,
                skipped_ids=self.unexpired.skipped_ids(),
                on_refused=self.unexpired.note,
            )
            self.reactions.after(
                connection, [JobTransition(job_id, name, CANCELLED, error=EXPIRED) for job_id, name in expired]
            )
        return len(expired) == PRUNE_LIMIT

    def _execute_bulk_acts(self) -> bool | float:
        """Execute the next batches of the operators' bulk acts, each act at its own rate."""
        with self.link.use() as connection:
            due_in = self.bulk_acts.go_on(connection)
        return False if due_in is None else min(due_in, get_settings().RESCUE_INTERVAL)

    def _requeue(self) -> bool:
        """Make running jobs without an open execution ready again: one page per call, the whole table once an hour."""
        with self.link.use() as connection:
            page = stranded.requeue(
                connection,
                self._delay_after_crash,
                worker_id=self.worker_id,
                after_id=self._requeue_after_id,
                error=ABANDONED,
            )
            crashes = [
                ended(execution, result, Ending.CRASHED, is_due=True, error=ABANDONED)
                for execution, result in page.requeued
            ]
            self.reactions.after(connection, crashes)
        self._requeue_after_id = page.last_id or 0
        return page.last_id is not None

    def _write_counts(self, counter: AttemptCounter) -> float:
        """Write how many attempts ended here since the last call. Without any, leave the connection alone.

        Return when the next call is due.
        """
        if counter:
            with self.link.use() as connection:
                counter.write(connection)
        return counter.due_in_seconds

    def _merge_rollups(self) -> bool:
        with self.link.use() as connection:
            return rollups.merge_rollups(connection) >= ROLLUPS_MERGED
