"""The figures of single limit keys: what runs, what waits, and when the next job can start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import State
from django_pgqueue.stats.alias import connection_of
from django_pgqueue.stats.answers import Count

from . import key_queries
from . import queries as limit_queries
from .answers import LimitKeyFigures, LimitKeyPage
from .bounds import jobs_limit
from .controls import Controls, controls_of
from .key_ranges import KeyRange, columns, in_lanes, is_storable, range_of_key, ranges_of_limit
from .lanes import limited_lanes
from .waits import KeyState, ReadyJob, next_of, wait_of

PAGE_LIMIT: Final = 200
"""Maximum number of keys of a page."""
VISITS_TOTAL: Final = 5000
"""Maximum number of keys to visit in all lanes together for one page."""
RUNNING_LIMIT: Final = 10_000
"""Counting the running jobs of a key stops here."""
SHOWN_JOBS: Final = 5


class KeyInLane(NamedTuple):
    """A key with ready jobs in a lane."""

    queue_name: str
    priority: int
    limit_key: str
    oldest_seconds: float
    """How long its first job has been due. Negative: it is due later."""


class JobsOfKey(NamedTuple):
    """The ready jobs of a key in a lane, with the columns of JOBS_OF_KEYS."""

    limit_key: str
    priority: int
    due: int
    later: int
    first_id: int
    first_due_seconds: float
    first_weight: int

    @property
    def order(self) -> tuple[bool, int, float, int]:
        """Sort key: due jobs by their priority, then the others by their time."""
        is_later = self.first_due_seconds > 0
        return is_later, 0 if is_later else -self.priority, self.first_due_seconds, self.first_id


def limit_keys(
    name: str, *, after: str = "", count: int = 50, prefix: str = "", database: str | None = None
) -> LimitKeyPage:
    """Return a page of the keys of a limit that have ready or running jobs.

    Runs at most six read-only statements. Their cost is bounded, however many jobs and keys there are. Counting stops
    at 10,000 ready jobs of a key in a lane, and at 100,000 of all keys of the page, as in `limits()`.

    Args:
        name: The name of the limit.
        after: `next_after` of the previous page. By default the first page.
        count: Maximum keys of the page, at most 200. If more than 25 lanes have ready jobs with a limit, the page can
            be shorter.
        prefix: The beginning of the keys' values, without the name of the limit. By default all keys.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        ValueError: `count` is not from 1 to 200.

    Example:
        >>> page = stats.limit_keys("import")
        >>> [(key.limit_key, str(key.waiting), key.waits_for.value) for key in page.keys]
        [('import:customer:7', '10,000+', 'slot'), ('import:customer:9', '3', 'blocked by dead')]
    """
    if not 1 <= count <= PAGE_LIMIT:
        raise ValueError(f"count must be from 1 to {PAGE_LIMIT}, not {count}")
    if not is_storable(name + after + prefix):
        return LimitKeyPage(keys=(), next_after=None)
    connection = connection_of(database)
    ranges = ranges_of_limit(name, prefix=prefix, after_key=after)
    return _page(connection, ranges, count) if ranges else LimitKeyPage(keys=(), next_after=None)


def limit_key(limit_key: str, database: str | None = None) -> LimitKeyFigures:
    """Return the figures of one limit key, also if it has no jobs.

    Runs at most five read-only statements. Their cost is bounded.

    Args:
        limit_key: The limit key of the jobs, such as "import:4711": the name of the limit, and the value after ":".
        database: Alias of the database of the jobs. By default the database routers choose it.

    Example:
        >>> key = stats.limit_key("stripe")
        >>> key.waits_for, key.next_start_seconds
        (<LimitWaitReason.TOKEN: 'token'>, 0.4)
    """
    if not is_storable(limit_key):
        return LimitKeyFigures(limit_key=limit_key)
    connection = connection_of(database)
    lanes = limited_lanes(connection)
    found = _keys_in_lanes(connection, lanes, [range_of_key(limit_key)], limit=1)
    [figures] = _figures(connection, [limit_key], found)
    return figures


def _page(connection: Connection, ranges: Sequence[KeyRange], count: int) -> LimitKeyPage:
    lanes = limited_lanes(connection)
    count = min(count, max(VISITS_TOTAL // max(len(lanes), 1), 1))
    in_lane = _keys_in_lanes(connection, lanes, ranges, limit=count + 1)
    params = {"lows": [each.low for each in ranges], "highs": [each.high for each in ranges], "limit": count + 1}
    running = execute(connection, limit_queries.KEYS_WITH_EXECUTIONS, params)
    keys = sorted({*(key.limit_key for key in in_lane), *(key for [key] in running)})
    shown = keys[:count]
    figures = _figures(connection, shown, in_lane) if shown else []
    return LimitKeyPage(keys=tuple(figures), next_after=shown[-1] if len(keys) > count else None)


def _keys_in_lanes(
    connection: Connection, lanes: Sequence[tuple[str, int]], ranges: Sequence[KeyRange], *, limit: int
) -> list[KeyInLane]:
    """Return the first keys with ready jobs of these ranges in each lane."""
    if not lanes:
        return []
    params = {**columns(in_lanes(lanes, ranges)), "limit": limit}
    return [KeyInLane(*row[1:]) for row in execute(connection, limit_queries.KEYS_WITH_JOBS, params)]


def _figures(connection: Connection, keys: Sequence[str], in_lane: Iterable[KeyInLane]) -> list[LimitKeyFigures]:
    """Return the figures of these keys."""
    found = [key for key in in_lane if key.limit_key in keys]
    oldest: defaultdict[str, list[float]] = defaultdict(list)
    for key in found:
        if key.oldest_seconds >= 0:
            oldest[key.limit_key].append(key.oldest_seconds)
    jobs, limit = _read_jobs(connection, found)
    controls = controls_of(connection, keys)
    return [
        _figures_of_key(state, controls, jobs[state.limit_key], limit, max(oldest[state.limit_key], default=None))
        for state in read_states(connection, keys)
    ]


def _read_jobs(connection: Connection, found: Sequence[KeyInLane]) -> tuple[dict[str, list[JobsOfKey]], int]:
    """Return the ready jobs of each key in each lane, and how many of them were counted at most."""
    limit = jobs_limit(len(found))
    jobs: defaultdict[str, list[JobsOfKey]] = defaultdict(list)
    if found:
        params = {
            "queue_names": [key.queue_name for key in found],
            "priorities": [key.priority for key in found],
            "limit_keys": [key.limit_key for key in found],
            "limit": limit,
        }
        for row in execute(connection, key_queries.JOBS_OF_KEYS, params):
            jobs[row[0]].append(JobsOfKey(*row))
    return jobs, limit


def read_states(connection: Connection, keys: Sequence[str]) -> list[KeyState]:
    """Return what claims of these keys look at, in the order of the keys."""
    params = {"limit_keys": list(keys), "limit": RUNNING_LIMIT, "shown": SHOWN_JOBS}
    states = {row[0]: KeyState(*row) for row in execute(connection, key_queries.STATES_OF_KEYS, params)}
    return [states[key] for key in keys]


def _figures_of_key(
    state: KeyState, controls: Controls, jobs: Sequence[JobsOfKey], limit: int, oldest_due_seconds: float | None
) -> LimitKeyFigures:
    policy, pause = controls.policy_of(state.limit_key), controls.pause_of(state.limit_key)
    first = min(jobs, key=lambda each: each.order, default=None)
    next_job = wait = None
    if first is not None:
        next_job = next_of(policy, state, ReadyJob(first.first_id, first.first_due_seconds, first.first_weight))
        wait = wait_of(policy, pause, state, next_job)
    is_cut = any(each.due + each.later >= limit for each in jobs)
    return LimitKeyFigures(
        limit_key=state.limit_key,
        values=controls.values_of(state.limit_key),
        override=controls.overrides.get(state.limit_key),
        pause=pause,
        has_open_breaker=controls.has_open_breaker(state.limit_key),
        running=Count.up_to(state.running, RUNNING_LIMIT),
        running_weight=state.running_weight,
        running_job_ids=tuple(state.running_job_ids or ()),
        due=Count(sum(each.due for each in jobs), not is_cut),
        later=Count(sum(each.later for each in jobs), not is_cut),
        oldest_due_seconds=oldest_due_seconds,
        waits_for=None if wait is None else wait.reason,
        next_start_seconds=None if wait is None else wait.seconds,
        next_job_id=None if next_job is None else next_job.job_id,
        blocking_job_id=state.head_id if policy and policy.is_ordered and state.head_state != State.READY else None,
        held_until=state.held_until if state.is_held else None,
    )
