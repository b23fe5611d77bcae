"""The methods of `JobQuerySet`: the filters by what a job waits for, and the methods that change many jobs.

These go through `job_operations`, as those of one job do.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from django.db import connections, models, router
from django.db.models import Exists, OuterRef, Q

from django_pgqueue.durations import seconds
from django_pgqueue.ground.search_text import Scalar, as_search_text
from django_pgqueue.states import State

from .job_mistakes import explained
from .operations_link import (
    ChosenJobs,
    JobsToChange,
    check_attempts_left,
    check_deletable,
    check_max_attempts,
    database_now,
    lease_end,
    operations,
)

if TYPE_CHECKING:
    from django_pgqueue.durations import Duration

    from .operations_link import JobChange


JobT = TypeVar("JobT", bound=models.Model)
J = TypeVar("J", bound=models.Model)


class JobFilters(models.QuerySet[JobT]):
    """The part of `JobQuerySet` that only reads.

    Each filter names the condition of a partial index, so that PostgreSQL reads no other jobs.
    tests/test_docs_queries.py checks this with EXPLAIN.
    """

    _is_in_two_indexes = False
    """Whether jobs with a limit and others are in two indexes. `count()` and `exists()` then ask for each kind."""

    def ready(self) -> Self:
        """Return the jobs that wait to run: those that are due now, and those that are due later."""
        found = self.filter(Q(limit_key__isnull=True) | Q(limit_key__isnull=False), state=State.READY)
        found._is_in_two_indexes = True
        return found

    def due(self) -> Self:
        """Return the ready jobs that a worker may start now, unless they are paused or their limit refuses them."""
        return self.ready().filter(run_after__lte=database_now())

    def scheduled(self) -> Self:
        """Return the ready jobs that are due later: their caller set `run_after`, or they wait for their next attempt.

        A job that has snoozed, or that no worker knew, is due later too.
        """
        return self.ready().filter(run_after__gt=database_now())

    def waiting(self) -> Self:
        """Return the jobs of workflows that wait for the ends of other jobs. No worker may start them yet."""
        return self.filter(state=State.WAITING)

    def running(self) -> Self:
        """Return the jobs that workers have claimed and not completed yet."""
        return self.filter(state=State.RUNNING, worker_id__isnull=False)

    def dead(self) -> Self:
        """Return the dead letters: the jobs that are not attempted again, except those that were acknowledged.

        `filter(state="dead")` returns both.
        """
        return self.filter(state=State.DEAD, finished_at__isnull=False, acknowledged_at__isnull=True)

    def acknowledged(self) -> Self:
        """Return the dead jobs that an operator has acknowledged."""
        return self.filter(state=State.DEAD, finished_at__isnull=False, acknowledged_at__isnull=False)

    def stuck(self, longer_than: Duration | None = None) -> Self:
        """Return the running jobs whose lease has ended: their worker is lost, and no other has rescued them.

        A running worker rescues such a job within seconds. If jobs stay in this queryset, no worker is running.

        Args:
            longer_than: Also return jobs whose current attempt has run for longer than this, in seconds or as a
                timedelta.

        Raises:
            TypeError: `longer_than` is neither a number nor a timedelta.
            ValueError: `longer_than` is negative or longer than 100 years.
        """
        late = Q(lease_end__lt=database_now())
        if longer_than is not None:
            late |= Q(started_at__lt=database_now(ago=timedelta(seconds=seconds(longer_than))))
        executions = cast("type[Any]", self.model._meta.get_field("executions").related_model)
        opened = executions._base_manager.filter(pk=OuterRef("execution_id"), outcome__isnull=True)
        return self.running().filter(Exists(opened.annotate(lease_end=lease_end()).filter(late)))

    def with_search_key(self, name: str, value: Scalar) -> Self:
        """Return the jobs with this value of an argument that their task's option `search` names.

        Args:
            name: The name of the argument.
            value: The value as JSON stores it, for example the text of a UUID. 4711 and "4711" are the same.
        """
        keys = cast("type[Any]", self.model._meta.get_field("search_keys").related_model)._base_manager
        return self.filter(pk__in=keys.filter(name=name, value=as_search_text(value)).values("job_id"))

    def count(self) -> int:
        """Return the number of jobs.

        One query on two indexes reads all rows that it counts, and two queries read the indexes alone.
        """
        return sum(super(JobFilters, part).count() for part in self._parts())

    def exists(self) -> bool:
        """Return whether the queryset has a job.

        For one query on two indexes, the planner may read the table from its beginning until it finds a job.
        """
        return any(super(JobFilters, part).exists() for part in self._parts())

    def count_up_to(self, limit: int) -> int:
        """Return the number of jobs, or `limit` if there are more. At most `limit` jobs of each kind are read."""
        return min(limit, sum(super(JobFilters, part[:limit]).count() for part in self._parts()))

    def _parts(self) -> list[Self]:
        """Return the jobs without a limit and those with one, if this queryset has both kinds and each job once."""
        query = self.query
        is_whole = query.is_sliced or query.combinator or query.distinct or query.group_by is not None
        if not self._is_in_two_indexes or is_whole or self._result_cache is not None:
            return [self]
        return [self.filter(limit_key__isnull=is_null) for is_null in (True, False)]

    def _clone(self) -> Self:
        clone = super()._clone()  # type: ignore[misc]  # django-stubs does not know it
        clone._is_in_two_indexes = self._is_in_two_indexes
        return clone  # type: ignore[no-any-return]  # as above


class JobChanges(JobFilters[J]):
    """The part of `JobQuerySet` that changes jobs: the methods of an operator for many jobs.

    All but `delete()` run in batches of 1,000 jobs. Each batch commits on its own,
    unless the caller has a transaction open. Jobs that stay locked by another session for 5 s are left alone and not
    counted. The methods act on the jobs that the queryset has when the call begins.
    """

    def retry(self) -> int:
        """Make the finished jobs of this queryset ready again, due now, with all their attempts.

        Jobs that are not finished are left alone. So are jobs that have finished since the call began, because another
        operator may have retried them in the meantime, jobs whose unique key another job has, and jobs that an operator
        has corrected with *Edit and retry*, because their tasks would run twice. Of several jobs with one unique key,
        only the latest is retried.

        Returns:
            The number of jobs of this queryset that changed. Those count too that wait again because a job of the
            queryset that they depend on was retried.
        """
        return self._in_batches(operations().retry, only_latest=True, finished_before=True)

    retry.alters_data = True  # type: ignore[attr-defined]  # Django: templates must not call it
    retry.queryset_only = True  # type: ignore[attr-defined]  # not available as Job.objects.retry()

    def acknowledge(self) -> int:
        """Acknowledge the dead jobs of this queryset, and return how many changed. See `Job.acknowledge()`.

        Jobs that are not dead, or are acknowledged already, are left alone. So are jobs that have finished since the
        call began.
        """
        return self._in_batches(operations().acknowledge, finished_before=True)

    acknowledge.alters_data = True  # type: ignore[attr-defined]  # as above
    acknowledge.queryset_only = True  # type: ignore[attr-defined]  # as above

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

    def set_max_attempts(self, max_attempts: int) -> int:
        """Change how many attempts of the unfinished jobs of this queryset may count; return how many changed.

        For a running job, the number counts when its attempt ends. Jobs that have ended, and jobs that have this number
        already, are left alone.

        Args:
            max_attempts: From 1 to 1000.

        Raises:
            ValueError: A job of this queryset has made so many attempts that none would be left, or the number is
                invalid. Nothing was changed.
        """
        check_max_attempts(max_attempts)
        check_attempts_left(self, max_attempts)
        return self._in_batches(partial(operations().set_max_attempts, max_attempts=max_attempts))

    set_max_attempts.alters_data = True  # type: ignore[attr-defined]  # as above
    set_max_attempts.queryset_only = True  # type: ignore[attr-defined]  # as above

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

    def update(self, **values: Any) -> int:
        """Write columns past the state machine. If the database refuses them, the error says what to call instead."""
        with explained():
            return super().update(**values)

    update.alters_data = True  # type: ignore[attr-defined]  # as above

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
