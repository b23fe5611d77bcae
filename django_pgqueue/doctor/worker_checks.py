"""Checks of the workers and of what they work on: heartbeats, versions, queues, leases, timeouts, schedules.

`examine()` runs `WORKER_CHECKS`, at the end of this module.
"""

from __future__ import annotations

from typing import Any, Final

from django_pgqueue import __version__, stats
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.causes.current import causes_of, current
from django_pgqueue.stats.causes.words import Words
from django_pgqueue.tasks import registry

from .findings import Level, Result, are, check, counted, level_of, listed, ok, percent, quoted, span
from .session import Session

LIVE_LEASES: Final = 2
"""Leases without a heartbeat after which a worker does not count as live, as in the admin's list."""
STALE_SECONDS: Final = 86_400.0
UNSERVED_SECONDS: Final = 60.0
RECENT_EXECUTIONS: Final = 1000
RECENT_SECONDS: Final = 3600.0
LATE_WARNING_SECONDS, LATE_ERROR_SECONDS = 60.0, 600.0
CLOSE_TO_TIMEOUT, TIMED_OUT_SHARE, LEAST_RUNS = 0.8, 0.02, 20
SHOWN: Final = 100
TIMEOUT_CLASS: Final = "django_pgqueue.exceptions.TaskTimeout"

# The register of workers, without those that have stopped and without `pgqueue run`, whose queue is "job <id>".
#
# Cost: reads the register, which has one row for each start of a worker within a week
WORKERS: Final = """/* pgqueue:doctor_workers */
SELECT id, hostname, pid, version, queue_names,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - last_heartbeat_at)
FROM pgqueue_worker
WHERE stopped_at IS NULL AND queue_names NOT LIKE 'job %%'
ORDER BY last_heartbeat_at DESC
LIMIT 10000
"""
# The open executions: how many have less than half of their lease left, and for how long the oldest one is over.
#
# Index: pgqueue_job_running, all of it: it has one entry per running job
LEASES: Final = """/* pgqueue:doctor_leases */
SELECT count(*),
       count(*) FILTER (WHERE left_seconds < 0),
       coalesce(max(-left_seconds), 0),
       count(*) FILTER (WHERE left_seconds < %(lease_seconds)s::float8 / 2),
       count(*) FILTER (
           WHERE left_seconds < %(lease_seconds)s::float8 / 2 AND run_seconds > %(lease_seconds)s::float8
       ),
       coalesce(max(run_seconds), 0)
FROM (
    SELECT date_part('epoch', lease_end - statement_timestamp() - %(time_shift)s::interval) AS left_seconds,
           date_part('epoch', statement_timestamp() + %(time_shift)s::interval - coalesce(started_at, claimed_at))
               AS run_seconds
    FROM (
        SELECT worker_id, execution_id
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id IS NOT NULL
        ORDER BY worker_id, execution_id
        OFFSET 0
    ) AS job
    CROSS JOIN LATERAL (
        SELECT started_at, claimed_at,
               greatest(
                   lease_expires_at, (SELECT lease_expires_at FROM pgqueue_worker WHERE id = job.worker_id)
               ) AS lease_end
        FROM pgqueue_execution
        WHERE id = job.execution_id AND outcome IS NULL
        OFFSET 0
    ) AS execution
) AS open
"""
# The newest executions that have ended within the last hour, by task. Crashed ones have no part in the run times. Most
# were lost with their process, so nobody knows how long they ran, and none of them has run to its end.
#
# Index: the primary keys of executions and jobs. With a plain join, the planner may read the whole table of jobs.
RECENT: Final = """/* pgqueue:doctor_recent */
SELECT job.task_name,
       count(*),
       count(*) FILTER (WHERE recent.outcome = 'crashed'),
       count(*) FILTER (WHERE recent.exception_class = %(timeout_class)s),
       coalesce(
           percentile_cont(0.95) WITHIN GROUP (ORDER BY date_part('epoch', recent.finished_at - recent.started_at))
               FILTER (WHERE recent.outcome <> 'crashed'),
           0
       )
FROM (
    SELECT job_id, outcome, exception_class, started_at, finished_at
    FROM pgqueue_execution
    ORDER BY id DESC
    LIMIT %(executions)s
) AS recent
CROSS JOIN LATERAL (SELECT task_name FROM pgqueue_job WHERE id = recent.job_id LIMIT 1) AS job
WHERE recent.finished_at > statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
  AND recent.started_at IS NOT NULL
GROUP BY job.task_name
ORDER BY job.task_name
"""
# Schedules that are on and late, or that could not be fired.
#
# Cost: reads all schedules
SCHEDULES: Final = """/* pgqueue:doctor_schedules */
SELECT name, origin, task_name, late_seconds, left(problem, 200)
FROM (
    SELECT name, origin, task_name, problem,
           date_part('epoch', statement_timestamp() + %(time_shift)s::interval
               - greatest(next_run_at, paused_until)) - jitter_seconds AS late_seconds
    FROM pgqueue_schedule
    WHERE enabled
      AND (paused_until IS NULL OR paused_until <= statement_timestamp() + %(time_shift)s::interval)
) AS schedule
WHERE late_seconds >= %(late_seconds)s OR problem <> ''
ORDER BY late_seconds DESC
LIMIT %(shown)s
"""


def _workers(session: Session) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the workers with a heartbeat within two leases, and those without one."""
    keys = ("id", "hostname", "pid", "version", "queue_names", "heartbeat_seconds_ago")
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(WORKERS)]
    limit = LIVE_LEASES * get_settings().LEASE
    live = [each for each in found if each["heartbeat_seconds_ago"] <= limit]
    return live, found[len(live) :]


@check(
    "stale_workers",
    "Warning: a worker of the last day has not stopped, and has sent no heartbeat for two leases.",
    "Its host, its process or its network was lost, and its jobs ran again on another worker.",
)
def _stale_workers(session: Session) -> Result:
    live, stale = _workers(session)
    recent = [each for each in stale if each["heartbeat_seconds_ago"] < STALE_SECONDS]
    data = {"live": len(live), "stale": recent[:SHOWN], "older": len(stale) - len(recent)}
    if not recent:
        return ok(f"{are(len(live), 'worker')} running, and none was lost in the last day.", **data)
    latest = recent[0]
    what = (
        f"{counted(len(recent), 'worker')} ended without a clean stop in the last day, the latest on "
        f"{quoted(latest['hostname'])} (process {latest['pid']}), silent for {span(latest['heartbeat_seconds_ago'])}."
    )
    fix = "Read the log of that host. If the host is gone for good, nothing has to be done: its jobs were rescued."
    return Result(Level.WARNING, what, fix, data)


@check(
    "worker_versions",
    "Warning: running workers have different versions of this package. Info: they have another version than this "
    "process.",
    "An unfinished deploy keeps old code running, which does not know new tasks.",
)
def _worker_versions(session: Session) -> Result:
    live, _ = _workers(session)
    versions = sorted({each["version"] for each in live})
    data = {"versions": versions, "this_process": __version__}
    if len(versions) > 1:
        what = f"Workers of {len(versions)} versions are running: {listed(versions)}."
        return Result(Level.WARNING, what, "Restart the workers that still run the old version.", data)
    if versions and versions != [__version__]:
        what = f"The workers run version {quoted(versions[0])}, and this process {__version__!r}."
        return Result(Level.INFO, what, "Restart the workers, if their deploy is finished.", data)
    return ok("All workers run the version of this process." if versions else "No worker is running.", **data)


@check(
    "unserved_queues",
    f"Error: a queue that is not paused has jobs that have been due for {UNSERVED_SECONDS:.0f} s, and no running "
    "worker serves it. Info: no worker is running.",
    "These jobs never start.",
)
def _unserved_queues(session: Session) -> Result:
    live, _ = _workers(session)
    waited: dict[str, float] = {}
    for lane in stats.lanes(session.alias):
        if lane.oldest_due_seconds is not None and not lane.is_paused:
            waited[lane.queue_name] = max(lane.oldest_due_seconds, waited.get(lane.queue_name, 0.0))
    served = {name for each in live for name in ServedQueues.from_text(each["queue_names"]).names or ("",)}
    unserved = {
        name: seconds
        for name, seconds in waited.items()
        if seconds >= UNSERVED_SECONDS and "" not in served and name not in served
    }
    data = {"unserved": unserved, "live_workers": len(live)}
    if unserved:
        longest = max(unserved, key=lambda name: unserved[name])
        number = counted(len(unserved), "queue")
        who = f"No worker serves {number} with due jobs" if live else f"No worker is running for {number} with due jobs"
        what = f"{who}: {listed(unserved)}. The oldest job has waited for {span(unserved[longest])}."
        fix = f"manage.py runworker --queues {longest}" if live else "manage.py runworker"
        return Result(Level.ERROR, what, fix, data)
    if not live:
        return Result(Level.INFO, "No worker is running, and no job has been due for a minute.", data=data)
    return ok("A worker serves every queue that has due jobs.", **data)


@check(
    "leases",
    "Error: a lease has expired and no worker rescues the job. Warning: a lease has just expired, less than half "
    f"of a lease is left, or executions crashed within the last hour (of the newest {RECENT_EXECUTIONS:,}).",
    "A job whose lease expires runs again, although its first attempt may still be running.",
)
def _leases(session: Session) -> Result:
    settings = get_settings()
    keys = ("open", "expired", "expired_seconds", "late", "late_and_long", "longest_run_seconds")
    row = session.row(LEASES, lease_seconds=settings.LEASE)
    data: dict[str, Any] = {**dict(zip(keys, row, strict=True)), "lease_seconds": settings.LEASE}
    data["crashed"] = sum(each["crashed"] for each in _recent(session))
    restart = "Start a worker, and read the log of the lost one."
    if data["expired"]:
        is_forgotten = data["expired_seconds"] > 3 * settings.RESCUE_INTERVAL
        level = Level.ERROR if is_forgotten else Level.WARNING
        over = f"expired, the first one {span(data['expired_seconds'])} ago"
        what = f"{counted(data['expired'], 'lease')} of {data['open']:,} {over}, and no worker has rescued the jobs."
        return Result(level, what, restart, data)
    if data["late"]:
        what = (
            f"Heartbeats are late: {counted(data['late'], 'lease')} of {data['open']:,} have less than half of "
            f"{span(settings.LEASE)} left, {data['late_and_long']:,} of them for jobs that run longer than a lease."
        )
        fix = 'Check the connections and the load of the database, or raise PGQUEUE["LEASE"].'
        return Result(Level.WARNING, what, fix, data)
    if data["crashed"]:
        what = f"{counted(data['crashed'], 'execution')} of the newest {RECENT_EXECUTIONS:,} crashed within an hour."
        return Result(Level.WARNING, what, "Look for killed processes and lost hosts in the workers' logs.", data)
    return ok(f"{are(data['open'], 'lease')} open, and all are extended in time.", **data)


def _recent(session: Session) -> list[dict[str, Any]]:
    keys = ("task", "executions", "crashed", "timed_out", "p95_seconds")
    params = {"executions": RECENT_EXECUTIONS, "seconds": RECENT_SECONDS, "timeout_class": TIMEOUT_CLASS}
    return [dict(zip(keys, row, strict=True)) for row in session.rows(RECENT, **params)]


@check(
    "timeouts",
    f"Warning: of a task's recent runs (at least {LEAST_RUNS}), {percent(TIMED_OUT_SHARE)} timed out, or 5 % take "
    f"longer than {percent(CLOSE_TO_TIMEOUT)} of the timeout.",
    "Jobs that exceed their timeout are interrupted and retried, and many die in the end.",
)
def _timeouts(session: Session) -> Result:
    tight = []
    for each in _recent(session):
        task = registry.get(each["task"])
        timeout = None if task is None else task.timeout_seconds
        if timeout is None or each["executions"] < LEAST_RUNS:
            continue
        is_often_exceeded = each["timed_out"] >= TIMED_OUT_SHARE * each["executions"]
        if is_often_exceeded or each["p95_seconds"] >= CLOSE_TO_TIMEOUT * timeout:
            tight.append({**each, "timeout_seconds": timeout})
    if not tight:
        return ok("No task comes close to its timeout.", tight=[])
    first = max(tight, key=lambda each: each["timed_out"] / each["executions"])
    what = (
        f"{are(len(tight), 'task')} close to the timeout: {quoted(first['task'])} has {first['timeout_seconds']:g} "
        f"s, 5 % of its runs take longer than {first['p95_seconds']:.1f} s, and {first['timed_out']} of "
        f"{first['executions']} timed out."
    )
    fix = f"Raise timeout= of {first['task']}, or make its work smaller."
    return Result(Level.WARNING, what, fix, {"tight": tight})


@check(
    "schedules",
    f"Warning: a schedule is late by {LATE_WARNING_SECONDS:.0f} s plus two schedule intervals, or could not be "
    f"fired. Error: by {LATE_ERROR_SECONDS / 60:.0f} minutes.",
    "The work of the schedule is missing, and nothing else reports it.",
)
def _schedules(session: Session) -> Result:
    late_seconds = LATE_WARNING_SECONDS + 2 * get_settings().SCHEDULE_INTERVAL
    keys = ("name", "origin", "task", "late_seconds", "problem")
    params = {"late_seconds": late_seconds, "shown": SHOWN}
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(SCHEDULES, **params)]
    if not found:
        return ok("No schedule is late.", behind=[])
    first = found[0]
    level = level_of(first["late_seconds"], warning=LATE_WARNING_SECONDS, error=LATE_ERROR_SECONDS)
    late = f"late by {span(first['late_seconds'])}" if first["late_seconds"] >= late_seconds else "not fired"
    reason = f": {quoted(first['problem'])}" if first["problem"] else ""
    what = f"{are(len(found), 'schedule')} behind: {quoted(first['name'])} is {late}{reason}."
    fix = "Start a worker whose role may fire schedules, or fix what the schedule's page in the admin shows."
    return Result(Level.WARNING if level is Level.OK else level, what, fix, {"behind": found})


@check(
    "causes",
    "Error: a cause that lasts until somebody acts keeps jobs from running. Warning: another cause does, jobs of a "
    "task or a schedule die in a row, or a figure cannot be read.",
    "These jobs do not run, or fail. The sentences are those of the overview, without limit keys.",
)
def _causes(session: Session) -> Result:
    facts = current(session.alias)
    found, unread = causes_of(facts, Words()), facts.overview.unread
    urgent = sum(each.is_urgent for each in found)
    data = {"urgent": urgent, "causes": [{"kind": each.kind, "sentence": each.sentence} for each in found[:SHOWN]]}
    if unread and not urgent:
        what = f"Not all causes are known, because these figures cannot be read: {listed(unread)}."
        return Result(Level.WARNING, what, "Find the row with the value that cannot be read.", data)
    if not found:
        return ok("Nothing keeps jobs from running.", **data)
    more = f" And {len(found) - 1:,} more." if len(found) > 1 else ""
    level = Level.ERROR if urgent else Level.WARNING
    return Result(level, f"{found[0].sentence}{more}", "manage.py pgqueue status", data)


WORKER_CHECKS: Final = (_stale_workers, _worker_versions, _unserved_queues, _leases, _timeouts, _schedules, _causes)
