"""Read what happened in a period: entries of the audit, the first worker of each release, and opened circuit breakers.

The charts of the console and the page of a job call it. The statement walks indexes and stops at limits, so its cost
depends neither on the size of the audit nor on the number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.breakers import PAUSED_BY

from .alias import connection_of

READ: Final = 500
"""Latest entries of each action that are read."""
RECORDED: Final = timedelta(days=6)
"""How far back the first start of a release is known: workers that have stopped are removed after a week."""
RELEASES_READ: Final = 1000
"""Pairs of release and version that are read."""

OF_JOB_READ: Final = 10
"""Latest acts on the job `job_id` that are read."""

# Return three kinds of rows:
#
# 1. The latest acts of each of some actions in a period, at most `limit` of each. An act that changed one job only is
#    left out if its action is in `of_many`: the page of that job has it. The text of the filter is cut, because a
#    filter can have 10,000 ids.
# 2. The latest acts on the job `job_id` whose action is in `on_job`, in any period. None without an id.
# 3. When the first worker of each release and version of this package started, as far as the records of workers are
#    kept, with no action. One probe of the index finds each pair. Processes without a supervisor are left out: they run
#    one job of a person, or belong to a remote worker, whose version is that of its server.
#
# Index: pgqueue_audit_action, pgqueue_audit_job_once, pgqueue_worker_release
PAST_ACTS: Final = """/* pgqueue:past_acts */
WITH RECURSIVE deploy AS (
    (
        SELECT release, version, started_at
        FROM pgqueue_worker
        WHERE supervisor_pid IS NOT NULL
        ORDER BY release, version, started_at
        LIMIT 1
    )
    UNION ALL
    SELECT later.release, later.version, later.started_at
    FROM deploy
    CROSS JOIN LATERAL (
        SELECT release, version, started_at
        FROM pgqueue_worker
        WHERE supervisor_pid IS NOT NULL AND (release, version) > (deploy.release, deploy.version)
        ORDER BY release, version, started_at
        LIMIT 1
    ) AS later
)
SELECT act.id, act.action, act.began_at, act.done_by, act.reason, act.jobs, act.filter
FROM unnest(%(actions)s::varchar[]) AS wanted (action)
CROSS JOIN LATERAL (
    SELECT id, action, began_at, left(done_by, 150) AS done_by, left(reason, 500) AS reason,
           CASE WHEN ended_at IS NULL THEN greatest(job_count, total) ELSE job_count END AS jobs,
           left(filter::text, 2000) AS filter
    FROM pgqueue_audit
    WHERE action = wanted.action
      AND began_at >= %(since)s::timestamptz AND began_at <= %(until)s::timestamptz
    ORDER BY action DESC, began_at DESC
    LIMIT %(limit)s
) AS act
WHERE act.jobs > 1 OR act.action <> ALL (%(of_many)s::varchar[])
UNION ALL
SELECT of_job.id, of_job.action, of_job.began_at, of_job.done_by, of_job.reason, 1, of_job.filter
FROM (
    SELECT entry.id, entry.action, entry.began_at, left(entry.done_by, 150) AS done_by,
           left(entry.reason, 500) AS reason, left(entry.filter::text, 2000) AS filter
    FROM pgqueue_audit_job AS changed
    CROSS JOIN LATERAL (
        SELECT id, action, began_at, done_by, reason, filter FROM pgqueue_audit WHERE id = changed.audit_id LIMIT 1
    ) AS entry
    WHERE changed.job_id = %(job_id)s::bigint AND entry.action = ANY (%(on_job)s::varchar[])
    ORDER BY changed.job_id DESC, changed.audit_id DESC
    LIMIT %(of_job)s
) AS of_job
UNION ALL
(
    SELECT 0, '', least(greatest(started_at, '0001-01-03 UTC'), '9999-12-28 UTC'), release, version, 0, ''
    FROM deploy
    LIMIT %(releases)s
)
"""

# Return the circuit breakers that are open and opened in a period, with the reason of their pause: the latest ones.
#
# Cost: reads the table, which has one row for each limit key whose breaker is open, and probes pgqueue_pause_name for
#       each row of the answer
OPENED_BREAKERS: Final = """/* pgqueue:opened_breakers */
SELECT breaker.limit_key, breaker.opened_at, coalesce(pause.reason, '')
FROM (
    SELECT limit_key, opened_at
    FROM pgqueue_open_breaker
    WHERE opened_at >= %(since)s::timestamptz AND opened_at <= %(until)s::timestamptz
    ORDER BY opened_at DESC
    LIMIT %(limit)s
) AS breaker
LEFT JOIN LATERAL (
    SELECT left(reason, 500) AS reason
    FROM pgqueue_pause
    WHERE kind = 'limit' AND name = breaker.limit_key AND paused_by = %(paused_by)s
    LIMIT 1
) AS pause ON true
ORDER BY breaker.opened_at
"""

UNKNOWN: Final = {"message": "?"}
"""Stands for a filter that was cut. It may have a value that the reason of the act repeats."""
QUEUES: Final = ("queue_name", "queue", "queues")
TASKS: Final = ("task_name", "tasks")
"""The keys of an act's filter with names of queues, and those with names of tasks."""
CHOSEN_JOBS: Final = frozenset({"selected", "jobs", "job_ids", "batch_id", "from_job"})
"""The keys of an act on jobs that somebody has chosen one by one, or that are those of a workflow."""


class PastAct(NamedTuple):
    """An act of the audit.

    Attributes:
        act_id: The id of the entry.
        action: The name of the act.
        began_at: When it began.
        done_by, reason: Who did it and why, or "".
        job_count: How many jobs it changed, or is to change while it is under way.
        chosen: What it was done to. Empty if somebody has stored what is no object, or if the text is too long.
    """

    act_id: int
    action: str
    began_at: datetime
    done_by: str
    reason: str
    job_count: int
    chosen: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return the text under a name in the filter of the act, or "" if it has none."""
        value = self.chosen.get(name)
        return value if isinstance(value, str) else ""

    def named(self, keys: Collection[str]) -> frozenset[str]:
        """Return the names of queues or tasks that the act has under these keys."""
        found = [self.chosen[key] for key in keys if self.chosen.get(key)]
        texts = [name for each in found for name in (each if isinstance(each, list) else [each])]
        return frozenset(name for name in texts if name and isinstance(name, str))  # anybody can have stored any value

    @property
    def is_on_chosen_jobs(self) -> bool:
        """Whether it was done to chosen jobs. Their queues and tasks are not known from the act."""
        return not CHOSEN_JOBS.isdisjoint(self.chosen)

    def can_concern(self, keys: Collection[str], names: Collection[str]) -> bool:
        """Return whether the act names one of some queues or tasks under these keys, or names none at all."""
        found = self.named(keys)
        return not found or not found.isdisjoint(names)


class FirstStart(NamedTuple):
    """The first start of a worker with a release or, without the name of one, with a version of this package."""

    release: str
    version: str
    started_at: datetime


class OpenedBreaker(NamedTuple):
    """The circuit breaker of a limit key that is open, when it opened last, and why, or ""."""

    limit_key: str
    opened_at: datetime
    reason: str


class PastActs(NamedTuple):
    """The acts of people and the first starts of releases in a period, oldest first.

    Attributes:
        acts: The acts: the latest `READ` of each action.
        on_job: The latest `OF_JOB_READ` acts on the given job, in any period.
        starts: The releases whose first worker started in the period.
    """

    acts: list[PastAct]
    on_job: list[PastAct]
    starts: list[FirstStart]


def past_acts(
    actions: Collection[str],
    since: datetime,
    until: datetime,
    *,
    of_many: Collection[str] = (),
    job_id: int | None = None,
    on_job: Collection[str] = (),
    database: str | None = None,
) -> PastActs:
    """Return what people and deploys did in a period. Runs one read-only statement.

    Args:
        actions: The names of the acts.
        since: Beginning of the period, an aware datetime.
        until: End of the period, an aware datetime.
        of_many: The names of those acts that are left out if they changed one job only.
        job_id: The id of a job. The result has acts on it, also those before and after the period. None: it has none.
        on_job: The names of the acts on this job, none of which is in `actions`.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    params = {"actions": [*actions], "since": since, "until": until, "of_many": [*of_many], "job_id": job_id}
    bounds = {"on_job": [*on_job], "limit": READ, "of_job": OF_JOB_READ, "releases": RELEASES_READ}
    acts: list[PastAct] = []
    starts: list[FirstStart] = []
    for act_id, action, at, first, second, count, chosen in execute(
        connection_of(database), PAST_ACTS, {**params, **bounds}
    ):
        if action:
            acts.append(PastAct(act_id, action, at, first, second, count, _chosen(chosen)))
        else:
            starts.append(FirstStart(first, second, at))
    since = max(since, datetime.now(UTC) - RECORDED)
    acts.sort(key=lambda act: (act.began_at, act.act_id))
    done_to_job = [act for act in acts if act.action not in actions]
    return PastActs([act for act in acts if act.action in actions], done_to_job, _first_starts(starts, since, until))


def opened_breakers(since: datetime, until: datetime, database: str | None = None) -> list[OpenedBreaker]:
    """Return the open circuit breakers that opened in a period, oldest first. Runs one read-only statement.

    A breaker that has closed leaves no row. At most `READ` breakers are returned, those that opened last.

    Args:
        since: Beginning of the period, an aware datetime.
        until: End of the period, an aware datetime.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    params = {"since": since, "until": until, "paused_by": PAUSED_BY, "limit": READ}
    return [OpenedBreaker(*row) for row in execute(connection_of(database), OPENED_BREAKERS, params)]


def _first_starts(starts: Collection[FirstStart], since: datetime, until: datetime) -> list[FirstStart]:
    """Return the releases whose first worker started in a period, oldest first.

    Of workers without a release, it is the first one with their version of this package. The oldest release of the
    records is left out, because the records of its first workers may have been removed.
    """
    found: list[FirstStart] = []
    releases, versions = set[str](), set[str]()
    for start in sorted(starts, key=lambda start: start.started_at):
        if start.release not in releases if start.release else start.version not in versions:
            found.append(start)
        releases.add(start.release)
        versions.add(start.version)
    return [start for start in found[1:] if since <= start.started_at <= until]


def _chosen(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return UNKNOWN
    return found if isinstance(found, dict) else {}
