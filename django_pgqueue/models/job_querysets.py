"""The methods of a queryset of jobs that change many jobs. They go through `job_operations`, as those of one job do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from django.db import connections, models, router

from .job_filters import JobFilters
from .operations import ChosenJobs, JobsToChange, check_deletable, operations

if TYPE_CHECKING:
    from .operations import JobChange

J = TypeVar("J", bound=models.Model)


class JobChanges(JobFilters[J]):
    """The part of `JobQuerySet` that changes jobs: the methods of an operator for many jobs.

    `retry()`, `cancel()` and `run_now()` run in batches of 1,000 jobs. Each batch commits on its own, unless the caller
    has a transaction open. Jobs that stay locked by another session for 5 s are left alone and not counted. The methods
    act on the jobs that the queryset has when the call begins.
    """

    def retry(self) -> int:
        """Make the finished jobs of this queryset ready again, due now, with all their attempts.

        Jobs that are not finished are left alone. So are jobs that have finished since the call began, because another
        operator may have retried them in the meantime, and jobs whose unique key another job has. Of several jobs with
        one unique key, only the latest is retried.

        Returns:
            The number of jobs of this queryset that changed. Those count too that wait again because a job of the
            queryset that they depend on was retried.
        """
        return self._in_batches(operations().retry, only_latest=True, finished_before=True)

    retry.alters_data = True  # type: ignore[attr-defined]  # Django: templates must not call it
    retry.queryset_only = True  # type: ignore[attr-defined]  # not available as Job.objects.retry()

    def cancel(self, *, running: bool = True) -> int:
        """Cancel the jobs of this queryset.

        Args:
            running: Whether to ask running jobs to stop as well; they become cancelled instead of being retried. If
                False, running jobs are left alone, including those that start during the call.

        Returns:
            The number of jobs of this queryset that changed. Those count too that were cancelled because they depend on
            another job of the queryset.
        """
        return self._in_batches(partial(operations().cancel, running=running))

    cancel.alters_data = True  # type: ignore[attr-defined]  # as above
    cancel.queryset_only = True  # type: ignore[attr-defined]  # as above

    def run_now(self) -> int:
        """Make the ready jobs of this queryset that are due later due at once; return how many changed.

        A job that waits for others is due at once when these have ended.
        """
        return self._in_batches(operations().run_now)

    run_now.alters_data = True  # type: ignore[attr-defined]  # as above
    run_now.queryset_only = True  # type: ignore[attr-defined]  # as above

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the finished jobs of this queryset with their executions, in one transaction.

        Jobs that unfinished work needs are left: the log says how many, and why. So are jobs that have changed since
        they were read, and jobs that stay locked. The `on_delete` of foreign keys in your models is applied.

        Returns:
            The number of deleted rows, and the numbers by the label of their model, as for other models.

        Raises:
            CannotDelete: A job of this queryset has not ended. Nothing was deleted: call `cancel()` first.
        """
        check_deletable(self)
        self._result_cache = None
        alias = self._db or router.db_for_write(self.model)
        return operations().delete_jobs(self.using(alias), alias)

    delete.alters_data = True  # type: ignore[attr-defined]  # as above
    delete.queryset_only = True  # type: ignore[attr-defined]  # as above

    _db: str | None

    def _in_batches(self, change: JobChange, *, only_latest: bool = False, finished_before: bool = False) -> int:
        """Change the jobs of this queryset, and return how many changed."""
        connection = connections[self._db or router.db_for_write(self.model)]
        jobs = self.using(connection.alias)
        chosen = ChosenJobs(jobs, only_latest=only_latest, finished_before=finished_before)
        others: set[int] = set()
        for task_names, seen in chosen.batches():
            batch = JobsToChange(connection, task_names, seen if finished_before else None, others=others)
            chosen.note_changed(change(batch))
        chosen.note_changed(others)
        return chosen.changed_count
