"""The filters of `Job.objects` by what a job waits for: `ready()`, `due()`, `scheduled()`, `running()`, and so on.

Each filter names the condition of a partial index, so that PostgreSQL reads no other jobs. tests/test_docs_queries.py
checks this with EXPLAIN.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from django.db import models
from django.db.models import Q

from django_pgqueue.exceptions import seconds
from django_pgqueue.search_text import Scalar, as_search_text
from django_pgqueue.states import State

from .operations import database_now

if TYPE_CHECKING:
    from django_pgqueue.exceptions import Duration

JobT = TypeVar("JobT", bound=models.Model)


class JobFilters(models.QuerySet[JobT]):
    """The part of `JobQuerySet` that only reads."""

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
        return self._with_open_execution(Q())

    def dead(self) -> Self:
        """Return the dead letters: the jobs that are not attempted again."""
        return self.filter(state=State.DEAD, finished_at__isnull=False)

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
        late = Q(lease_expires_at__lt=database_now())
        if longer_than is not None:
            late |= Q(started_at__lt=database_now(ago=timedelta(seconds=seconds(longer_than))))
        return self._with_open_execution(late)

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

    def _with_open_execution(self, condition: Q) -> Self:
        """Return the running jobs whose open execution meets a condition.

        The index of open executions finds them. An index on running jobs would cost each claim and each completion.
        """
        executions = cast("type[Any]", self.model._meta.get_field("executions").related_model)
        opened = executions._base_manager.filter(condition, finished_at__isnull=True)
        return self.filter(state=State.RUNNING, pk__in=opened.values("job_id"))
