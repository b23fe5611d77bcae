"""Checks of the work: leases of running jobs, timeouts of tasks, late schedules, and what keeps jobs from running.

`examine()` runs `JOB_CHECKS`, at the end of this module.
"""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.display import number
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.causes.current import causes_of, current
from django_pgqueue.stats.causes.words import Words
from django_pgqueue.tasks import registry

from .findings import Level, Result, check, level_of, listed, ok, percent, quoted, span
from .session import Session

RECENT_EXECUTIONS: Final = 1000
RECENT_SECONDS: Final = 3600.0
LATE_WARNING_SECONDS, LATE_ERROR_SECONDS = 60.0, 600.0
CLOSE_TO_TIMEOUT, TIMED_OUT_SHARE, LEAST_RUNS = 0.8, 0.02, 20
SHOWN: Final = 100
TIMEOUT_CLASS: Final = "django_pgqueue.exceptions.TaskTimeout"

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


@check(
    "leases",
    "Error: a lease has expired and no worker rescues the job. Warning: a lease has just expired, less than half "
    f"of a lease is left, or executions crashed within the last hour (of the newest {RECENT_EXECUTIONS:,}).",
    gettext_lazy("A job whose lease expires runs again, although its first attempt may still be running."),
)
def _leases(session: Session) -> Result:
    settings = get_settings()
    keys = ("open", "expired", "expired_seconds", "late", "late_and_long", "longest_run_seconds")
    row = session.row(LEASES, lease_seconds=settings.LEASE)
    data: dict[str, Any] = {**dict(zip(keys, row, strict=True)), "lease_seconds": settings.LEASE}
    data["crashed"] = sum(each["crashed"] for each in _recent(session))
    if data["expired"]:
        is_forgotten = data["expired_seconds"] > 3 * settings.RESCUE_INTERVAL
        level = Level.ERROR if is_forgotten else Level.WARNING
        return Result(level, _expired_text(data), _("Start a worker, and read the log of the lost one."), data)
    if data["late"]:
        fix = _('Check the connections and the load of the database, or raise PGQUEUE["LEASE"].')
        return Result(Level.WARNING, _late_text(data), fix, data)
    if data["crashed"]:
        what = ngettext(
            "%(count)s execution of the newest %(newest)s crashed within an hour.",
            "%(count)s executions of the newest %(newest)s crashed within an hour.",
            data["crashed"],
        ) % {"count": number(data["crashed"]), "newest": number(RECENT_EXECUTIONS)}
        return Result(Level.WARNING, what, _("Look for killed processes and lost hosts in the workers' logs."), data)
    what = ngettext(
        "%(count)s lease is open, and all are extended in time.",
        "%(count)s leases are open, and all are extended in time.",
        data["open"],
    ) % {"count": number(data["open"])}
    return ok(what, **data)


def _expired_text(leases: dict[str, Any]) -> str:
    return ngettext(
        "%(count)s lease of %(open)s expired, the first one %(span)s ago, and no worker has rescued the jobs.",
        "%(count)s leases of %(open)s expired, the first one %(span)s ago, and no worker has rescued the jobs.",
        leases["expired"],
    ) % {"count": number(leases["expired"]), "open": number(leases["open"]), "span": span(leases["expired_seconds"])}


def _late_text(leases: dict[str, Any]) -> str:
    return ngettext(
        "Heartbeats are late: %(count)s lease of %(open)s has less than half of %(span)s left, %(long)s of them for "
        "jobs that run longer than a lease.",
        "Heartbeats are late: %(count)s leases of %(open)s have less than half of %(span)s left, %(long)s of them for "
        "jobs that run longer than a lease.",
        leases["late"],
    ) % {
        "count": number(leases["late"]),
        "open": number(leases["open"]),
        "span": span(leases["lease_seconds"]),
        "long": number(leases["late_and_long"]),
    }


def _recent(session: Session) -> list[dict[str, Any]]:
    keys = ("task", "executions", "crashed", "timed_out", "p95_seconds")
    params = {"executions": RECENT_EXECUTIONS, "seconds": RECENT_SECONDS, "timeout_class": TIMEOUT_CLASS}
    return [dict(zip(keys, row, strict=True)) for row in session.rows(RECENT, **params)]


@check(
    "timeouts",
    f"Warning: of a task's recent runs (at least {LEAST_RUNS}), {percent(TIMED_OUT_SHARE)} timed out, or 5 % take "
    f"longer than {percent(CLOSE_TO_TIMEOUT)} of the timeout.",
    gettext_lazy("Jobs that exceed their timeout are interrupted and retried, and many die in the end."),
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
        return ok(_("No task comes close to its timeout."), tight=[])
    first = max(tight, key=lambda each: each["timed_out"] / each["executions"])
    what = ngettext(
        "%(count)s task is close to the timeout: %(task)s has %(timeout)s s, %(share)s of its runs take longer than "
        "%(seconds)s s, and %(timed_out)s of %(runs)s timed out.",
        "%(count)s tasks are close to the timeout: %(task)s has %(timeout)s s, %(share)s of its runs take longer than "
        "%(seconds)s s, and %(timed_out)s of %(runs)s timed out.",
        len(tight),
    ) % {
        "count": number(len(tight)),
        "task": quoted(first["task"]),
        "timeout": f"{first['timeout_seconds']:g}",
        "share": percent(0.05),
        "seconds": number(first["p95_seconds"], 1),
        "timed_out": first["timed_out"],
        "runs": first["executions"],
    }
    fix = _("Raise timeout= of %(task)s, or make its work smaller.") % {"task": first["task"]}
    return Result(Level.WARNING, what, fix, {"tight": tight})


@check(
    "schedules",
    f"Warning: a schedule is late by {LATE_WARNING_SECONDS:.0f} s plus two schedule intervals, or could not be "
    f"fired. Error: by {LATE_ERROR_SECONDS / 60:.0f} minutes.",
    gettext_lazy("The work of the schedule is missing."),
)
def _schedules(session: Session) -> Result:
    late_seconds = LATE_WARNING_SECONDS + 2 * get_settings().SCHEDULE_INTERVAL
    keys = ("name", "origin", "task", "late_seconds", "problem")
    params = {"late_seconds": late_seconds, "shown": SHOWN}
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(SCHEDULES, **params)]
    if not found:
        return ok(_("No schedule is late."), behind=[])
    first = found[0]
    level = level_of(first["late_seconds"], warning=LATE_WARNING_SECONDS, error=LATE_ERROR_SECONDS)
    what = _behind_text(first, len(found), is_late=first["late_seconds"] >= late_seconds) % {
        "count": number(len(found)),
        "name": quoted(first["name"]),
        "span": span(first["late_seconds"]),
        "problem": quoted(first["problem"]),
    }
    fix = _("Start a worker whose role may fire schedules, or fix what the schedule's page in the admin shows.")
    return Result(Level.WARNING if level is Level.OK else level, what, fix, {"behind": found})


def _behind_text(first: dict[str, Any], count: int, *, is_late: bool) -> str:
    if not is_late:
        return ngettext(
            "%(count)s schedule is behind: %(name)s is not fired: %(problem)s.",
            "%(count)s schedules are behind: %(name)s is not fired: %(problem)s.",
            count,
        )
    if first["problem"]:
        return ngettext(
            "%(count)s schedule is behind: %(name)s is late by %(span)s: %(problem)s.",
            "%(count)s schedules are behind: %(name)s is late by %(span)s: %(problem)s.",
            count,
        )
    return ngettext(
        "%(count)s schedule is behind: %(name)s is late by %(span)s.",
        "%(count)s schedules are behind: %(name)s is late by %(span)s.",
        count,
    )


@check(
    "causes",
    "Error: a cause that lasts until somebody acts keeps jobs from running. Warning: another cause does, jobs of a "
    "task or a schedule die in a row, or a figure cannot be read.",
    gettext_lazy("These jobs do not run, or fail. The sentences are those of the overview, without limit keys."),
)
def _causes(session: Session) -> Result:
    facts = current(session.alias)
    found, unread = causes_of(facts, Words()), facts.overview.unread
    urgent = sum(each.is_urgent for each in found)
    data = {"urgent": urgent, "causes": [{"kind": each.kind, "sentence": each.sentence} for each in found[:SHOWN]]}
    if unread and not urgent:
        what = _("Not all causes are known, because these figures cannot be read: %(figures)s.")
        fix = _("Find the row with the value that cannot be read.")
        return Result(Level.WARNING, what % {"figures": listed(unread)}, fix, data)
    if not found:
        return ok(_("Nothing keeps jobs from running."), **data)
    sentences = [found[0].sentence]
    if len(found) > 1:
        sentences.append(_("And %(count)s more.") % {"count": number(len(found) - 1)})
    level = Level.ERROR if urgent else Level.WARNING
    return Result(level, " ".join(sentences), "manage.py pgqueue status", data)


JOB_CHECKS: Final = (_leases, _timeouts, _schedules, _causes)
