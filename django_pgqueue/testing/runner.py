"""Run jobs inside a test with the real statements and executor, in the test's own thread and transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.db import connections, router, transaction

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db.fields import statement_time
from django_pgqueue.db.statements import clock
from django_pgqueue.ends.end_check import APPLICATION
from django_pgqueue.ends.end_checks import CHECKS, sweep
from django_pgqueue.exceptions import Duration, seconds
from django_pgqueue.lifecycle import Claimed, Cursor, Lane, LaneScan
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.lifecycle.limits import KeyToClaim
from django_pgqueue.limits import BEFORE_NAMES, name_of
from django_pgqueue.states import Pausable, State
from django_pgqueue.worker.foreground import CALLERS_ID, run_here
from django_pgqueue.worker.maintenance.scheduler import Scheduler

if TYPE_CHECKING:
    from django_pgqueue.worker.execution.report import Report


def run_jobs(
    queue_name: str | Sequence[str] | None = None,
    *,
    until: Duration | datetime | None = None,
    max_jobs: int | None = None,
    raising: bool = False,
    schedules: bool = False,
    database: str | None = None,
) -> int:
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
        The number of attempts that ran.

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
    count = 0
    rests: dict[Lane, float] = {}
    """Seconds until the limits of a lane may admit a job."""
    try:
        while max_jobs is None or count < max_jobs:
            tick_in = _fire_schedules(alias) if schedules else math.inf
            due_in, _, paused, _ = _scan_lanes(alias, queue_names)
            due_in |= {lane: rest for lane, rest in rests.items() if lane in due_in}
            change_in = min(tick_in, _resumes_in(alias) if paused else math.inf)
            wait_seconds = max(0.0, min(*due_in.values(), change_in, math.inf))
            if wait_seconds > left_seconds:
                if _sweep(alias):
                    continue
                break
            left_seconds -= wait_seconds
            clock.shift_seconds += wait_seconds
            rests = {lane: max(0.0, rest - wait_seconds) for lane, rest in rests.items()}
            if change_in <= wait_seconds:  # scan again: a schedule or a resumed task may have a job of higher priority
                continue
            lanes = [lane for lane, seconds_left in due_in.items() if seconds_left <= wait_seconds]
            claimed = _claim_one(alias, lanes, paused, rests, None if max_jobs is None else max_jobs - count)
            if claimed is None and not wait_seconds and all(lane.is_plain for lane in lanes):
                break  # all due jobs are locked by other transactions
            if claimed is not None:
                rests.clear()  # the end of a job can free a slot
                count += len(claimed.members)
                report = run_here(alias, claimed)
                if raising:
                    _raise_failure(report)
    finally:
        clock.shift_seconds = shift_seconds
    return count


def _raise_failure(report: Report) -> None:
    """Raise the first exception of a failed job of this call."""
    for each in (report, *report.others):
        if each.is_failure and each.exception is not None:
            raise each.exception


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


def _scan_lanes(alias: str, queue_names: Sequence[str] | None) -> LaneScan:
    """Return the lanes, highest priority first, and what is paused, with all names of paused tasks."""
    lifecycle.steps.wake_missed(connections[alias])  # in a transaction that does not commit, send_event() wakes nobody
    found, paused_queues, paused, seen_at = lifecycle.scan_lanes(connections[alias])
    limited = lifecycle.limits.scan_limited_lanes(connections[alias]).lanes if registry.limits() else []
    found |= {lane: 0.0 for lane in limited if lane.queue_name not in paused_queues}
    names = tuple(name for task_name in paused for name in registry.names_of(task_name))
    found |= _scan_chunks(alias, paused_queues, names)
    lanes = [lane for lane in found if queue_names is None or lane.queue_name in queue_names]
    in_order = sorted(lanes, key=lambda lane: -lane.priority)
    due_in = {
        lane: max(found[lane], _due_in(alias, lane, names) if names and lane.is_plain else 0.0) for lane in in_order
    }
    return LaneScan(due_in, paused_queues, names, seen_at)


def _scan_chunks(alias: str, paused_queues: Sequence[str], paused_tasks: Sequence[str]) -> dict[Lane, float]:
    """Return the lanes of tasks with `chunk`, with the seconds until the first job of each is due."""
    rules = {
        key: ChunkRule(task.chunk or 1, 0.0)
        for key, task in registry.chunk_keys().items()
        if task.name not in paused_tasks
    }
    chunks = lifecycle.chunks.find_chunks(connections[alias], rules) if rules else []
    return {chunk.lane: chunk.due_seconds for chunk in chunks if chunk.lane.queue_name not in paused_queues}


def _due_in(alias: str, lane: Lane, paused_tasks: Sequence[str]) -> float:
    """Return the seconds until the first job of a lane is due whose task is not paused.

    The scan itself returns the first job of the lane, which may be of a paused task.
    """
    from django_pgqueue.models import Job  # as above

    jobs = Job.objects.using(alias).filter(state=State.READY.value, queue_name=lane.queue_name, priority=lane.priority)
    unpaused = jobs.exclude(task_name__in=paused_tasks).annotate(seen_at=statement_time()).order_by("run_after")
    first = unpaused.values_list("run_after", "seen_at").first()
    return math.inf if first is None else (first[0] - first[1]).total_seconds() - clock.shift_seconds


def _resumes_in(alias: str) -> float:
    """Return the seconds until the first pause of a task ends by itself."""
    from django_pgqueue.models import Pause  # as above

    pauses = Pause.objects.using(alias).filter(kind=Pausable.TASK.value, paused_until__isnull=False)
    found = pauses.annotate(seen_at=statement_time()).values_list("paused_until", "seen_at")
    left = [(until - seen_at).total_seconds() - clock.shift_seconds for until, seen_at in found if until]
    return min((seconds_left for seconds_left in left if seconds_left > 0), default=math.inf)


def _claim_one(
    alias: str, lanes: Sequence[Lane], paused_tasks: Sequence[str], rests: dict[Lane, float], most: int | None
) -> Claimed | None:
    """Claim one job from the first lane that has one, or a chunk of `most` jobs.

    Note how long lanes rest whose limits admit none.
    """
    options: dict[str, Any] = {
        "worker_id": CALLERS_ID,
        "lease_seconds": get_settings().LEASE,
        "paused_tasks": paused_tasks,
    }
    for lane in lanes:
        if lane.chunk_key is not None:
            size = registry.chunk_keys()[lane.chunk_key].chunk or 1
            rule = ChunkRule(size if most is None else min(size, most), 0.0)
            chunk = lifecycle.chunks.claim_chunk(connections[alias], lane, rule, **options)
            claimed = [] if chunk.first is None else [chunk.first]
        elif lane.is_limited:
            claimed, rests[lane] = _claim_limited(alias, lane, options)
        else:
            claimed = lifecycle.claim(connections[alias], {lane: Cursor()}, limit=1, free_slots=1, **options)
        if claimed:
            return claimed[0]
    return None


def _claim_limited(alias: str, lane: Lane, options: dict[str, Any]) -> tuple[list[Claimed], float]:
    """Claim one limited job of a lane. Return it and the seconds until a limit may admit another."""
    connection, limits, wait_seconds = connections[alias], registry.limits(), math.inf
    after_key = BEFORE_NAMES
    while True:
        with transaction.atomic(using=alias):
            found = lifecycle.limits.find_keys(connection, lane, after_key=after_key, known={}, wanted=100, visits=1000)
            locked = [key.limit_key for key in found if key.is_locked]
            controls = lifecycle.limit_overrides.controls_of(connection, locked)
            keys = [
                KeyToClaim(key, controls.policy_of(key, limit), Cursor())
                for key in locked
                if (limit := limits.get(name_of(key))) is not None and controls.pause_of(key) is None
            ]
            claim = (
                lifecycle.limits.claim_keys(connection, lane, keys, limit=1, free_slots=1, **options) if keys else None
            )
        waits = [key.due_seconds for key in found] + [result.due_seconds for result in (claim.results if claim else [])]
        waits += [pause.seconds for key in locked if (pause := controls.pause_of(key)) is not None]
        wait_seconds = min(wait_seconds, *(left for left in waits if left is not None and left > 0), math.inf)
        if not found or (claim is not None and claim.claimed):
            return claim.claimed if claim is not None else [], wait_seconds
        after_key = found[-1].limit_key
