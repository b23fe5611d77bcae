"""Run jobs inside a test with the real statements and executor, in the test's own thread and transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import connections, router, transaction

from django_pgqueue import log
from django_pgqueue.db.fields import statement_time
from django_pgqueue.db.statements import Connection, clock
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.ends.deletion import APP, GOES_WITH_JOB
from django_pgqueue.ends.end_check import APPLICATION
from django_pgqueue.ends.end_checks import CHECKS, sweep
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.lifecycle import steps
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.signals import job_failed
from django_pgqueue.states import Pausable, State
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.limited.key_pages import STEP_SECONDS, rule_of
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.foreground import CALLERS_ID, run_here
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import QueueSlots

if TYPE_CHECKING:
    from django_pgqueue.worker.execution.report import Report


logger = logging.getLogger("django_pgqueue.worker")


class JobsRun(int):
    """The number of attempts that `run_jobs()` has run, with a description of each that failed."""

    failures: tuple[str, ...]

    def __new__(cls, count: int, failures: Iterable[str] = ()) -> JobsRun:
        """Return the number. Its repr shows the failures, so that a failed assertion shows them too."""
        number = super().__new__(cls, count)
        number.failures = tuple(failures)
        return number

    def __repr__(self) -> str:
        failed = f" ({len(self.failures)} failed: {'; '.join(self.failures)})" if self.failures else ""
        return f"{int(self)}{failed}"


class KitClaims:
    """The lanes and the claimer of one call of `run_jobs()`.

    Called by `run_jobs()`. The clock of the lanes stands still and advances only with the queue's clock, so nothing
    here depends on how long the test takes. Each claim tries again what only another session can change.
    """

    def __init__(self, connection: Connection, queue_names: Sequence[str] | None) -> None:
        slots = queue_names and QueueSlots(ServedQueues.of_queue_options(dict.fromkeys(queue_names)))
        self._connection = connection
        self._now = 0.0
        self._most_of_chunk = math.inf
        self.lanes = Lanes(queue_names or (), None, slots or None, clock=lambda: self._now, chunk_rule=self._rule)
        self.lanes.retry_never()
        self._claimer = Claimer(InFlight(1, queue_slots=slots or None), self.lanes, CALLERS_ID, FOREGROUND)

    def claim(self, most: float = math.inf) -> Claimed | None:
        """Claim the job that comes first, or a chunk of at most `most` jobs. Return None if none is due."""
        self._most_of_chunk = most
        self.lanes.scan_again()
        while True:
            cursors = self.lanes.ordered(self._connection, from_start=True, most=1)
            if claimed := self._claimer.claim(self._connection, cursors, 1):
                return claimed[0]
            if self.next_in > STEP_SECONDS:  # all lanes are read, and all keys with a due job were visited
                return None

    @property
    def next_in(self) -> float:
        """In how many seconds the next job is due, or a limit may admit one."""
        return self.lanes.next_due_at(math.inf) - self._now

    def pass_by(self, seconds: float) -> None:
        """Advance the clock of the lanes."""
        self._now += seconds

    def _rule(self, chunk_key: str) -> ChunkRule:
        """Return when a chunk is due: at once."""
        return ChunkRule(int(min(rule_of(chunk_key).size, self._most_of_chunk)), 0.0)


def run_jobs(
    queue_name: str | Sequence[str] | None = None,
    *,
    until: Duration | datetime | None = None,
    max_jobs: int | None = None,
    raising: bool = False,
    schedules: bool = False,
    database: str | None = None,
) -> JobsRun:
    """Run due jobs one after another until none is left, including jobs that they enqueue.

    Jobs are claimed, run and completed like in a worker, but in the caller's thread and on the test's own connection.
    Inside `TestCase`, everything is rolled back with the test. The body and the completion of an atomic task are in a
    savepoint there. Timeouts and isolation are not applied, and chunks do not wait for more jobs (`chunk_wait`).

    Args:
        queue_name: Run only jobs of this queue, or of these queues. By default all queues.
        until: Also run jobs, including retries, that come due by this time: an aware datetime, or seconds or a
            timedelta from now. The queue's clock is moved to the due time of each job, as by `time_travel()`, and is
            reset at the end. Without it, jobs that are due later stay.
        max_jobs: Stop after this many jobs.
        raising: Raise the exception of the first failed attempt, after its result is written.
        schedules: Also store the schedules that the code defines, and fire all schedules that are due, as a worker
            does.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The number of attempts that ran. Its `failures` are those that failed, and its repr shows them. A failure is
        also logged, unless it is raised.

    Raises:
        ValueError: `until` is a naive datetime.

    Example:
        >>> send_receipt.enqueue(7)
        >>> assert run_jobs() == 1
    """
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    alias = database or router.db_for_write(Job)
    queue_names = [queue_name] if isinstance(queue_name, str) else queue_name
    left_seconds, shift_seconds = _seconds_until(until), clock.shift_seconds
    count, failures = 0, list[str]()
    claims = KitClaims(connections[alias], queue_names)
    try:
        while max_jobs is None or count < max_jobs:
            tick_in = _fire_schedules(alias) if schedules else math.inf
            if tick_in <= 0:
                continue
            steps.wake_missed(connections[alias])  # send_event() wakes nobody before it commits
            claimed = claims.claim(math.inf if max_jobs is None else max_jobs - count)
            if claimed is not None:
                count += len(claimed.members)
                report = run_here(alias, claimed)
                failures += _failures(report, raising=raising)
                continue
            wait_seconds = min(tick_in, claims.next_in, _beside_pauses_in(alias, queue_names, claims.lanes))
            if wait_seconds > left_seconds:
                if _sweep(alias):
                    continue
                break
            left_seconds -= wait_seconds
            clock.shift_seconds += wait_seconds
            claims.pass_by(wait_seconds)
    finally:
        clock.shift_seconds = shift_seconds
    return JobsRun(count, failures)


def _failures(report: Report, *, raising: bool) -> Iterator[str]:
    """Yield a description of each failed job of this call. Raise its exception, or log it."""
    for each in (report, *report.others):
        if each.is_failure:
            if raising and each.exception is not None:
                raise each.exception
            name = f"{each.exception_class.rpartition('.')[2]}: " if each.exception_class else ""
            failure = f"job {each.claimed.job_id} ({registry.in_words(each.claimed.task_name)}): {name}{each.error}"
            if job_failed not in log.enabled:
                # The stored text: a lone surrogate in an exception's message would break the report of pytest-xdist.
                logger.error("%s\n%s", failure, each.traceback, extra=job_event("job_failed", each.claimed))
            yield failure


def _sweep(alias: str) -> bool:
    """Do what follows the ends of jobs, if no completion has done it, as a worker does. Return whether jobs changed."""
    changed = 0
    for end_check in CHECKS:
        after_id: int | None = 0
        while after_id is not None:
            swept = sweep(connections[alias], end_check, end_check.sweeps[-1], after_id, APPLICATION)
            changed, after_id = changed + swept.changed, swept.last_id
    return bool(changed)


def _seconds_until(until: Duration | datetime | None) -> float:
    if until is None:
        return 0.0
    if not isinstance(until, datetime):
        return seconds(until)
    if until.tzinfo is None:
        raise ValueError(f"until must be an aware datetime, got {until!r}: add a time zone")
    return (until - datetime.now(UTC)).total_seconds() - clock.shift_seconds


def _fire_schedules(alias: str) -> float:
    """Store and fire schedules as a worker does. Return the seconds until the next tick."""
    wait_seconds = Scheduler().turn(connections[alias])
    return math.inf if wait_seconds is None else max(wait_seconds, 0.0)


def _beside_pauses_in(alias: str, queue_names: Sequence[str] | None, lanes: Lanes) -> float:
    """Return the seconds until the first pause of a task ends by itself, or the next job of another task is due.

    A scan returns the first job of a lane, which may be of a paused task.
    """
    from django_pgqueue.models import Job, Pause  # as above

    if not lanes.paused_tasks:
        return math.inf
    pauses = Pause.objects.using(alias).filter(kind=Pausable.TASK.value, paused_until__isnull=False)
    jobs = Job.objects.using(alias).filter(state=State.READY.value).exclude(task_name__in=lanes.paused_tasks)
    if queue_names is not None:
        jobs = jobs.filter(queue_name__in=queue_names)
    found = [
        *pauses.annotate(seen_at=statement_time()).values_list("paused_until", "seen_at"),
        *jobs.annotate(seen_at=statement_time()).order_by("run_after").values_list("run_after", "seen_at"),
    ]
    left = ((until - seen_at).total_seconds() - clock.shift_seconds for until, seen_at in found if until)
    return min((seconds_left for seconds_left in left if seconds_left > 0), default=math.inf)


def delete_all_jobs(*, database: str | None = None) -> None:
    """Delete all jobs, batches and events, also unfinished jobs, which `Job.objects.all().delete()` refuses.

    It is for tests whose rows are not rolled back. It obeys no rule: nothing is undone, and no callback is enqueued.
    Receivers are not called, and the foreign keys of your models are not applied: delete your own rows first.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Example:
        >>> delete_all_jobs()
        >>> assert not Job.objects.exists()
    """
    app = apps.get_app_config(APP)
    alias = database or router.db_for_write(app.get_model("Job"))
    with transaction.atomic(using=alias):
        for name in (*GOES_WITH_JOB, "Job", "UniquenessWindow", "JobBatch", "BatchRemoval", "SentEvent"):
            app.get_model(name)._base_manager.using(alias)._raw_delete(alias)
