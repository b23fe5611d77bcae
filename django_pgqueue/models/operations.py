"""The link from the methods of `Job` and `JobQuerySet` to the layers above the models.

The models must not import those layers. `operations()` returns the module `job_operations`, which the app's
configuration has imported when all apps were loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from django.apps import apps
from django.db.models import DurationField, ExpressionWrapper, QuerySet, Value
from django.db.models.functions import Now

from django_pgqueue.db.fields import AwareField
from django_pgqueue.db.statements import clock
from django_pgqueue.states import Seen, State

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.exceptions import Duration

BATCH_SIZE: Final = 1000
"""Jobs in one statement of a queryset's `retry()`, `cancel()` or `run_now()`."""


class Transition(Protocol):
    """A transition of `lifecycle` that an operator can request."""

    def __call__(
        self,
        connection: BaseDatabaseWrapper,
        job_ids: Sequence[int],
        *,
        alone: bool = False,
        seen: Mapping[int, Seen] | None = None,
    ) -> dict[int, State]: ...


Record = Callable[[Collection[int]], object]
"""Called with the ids of the jobs that were changed, in the transaction of the change. It writes the audit."""


class JobChange(Protocol):
    """An operation on jobs: a transition, and the reactions to it."""

    def __call__(
        self,
        connection: BaseDatabaseWrapper,
        task_names: Mapping[int, str],
        seen: Mapping[int, Seen] | None = None,
        *,
        alone: bool = False,
        record: Record | None = None,
    ) -> dict[int, State]:
        """Change the jobs in `task_names` that still equal `seen`; return the state of each job that changed."""


class JobOperations(Protocol):
    """The module `job_operations`."""

    @property
    def retry(self) -> JobChange: ...
    @property
    def run_now(self) -> JobChange: ...

    def cancel(
        self,
        connection: BaseDatabaseWrapper,
        task_names: Mapping[int, str],
        seen: Mapping[int, Seen] | None = None,
        *,
        alone: bool = False,
        record: Record | None = None,
        running: bool = True,
    ) -> dict[int, State]: ...
    def delete_job(self, job: Any, using: str | None) -> tuple[int, dict[str, int]]: ...
    def delete_jobs(self, jobs: Any, alias: str) -> tuple[int, dict[str, int]]: ...
    def delete_batches(self, chosen: Any, alias: str, origin: Any) -> tuple[int, dict[str, int]]: ...
    def wait(self, job: Any, timeout: Duration) -> Any: ...
    async def await_result(self, job: Any, timeout: Duration) -> Any: ...
    def readable(self, value: Any) -> Any: ...
    def return_value(self, job: Any) -> Any: ...


def operations() -> JobOperations:
    """Return the operations on jobs."""
    return cast(JobOperations, apps.get_app_config("pgqueue").job_operations)  # type: ignore[attr-defined]  # ours


def check_deletable(rows: QuerySet[Any]) -> None:
    """Raise the errors of Django's `delete()`, for example for a slice. Nothing is deleted."""
    QuerySet.delete(rows.none())


def batches(jobs: QuerySet[Any], *, finished_before: bool = False) -> Iterator[tuple[dict[int, str], dict[int, Seen]]]:
    """Yield the task names and the seen states of the jobs of a queryset, ordered by id, `BATCH_SIZE` jobs at a time.

    `finished_before`: leave out jobs that have finished since the first batch was read. Another operator may retry a
    job of a later batch. If that job fails again in the meantime, it would be retried twice.
    """
    remaining = jobs.order_by("pk").values_list("pk", "task_name", "state", "finished_at", "run_after", database_now())
    last_id, began = 0, None
    while batch := list(remaining.filter(pk__gt=last_id)[:BATCH_SIZE]):
        if began is None and finished_before:
            began = cast(datetime, batch[0][-1])
            remaining = remaining.filter(finished_at__lte=began)
        yield {row[0]: row[1] for row in batch}, {row[0]: Seen(*row[2:5]) for row in batch}
        last_id = batch[-1][0]


def database_now(ago: timedelta = timedelta()) -> ExpressionWrapper[Any]:
    """Return the database's time, or the time `ago` before it, with the shift of `testing.time_travel`."""
    shift = timedelta(seconds=clock.shift_seconds) - ago
    return ExpressionWrapper(Now() + Value(shift, DurationField()), AwareField())
