"""Group dead jobs by task, exception class and message, and find jobs by the error of their latest attempt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.ground.error_messages import MEETS_MESSAGE, MESSAGE_SHAPE
from django_pgqueue.stats import rollup_queries

from .alias import connection_of

# The jobs that died last in a period.
NEWEST_DEAD: Final = """FROM (
    SELECT id, task_name, finished_at
    FROM pgqueue_job
    WHERE state = 'dead' AND finished_at IS NOT NULL AND acknowledged_at IS NULL
      AND finished_at >= %(since)s AND finished_at < %(until)s
    ORDER BY finished_at DESC
    LIMIT %(limit)s
) AS dead
"""

# Group the dead jobs that died last in a period by task and exception class of their latest execution.
#
# Index: pgqueue_job_dead for the jobs, pgqueue_execution_job for the latest execution of each
# Cost:  `limit` jobs, and one probe for each
DEAD_GROUPS: Final = """/* pgqueue:dead_groups */
SELECT dead.task_name, coalesce(latest.exception_class, '') AS exception_class,
       count(*), min(dead.finished_at), max(dead.finished_at),
       (array_agg(dead.id ORDER BY dead.finished_at DESC, dead.id DESC))[1:%(sample)s::integer]
""" + NEWEST_DEAD + """LEFT JOIN LATERAL (
    SELECT execution.exception_class
    FROM pgqueue_execution AS execution
    WHERE execution.job_id = dead.id
    ORDER BY execution.job_id DESC, execution.id DESC
    LIMIT 1
) AS latest ON true
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Skip the dead jobs that a limit allows, latest first, and return when the next one died. Without it, return no row.
#
# Index: pgqueue_job_dead
DEAD_BEYOND: Final = """/* pgqueue:dead_beyond */
SELECT finished_at
FROM pgqueue_job
WHERE state = 'dead' AND finished_at IS NOT NULL AND acknowledged_at IS NULL
  AND finished_at >= %(since)s AND finished_at < %(until)s
ORDER BY finished_at DESC
OFFSET %(limit)s
LIMIT 1
"""

# Count the dead jobs of one task and exception class by the shape of their messages, among those that DEAD_GROUPS
# reads.
#
# Index: as DEAD_GROUPS
# Cost:  as DEAD_GROUPS, and the first 200 characters of the message of each job of the group
DEAD_MESSAGES: Final = """/* pgqueue:dead_messages */
SELECT latest.shape, count(*), min(dead.finished_at), max(dead.finished_at), max(dead.id)
""" + NEWEST_DEAD + """CROSS JOIN LATERAL (
    SELECT exception_class, """ + MESSAGE_SHAPE + """ AS shape
    FROM pgqueue_execution
    WHERE job_id = dead.id
    ORDER BY job_id DESC, id DESC
    LIMIT 1
) AS latest
WHERE dead.task_name = %(task_name)s AND latest.exception_class = %(exception_class)s
GROUP BY 1
ORDER BY 2 DESC, 1
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Count the dead jobs of one task and exception class by the release and the version of the worker of their latest
# execution, among those that DEAD_GROUPS reads. Workers are recorded for a week: of older ones, both are NULL.
#
# Index: as DEAD_GROUPS, and the primary key of the workers for each job of the group
DEAD_RELEASES: Final = """/* pgqueue:dead_releases */
SELECT worker.release, CASE WHEN worker.release <> '' THEN '' ELSE worker.version END AS version,
       count(*), min(dead.finished_at), max(dead.finished_at)
""" + NEWEST_DEAD + """LEFT JOIN LATERAL (
    SELECT exception_class, worker_id
    FROM pgqueue_execution
    WHERE job_id = dead.id
    ORDER BY job_id DESC, id DESC
    LIMIT 1
) AS latest ON true
LEFT JOIN LATERAL (
    SELECT release, version FROM pgqueue_worker WHERE id = latest.worker_id LIMIT 1
) AS worker ON true
WHERE dead.task_name = %(task_name)s AND coalesce(latest.exception_class, '') = %(exception_class)s
GROUP BY 1, 2
ORDER BY 4, 1, 2
LIMIT %(releases)s
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Count the dead jobs of one task and exception class of which *Edit and retry* has made new jobs, among those that
# DEAD_GROUPS reads. Such a job stays dead, and a retry of the group leaves it.
#
# Index: as DEAD_GROUPS; pgqueue_audit_job_once and the primary key of the audit for each job of the group
DEAD_EDITED: Final = """/* pgqueue:dead_edited */
SELECT count(*)
""" + NEWEST_DEAD + """WHERE dead.task_name = %(task_name)s
  AND coalesce((
      SELECT exception_class FROM pgqueue_execution WHERE job_id = dead.id ORDER BY job_id DESC, id DESC LIMIT 1
  ), '') = %(exception_class)s
  AND (
      SELECT true
      FROM pgqueue_audit_job AS edited
      WHERE job_id = dead.id
        AND (
            SELECT action = 'edit_and_retry' AND filter #>> '{jobs,0}' = dead.id::text
            FROM pgqueue_audit
            WHERE id = edited.audit_id
        )
      LIMIT 1
  )
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Return those of some jobs whose latest execution ended with an exception class that fits a regular expression, and
# with a message that meets a filter. NULL filters nothing.
#
# Index: pgqueue_execution_job, one probe per job
JOBS_WITH_EXCEPTION: Final = """/* pgqueue:jobs_with_exception */
SELECT wanted.id
FROM unnest(%(job_ids)s::bigint[]) AS wanted (id)
WHERE (
    SELECT (%(pattern)s::text IS NULL OR exception_class ~ %(pattern)s::text) AND """ + MEETS_MESSAGE + """
    FROM pgqueue_execution
    WHERE job_id = wanted.id
    ORDER BY job_id DESC, id DESC
    LIMIT 1
)
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Count the failed attempts with one task and exception class in each minute or hour of a period.
#
# Index: pgqueue_rollup_starts
FAILURES_OVER_TIME: Final = """/* pgqueue:failures_over_time */
SELECT task_name, exception_class, starts_at, CASE WHEN span = 'hour' THEN 3600 ELSE 60 END AS seconds,
       sum(retried + dead)::bigint
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND retried + dead > 0
GROUP BY 1, 2, 3, 4
ORDER BY 3
"""

# Return the exception classes of the attempts that failed recently.
#
# Index: pgqueue_rollup_starts
FAILURE_CLASSES: Final = """/* pgqueue:failure_classes */
SELECT DISTINCT exception_class
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
  AND retried + dead > 0 AND exception_class <> ''
LIMIT %(limit)s
"""


DEAD_LIMIT: Final = 10_000
"""Dead jobs that are grouped at most, the latest first. Grouping them takes about 20 ms, and 50,000 took 277 ms."""
SAMPLE: Final = 20
"""Jobs of each group whose ids are returned."""
CLASSES_LIMIT: Final = 200
RELEASES_LIMIT: Final = 20
"""Releases of a group that are returned, those in which it began first."""
SPARKLINE_LIMIT: Final = 25 * 3600.0
"""Longest period in seconds for which `Incident.failures` is read."""
FIRST_INSTANT: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The dead jobs of one task whose latest attempt ended with one exception class.

    Attributes:
        task_name: The task.
        exception_class: The dotted name of the class. Empty if the attempt was lost with its process or worker.
        jobs: How many of the jobs that were grouped. A job that was retried since is not dead, and not counted. Neither
            is one that was acknowledged.
        first_at, last_at: When the first and the last of them died.
        sample_ids: The latest of them, at most 20.
        failures: Failed attempts over time, as pairs of the beginning of a minute or hour and the rate per minute.
            Empty if the workers keep no statistics, or if the period is longer than 25 hours.
    """

    task_name: str
    exception_class: str
    jobs: int
    first_at: datetime
    last_at: datetime
    sample_ids: tuple[int, ...]
    failures: tuple[tuple[datetime, float], ...] = ()


class MessageGroup(NamedTuple):
    """The jobs of an incident with one error message.

    Attributes:
        shape: The first line of the message, at most 200 characters, with `#` for each number and id.
        jobs: How many jobs.
        first_at, last_at: When the first and the last of them died.
        job_id: One of them, the one with the highest id.
    """

    shape: str
    jobs: int
    first_at: datetime
    last_at: datetime
    job_id: int


class ReleaseGroup(NamedTuple):
    """The jobs of an incident whose latest attempts ran in one release.

    Attributes:
        release: The release that `runworker --release` named. "" without a name; None if the record of the worker is
            removed.
        version: The version of this package, if the release has no name.
        jobs: How many jobs.
        first_at, last_at: When the first and the last of them died.
    """

    release: str | None
    version: str | None
    jobs: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidents:
    """The dead jobs of a period by task and exception class, the largest group first.

    Attributes:
        since, until: The period. `since` is None without a beginning.
        groups: The groups.
        jobs: How many jobs were grouped: at most 10,000, those that died last.
        complete_since: None if all dead jobs of the period were grouped. Otherwise those that died before this time
            were not.
    """

    since: datetime | None
    until: datetime
    groups: tuple[Incident, ...]
    jobs: int
    complete_since: datetime | None


def incidents(since: datetime | None = None, until: datetime | None = None, database: str | None = None) -> Incidents:
    """Return the dead jobs that died in a period and that nobody has acknowledged, by task and exception class.

    Reads the 10,000 jobs that died last, at most. Runs three or four read-only statements.

    Args:
        since: Beginning of the period, an aware datetime. By default it has none.
        until: End of the period, an aware datetime. By default now.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Example:
        >>> [(group.task_name, group.exception_class, group.jobs) for group in stats.incidents().groups]
        [('shop.tasks.charge', 'shop.errors.Declined', 3743)]
    """
    for name, value in {"since": since, "until": until}.items():
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{name} must be an aware datetime, got {value!r}: add a time zone.")
    connection = connection_of(database)
    until = until or execute(connection, rollup_queries.DATABASE_TIME, {})[0][0]
    params = {"since": since or FIRST_INSTANT, "until": until, "limit": DEAD_LIMIT, "sample": SAMPLE}
    rows = execute(connection, DEAD_GROUPS, params)
    jobs = sum(row[2] for row in rows)
    beyond = execute(connection, DEAD_BEYOND, params) if jobs >= DEAD_LIMIT else []
    rates = _rates(connection, since, until) if rows else {}
    groups = tuple(
        Incident(
            task_name=task_name,
            exception_class=exception_class,
            jobs=count,
            first_at=first_at,
            last_at=last_at,
            sample_ids=tuple(ids),
            failures=tuple(rates.get((task_name, exception_class), ())),
        )
        for task_name, exception_class, count, first_at, last_at, ids in rows
    )
    return Incidents(
        since=since, until=until, groups=groups, jobs=jobs, complete_since=beyond[0][0] if beyond else None
    )


def _rates(
    connection: Connection, since: datetime | None, until: datetime
) -> dict[tuple[str, str], list[tuple[datetime, float]]]:
    """Return the failed attempts per minute by task and exception class."""
    if since is None or (until - since).total_seconds() > SPARKLINE_LIMIT:
        return {}
    params = {"since": since - timedelta(minutes=1), "until": until}
    rates: dict[tuple[str, str], list[tuple[datetime, float]]] = defaultdict(list)
    for task_name, exception_class, starts_at, seconds, count in execute(connection, FAILURES_OVER_TIME, params):
        rates[task_name, exception_class].append((starts_at, count * 60 / seconds))
    return rates


def incident_messages(group: Incident, found: Incidents, database: str | None = None) -> tuple[MessageGroup, ...]:
    """Return the dead jobs of one group of `incidents()` by their error messages, the largest part first.

    Messages that differ only in numbers and ids are one: `order 4711 not found` and `order 4712 not found`. Reads the
    jobs that `incidents()` has read. Runs one read-only statement.

    Args:
        group: One of `found.groups`.
        found: What `incidents()` has returned.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    params = {"since": found.since or FIRST_INSTANT, "until": found.until, "limit": DEAD_LIMIT}
    params |= {"task_name": group.task_name, "exception_class": group.exception_class}
    return tuple(MessageGroup(*row) for row in execute(connection_of(database), DEAD_MESSAGES, params))


def incident_releases(group: Incident, found: Incidents, database: str | None = None) -> tuple[ReleaseGroup, ...]:
    """Return the dead jobs of one group of `incidents()` by the release of their latest attempts, the earliest first.

    Reads the jobs that `incidents()` has read, and returns at most 20 releases. Runs one read-only statement.

    Args:
        group: One of `found.groups`.
        found: What `incidents()` has returned.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    params = {"since": found.since or FIRST_INSTANT, "until": found.until, "limit": DEAD_LIMIT}
    params |= {"task_name": group.task_name, "exception_class": group.exception_class, "releases": RELEASES_LIMIT}
    return tuple(ReleaseGroup(*row) for row in execute(connection_of(database), DEAD_RELEASES, params))


def incident_edits(group: Incident, found: Incidents, database: str | None = None) -> int:
    """Return how many dead jobs of one group of `incidents()` an operator has edited and retried as new jobs.

    Reads the jobs that `incidents()` has read. Runs one read-only statement.

    Args:
        group: One of `found.groups`.
        found: What `incidents()` has returned.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    params = {"since": found.since or FIRST_INSTANT, "until": found.until, "limit": DEAD_LIMIT}
    params |= {"task_name": group.task_name, "exception_class": group.exception_class}
    return int(execute(connection_of(database), DEAD_EDITED, params)[0][0])


def jobs_with_exception(
    connection: Connection, job_ids: Sequence[int], pattern: str | None, message: str | None = None
) -> set[int]:
    """Return those of some jobs whose latest attempt ended with this error.

    Runs one read-only statement, with one index probe per job.

    Args:
        connection: A connection to the database of the jobs.
        job_ids: The jobs.
        pattern: A regular expression for the exception class. None: any class.
        message: A part of the error message, in which capital letters do not matter. After "=", the whole first line of
            the message, with "#" for each number. None: any message.
    """
    params = {"job_ids": list(job_ids), "pattern": pattern, "message": message}
    rows = execute(connection, JOBS_WITH_EXCEPTION, params)
    return {job_id for (job_id,) in rows}


def failure_classes(connection: Connection, seconds: float) -> set[str]:
    """Return the exception classes of the attempts that failed within the last `seconds`, at most 200.

    Runs one read-only statement. It reads the statistics, so it returns nothing if the workers keep none.
    """
    params = {"seconds": seconds, "limit": CLASSES_LIMIT}
    return {name for (name,) in execute(connection, FAILURE_CLASSES, params)}
