"""The ready jobs with a limit of each task in each lane. `depths` adds them to those without a limit.

A due job is held if its limit does not admit it now: a worker cannot claim it, however many slots are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import name_of
from django_pgqueue.stats.lane_counts import Ready
from django_pgqueue.tasks import registry

from .admission import NONE_ADMITTED, Admitted, DueJobs, Room, admitted, lane_order
from .answers import LimitWaitReason
from .controls import Controls, controls_of
from .key_figures import read_states
from .lanes import LANES, LANES_LIMIT
from .waits import KeyState, ReadyJob, next_of, wait_of

if TYPE_CHECKING:
    from django_pgqueue.declared.limit_policies import KeyPolicy
    from django_pgqueue.stats.answers import PauseStats
    from django_pgqueue.stats.fleet import Pauses
    from django_pgqueue.stats.sentences import OpenedAt

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


class HeldReason(NamedTuple):
    """The reason why a limit key holds due jobs. `reason` is None if the state of the key was not read."""

    reason: LimitWaitReason | None
    pause: PauseStats | None = None
    breaker: OpenedAt | None = None
    """The first opening of its circuit breaker, if that is open."""
    blocking_job_id: int | None = None


class HeldJobs(NamedTuple):
    """The due jobs of one limit key in one queue that the limit does not admit now, or that its pause keeps."""

    queue_name: str
    held: int
    oldest_due_seconds: float


class WaitingKey(NamedTuple):
    """The due jobs of one limit key in all lanes, without those of paused queues and tasks."""

    limit_key: str
    due: int
    held: int
    is_exact: bool
    """Whether `held` is exact."""
    has_all_jobs: bool
    """Whether the key has no due jobs but these."""
    oldest_due_seconds: float
    wait: HeldReason
    of_queues: tuple[HeldJobs, ...] = ()
    """The held jobs in each queue that has any."""


class ReadyJobs(NamedTuple):
    """The ready jobs of each lane, or of each task in each lane, and the limit keys that have due jobs."""

    rows: list[Ready]
    keys: list[WaitingKey]
    has_all_keys: bool = True
    """Whether no key with due jobs is missing in `keys`."""


def read_ready_limited(connection: Connection, pauses: Pauses) -> ReadyJobs:
    """Return the ready jobs with a limit.

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
    paused_keys: set[str] = set()
    unnamed = 0
    for number, part in enumerate(parts):
        is_paused = part.queue_name in pauses.of_queues or part.task_name in pauses.of_tasks
        if part.limit_key is None or is_paused or not part.due:
            has_unread_keys = bool(part.due) and not is_paused
            unnamed += has_unread_keys
            found[number] = Admitted(part.due, part.oldest_due_seconds, is_exact=not has_unread_keys)
        else:
            of_key[part.limit_key].append(number)
    keys = []
    for key, decided, wait in _decided(connection, parts, of_key):
        found.update(zip(of_key[key], decided, strict=True))
        if wait.reason is LimitWaitReason.PAUSED:
            paused_keys.add(key)
        keys.append(_waiting_key(key, [parts[number] for number in of_key[key]], decided, wait))
    of_task: defaultdict[tuple[str, int, str], list[tuple[DueJobs, Admitted]]] = defaultdict(list)
    for number, part in enumerate(parts):
        of_task[part.queue_name, part.priority, part.task_name].append((part, found[number]))
    rows = [_ready(*place, each, paused_keys) for place, each in of_task.items()]
    return ReadyJobs(rows, keys, has_all_keys=not unnamed)


def _decided(
    connection: Connection, parts: Sequence[DueJobs], of_key: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Sequence[Admitted], HeldReason]]:
    """Yield how many jobs of each part of these keys its limit admits, and what the others wait for."""
    limits, chunk_keys = registry.limits(), registry.chunk_keys()
    of_parts = {key: [parts[number] for number in numbers] for key, numbers in of_key.items()}
    declared = []
    for key, of_one in of_parts.items():
        if name_of(key) in limits:
            declared.append(key)
        elif is_chunk_key(key) and key in chunk_keys:
            yield key, _all(of_one, is_exact=True), HeldReason(None)
        else:
            reason = None if is_chunk_key(key) else LimitWaitReason.UNDECLARED
            yield key, [NONE_ADMITTED] * len(of_one), HeldReason(reason)
    keys = declared[:KEYS_TOTAL]
    for key in declared[KEYS_TOTAL:]:
        yield key, _all(of_parts[key], is_exact=False), HeldReason(None)
    if not keys:
        return
    controls = controls_of(connection, keys)
    for state in read_states(connection, keys):
        yield state.limit_key, *_of_state(controls, state, of_parts[state.limit_key])


def _of_state(controls: Controls, state: KeyState, parts: Sequence[DueJobs]) -> tuple[Sequence[Admitted], HeldReason]:
    policy, pause = controls.policy_of(state.limit_key), controls.pause_of(state.limit_key)
    breaker = controls.open_breakers.get(state.limit_key) if controls.has_open_breaker(state.limit_key) else None
    if policy is None or pause is not None:
        reason = LimitWaitReason.UNDECLARED if policy is None else LimitWaitReason.PAUSED
        return [NONE_ADMITTED] * len(parts), HeldReason(reason, pause, breaker)
    found = admitted(policy, state, parts)
    return found, HeldReason(_reason(policy, state, parts), pause, breaker, state.head_id)


def _reason(policy: KeyPolicy, state: KeyState, parts: Sequence[DueJobs]) -> LimitWaitReason:
    """Return what the next job waits for. If the limit admits that one, return what those behind it wait for."""
    part = min(parts, key=lane_order)
    first = ReadyJob(0, -(part.oldest_due_seconds or 0.0), part.weight)
    reason = wait_of(policy, None, state, next_of(policy, state, first)).reason
    if reason is not LimitWaitReason.WORKER:
        return reason
    if policy.is_ordered:
        return LimitWaitReason.ORDER
    return LimitWaitReason.TOKEN if Room(policy, state).has_fewer_tokens else LimitWaitReason.SLOT


def _waiting_key(limit_key: str, parts: Sequence[DueJobs], found: Sequence[Admitted], wait: HeldReason) -> WaitingKey:
    due, has_all_jobs = sum(part.due for part in parts), not any(part.is_cut for part in parts)
    return WaitingKey(
        limit_key=limit_key,
        due=due,
        held=due - sum(each.jobs for each in found),
        is_exact=has_all_jobs and all(each.is_exact for each in found),
        has_all_jobs=has_all_jobs,
        oldest_due_seconds=max(part.oldest_due_seconds or 0.0 for part in parts),
        wait=wait,
        of_queues=tuple(_held_of_queues(parts, found)),
    )


def _held_of_queues(parts: Sequence[DueJobs], found: Sequence[Admitted]) -> Iterator[HeldJobs]:
    held: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for part, each in zip(parts, found, strict=True):
        held[part.queue_name].append((part.due - each.jobs, part.oldest_due_seconds or 0.0))
    for queue_name, jobs in held.items():
        if count := sum(number for number, _ in jobs):
            yield HeldJobs(queue_name, count, max(seconds for number, seconds in jobs if number))


def _all(parts: Sequence[DueJobs], *, is_exact: bool) -> list[Admitted]:
    return [Admitted(part.due, part.oldest_due_seconds, is_exact) for part in parts]


def _ready(
    queue_name: str,
    priority: int,
    task_name: str,
    found: Sequence[tuple[DueJobs, Admitted]],
    paused_keys: AbstractSet[str],
) -> Ready:
    """Return the sums of the parts of one task in one lane. Jobs of paused keys are paused, and not held."""
    ages = [each.oldest_due_seconds for _, each in found if each.oldest_due_seconds is not None]
    due = sum(each.jobs for _, each in found)
    paused = sum(part.due for part, _ in found if part.limit_key in paused_keys)
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
        held=sum(part.due for part, _ in found) - due - paused,
        held_is_cut=is_cut,
        paused=paused,
        is_limited=True,
    )
