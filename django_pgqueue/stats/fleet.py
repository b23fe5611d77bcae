"""Which worker processes run, which of their slots are busy, and which jobs run in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.ground.erasure_grants import HAS_GRANTS
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry

from . import queries
from .alias import connection_of
from .answers import BusyTask, PauseStats, WorkerStats

WORKERS_LIMIT: Final = 1000
OPEN_LIMIT: Final = 10_000
"""Maximum number of open executions that are counted."""
PER_WORKER: Final = 50
"""Open executions returned of each worker process at most."""

# Return the open executions of some workers, the oldest first, and at most `limit` of each.
#
# Index: pgqueue_job_running, and the primary key of the executions for each entry
RUNNING_OF_WORKERS: Final = """/* pgqueue:running_of_workers */
SELECT job.worker_id, job.execution_id, job.id, job.task_name, job.queue_name, opened.attempt,
       opened.started_at IS NOT NULL,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval
           - coalesce(opened.started_at, opened.claimed_at))
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT id, task_name, queue_name, worker_id, execution_id
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id = worker.id
    ORDER BY worker_id, execution_id
    LIMIT %(limit)s
) AS job
CROSS JOIN LATERAL (
    SELECT attempt, started_at, claimed_at
    FROM pgqueue_execution
    WHERE id = job.execution_id AND outcome IS NULL
    LIMIT 1
) AS opened
"""

# Return the database roles of the sessions of worker processes, and whether each may erase values of jobs.
#
# Cost: reads the sessions of the server. Every role may see the names of roles and applications
ROLES_OF_WORKERS: Final = """/* pgqueue:roles_of_workers */
SELECT role.name, """ + HAS_GRANTS + """
FROM (
    SELECT DISTINCT usename AS name
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND (
          application_name LIKE 'pgqueue:fetcher%%'
          OR application_name IN ('pgqueue:completer', 'pgqueue:supervisor')
      )
) AS role
ORDER BY 1
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package


class OpenGroup(NamedTuple):
    """The open executions of one queue, task and worker process.

    `slots` is how many slots they occupy: those of a chunk share one. `longest_seconds` is for how long at most.
    """

    queue_name: str
    task_name: str
    worker_id: int
    running: int
    prefetched: int
    lost: int
    slots: int
    longest_seconds: float

    @property
    def total(self) -> int:
        """How many there are."""
        return self.running + self.prefetched + self.lost


def workers(database: str | None = None) -> list[WorkerStats]:
    """Return the worker processes that have not stopped, those with the newest heartbeat first.

    A process that was killed with its whole host stays in the list for a week, with `is_live` False. Runs two read-only
    statements.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        At most 1,000 processes.

    Example:
        >>> sum(worker.slots_busy for worker in stats.workers() if worker.is_live)
        12
    """
    connection = connection_of(database)
    return read_workers(connection, read_open_groups(connection))


def roles_without_erasure(database: str | None = None) -> list[str]:
    """Return the database roles of the connected workers if none of them may erase values of jobs.

    Return [] if one may, or if no worker is connected: a worker that starts later can have another role. Runs one
    read-only statement.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.
    """
    roles = execute(connection_of(database), ROLES_OF_WORKERS, {})
    return [] if any(may_erase for _, may_erase in roles) else [str(name) for name, _ in roles]


def read_open_groups(connection: Connection) -> list[OpenGroup]:
    """Return the open executions by queue, task and worker, at most `OPEN_LIMIT` executions."""
    return [OpenGroup(*row) for row in execute(connection, queries.OPEN_EXECUTIONS_BY_TASK, {"limit": OPEN_LIMIT})]


def read_workers(connection: Connection, open_groups: Iterable[OpenGroup]) -> list[WorkerStats]:
    """Return the worker processes, with the slots that these executions occupy."""
    busy, prefetched, claimed = Counter[int](), Counter[int](), Counter[int]()
    for group in open_groups:
        busy[group.worker_id] += group.slots
        prefetched[group.worker_id] += group.prefetched
        claimed[group.worker_id] += group.total
    lease_seconds = get_settings().LEASE
    rows = execute(connection, queries.WORKERS, {"limit": WORKERS_LIMIT})
    found = []
    for worker_id, host, pid, version, queue_names, concurrency, started_at, last_heartbeat_at, *more in rows:
        age_seconds, supervisor_pid, resident_mib, release = more
        served = ServedQueues.from_text(queue_names)
        worker = WorkerStats(
            id=worker_id,
            host=host,
            pid=pid,
            version=version,
            queues=served.names,
            queue_concurrency=served.concurrency,
            slots_total=concurrency,
            slots_busy=min(busy[worker_id], concurrency),
            prefetched=prefetched[worker_id],
            claimed=claimed[worker_id],
            started_at=started_at,
            last_heartbeat_at=last_heartbeat_at,
            heartbeat_age_seconds=age_seconds,
            is_live=age_seconds < lease_seconds,
            supervisor_pid=supervisor_pid,
            resident_mib=resident_mib,
            release=release,
        )
        found.append(worker)
    return found


class SlotsOfQueues:
    """How many slots workers have for the jobs of a queue, and how many of these are busy.

    A worker with `--queue` may run fewer jobs of a queue than it has slots.
    """

    def __init__(self, workers: Iterable[WorkerStats], open_groups: Iterable[OpenGroup]) -> None:
        self._served = {
            worker.id: ServedQueues.of_queue_options(worker.queue_concurrency)
            for worker in workers
            if worker.queue_concurrency
        }
        self._claimed: Counter[tuple[int, str | None]] = Counter()
        for each in open_groups if self._served else ():
            if each.worker_id in self._served:
                group = self._served[each.worker_id].group_of(each.queue_name)
                self._claimed[each.worker_id, group] += each.slots + each.prefetched

    def of(self, queue_name: str, worker: WorkerStats) -> tuple[int, int]:
        """Return how many slots of a worker are busy for a queue, and how many there are."""
        served = self._served.get(worker.id)
        group = None if served is None else served.group_of(queue_name)
        number = None if group is None else worker.queue_concurrency[group]
        if number is None:
            return worker.slots_busy, worker.slots_total
        total = min(number, worker.slots_total)
        free = min(worker.slots_total - worker.slots_busy, number - self._claimed[worker.id, group])
        return total - max(0, min(free, total)), total

    def occupies(self, each: OpenGroup, queue_name: str) -> bool:
        """Return whether these executions keep jobs of a queue from starting in their worker."""
        served = self._served.get(each.worker_id)
        group = None if served is None else served.group_of(queue_name)
        if served is None or group is None or self._claimed[each.worker_id, group] < (served.concurrency[group] or 0):
            return True
        return served.group_of(each.queue_name) == group

    def sums(self, queue_name: str, workers: Iterable[WorkerStats]) -> tuple[int, int]:
        """Return how many slots of these workers are busy for a queue, and how many there are."""
        slots = [self.of(queue_name, worker) for worker in workers]
        return sum(busy for busy, _ in slots), sum(total for _, total in slots)


class Pauses:
    """The pauses that have not ended."""

    def __init__(self, connection: Connection) -> None:
        pauses = [PauseStats(Pausable(kind), *row) for kind, *row in execute(connection, queries.OPEN_PAUSES, {})]
        self.of_queues = {pause.name: pause for pause in pauses if pause.kind is Pausable.QUEUE}
        self.of_tasks = {
            name: pause
            for pause in pauses
            if pause.kind is Pausable.TASK
            for name in registry.names_of(pause.name)  # workers pause the former names of a renamed task too
        }


def busy_tasks(
    queue_name: str, workers: Sequence[WorkerStats], open_groups: Sequence[OpenGroup]
) -> tuple[BusyTask, ...]:
    """Return the tasks that occupy the slots of these workers for a queue, the one with the longest attempt first."""
    found: dict[str, BusyTask] = {}
    of_queues, worker_ids = SlotsOfQueues(workers, open_groups), {worker.id for worker in workers}
    for group in sorted(open_groups, key=lambda group: -group.longest_seconds):
        if group.worker_id not in worker_ids or not group.slots or not of_queues.occupies(group, queue_name):
            continue
        known = found.get(group.task_name, BusyTask(task_name=group.task_name, slots=0, longest_seconds=0.0))
        longest = max(known.longest_seconds, group.longest_seconds)
        found[group.task_name] = replace(known, slots=known.slots + group.slots, longest_seconds=longest)
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker process has claimed.

    Attributes:
        worker_id: Id of the worker process.
        execution_id, job_id: Ids of the attempt and of the job.
        task_name, queue_name: The names in the row of the job.
        attempt: Number of the attempt.
        is_started: False: the job is prefetched, or has started since the last heartbeat.
        seconds: How long it has run, or how long ago it was claimed if `is_started` is False.
    """

    worker_id: int
    execution_id: int
    job_id: int
    task_name: str
    queue_name: str
    attempt: int
    is_started: bool
    seconds: float


def running_jobs(worker_ids: Iterable[int], database: str | None = None) -> list[RunningJob]:
    """Return the jobs that some worker processes have claimed, those that have run longest first.

    Runs one read-only statement.

    Args:
        worker_ids: Ids of worker processes.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The oldest 50 of each process.
    """
    params = {"worker_ids": list(worker_ids), "limit": PER_WORKER}
    rows = execute(connection_of(database), RUNNING_OF_WORKERS, params)
    found = [RunningJob(**dict(zip(RunningJob.__slots__, row, strict=True))) for row in rows]
    return sorted(found, key=lambda job: (not job.is_started, -job.seconds))
