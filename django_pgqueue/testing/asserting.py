"""What was enqueued: found, asserted, captured. A failure shows the job that was nearest, and in what it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import router
from django.db.models import QuerySet

from django_pgqueue import signals
from django_pgqueue.arguments import normalise_call
from django_pgqueue.exceptions import Duration, seconds
from django_pgqueue.task import Task

if TYPE_CHECKING:
    from django_pgqueue.models import Job

NEAREST: Final = 3
"""Jobs that a failure shows."""
CLOSE_SECONDS: Final = 0.001
"""By which `run_after`, where it was given as seconds from the enqueue, may be off."""


def enqueued(
    task: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    run_after: Duration | datetime | None = None,
    database: str | None = None,
    **filters: Any,
) -> list[Job]:
    """Return the jobs that are enqueued and wait, those due later too, in the order of their enqueue.

    * `task`: of this task, ours or Django's, or of this name. `args`, `kwargs`: with exactly these arguments.
    * `run_after`: due then, an aware datetime; or so long after its enqueue, seconds or a timedelta.
    * `filters`: any lookup of `Job`, such as `queue_name="mail"` or `priority__gt=0`. `state="dead"` finds those.
    """
    wanted = _Wanted(task, args, kwargs, run_after, filters)
    return [job for job in wanted.candidates(database) if not wanted.misses(job)]


def assert_enqueued(task: Any, **wanted: Any) -> Job:
    """Return the first job that `enqueued` finds with these arguments; fails, with what comes nearest, if none."""
    found = enqueued(task, **wanted)
    if found:
        return found[0]
    database = wanted.pop("database", None)
    args, kwargs, run_after = (wanted.pop(name, None) for name in ("args", "kwargs", "run_after"))
    raise AssertionError(_Wanted(task, args, kwargs, run_after, wanted).nearest(database))


def assert_not_enqueued(task: Any = None, **wanted: Any) -> None:
    """Fail, with the jobs that were found, if `enqueued` finds any with these arguments."""
    found = enqueued(task, **wanted)
    if found:
        shown = "".join(f"\n  {_told(job)}" for job in found[:NEAREST])
        raise AssertionError(f"{len(found)} enqueued, and none was to be:{shown}")


@contextmanager
def capture_jobs(task: Any = None) -> Iterator[list[Job]]:
    """Give a list that holds, after the block, the jobs that were enqueued in it; of this task, if one is given.

    What was rolled back within the block is not in it. Bulk enqueues are.
    """
    from django_pgqueue.models import Job  # after the apps are loaded

    told: list[tuple[str, int]] = []
    jobs: list[Job] = []

    def receiver(sender: str, job_id: int, database: str, **_: Any) -> None:
        if task is None or sender == _name_of(task):
            told.append((database, job_id))

    signals.job_enqueued.connect(receiver)
    try:
        yield jobs
    finally:
        signals.job_enqueued.disconnect(receiver)
    for database in {database for database, _ in told}:
        found = Job.objects.using(database).in_bulk([job_id for where, job_id in told if where == database])
        jobs += [found[job_id] for where, job_id in told if where == database and job_id in found]


class _Wanted:
    """What a job is to be like, and in what one is not."""

    def __init__(
        self,
        task: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        run_after: Duration | datetime | None,
        filters: Mapping[str, Any],
    ) -> None:
        call = normalise_call([] if args is None else args, kwargs or {})
        self.task_name = None if task is None else _name_of(task)
        self.arguments = {name: call[name] for name, given in (("args", args), ("kwargs", kwargs)) if given is not None}
        self.run_after = run_after
        self.filters = {"state": "ready", **filters}
        self._passing: dict[str, set[int]] = {}

    def candidates(self, database: str | None) -> QuerySet[Job]:
        """Return the jobs of the task; and note which of them pass each filter."""
        jobs = _jobs(database).order_by("pk")
        if self.task_name is not None:
            jobs = jobs.filter(task_name=self.task_name)
        for lookup, value in self.filters.items():
            self._passing[lookup] = set(jobs.filter(**{lookup: value}).values_list("pk", flat=True))
        return jobs

    def misses(self, job: Job) -> list[str]:
        """Say in what a job differs; empty if in nothing."""
        found = [
            f"{name} is {_given(job, name)!r}, not {value!r}"
            for name, value in self.arguments.items()
            if _given(job, name) != value
        ]
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
        same = abs(delay_seconds - wanted_seconds) <= CLOSE_SECONDS
        return [] if same else [f"run_after is {delay_seconds:g} s after the enqueue, not {wanted_seconds:g} s"]

    def nearest(self, database: str | None) -> str:
        """Say that none was enqueued, and what came nearest."""
        jobs = list(self.candidates(database))
        if not jobs:
            return f"no job of {self.task_name} was enqueued; {_what_else(database)}"
        jobs.sort(key=lambda job: len(self.misses(job)))
        shown = "".join(f"\n  {_told(job)}: {'; '.join(self.misses(job))}" for job in jobs[:NEAREST])
        return f"no such job of {self.task_name} is enqueued; of {len(jobs)} the nearest:{shown}"


def _name_of(task: Any) -> str:
    """Return the name in the rows: Django's tasks have their function's path there."""
    if isinstance(task, str):
        return task
    return task.name if isinstance(task, Task) else str(task.module_path)


def _jobs(database: str | None) -> QuerySet[Job]:
    """Return the jobs where `run_jobs` finds them: a replica does not see what the test's transaction wrote."""
    from django_pgqueue.models import Job  # after the apps are loaded

    return Job.objects.using(database or router.db_for_write(Job))


def _what_else(database: str | None) -> str:
    names = Counter(_jobs(database).filter(state="ready").values_list("task_name", flat=True))
    return (
        "nothing was" if not names else f"what was: {', '.join(f'{count} × {name}' for name, count in names.items())}"
    )


def _given(job: Job, name: str) -> Any:
    return job.arguments.get(name) if isinstance(job.arguments, dict) else None


def _told(job: Job) -> str:
    call = [repr(value) for value in _given(job, "args") or ()]
    call += [f"{name}={value!r}" for name, value in (_given(job, "kwargs") or {}).items()]
    return f"#{job.pk} {job.task_name}({', '.join(call)}) on {job.queue_name!r}, {job.state}"
