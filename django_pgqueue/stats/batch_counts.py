"""Count the jobs of many batches by state with one bounded statement, and find the batches nested in one.

The admin calls this module. `Batch.progress()` counts all jobs instead, for applications that need exact figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from django_pgqueue.db.statements import execute, numbers
from django_pgqueue.states import State

from .alias import connection_of
from .answers import NONE, Count

NESTED_READ: Final = 1_000
"""Batches that are read at most, with all that are nested in them. The counts are lower bounds if there are more."""

# Count the jobs of batches and of all batches nested in them by state, with the jobs that were removed since, up to a
# limit for each batch and state. Return also whether a limit was reached.
#
# Index: pgqueue_batch_parent, pgqueue_job_batch, pgqueue_batch_removal_batch
# Cost:  one index search for each batch and state, and at most `limit` entries of each
#
# The state is a range, so that the index gives its order. With `=`, the planner may read the whole state by a bitmap.
COUNTS_OF_BATCHES: Final = """/* pgqueue:counts_of_batches */
WITH RECURSIVE tree AS (
    SELECT given.id AS root_id, given.id FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
    UNION ALL
    SELECT tree.root_id, child.id
    FROM tree
    CROSS JOIN LATERAL (SELECT id FROM pgqueue_batch WHERE parent_id = tree.id OFFSET 0) AS child
),
node AS MATERIALIZED (
    SELECT root_id, id FROM tree LIMIT %(nodes)s::bigint + 1
)
SELECT node.root_id, counted.state, sum(counted.count)::bigint,
       bool_or(counted.is_cut) OR (SELECT count(*) FROM node) > %(nodes)s::bigint
FROM node
CROSS JOIN LATERAL (
    SELECT chosen.state, job.count, job.count >= %(limit)s::bigint AS is_cut
    FROM unnest(%(states)s::varchar[]) AS chosen (state)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (
            SELECT true FROM pgqueue_job
            WHERE batch_id = node.id AND state >= chosen.state AND state <= chosen.state
            ORDER BY state
            LIMIT %(limit)s::bigint
        ) AS first
    ) AS job
    WHERE job.count > 0
    UNION ALL
    SELECT removed.state, sum(removed.count), count(*) >= %(limit)s::bigint
    FROM (
        SELECT state, count FROM pgqueue_batch_removal
        WHERE batch_id = node.id
        LIMIT %(limit)s::bigint
    ) AS removed
    GROUP BY removed.state
) AS counted
GROUP BY node.root_id, counted.state
"""

# Return a batch and the batches nested in it, the outer ones first.
#
# Index: pgqueue_batch_parent
# Cost:  one index search for each batch
NESTED_BATCHES: Final = """/* pgqueue:nested_batches */
WITH RECURSIVE tree AS (
    SELECT %(batch_id)s::bigint AS id
    UNION ALL
    SELECT child.id
    FROM tree
    CROSS JOIN LATERAL (SELECT id FROM pgqueue_batch WHERE parent_id = tree.id OFFSET 0) AS child
)
SELECT id FROM tree LIMIT %(nodes)s::bigint
"""

# Return the jobs of a batch and of the batches nested in it in some states, up to a limit for each state.
#
# Index: pgqueue_batch_parent, pgqueue_job_batch
# Cost:  one index search for each batch and state, and at most `limit` entries of each state
#
# As above, each state is a range.
JOBS_OF_BATCH: Final = """/* pgqueue:jobs_of_batch */
WITH RECURSIVE tree AS (
    SELECT %(batch_id)s::bigint AS id
    UNION ALL
    SELECT child.id
    FROM tree
    CROSS JOIN LATERAL (SELECT id FROM pgqueue_batch WHERE parent_id = tree.id OFFSET 0) AS child
),
node AS MATERIALIZED (
    SELECT id FROM tree LIMIT %(nodes)s::bigint
)
SELECT chosen.state, job.id
FROM unnest(%(states)s::varchar[]) AS chosen (state)
CROSS JOIN LATERAL (
    SELECT first.id
    FROM node
    CROSS JOIN LATERAL (
        SELECT id FROM pgqueue_job
        WHERE batch_id = node.id AND state >= chosen.state AND state <= chosen.state
        ORDER BY state
        LIMIT %(limit)s::bigint
    ) AS first
    LIMIT %(limit)s::bigint
) AS job
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """How many jobs a batch and the batches nested in it have, by state, with those that were removed."""

    waiting: Count = NONE
    ready: Count = NONE
    running: Count = NONE
    succeeded: Count = NONE
    dead: Count = NONE
    cancelled: Count = NONE

    @property
    def failed(self) -> Count:
        """Jobs that are dead or cancelled."""
        return self.dead + self.cancelled

    @property
    def unfinished(self) -> Count:
        """Jobs that have not ended."""
        return self.waiting + self.ready + self.running

    @property
    def is_blocked(self) -> bool:
        """Whether jobs wait for others, and none of those runs or is ready, because some have failed.

        It is also true for the moment in which the dependents of the last job have not become ready yet.
        """
        return bool(self.waiting.value and self.failed.value and not self.ready.value and not self.running.value)

    @property
    def total(self) -> Count:
        """All jobs that were added so far."""
        return self.succeeded + self.failed + self.unfinished


def batch_counts(batch_ids: Iterable[int], limit: int, database: str | None = None) -> dict[int, BatchCounts]:
    """Return the counts of several batches, by id, with one read-only statement.

    Args:
        batch_ids: Ids of batches.
        limit: Jobs of each batch and state that are counted at most.
        database: Alias of the database of the batches. By default the database routers choose it.
    """
    found = dict.fromkeys(batch_ids, BatchCounts())
    nodes = len(found) + NESTED_READ
    params = {
        "batch_ids": numbers(found),
        "states": [state.value for state in State],
        "limit": limit,
        "nodes": nodes,
    }
    for batch_id, state, count, is_cut in execute(connection_of(database), COUNTS_OF_BATCHES, params):
        found[batch_id] = replace(found[batch_id], **{state: Count(count, not is_cut)})
    return found


def nested_batches(batch_id: int, database: str | None = None) -> list[int]:
    """Return the ids of a batch and of the batches nested in it, at most `NESTED_READ`."""
    params = {"batch_id": batch_id, "nodes": NESTED_READ}
    return [row[0] for row in execute(connection_of(database), NESTED_BATCHES, params)]


def jobs_of_batch(
    batch_id: int, states: Iterable[State], limit: int, database: str | None = None
) -> dict[State, list[int]]:
    """Return the ids of the jobs of a batch and of the batches nested in it, by state, in no order.

    Runs one read-only statement.

    Args:
        batch_id: Id of the batch.
        states: The states.
        limit: Jobs of each state that are returned at most.
        database: Alias of the database of the batch. By default the database routers choose it.
    """
    found: dict[State, list[int]] = {state: [] for state in states}
    params = {
        "batch_id": batch_id,
        "states": [state.value for state in found],
        "limit": limit,
        "nodes": NESTED_READ,
    }
    for state, job_id in execute(connection_of(database), JOBS_OF_BATCH, params):
        found[State(state)].append(job_id)
    return found
