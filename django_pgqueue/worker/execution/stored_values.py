"""Read what is stored for a job: its call, results of other jobs, and values of its steps.

Attempts, their steps and the endpoint of remote workers call these functions. They protect one rule: a value that this
process cannot read says nothing about the job. So the job is released without counting the attempt, and waits for a
worker that can read it. `decoded()` then turns the arguments into what the annotations of the task say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from django_pgqueue.arguments.converter import Rows
from django_pgqueue.arguments.plan import CallArguments, CallPlan, Converted
from django_pgqueue.arguments.rows import KEYS, LoadedRows, RowMissing
from django_pgqueue.db.statements import Connection
from django_pgqueue.encoding import codecs
from django_pgqueue.encoding.headers import decode_headers
from django_pgqueue.encoding.serialization import decode_arguments
from django_pgqueue.exceptions import Cancel, Dead
from django_pgqueue.ground.envelope import is_envelope
from django_pgqueue.ground.placeholders import markers_in, with_results
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.types import Claimed, NodeResult
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import FINISHED, State
from django_pgqueue.tasks.definition import TaskDefinition

MOST_RESULTS: Final = 1_000_000
"""How many results the arguments of one job may have, those that occur several times included."""


class DoesNotFit(BaseException):
    """The job cannot run here: its task is unknown, or this process cannot read or pass what is stored.

    This is not an `Exception`. Otherwise a middleware could mistake it for an error of the task.
    """


class DependencyUnfinished(DoesNotFit):
    """A job whose result this one needs has not ended, because it was retried since this one became ready."""


def read_call(job: Claimed) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a job, and its headers.

    Raises:
        DoesNotFit: This process cannot read them.
        Dead: No process can read them: they were erased, or the row has more than a claim returns.
    """
    if not job.arguments or job.headers == "":
        raise Dead(_too_large(job))
    try:
        return *decode_arguments(job.arguments), decode_headers(job.headers) if job.headers is not None else {}
    except codecs.ValueErased as error:
        raise Dead(str(error)) from None
    except ValueError as error:
        raise DoesNotFit(str(error)) from None


def _too_large(job: Claimed) -> str:
    if job.arguments:
        return "the job's headers have more than 16,384 bytes, which is more than a worker reads"
    return (
        f"the job's arguments have more than {get_settings().most_stored_bytes:,} bytes, four times "
        "PGQUEUE['MAX_ARGUMENTS_BYTES'], which is more than a worker reads: store the data and pass its id"
    )


def read_value(text: str | None, what: str) -> Any:
    """Return a stored value. Raise `DoesNotFit`, which names the value as `what`, if this process cannot read it."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        return codecs.decode(value) if is_envelope(value) else value
    except (ValueError, RecursionError) as error:
        raise DoesNotFit(f"{what} cannot be read: {error}") from None


def decoded(
    task: TaskDefinition, plan: CallPlan, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str
) -> Converted:
    """Return the arguments of a call.

    `Attempt` calls this inside the middleware and, for an atomic task, inside the transaction. A database error while
    rows are loaded passes through, so the attempt fails like any other and is retried.

    Raises:
        DoesNotFit: A stored value does not fit its annotation.
        Dead, Cancel, ObjectDoesNotExist: A row is gone. The task's `on_missing` decides which of the three is raised.
    """
    return converted(task, plan, args, kwargs, loaded_rows(plan, [(args, kwargs)], alias))


def loaded_rows(plan: CallPlan, calls: Sequence[CallArguments], alias: str) -> Rows:
    """Load the rows that these calls of a task name, with one query for each model."""
    if not plan.loads_rows:
        return KEYS
    return LoadedRows(alias, chain.from_iterable(plan.references(args, kwargs) for args, kwargs in calls))


def converted(
    task: TaskDefinition, plan: CallPlan, args: Sequence[Any], kwargs: Mapping[str, Any], rows: Rows
) -> Converted:
    """Return the arguments of a call with these rows. Raises as `decoded()`."""
    try:
        return plan.decode(args, kwargs, rows)
    except RowMissing as missing:
        raise _ending(task, missing) from None
    except ValueError as error:
        raise DoesNotFit(f"the job's arguments do not fit {task.name}(): {error}") from None


def _ending(task: TaskDefinition, missing: RowMissing) -> Exception:
    if task.on_missing == "cancel":
        return Cancel(str(missing))
    return Dead(str(missing)) if task.on_missing == "dead" else missing.as_does_not_exist()


def needed_ranges(arguments: Any) -> list[tuple[int, int]]:
    """Return the ids of the jobs whose results these stored arguments need, as separate ranges in ascending order.

    `Attempt` calls this before a node runs, and the endpoint of remote workers before it sends one. A job whose result
    is gone, or that has failed, ends the node for good: a retry could not find the result either. A job that has not
    ended was retried since the node became ready, so the node is released and waits again.
    """
    separate: list[tuple[int, int]] = []
    for first, last in sorted({job_range for marker in markers_in(arguments) for job_range in marker.ranges}):
        if separate and first <= separate[-1][1]:
            separate[-1] = (separate[-1][0], max(separate[-1][1], last))
        else:
            separate.append((first, last))
    return separate


def arguments_with_results(
    connection: Connection, job_id: int, arguments: Any, known: Mapping[int, NodeResult] | None = None
) -> Any:
    """Return the stored arguments of a job with the results of other jobs, read with one query unless they are known.

    Raises:
        Dead: A result is gone, or its job has failed, or the job does not depend on it.
        DependencyUnfinished: A job has not ended.
        DoesNotFit: A result cannot be decoded here.
    """
    ranges = needed_ranges(arguments)
    if not ranges:
        return arguments
    found = graphs.read_results(connection, {job_id: ranges})[job_id] if known is None else known
    _check_amounts(arguments, found)
    decoded: dict[int, Any] = {}

    def result_of(needs_id: int, is_optional: bool) -> Any:  # noqa: FBT001 -- a callback
        if needs_id not in decoded:
            decoded[needs_id] = _decoded(found[needs_id], needs_id)
        value = decoded[needs_id]
        if not isinstance(value, Dead):
            return value
        if is_optional:
            return None
        raise value

    return with_results(arguments, result_of)


def _check_amounts(arguments: Any, found: Mapping[int, NodeResult]) -> None:
    """Raise `Dead` if markers name jobs that this one does not depend on, or too many.

    The arguments can come from a program that writes rows by SQL. A marker of a few bytes can name millions of jobs.
    """
    count = 0
    for marker in markers_in(arguments):
        for first, last in marker.ranges:
            not_needed = f"the arguments name results of jobs from {first} to {last}, which this job does not need"
            if not 0 <= last - first < len(found):
                raise Dead(not_needed)
            count += last - first + 1
            if count > MOST_RESULTS:
                raise Dead(f"the arguments name more than {MOST_RESULTS:,} results")
            if not all(job_id in found for job_id in range(first, last + 1)):
                raise Dead(not_needed)


def _decoded(node: NodeResult, job_id: int) -> Any:
    """Return the result of a job, or the error if it will never have one. Raise `DependencyUnfinished` if it may."""
    if node.state is None:
        return Dead(f"the result of job {job_id} is gone, because the job was removed")
    if node.state not in FINISHED:
        raise DependencyUnfinished(f"job {job_id} has not ended: it is {node.state}, so this job waits for it again")
    if node.state != State.SUCCEEDED:
        return Dead(f"job {job_id} has no result, because it is {node.state}")
    return read_value(node.result, f"the result of job {job_id}")
