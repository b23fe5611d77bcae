"""The ready jobs with a limit of each task in each lane. `depths` adds them to those without a limit.

A due job is held if its limit does not admit it now: a worker cannot claim it, however many slots are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import name_of
from django_pgqueue.stats.lane_counts import Ready
from django_pgqueue.tasks import registry

from .admission import NONE_ADMITTED, Admitted, DueJobs, admitted
from .controls import controls_of
from .key_figures import read_states
from .lanes import LANES, LANES_LIMIT

if TYPE_CHECKING:
    from django_pgqueue.stats.fleet import Pauses

# Count the ready jobs with a limit of each key, task and weight in each lane: those that are due, those that are due
# later, and among these the ones that workers have released.
#
# Index: pgqueue_job_limited, one index search per lane
# Cost:  at most `rows_total` rows in all lanes together. Each row is read, because the index has neither the task nor
#        the attempt
#
# The jobs of a lane are in the order of its index, so the window functions need no sort. Only the due jobs of the first
# keys that have any are returned with the name of their key, and only the first due jobs with their places.
READY_LIMITED: Final = """/* pgqueue:ready_limited */
""" + LANES + """,
bound AS MATERIALIZED (
    SELECT least(%(limit)s, greatest(%(rows_total)s / greatest(count(*), 1), 100)) AS jobs,
           greatest(%(keys_total)s / greatest(count(*), 1), 2) AS keys,
           greatest(%(places_total)s / greatest(count(*), 1), 10) AS places
    FROM lane
)
SELECT lane.queue_name, lane.priority, counted.limit_key, counted.task_name, counted.weight,
       counted.due, counted.is_cut,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - counted.oldest_at),
       counted.scheduled, counted.retrying, counted.unknown, counted.places
FROM lane
CROSS JOIN bound
CROSS JOIN LATERAL (
    SELECT CASE WHEN is_due AND key_place <= bound.keys THEN numbered.limit_key END AS limit_key, task_name, weight,
           count(*) FILTER (WHERE is_due) AS due,
           min(run_after) FILTER (WHERE is_due) AS oldest_at,
           count(*) FILTER (WHERE NOT is_due AND attempt = 0 AND unknown_since IS NULL) AS scheduled,
           count(*) FILTER (WHERE NOT is_due AND attempt > 0 AND unknown_since IS NULL) AS retrying,
           count(unknown_since) FILTER (WHERE NOT is_due) AS unknown,
           array_agg(place) FILTER (WHERE is_due AND place <= bound.places AND key_place <= bound.keys) AS places,
           sum(count(*)) OVER () >= bound.jobs AS is_cut
    FROM (
        SELECT placed.*,
               count(*) FILTER (WHERE is_due AND is_first) OVER (
                   ORDER BY limit_key, run_after, id ROWS UNBOUNDED PRECEDING
               ) AS key_place
        FROM (
            SELECT first.*,
                   run_after <= statement_timestamp() + %(time_shift)s::interval AS is_due,
                   row_number() OVER in_order AS place,
                   lag(limit_key) OVER in_order IS DISTINCT FROM limit_key AS is_first
            FROM (
                SELECT id, limit_key, task_name, attempt, unknown_since, run_after, coalesce(limit_weight, 1) AS weight
                FROM pgqueue_job
                WHERE state = 'ready' AND limit_key IS NOT NULL
                  AND queue_name = lane.queue_name AND priority = lane.priority
                ORDER BY limit_key, run_after, id
                LIMIT (SELECT jobs FROM bound)
            ) AS first
            WINDOW in_order AS (ORDER BY limit_key, run_after, id)
        ) AS placed
    ) AS numbered
    GROUP BY 1, task_name, weight
) AS counted
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

ROWS_TOTAL: Final = 20_000
"""Maximum number of jobs to count in all lanes together."""
ROWS_LIMIT: Final = 10_000
"""Maximum number of jobs to count in one lane."""
NAMED_KEYS_TOTAL: Final = 1000
"""Maximum number of keys with due jobs that are counted one by one in all lanes together."""
KEYS_TOTAL: Final = 500
"""Maximum number of keys with due jobs whose state is read. Due jobs of further keys count as due."""
PLACES_TOTAL: Final = 1000
"""Maximum number of due jobs of one key whose order is known, if they are of several tasks or weights."""


def read_ready_limited(connection: Connection, pauses: Pauses) -> list[Ready]:
    """Return the ready jobs with a limit of each task in each lane.

    Due jobs of a paused queue or task are not held: their pause comes first. Without jobs with a limit, this runs one
    statement, which reads an empty index. Only if some are due does it read the states and the controls of their keys.
    """
    params = {
        "lanes_limit": LANES_LIMIT,
        "limit": ROWS_LIMIT,
        "rows_total": ROWS_TOTAL,
        "keys_total": NAMED_KEYS_TOTAL,
        "places_total": PLACES_TOTAL,
    }
    parts = [DueJobs(*row) for row in execute(connection, READY_LIMITED, params)]
    of_key: defaultdict[str, list[int]] = defaultdict(list)
    found: dict[int, Admitted] = {}
    for number, part in enumerate(parts):
        is_paused = part.queue_name in pauses.of_queues or part.task_name in pauses.of_tasks
        if part.limit_key is None or is_paused or not part.due:
            has_unread_keys = bool(part.due) and not is_paused
            found[number] = Admitted(part.due, part.oldest_due_seconds, is_exact=not has_unread_keys)
        else:
            of_key[part.limit_key].append(number)
    found.update(_admitted(connection, parts, of_key))
    of_task: defaultdict[tuple[str, int, str], list[tuple[DueJobs, Admitted]]] = defaultdict(list)
    for number, part in enumerate(parts):
        of_task[part.queue_name, part.priority, part.task_name].append((part, found[number]))
    return [_ready(*place, each) for place, each in of_task.items()]


def _admitted(
    connection: Connection, parts: Sequence[DueJobs], of_key: Mapping[str, Sequence[int]]
) -> Iterator[tuple[int, Admitted]]:
    """Yield how many jobs of each part of these keys its limit admits, by the number of the part."""
    limits, chunk_keys = registry.limits(), registry.chunk_keys()
    declared = []
    for key, numbers in of_key.items():
        if name_of(key) in limits:
            declared.append(key)
        elif is_chunk_key(key) and key in chunk_keys:
            yield from _all(parts, numbers, is_exact=True)
        else:
            yield from ((number, NONE_ADMITTED) for number in numbers)
    keys = declared[:KEYS_TOTAL]
    for key in declared[KEYS_TOTAL:]:
        yield from _all(parts, of_key[key], is_exact=False)
    if not keys:
        return
    controls = controls_of(connection, keys)
    for state in read_states(connection, keys):
        numbers, policy = of_key[state.limit_key], controls.policy_of(state.limit_key)
        if policy is None or controls.pause_of(state.limit_key) is not None:
            yield from ((number, NONE_ADMITTED) for number in numbers)
        else:
            yield from zip(numbers, admitted(policy, state, [parts[number] for number in numbers]), strict=True)


def _all(parts: Sequence[DueJobs], numbers: Iterable[int], *, is_exact: bool) -> Iterator[tuple[int, Admitted]]:
    return ((number, Admitted(parts[number].due, parts[number].oldest_due_seconds, is_exact)) for number in numbers)


def _ready(queue_name: str, priority: int, task_name: str, found: Sequence[tuple[DueJobs, Admitted]]) -> Ready:
    """Return the sums of the parts of one task in one lane."""
    ages = [each.oldest_due_seconds for _, each in found if each.oldest_due_seconds is not None]
    due = sum(each.jobs for _, each in found)
    lane_is_cut = any(part.is_cut for part, _ in found)
    is_cut = lane_is_cut or not all(each.is_exact for _, each in found)
    return Ready(
        queue_name=queue_name,
        priority=priority,
        task_name=task_name,
        due=due,
        due_is_cut=is_cut,
        oldest_due_seconds=max(ages, default=None),
        scheduled=sum(part.scheduled for part, _ in found),
        retrying=sum(part.retrying for part, _ in found),
        unknown=sum(part.unknown for part, _ in found),
        later_is_cut=lane_is_cut,
        held=sum(part.due for part, _ in found) - due,
        held_is_cut=is_cut,
    )
