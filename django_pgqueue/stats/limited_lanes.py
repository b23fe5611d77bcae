"""The lanes of ready jobs with a limit: which there are, and how many jobs each has.

`depths` adds these jobs to those without a limit, and the search for jobs visits the lanes.
"""

from __future__ import annotations

from typing import Any, Final

from django_pgqueue.db.statements import Connection, execute

from . import limited_queries

LANES_LIMIT: Final = 1000
ROWS_TOTAL: Final = 20_000
"""Maximum number of jobs to count in all lanes together."""
ROWS_LIMIT: Final = 10_000
"""Maximum number of jobs to count in one lane."""


def limited_lanes(connection: Connection) -> list[tuple[str, int]]:
    """Return the queue and the priority of each lane that has ready jobs with a limit."""
    return [
        (queue, priority)
        for queue, priority in execute(connection, limited_queries.LIMITED_LANES, {"lanes_limit": LANES_LIMIT})
    ]


def has_due_limited(connection: Connection, queue_name: str) -> bool:
    """Return whether a due job with a limit is among the first ready ones of a queue."""
    lanes = [lane for lane in limited_lanes(connection) if lane[0] == queue_name]
    return any(due for _, _, _, due, *_ in _count_ready(connection, lanes))


def read_ready_limited(connection: Connection) -> list[tuple[Any, ...]]:
    """Return the ready jobs with a limit of each task in each lane, with the columns of `depths.Ready`.

    Without such jobs, this runs one statement, which reads an empty index.
    """
    return _count_ready(connection, limited_lanes(connection))


def _count_ready(connection: Connection, lanes: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
    """Return the ready jobs of each task in these lanes. Each lane is counted up to a limit."""
    if not lanes:
        return []
    params = {
        "queue_names": [queue for queue, _ in lanes],
        "priorities": [priority for _, priority in lanes],
        "limit": min(ROWS_LIMIT, max(ROWS_TOTAL // len(lanes), 100)),
    }
    return execute(connection, limited_queries.READY_LIMITED, params)
