"""Find, assert and capture enqueued jobs in a test. A failed assertion shows the closest jobs and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from django.db import router
from django.db.models import QuerySet

from django_pgqueue import signals
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.encoding.serialization import normalise_call
from django_pgqueue.ground.plurals import counted
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

if TYPE_CHECKING:
    from django_pgqueue.models import Job

JOBS_SHOWN: Final = 3
"""Jobs that the message of a failed assertion shows at most."""
ENQUEUED: Final = ["ready", "waiting"]
"""The states of jobs that have not started. A job of a workflow can wait for others."""
TOLERANCE_SECONDS: Final = 0.001
"""Allowed difference of `run_after` if it is given as a delay from the enqueue."""


def enqueued(
    task: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    run_after: Duration | datetime | None = None,
    database: str | None = None,
    **filters: Any,
) -> list[Job]:
    """Return the waiting jobs that match, in the order of their enqueue. Jobs that are due later are included.

    Args:
        task: A task of this package, a task of Django's tasks framework, or a task's name. None matches all tasks.
        args: The exact positional arguments. They are compared in the types of JSON.
        kwargs: The exact named arguments. They are compared in the types of JSON.
        run_after: When the job is due: an aware datetime, or the delay from its enqueue in seconds or as a timedelta.
        database: Alias of the database of the jobs. By default the database routers choose it.
        **filters: Lookups of `Job`, such as `queue_name="mail"` or `priority__gt=0`. `state="dead"` finds dead jobs
            instead of waiting ones.

    Returns:
        The matching jobs. The list can be empty.

    Raises:
        ValueError: No task and no job has the name that was passed.

    Example:
        >>> [job] = enqueued(send_receipt, args=[7], queue_name="mail")
    """
    _check_name(task, database)
    wanted = _Wanted(task, args, kwargs, run_after, filters)
    return [job for job in wanted.candidates(database) if not wanted.misses(job)]


def assert_enqueued(task: Any, **wanted: Any) -> Job:
    """Return the first job that `enqueued()` finds with these arguments, or fail.

    Args:
        task: A task of this package, a task of Django's tasks framework, or a task's name.
        **wanted: The other arguments of `enqueued()`.

    Returns:
        The first matching job.

    Raises:
        AssertionError: No job matches. The message shows the closest jobs and how they differ.

    Example:
        >>> assert_enqueued(send_receipt, args=[7], run_after=timedelta(minutes=5))
    """
    found = enqueued(task, **wanted)
    if found:
        return found[0]
    database = wanted.pop("database", None)
    args, kwargs, run_after = (wanted.pop(name, None) for name in ("args", "kwargs", "run_after"))
    raise AssertionError(_Wanted(task, args, kwargs, run_after, wanted).nearest(database))


def assert_not_enqueued(task: Any = None, **wanted: Any) -> None:
    """Fail if `enqueued()` finds a job with these arguments.

    Args:
        task: A task of this package, a task of Django's tasks framework, or a task's name. None matches all tasks.
        **wanted: The other arguments of `enqueued()`.

    Raises:
        AssertionError: A job matches. The message shows the first three.
    """
    found = enqueued(task, **wanted)
    if found:
        shown = "".join(f"\n  {_description(job)}" for job in found[:JOBS_SHOWN])
        raise AssertionError(f"expected no enqueued job, found {len(found)}:{shown}")


@contextmanager
def capture_jobs(task: Any = None) -> Iterator[list[Job]]:
    """Collect the jobs that are enqueued inside a `with` block.

    The list is filled at the end of the block, in the order of the enqueues. Bulk enqueues are included. Jobs whose
    enqueue was rolled back inside the block are not.

    Args:
        task: Collect only jobs of this task: a task of this package, a task of Django's tasks framework, or a task's
            name. None collects all.

    Yields:
        The list of jobs. It is empty inside the block.

    Example:
        >>> with capture_jobs(send_receipt) as jobs:
        ...     client.post("/orders/")
        >>> assert len(jobs) == 1
    """
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    _check_name(task, None)
    enqueued_ids: list[tuple[str, int]] = []
    jobs: list[Job] = []

    def receiver(sender: str, job_id: int, database: str, **_: Any) -> None:
        if task is None or sender == _name_of(task):
            enqueued_ids.append((database, job_id))

    signals.job_enqueued.connect(receiver)
    try:
        yield jobs
    finally:
        signals.job_enqueued.disconnect(receiver)
    for database in {database for database, _ in enqueued_ids}:
        found = Job.objects.using(database).in_bulk([job_id for where, job_id in enqueued_ids if where == database])
        jobs += [found[job_id] for where, job_id in enqueued_ids if where == database and job_id in found]


class _Wanted:
    """The conditions of an assertion, and the comparison of a job with them."""

    def __init__(
        self,
        task: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        run_after: Duration | datetime | None,
        filters: Mapping[str, Any],
    ) -> None:
        call = normalise_call(*_encoded(task, [] if args is None else args, kwargs or {}))
        self.task_name = None if task is None else _name_of(task)
        self.arguments = {name: call[name] for name, value in (("args", args), ("kwargs", kwargs)) if value is not None}
        self.run_after = run_after
        self.filters = filters
        self.is_any_state = any(lookup.partition("__")[0] == "state" for lookup in filters)
        self._passing: dict[str, set[int]] = {}

    def candidates(self, database: str | None) -> QuerySet[Job]:
        """Return the jobs of the task, and remember which of them pass each filter."""
        jobs = _jobs(database).order_by("pk")
        if self.task_name is not None:
            jobs = jobs.filter(task_name=self.task_name)
        for lookup, value in self.filters.items():
            self._passing[lookup] = set(jobs.filter(**{lookup: value}).values_list("pk", flat=True))
        return jobs

    def misses(self, job: Job) -> list[str]:
        """Return a description of each difference of a job; an empty list if it matches."""
        found = [
            f"{name} is {_argument(job, name)!r}, not {value!r}"
            for name, value in self.arguments.items()
            if _argument(job, name) != value
        ]
        if not self.is_any_state and job.state not in ENQUEUED:
            found.append(f"state is {job.state!r}, not 'ready'")
        for lookup, value in self.filters.items():
            if job.pk not in self._passing[lookup]:
                is_field = hasattr(job, lookup)
                found.append(
                    f"{lookup} is {getattr(job, lookup)!r}, not {value!r}" if is_field else f"not {lookup}={value!r}"
                )
        return found + self._misses_time(job)

    def _misses_time(self, job: Job) -> list[str]:
        if self.run_after is None:
            return []
        if isinstance(self.run_after, datetime):
            same = job.run_after == self.run_after
            return [] if same else [f"run_after is {job.run_after}, not {self.run_after}"]
        delay_seconds, wanted_seconds = (job.run_after - job.enqueued_at).total_seconds(), seconds(self.run_after)
        same = abs(delay_seconds - wanted_seconds) <= TOLERANCE_SECONDS
        return [] if same else [f"run_after is {delay_seconds:g} s after the enqueue, not {wanted_seconds:g} s"]

    def nearest(self, database: str | None) -> str:
        """Return the message of a failed `assert_enqueued()`, with the closest jobs."""
        jobs = list(self.candidates(database))
        if not jobs:
            return f"no job of {self.task_name} is enqueued; {_enqueued_instead(database)}"
        jobs.sort(key=lambda job: len(self.misses(job)))
        shown = "".join(f"\n  {_description(job)}: {'; '.join(self.misses(job))}" for job in jobs[:JOBS_SHOWN])
        return f"no matching job of {self.task_name} is enqueued; closest of {counted(len(jobs))}:{shown}"


def _encoded(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call as the task's annotations store it."""
    known = registry.get(task) if isinstance(task, str) else task
    return known.encoded_call(args, kwargs) if isinstance(known, TaskDefinition) else (args, kwargs)


def _name_of(task: Any) -> str:
    """Return a task's name in the rows. For a task of Django's framework it is the function's path."""
    if isinstance(task, str):
        return task
    return task.name if isinstance(task, Task) else str(task.module_path)


def _check_name(task: Any, database: str | None) -> None:
    """Raise `ValueError` for a name that no task of this process and no job has, which is probably misspelled."""
    if isinstance(task, str) and registry.get(task) is None and not _jobs(database).filter(task_name=task).exists():
        names = [name for each in registry.all_tasks() for name in registry.names_of(each.name)]
        close = next(iter(get_close_matches(task, names, n=1)), "")
        raise ValueError(
            f"no task is named {task!r}: "
            + (f"did you mean {close!r}?" if close else "pass the task itself, or its name as in `task.name`")
        )


def _jobs(database: str | None) -> QuerySet[Job]:
    """Return the jobs from the database that is written to, because a replica does not see the test's transaction."""
    from django_pgqueue.models import Job  # as above

    return Job.objects.using(database or router.db_for_write(Job))


def _enqueued_instead(database: str | None) -> str:
    names = Counter(_jobs(database).filter(state__in=ENQUEUED).values_list("task_name", flat=True))
    if not names:
        return "no other job is waiting"
    return f"waiting jobs: {', '.join(f'{count} × {name}' for name, count in names.items())}"


def _argument(job: Job, name: str) -> Any:
    return job.arguments.get(name) if isinstance(job.arguments, dict) else None


def _description(job: Job) -> str:
    call = [repr(value) for value in _argument(job, "args") or ()]
    call += [f"{name}={value!r}" for name, value in (_argument(job, "kwargs") or {}).items()]
    return f"#{job.pk} {job.task_name}({', '.join(call)}) on {job.queue_name!r}, {job.state}"
