"""Read the stored arguments of a job as the task's annotations say, and load the rows that they name.

`Attempt` calls this inside the middleware and, for an atomic task, inside the transaction. A database error while rows
are loaded passes through, so the attempt fails like any other and is retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_pgqueue.arguments.rows import KEYS, LoadedRows, RowMissing
from django_pgqueue.exceptions import Cancel, Dead

from .failure import DoesNotFit

if TYPE_CHECKING:
    from django_pgqueue.arguments.plan import CallPlan, Converted
    from django_pgqueue.definition import TaskDefinition


def decoded(
    task: TaskDefinition, plan: CallPlan, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str
) -> Converted:
    """Return the arguments of a call.

    Raises:
        DoesNotFit: A stored value does not fit its annotation.
        Dead, Cancel, ObjectDoesNotExist: A row is gone. The task's `on_missing` decides which of the three is raised.
    """
    rows = LoadedRows(alias, plan.references(args, kwargs)) if plan.loads_rows else KEYS
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
