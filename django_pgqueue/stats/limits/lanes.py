"""The lanes of ready jobs with a limit: which there are, and whether a due job waits in one.

`figures` and `key_figures` count the keys of these lanes, and the search for jobs visits them.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue.db.statements import Connection, execute

from . import queries as limit_queries
from .key_ranges import LAST, KeyRange, columns, in_lanes

# The lanes that have ready jobs with a limit, by a loose index scan.
LANES: Final = """WITH RECURSIVE lane AS (
    (
        SELECT queue_name, priority, 1 AS place FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
        ORDER BY queue_name, priority DESC, limit_key, run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.priority, lane.place + 1
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name > lane.queue_name
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
    WHERE lane.place < %(lanes_limit)s
)"""

# Return the lanes that have ready jobs with a limit.
#
# Index: pgqueue_job_limited, one index search per lane
LIMITED_LANES: Final = """/* pgqueue:limited_lanes */
""" + LANES + """
SELECT queue_name, priority FROM lane
"""  # fmt: skip

LANES_LIMIT: Final = 1000
KEYS_LOOKED_AT: Final = 100
"""Maximum number of keys of a lane among which `has_due_limited()` looks for a due job."""
EVERY_KEY: Final = KeyRange("", LAST)


def limited_lanes(connection: Connection) -> list[tuple[str, int]]:
    """Return the queue and the priority of each lane that has ready jobs with a limit."""
    return [(queue, priority) for queue, priority in execute(connection, LIMITED_LANES, {"lanes_limit": LANES_LIMIT})]


def has_due_limited(connection: Connection, queue_name: str) -> bool:
    """Return whether a queue has a due job with a limit, also one that waits for its limit.

    Only the first keys of each lane are looked at.
    """
    lanes = [lane for lane in limited_lanes(connection) if lane[0] == queue_name]
    if not lanes:
        return False
    params = {**columns(in_lanes(lanes, [EVERY_KEY])), "limit": KEYS_LOOKED_AT}
    return any(seconds >= 0 for *_, seconds in execute(connection, limit_queries.KEYS_WITH_JOBS, params))
