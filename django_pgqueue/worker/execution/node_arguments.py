"""Replace the markers in the arguments of a workflow's node by the results of other jobs.

`Attempt` calls this before a node runs, and the endpoint of remote workers before it sends one. A job whose result is
gone, or that has failed, ends the node for good: a retry could not find the result either. A job that has not ended was
retried since the node became ready, so the node is released and waits again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_pgqueue import lifecycle
from django_pgqueue.exceptions import Dead
from django_pgqueue.placeholders import markers_in, with_results
from django_pgqueue.states import FINISHED, State

from .stored_values import DependencyUnfinished, read_value

if TYPE_CHECKING:
    from django_pgqueue.db.statements import Connection
    from django_pgqueue.lifecycle.types import NodeResult


def needed_ranges(arguments: Any) -> list[tuple[int, int]]:
    """Return the ids of the jobs whose results these stored arguments need, as ranges in ascending order."""
    return sorted({job_range for marker in markers_in(arguments) for job_range in marker.ranges})


def arguments_with_results(
    connection: Connection, arguments: Any, known: Mapping[int, NodeResult] | None = None
) -> Any:
    """Return stored arguments with the results of other jobs, read with one query unless they are known.

    Raises:
        Dead: A result is gone, or its job has failed.
        DependencyUnfinished: A job has not ended.
        DoesNotFit: A result cannot be decoded here.
    """
    ranges = needed_ranges(arguments)
    if not ranges:
        return arguments
    found = lifecycle.graphs.read_results(connection, ranges) if known is None else known
    decoded: dict[int, Any] = {}

    def result_of(job_id: int, is_optional: bool) -> Any:  # noqa: FBT001 -- a callback
        if job_id not in decoded:
            decoded[job_id] = _decoded(found, job_id)
        value = decoded[job_id]
        if not isinstance(value, Dead):
            return value
        if is_optional:
            return None
        raise value

    return with_results(arguments, result_of)


def _decoded(found: Mapping[int, NodeResult], job_id: int) -> Any:
    """Return the result of a job, or the error if it will never have one. Raise `DependencyUnfinished` if it may."""
    node = found.get(job_id)
    if node is None:
        return Dead(f"the result of job {job_id} is gone, because the job was removed")
    if node.state not in FINISHED:
        raise DependencyUnfinished(f"job {job_id} has not ended: it is {node.state}, so this job waits for it again")
    if node.state != State.SUCCEEDED:
        return Dead(f"job {job_id} has no result, because it is {node.state}")
    return read_value(node.result, f"the result of job {job_id}")
