"""Read the stored arguments of a job as the task's annotations say, and load the rows that they name.

`Attempt` calls this inside the middleware and, for an atomic task, inside the transaction. A database error while rows
are loaded passes through, so the attempt fails like any other and is retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from django_pgqueue.arguments.rows import KEYS, LoadedRows, RowMissing
from django_pgqueue.exceptions import Cancel, Dead

from .stored_values import DoesNotFit

if TYPE_CHECKING:
    from django_pgqueue.arguments.converter import Rows
    from django_pgqueue.arguments.plan import CallArguments, CallPlan, Converted
    from django_pgqueue.definition import TaskDefinition


def decoded(
    task: TaskDefinition, plan: CallPlan, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str
) -> Converted:
    """Return the arguments of a call.

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
