"""Read the results that claimed nodes of workflows need: one query for all nodes of a claim.

The claimer calls it in the fetcher's thread. Without it, each node would read its results itself. A thread that runs
its first node would open a connection for that, which takes longer than the claim and most jobs.

It never fails a claim. A node that it leaves out reads its own results: one that needs many or large ones, or the
result of a job that is gone, one whose arguments are encoded by a codec, and each node of a chunk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.placeholders import MARK
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.refused_rows import FAILURES
from django_pgqueue.lifecycle.types import Claimed, NodeResult
from django_pgqueue.worker.execution.stored_values import needed_ranges

logger = logging.getLogger("django_pgqueue.worker")

MOST_RESULTS: Final = 100
"""A node that needs more results reads them itself."""
MOST_OF_CLAIM: Final = 1000
MOST_BYTES: Final = 4096
"""A larger result is not kept here. So the results of a claim take 4 MB of memory at most."""

Ranges = Sequence[tuple[int, int]]


def with_results(connection: Connection, claimed: list[Claimed]) -> list[Claimed]:
    """Return claimed jobs, the nodes among them with the results that they need."""
    needs = _needs(claimed)
    if not needs:
        return claimed
    try:
        found = graphs.read_results(connection, needs, MOST_BYTES)
    except (*FAILURES, OSError) as error:  # the jobs are claimed, so they must run
        logger.debug("the results for %d nodes were not read: %s", len(needs), message_without_detail(error))
        return claimed
    results = {job_id: _all_results(found[job_id], ranges) for job_id, ranges in needs.items()}
    return [job._replace(results=results.get(job.job_id)) for job in claimed]


def _needs(claimed: Sequence[Claimed]) -> dict[int, Ranges]:
    """Return the jobs whose results the claimed nodes need, by the id of the node."""
    needs: dict[int, Ranges] = {}
    count = 0
    for job in claimed:
        if not job.in_graph or job.others is not None or MARK not in job.arguments:
            continue
        try:
            ranges = needed_ranges(json.loads(job.arguments))
            size = sum(last - first + 1 for first, last in ranges)
        except (TypeError, ValueError, RecursionError):  # from a row that was written by SQL; its attempt fails
            continue
        if 0 < size <= MOST_RESULTS and count + size <= MOST_OF_CLAIM:
            needs[job.job_id] = ranges
            count += size
    return needs


def _all_results(found: dict[int, NodeResult], ranges: Ranges) -> dict[int, NodeResult] | None:
    """Return the results of a node, or None if one of them was not read."""
    return found if all(job_id in found for first, last in ranges for job_id in range(first, last + 1)) else None
