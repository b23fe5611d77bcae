"""Run an operator's transition on jobs that were read before, and notify workers and signal receivers.

`Job`, `JobQuerySet` and the admin call this module with a function of `lifecycle`. It protects one invariant: if the
caller passes what it has seen of a job, the transition applies only if the job has not changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, QuerySet, Value
from django.db.models.functions import Now

from django_pgqueue.db.statements import clock
from django_pgqueue.states import Seen, State

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

BATCH_SIZE: Final = 1000
"""Jobs in one statement of a queryset's `retry()`, `cancel()` or `run_now()`."""


class OperatorTransition(Protocol):
    """A transition of `lifecycle` that an operator can request."""

    def __call__(
        self,
        connection: BaseDatabaseWrapper,
        job_ids: Sequence[int],
        *,
        alone: bool = False,
        seen: Mapping[int, Seen] | None = None,
    ) -> dict[int, State]: ...


def act_on(
    connection: BaseDatabaseWrapper,
    transition: OperatorTransition,
    task_names: Mapping[int, str],
    seen: Mapping[int, Seen] | None,
    *,
    alone: bool = False,
    makes_due: bool = False,
) -> dict[int, State]:
    """Run a transition on the jobs in `task_names` that still equal `seen`; return the state of each job that changed.

    Workers are notified after the commit. Receivers of `job_cancelled` are called at once, inside the caller's
    transaction if one is open.
    """
    from django_pgqueue.reactions import after_operator  # a layer above the models

    changed = transition(connection, list(task_names), alone=alone, seen=seen)
    after_operator(connection, changed, task_names, makes_due=makes_due)
    return changed


def batches(jobs: QuerySet[Any], *, finished_before: bool = False) -> Iterator[tuple[dict[int, str], dict[int, Seen]]]:
    """Yield the task names and the seen states of the jobs of a queryset, ordered by id, `BATCH_SIZE` jobs at a time.

    `finished_before`: leave out jobs that have finished since the first batch was read. Another operator may retry a
    job of a later batch. If that job fails again in the meantime, it would be retried twice.
    """
    now = ExpressionWrapper(Now() + Value(_time_shift(), DurationField()), DateTimeField())
    remaining = jobs.order_by("pk").values_list("pk", "task_name", "state", "finished_at", "run_after", now)
    last_id, began = 0, None
    while batch := list(remaining.filter(pk__gt=last_id)[:BATCH_SIZE]):
        if began is None and finished_before:
            began = cast(datetime, batch[0][-1])
            remaining = remaining.filter(finished_at__lte=began)
        yield {row[0]: row[1] for row in batch}, {row[0]: Seen(*row[2:5]) for row in batch}
        last_id = batch[-1][0]


def _time_shift() -> timedelta:
    return timedelta(seconds=clock.shift_seconds)
