"""The link from the methods of `Job` and `JobQuerySet` to the layers above the models.

The models must not import those layers. `operations()` returns the module `job_operations`, which the app's
configuration has imported when all apps were loaded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from django.apps import apps
from django.db.models import DurationField, ExpressionWrapper, Max, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Greatest, Now

from django_pgqueue.db.fields import AwareField
from django_pgqueue.db.statements import clock
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.states import Seen, State, least_attempts

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.durations import Duration

BATCH_SIZE: Final = 1000
"""Jobs in one statement of a queryset's `retry()`, `cancel()` or `run_now()`."""
ID_PAGE_SIZE: Final = 10_000
"""Ids that one query reads before."""


def lease_end() -> Greatest:
    """Return when the lease of an open execution ends: its own lease, and that of its worker.

    The record of the worker can be missing, so this is no join.
    """
    worker = apps.get_model("pgqueue", "Worker")._base_manager.filter(pk=OuterRef("worker_id"))
    return Greatest("lease_expires_at", Subquery(worker.values("lease_expires_at")[:1]))


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
"""Called in the transaction of a change, to write the audit. It gets the ids of the jobs that were changed, and of
those that were cancelled or wait again because they depend on them."""


@dataclass(frozen=True, slots=True)
class JobsToChange:
    """The jobs of an operation, and how it treats them.

    Attributes:
        connection: Of their database.
        task_names: The names of their tasks, by their ids.
        seen: What the caller has seen of them: the operation changes only jobs that still equal it. None: any.
        alone: Whether to wait for rows that are locked.
        record: Called in the transaction of the change, to write the audit.
        others: Gets the ids of further jobs that the operation changes, which `record` gets too.
    """

    connection: BaseDatabaseWrapper
    task_names: Mapping[int, str]
    seen: Mapping[int, Seen] | None = None
    alone: bool = False
    record: Record | None = None
    others: set[int] = field(default_factory=set)


JobChange = Callable[[JobsToChange], dict[int, State]]
"""An operation on jobs: a transition, and the reactions to it. It returns the state of each job that changed."""


class JobOperations(Protocol):
    """The module `job_operations`."""

    @property
    def run_now(self) -> JobChange: ...
    @property
    def retry(self) -> JobChange: ...
    @property
    def acknowledge(self) -> JobChange: ...
    def cancel(self, jobs: JobsToChange, *, running: bool = True) -> dict[int, State]: ...
    def set_max_attempts(self, jobs: JobsToChange, *, max_attempts: int) -> dict[int, State]: ...
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


def check_max_attempts(max_attempts: int) -> None:
    """Raise `ValueError` for a number that the option of a task could not have."""
    check = OPTIONS["max_attempts"].check
    for problem in check("max_attempts", max_attempts) if check else ():
        raise ValueError(problem)


def check_attempts_left(jobs: QuerySet[Any], max_attempts: int) -> None:
    """Raise `ValueError` if an unfinished job of a queryset would have no attempt left. One query reads the jobs."""
    kinds = {State.READY: (State.READY, State.WAITING), State.RUNNING: (State.RUNNING,)}
    made = jobs.order_by().aggregate(**{k.value: Max("attempt", filter=Q(state__in=each)) for k, each in kinds.items()})
    for state, attempt in made.items():
        if attempt is not None and (least := least_attempts(state, attempt)) > max_attempts:
            done = f"is running attempt {attempt}" if state == State.RUNNING else f"has made {attempt} attempts"
            raise ValueError(f"a job {done}, so max_attempts must be {least} or more, not {max_attempts}")


class ChosenJobs:
    """The jobs of a queryset as they were when an act on them began, and which of them it has changed.

    The ids are read first, 8 bytes each: a batch can change jobs of later batches, which would then not be found.
    """

    def __init__(self, jobs: QuerySet[Any], *, only_latest: bool = False, finished_before: bool = False) -> None:
        """Read the ids.

        Args:
            jobs: The queryset.
            only_latest: Of several jobs with one unique key, leave out all but the latest.
            finished_before: Leave out jobs that have finished since. Another operator may retry a job of a later batch.
                If that job fails again in the meantime, it would be retried twice.
        """
        self._jobs = jobs
        self._ids, self._keyed_ids = array("q"), array("q")
        in_order = jobs.order_by("pk").values_list("pk", "unique_key", database_now())
        last_id, began = 0, None
        while page := list(in_order.filter(pk__gt=last_id)[:ID_PAGE_SIZE]):
            last_id = page[-1][0]
            if began is None and finished_before:
                began = cast(datetime, page[0][2])
                self._jobs = jobs.filter(finished_at__lte=began)
            self._ids.extend(row[0] for row in page)
            self._keyed_ids.extend(row[0] for row in page if row[1] is not None)
            if len(page) < ID_PAGE_SIZE:
                break
        self._only_latest = only_latest
        self._is_changed = bytearray(len(self._ids))

    def batches(self) -> Iterator[tuple[dict[int, str], dict[int, Seen]]]:
        """Yield the task names and the present states of the jobs, `BATCH_SIZE` jobs at a time."""
        columns = self._jobs.order_by("pk").values_list("pk", "task_name", "state", "finished_at", "run_after")
        for job_ids in _pages(self._in_order()):
            batch = list(columns.filter(pk__in=job_ids))
            if batch:
                yield {row[0]: row[1] for row in batch}, {row[0]: Seen(*row[2:]) for row in batch}

    def _in_order(self) -> array[int]:
        if not self._only_latest:
            return self._ids
        superseded = superseded_ids(self._jobs, self._keyed_ids)
        return array("q", (job_id for job_id in self._ids if job_id not in superseded))

    def note_changed(self, job_ids: Iterable[int]) -> None:
        """Note that jobs have changed. Other jobs than the chosen ones do not count."""
        for job_id in job_ids:
            place = bisect_left(self._ids, job_id)
            if place < len(self._ids) and self._ids[place] == job_id:
                self._is_changed[place] = 1

    @property
    def changed_count(self) -> int:
        """How many of the chosen jobs have changed."""
        return sum(self._is_changed)


class ChangeTally:
    """Counts the chosen jobs that the batches of an act change or leave, each once.

    A batch can also change jobs of earlier or later batches, because they depend on its jobs.
    """

    def __init__(self, chosen: Iterable[int]) -> None:
        self.changed: set[int] = set()
        self._chosen, self._visited = frozenset(chosen), set[int]()

    def add(self, batch: Collection[int], changed: Collection[int]) -> tuple[list[int], int]:
        """Note which jobs a batch has changed, whether they are its own or not.

        Return the chosen ones that no earlier batch has changed, and by how many more jobs are left now than before.
        """
        new = self._chosen.intersection(changed) - self.changed
        no_longer_left = len(new & self._visited)
        self.changed |= new
        self._visited.update(batch)
        return sorted(new), len(set(batch) - self.changed) - no_longer_left


def superseded_ids(jobs: QuerySet[Any], job_ids: Sequence[int]) -> set[int]:
    """Return which of these jobs have the unique key of a later one among them. A retry revives only the latest."""
    latest: dict[tuple[str, str], int] = {}
    superseded = set()
    keyed = jobs.filter(unique_key__isnull=False).order_by("pk").values_list("pk", "task_name", "unique_key")
    for page in _pages(array("q", sorted(job_ids))):
        for job_id, *key in keyed.filter(pk__in=page):
            if (earlier := latest.get((key[0], key[1]))) is not None:
                superseded.add(earlier)
            latest[key[0], key[1]] = job_id
    return superseded


def _pages(job_ids: array[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(job_ids), BATCH_SIZE):
        yield job_ids[start : start + BATCH_SIZE].tolist()


def database_now(ago: timedelta = timedelta()) -> ExpressionWrapper[Any]:
    """Return the database's time, or the time `ago` before it, with the shift of `testing.time_travel`."""
    shift = timedelta(seconds=clock.shift_seconds) - ago
    return ExpressionWrapper(Now() + Value(shift, DurationField()), AwareField())
