"""Count the jobs that wait behind pauses, and those that started before a pause and still run.

The list of pauses in the admin calls it. At most four statements answer for all pauses of a page, and the cost of each
is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry

from .alias import connection_of
from .answers import Count
from .limits import queries as limit_queries
from .limits.bounds import jobs_limit
from .limits.key_ranges import KeyRange, columns, in_lanes, is_storable, range_of_key, ranges_of_limit
from .limits.lanes import limited_lanes

WAITING_LIMIT: Final = 10_000
"""Waiting jobs of each queue that are counted. Counting that many takes 0.65 ms."""
RUNNING_LIMIT: Final = 10_000
"""Running jobs that are counted, in all queues together."""
RANGES_LIMIT: Final = 20_000
"""Pairs of a lane and a range of limit keys that are counted. One index search finds each."""

# Count the ready jobs of some queues, up to a limit for each.
#
# Index: pgqueue_job_ready and pgqueue_job_limited. A queue is one range of each
# Cost:  at most `limit` entries for each queue
WAITING_IN_QUEUES: Final = """/* pgqueue:waiting_in_queues */
SELECT given.name, counted.count
FROM unnest(%(queue_names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM (
        (
            SELECT id FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL AND queue_name = given.name
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT id FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name = given.name
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT %(limit)s
        )
        LIMIT %(limit)s
    ) AS first
) AS counted
"""

# Count the running jobs by queue, task and limit key, up to a limit.
#
# Index: pgqueue_job_running, and the row of each entry
# Cost:  at most `limit` entries
RUNNING_BY_TARGET: Final = """/* pgqueue:running_by_target */
SELECT queue_name, task_name, limit_key, count(*)
FROM (
    SELECT queue_name, task_name, limit_key
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id IS NOT NULL
    ORDER BY worker_id, execution_id
    LIMIT %(limit)s
) AS running
GROUP BY queue_name, task_name, limit_key
"""

Target = tuple[Pausable, str]
"""The kind and the name of what is paused."""


class JobsBehind(NamedTuple):
    """The jobs of a queue, a task or a limit that is paused."""

    waiting: Count | None
    """None: no index counts the waiting jobs of a task."""
    running: Count


def jobs_behind(pauses: Iterable[Target], database: str | None = None) -> dict[Target, JobsBehind]:
    """Return the jobs behind each of some pauses. Runs at most four read-only statements.

    Args:
        pauses: The kind and the name of each.
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    wanted, connection = list(pauses), connection_of(database)
    if not wanted:
        return {}
    waiting = {
        **_waiting(connection, [name for kind, name in wanted if kind is Pausable.QUEUE]),
        **_waiting_of_limits(connection, [name for kind, name in wanted if kind is Pausable.LIMIT]),
    }
    running = _RunningCounts(connection)
    return {target: JobsBehind(waiting.get(target), running.of(*target)) for target in wanted}


def _waiting(connection: Connection, queue_names: list[str]) -> dict[Target, Count]:
    """Return how many jobs of each queue are ready."""
    if not queue_names:
        return {}
    params = {"queue_names": queue_names, "limit": WAITING_LIMIT}
    rows = execute(connection, WAITING_IN_QUEUES, params)
    return {(Pausable.QUEUE, name): Count.up_to(count, WAITING_LIMIT) for name, count in rows}


def _waiting_of_limits(connection: Connection, names: list[str]) -> dict[Target, Count]:
    """Return how many jobs of each limit or limit key are ready. All lanes and pauses share one bound."""
    lanes = limited_lanes(connection) if names else []
    ranges = [(name, each) for name in names for key_range in _ranges(name) for each in in_lanes(lanes, [key_range])]
    found = {(Pausable.LIMIT, name): Count() for name in names}
    for name, _ in ranges[RANGES_LIMIT:]:
        found[Pausable.LIMIT, name] += Count(0, is_exact=False)
    counted = ranges[:RANGES_LIMIT]
    if counted:
        limit = jobs_limit(len(counted))
        params = {**columns(each for _, each in counted), "limit": limit}
        for place, due, later in execute(connection, limit_queries.JOBS_OF_LIMITS, params):
            found[Pausable.LIMIT, counted[place][0]] += Count.up_to(due + later, limit)
    return found


def _ranges(name: str) -> list[KeyRange]:
    """Return the ranges of the keys behind the pause of a limit or of a limit key."""
    if not is_storable(name):
        return []
    return [range_of_key(name)] if has_value(name) else ranges_of_limit(name, prefix="", after_key="")


class _RunningCounts:
    """How many jobs run, by queue, task, limit key and limit."""

    def __init__(self, connection: Connection) -> None:
        self._counts: Counter[tuple[Pausable, str]] = Counter()
        total = 0
        for queue_name, task_name, limit_key, count in execute(connection, RUNNING_BY_TARGET, {"limit": RUNNING_LIMIT}):
            total += count
            self._counts[Pausable.QUEUE, queue_name] += count
            self._counts[Pausable.TASK, task_name] += count
            if limit_key is not None:
                self._counts[Pausable.LIMIT, name_of(limit_key)] += count
                if has_value(limit_key):
                    self._counts[Pausable.LIMIT, limit_key] += count
        self._is_exact = total < RUNNING_LIMIT

    def of(self, kind: Pausable, name: str) -> Count:
        """Return how many jobs of a queue, a task under any of its names, a limit or a limit key run."""
        names = registry.names_of(name) if kind is Pausable.TASK else (name,)
        return Count(sum(self._counts[kind, each] for each in names), self._is_exact)
