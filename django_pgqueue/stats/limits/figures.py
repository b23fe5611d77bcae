"""The figures of each limit: how many jobs run, how many wait, and how many keys they have."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import name_of
from django_pgqueue.stats.alias import connection_of
from django_pgqueue.stats.answers import Count
from django_pgqueue.tasks import registry

from . import queries as limit_queries
from .answers import LimitFigures
from .bounds import jobs_limit, share_of
from .controls import read_controls
from .key_ranges import LaneRange, columns, range_around
from .lanes import limited_lanes

RANGES_TOTAL: Final = 2000
"""Maximum number of pairs of a lane and a limit. One index search finds each."""
KEYS_TOTAL: Final = 1000
"""Maximum number of keys to count in all lanes together. One index search finds each."""
RUNNING_LIMIT: Final = 10_000
HELD_LIMIT: Final = 500


@dataclass(slots=True)
class LimitSums:
    """The ready jobs of one limit, while they are added up."""

    keys: set[str] = field(default_factory=set)
    keys_are_cut: bool = False
    due: int = 0
    later: int = 0
    jobs_are_cut: bool = False
    oldest_due_seconds: float | None = None


def limits(database: str | None = None) -> tuple[LimitFigures, ...]:
    """Return the limits: how many jobs of each run, how many wait, and how many keys they have.

    Runs at most seven read-only statements, and four if no job with a limit is ready. Their cost is bounded, however
    many jobs and keys there are: see `Count`. Counting stops at 10,000 ready jobs of a limit in a lane, and at 100,000
    of all limits, at 10,000 running jobs, 1,000 keys with ready jobs, and 500 held keys.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The limits that tasks of this process declare, and those of ready jobs, running jobs, held keys, overrides and
        pauses, by name.

    Example:
        >>> [(limit.name, limit.running_weight, str(limit.due), str(limit.keys)) for limit in stats.limits()]
        [('import', 12, '10,000+', '1,000+'), ('stripe', 3, '41', '1')]
    """
    connection = connection_of(database)
    declared = registry.limits()
    rows = execute(connection, limit_queries.RUNNING_OF_LIMITS, {"limit": RUNNING_LIMIT})
    running = {name: (count, weight) for name, count, weight in rows}
    all_run = sum(count for count, _ in running.values()) < RUNNING_LIMIT
    held, all_held = _read_held(connection)
    sums, all_named = _read_ready(connection)
    controls, all_controls = read_controls(connection)
    overridden, paused = Counter(map(name_of, controls.overrides)), Counter(map(name_of, controls.pauses))
    opened = Counter(name_of(key) for key in controls.open_breakers if controls.has_open_breaker(key))
    found = []
    for name in sorted({*declared, *running, *held, *sums, *overridden, *paused}):
        if is_chunk_key(name):
            continue
        count, weight = running.get(name, (0, 0))
        ready = sums.get(name) or LimitSums()
        figures = LimitFigures(
            name=name,
            declaration=str(declared[name]) if name in declared else "",
            values=controls.values_of(name),
            override=controls.overrides.get(name),
            pause=controls.pauses.get(name),
            has_open_breaker=controls.has_open_breaker(name),
            overridden_keys=Count(overridden[name] - (name in controls.overrides), all_controls),
            paused_keys=Count(paused[name] - (name in controls.pauses), all_controls),
            open_breakers=Count(opened[name] - controls.has_open_breaker(name), all_controls),
            running=Count(count, all_run),
            running_weight=weight,
            due=Count(ready.due, all_named and not ready.jobs_are_cut),
            later=Count(ready.later, all_named and not ready.jobs_are_cut),
            keys=Count(len(ready.keys), all_named and not ready.keys_are_cut),
            held_keys=Count(held[name], all_held),
            oldest_due_seconds=ready.oldest_due_seconds,
        )
        found.append(figures)
    return tuple(found)


def _read_held(connection: Connection) -> tuple[Counter[str], bool]:
    """Return how many keys of each limit are held, and whether these are all."""
    rows = execute(connection, limit_queries.HELD_KEYS, {"limit": HELD_LIMIT})
    return Counter(name_of(key) for key, is_held in rows if is_held), len(rows) < HELD_LIMIT


def _read_ready(connection: Connection) -> tuple[dict[str, LimitSums], bool]:
    """Return the ready jobs of each limit, and whether these are all limits."""
    ranges, all_named = read_ranges(connection)
    sums: defaultdict[str, LimitSums] = defaultdict(LimitSums)
    if not ranges:
        return sums, all_named
    limit = jobs_limit(len(ranges))
    params = columns(ranges)
    for place, due, later in execute(connection, limit_queries.JOBS_OF_LIMITS, {**params, "limit": limit}):
        of_limit = sums[_name(ranges[place])]
        of_limit.due += due
        of_limit.later += later
        of_limit.jobs_are_cut |= due + later >= limit
    limit = share_of(KEYS_TOTAL, len(ranges))
    visits: Counter[int] = Counter()
    for place, _, _, key, seconds in execute(connection, limit_queries.KEYS_WITH_JOBS, {**params, "limit": limit}):
        of_limit = sums[_name(ranges[place])]
        of_limit.keys.add(key)
        visits[place] += 1
        of_limit.keys_are_cut |= visits[place] >= limit and not _has_one_key(ranges[place])
        if seconds >= 0:
            of_limit.oldest_due_seconds = max(of_limit.oldest_due_seconds or 0.0, seconds)
    return sums, all_named


def read_ranges(connection: Connection) -> tuple[list[LaneRange], bool]:
    """Return the ranges of limit keys that have ready jobs, and whether these are all."""
    lanes = limited_lanes(connection)
    if not lanes:
        return [], True
    limit = max(RANGES_TOTAL // len(lanes), 2)
    params = {"queue_names": [queue for queue, _ in lanes], "priorities": [priority for _, priority in lanes]}
    rows = execute(connection, limit_queries.LIMITS_WITH_JOBS, {**params, "limit": limit})
    is_cut = max(Counter((queue, priority) for queue, priority, _ in rows).values(), default=0) >= limit
    return [LaneRange(queue, priority, *range_around(key)) for queue, priority, key in rows], not is_cut


def _name(of_lane: LaneRange) -> str:
    """Return the name of the limit of a range, which begins with it."""
    return name_of(of_lane.low)


def _has_one_key(of_lane: LaneRange) -> bool:
    return ":" not in of_lane.low
