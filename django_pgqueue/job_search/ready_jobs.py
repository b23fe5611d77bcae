"""Find ready jobs, lane by lane, in the order in which workers claim them.

No index has the task or the attempt of a ready job, so the jobs of each lane are read from its beginning. `search`
calls this module. All lanes together share one bound, so a search takes about as long with 1 lane as with 500.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from django.db import connections

from django_pgqueue import stats
from django_pgqueue.db.statements import execute
from django_pgqueue.lifecycle import claims, limits
from django_pgqueue.states import LATER_WORDS
from django_pgqueue.stats.limits.lanes import limited_lanes

from .filters import Filters, Moment, PausedNames, SearchPart, limit_pauses

READY_SEARCHED: Final = 50_000
"""Ready jobs that are searched in all lanes together, the same number in each. It takes about 20 ms."""
LANES_SEARCHED: Final = 500
"""Lanes that are searched, the highest priorities first."""
EVERY_KEY: Final = ("", "\U0010ffff")
"""The range of all limit keys that a worker can claim."""

# Return the ready jobs of some lanes that meet conditions, and the first job of each lane that was not searched.
#
# Index: pgqueue_job_ready or pgqueue_job_limited, one range for each lane, with the limit keys from `first_key` up to
#        before `end_key`. The planner does not know the bound, because it comes from a subquery. Otherwise it may read
#        and sort all jobs of a lane. The jobs of a limited lane are in the order of their keys, so each is compared
#        with the times
# Cost:  0.4 µs for each job that is searched. While a pause decides, the pauses of limits are read once
READY_IN_LANES: Final = """/* pgqueue:ready_in_lanes */
WITH bound AS MATERIALIZED (SELECT %(bound)s::bigint AS jobs),
paused_limit AS MATERIALIZED (
    SELECT name
    FROM pgqueue_pause
    WHERE kind = 'limit'
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
)
SELECT found.id, found.place > %(bound)s::bigint
FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[], %(are_limited)s::boolean[],
            %(are_paused)s::text[], %(first_keys)s::varchar[], %(end_keys)s::varchar[])
    WITH ORDINALITY AS lane (queue_name, priority, is_limited, is_paused, first_key, end_key, number)
CROSS JOIN LATERAL (
    SELECT id, task_name, attempt, run_after, unknown_since, limit_key,
           row_number() OVER (ORDER BY limit_key, run_after, id) AS place
    FROM (
        (
            SELECT id, task_name, attempt, run_after, unknown_since, limit_key
            FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL AND NOT lane.is_limited
              AND queue_name = lane.queue_name AND priority = lane.priority
              AND run_after >= CASE
                  WHEN %(is_later)s
                  THEN statement_timestamp() + %(time_shift)s::interval + interval '1 us'
                  ELSE '-infinity'
              END
              AND run_after <= CASE
                  WHEN %(is_due)s THEN statement_timestamp() + %(time_shift)s::interval ELSE 'infinity'
              END
            ORDER BY run_after, id
            LIMIT (SELECT jobs + 1 FROM bound)
        )
        UNION ALL
        (
            SELECT id, task_name, attempt, run_after, unknown_since, limit_key
            FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND lane.is_limited
              AND queue_name = lane.queue_name AND priority = lane.priority
              AND limit_key >= lane.first_key AND limit_key < lane.end_key
            ORDER BY limit_key, run_after, id
            LIMIT (SELECT jobs + 1 FROM bound)
        )
    ) AS first
) AS found
WHERE found.place > %(bound)s::bigint
   OR (%(first_id)s::bigint IS NULL OR found.id >= %(first_id)s::bigint)
  AND (%(end_id)s::bigint IS NULL OR found.id < %(end_id)s::bigint)
  AND (%(was_attempted)s::boolean IS NULL OR (found.attempt > 0) = %(was_attempted)s::boolean)
  AND (%(is_unknown)s::boolean IS NULL OR (found.unknown_since IS NOT NULL) = %(is_unknown)s::boolean)
  AND (NOT %(is_later)s OR found.run_after > statement_timestamp() + %(time_shift)s::interval)
  AND (NOT %(is_due)s OR found.run_after <= statement_timestamp() + %(time_shift)s::interval)
  AND (%(task_names)s::varchar[] IS NULL OR found.task_name = ANY (%(task_names)s::varchar[]))
  AND (lane.is_paused = ''
       OR (found.task_name = ANY (%(paused_tasks)s::varchar[])
           OR coalesce(found.limit_key IN (SELECT name FROM paused_limit), false)
           OR coalesce(split_part(found.limit_key, ':', 1) IN (SELECT name FROM paused_limit), false)
          )::text = lane.is_paused)
ORDER BY lane.number, found.place
LIMIT %(limit)s
"""


class _SearchedLane(NamedTuple):
    """A lane to search, or a range of its limit keys.

    `is_paused` chooses jobs by a pause of their task or limit: "true", "false", or "" for all. A session with
    `array_nulls=off` has no NULL in arrays.
    """

    queue_name: str
    priority: int
    is_limited: bool
    is_paused: str
    first_key: str
    end_key: str


def find_ready(filters: Filters, word: str, limit: int) -> SearchPart:
    """Return the first `limit` ready jobs that meet the filters. Runs three or more read-only statements.

    The list of due jobs has those that their limit does not admit now, and not those of paused limits.
    """
    connection = connections[filters.alias]
    scan = claims.scan_lanes(connection)
    pauses = PausedNames(scan.paused_queues, scan.paused_tasks)
    every_lane = [(-lane.priority, lane.queue_name, False) for lane in scan.due_in]
    limited = limited_lanes(connection)
    every_lane += [(-priority, queue_name, True) for queue_name, priority in limited]
    depends_on_pauses = word in ("due", "paused") and bool(limited)
    has_limit_pauses = depends_on_pauses and limit_pauses().using(filters.alias).exists()
    lanes = list(_lanes(filters, word, sorted(every_lane), pauses, has_limit_pauses=has_limit_pauses))
    params = {**_conditions(filters, word), "paused_tasks": sorted(pauses.tasks)}
    if _are_all_wanted(params, lanes):
        return SearchPart(_first(filters, params, lanes, limit))
    searched = lanes[:LANES_SEARCHED]
    bound = READY_SEARCHED // max(1, len(searched))
    rows = _read(filters, params, searched, bound, limit)
    ids = [job_id for job_id, is_beyond in rows if not is_beyond]
    if len(lanes) > len(searched) and len(ids) < limit:
        label = f"the first {bound:,} jobs of each of the first {len(searched)} queues and priorities"
        return SearchPart(ids, bound, is_cut=True, label=label, lanes=len(searched))
    if len(ids) < len(rows):
        return SearchPart(ids, bound, is_cut=True, label=f"the first {bound:,} jobs of each queue and priority")
    return SearchPart(ids)


def _lanes(
    filters: Filters,
    word: str,
    in_order: Sequence[tuple[int, str, bool]],
    pauses: PausedNames,
    *,
    has_limit_pauses: bool,
) -> Iterator[_SearchedLane]:
    """Yield the lanes that can have jobs with this word."""
    for negative_priority, queue_name, is_limited in in_order:
        is_queue_paused = queue_name in pauses.queues
        has_pauses = bool(pauses.tasks) or (is_limited and has_limit_pauses)
        is_left_out = word == "due" if is_queue_paused else word == "paused" and not has_pauses
        is_left_out = is_left_out or (filters.limit is not None and not is_limited)
        if filters.queue_name not in (None, queue_name) or is_left_out:
            continue
        chooses = word in ("due", "paused") and not is_queue_paused and has_pauses
        is_paused = str(word == "paused").lower() if chooses else ""
        for first_key, end_key in [EVERY_KEY] if filters.limit is None else limits.key_ranges(filters.limit):
            yield _SearchedLane(queue_name, -negative_priority, is_limited, is_paused, first_key, end_key)


def _conditions(filters: Filters, word: str) -> dict[str, Any]:
    return {
        "is_later": word in LATER_WORDS,
        "is_due": word in ("due", "paused"),
        "was_attempted": word == "retrying" if word in ("scheduled", "retrying") else None,
        "is_unknown": word == "unknown" if word in LATER_WORDS else None,
        "task_names": list(filters.task_names) or None,
        "first_id": _id_at(filters, filters.since),
        "end_id": _id_at(filters, filters.until),
    }


def _id_at(filters: Filters, moment: Moment | None) -> int | None:
    """Return the id of the first job that was enqueued at this time or later, because ids increase with time."""
    if moment is None:
        return None
    return stats.first_id_since(connections[filters.alias], moment.seconds_ago) or 0


def _are_all_wanted(params: dict[str, Any], lanes: list[_SearchedLane]) -> bool:
    """Return whether the indexes have all conditions. That of limited lanes has none on the time."""
    names = ("was_attempted", "is_unknown", "task_names", "first_id", "end_id")
    if any(params[name] is not None for name in names) or any(lane.is_paused for lane in lanes):
        return False
    return not (params["is_later"] or params["is_due"]) or not any(lane.is_limited for lane in lanes)


def _first(filters: Filters, params: dict[str, Any], lanes: list[_SearchedLane], limit: int) -> list[int]:
    """Return the first jobs of lanes without further conditions. Each statement reads twice as many lanes."""
    ids: list[int] = []
    start, size = 0, 1
    while start < len(lanes) and len(ids) < limit:
        wanted = limit - len(ids)
        ids += [job_id for job_id, _ in _read(filters, params, lanes[start : start + size], wanted, wanted)][:wanted]
        start, size = start + size, 2 * size
    return ids


def _read(
    filters: Filters, params: dict[str, Any], lanes: Sequence[_SearchedLane], bound: int, limit: int
) -> list[tuple[int, bool]]:
    """Return ids in order, each with whether it is behind the bound of its lane."""
    given = {
        "queue_names": [lane.queue_name for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "are_limited": [lane.is_limited for lane in lanes],
        "are_paused": [lane.is_paused for lane in lanes],
        "first_keys": [lane.first_key for lane in lanes],
        "end_keys": [lane.end_key for lane in lanes],
        "bound": bound,
        "limit": limit + len(lanes),
    }
    rows = execute(connections[filters.alias], READY_IN_LANES, {**params, **given})
    return [(job_id, is_beyond) for job_id, is_beyond in rows]
