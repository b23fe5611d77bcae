"""Jobs as a Django model: the read side.

Nothing here writes state. `Job.retry()`, `Job.cancel()` and the same on querysets call `lifecycle`,
the only writer; a model saved by hand is on its own. There are no foreign keys in the database: one
on executions cost 15 % of the throughput, and no act needs it. `Job.objects.delete()` still takes the
executions along, by Django's own cascade.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import connections, models, router
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.fields import InstantField, PlainJSONField, are_instants
from django_pgqueue.progress import Progress
from django_pgqueue.states import FINISHED, Seen, State

from . import operator

if TYPE_CHECKING:
    from django_pgqueue.exceptions import Duration

    from .operator import Act

RUN_AFTER_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
RUN_AFTER_LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""No driver can read a timestamp after the year 9999, and one such row would stop its whole claim."""


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs, with the acts an operator has on many at once."""

    def retry(self) -> int:
        """Make the finished jobs of this queryset ready again, now, with all their attempts; say how many.

        In batches, each a transaction of its own unless the caller has one open. Jobs that are not
        finished, or that another session holds locked, are left alone and not counted. So are jobs that have finished
        since the call began, because another operator may have retried them meanwhile.
        """
        from django_pgqueue.lifecycle import retry  # lifecycle stands above models

        return self._in_batches(retry, makes_due=True, finished_before=True)

    retry.alters_data = True  # type: ignore[attr-defined]  # Django's mark: never called by a template
    retry.queryset_only = True  # type: ignore[attr-defined]  # not offered as Job.objects.retry()

    def cancel(self, *, running: bool = True) -> int:
        """Cancel the jobs of this queryset; say how many changed.

        Ready jobs end cancelled. Running ones are asked to stop, and end cancelled instead of being
        tried again; without `running` they are left alone, those too that begin meanwhile. In batches, as `retry()`.
        """
        from django_pgqueue.lifecycle import cancel  # lifecycle stands above models

        return self._in_batches(partial(cancel, running=running))

    cancel.alters_data = True  # type: ignore[attr-defined]  # as above
    cancel.queryset_only = True  # type: ignore[attr-defined]  # as above

    def run_now(self) -> int:
        """Make the ready jobs of this queryset that are due later due at once; say how many changed."""
        from django_pgqueue.lifecycle import run_now  # lifecycle stands above models

        return self._in_batches(run_now, makes_due=True)

    run_now.alters_data = True  # type: ignore[attr-defined]  # as above
    run_now.queryset_only = True  # type: ignore[attr-defined]  # as above

    _db: str | None

    def _in_batches(self, act: Act, *, makes_due: bool = False, finished_before: bool = False) -> int:
        connection = connections[self._db or router.db_for_write(Job)]
        jobs = self.using(connection.alias)
        changed = 0
        for task_names, seen in operator.batches(jobs, finished_before=finished_before):
            compared = seen if finished_before else None
            changed += len(operator.act_on(connection, act, task_names, compared, makes_due=makes_due))
        return changed


class Job(models.Model):
    """One call of a task."""

    State = State

    task_name = models.CharField(_("task"), max_length=100, db_collation="C")
    queue_name = models.CharField(_("queue"), max_length=100, db_default="default", db_collation="C")
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    arguments = PlainJSONField(_("arguments"))
    headers = PlainJSONField(_("headers"), null=True)
    state = models.CharField(_("state"), max_length=12, choices=[(s.value, s.value) for s in State], db_default="ready")
    run_after = InstantField(_("run after"), db_default=Now())
    attempt = models.SmallIntegerField(_("attempt"), db_default=0)
    max_attempts = models.SmallIntegerField(_("attempts at most"), db_default=10)
    crashes = models.SmallIntegerField(_("crashes"), db_default=0)
    isolated = models.BooleanField(_("isolated"), db_default=False)
    enqueued_at = InstantField(_("enqueued at"), db_default=Now())
    finished_at = InstantField(_("finished at"), null=True)
    cancel_requested_at = InstantField(_("cancel requested at"), null=True)
    unknown_since = InstantField(_("unknown since"), null=True)
    expires_at = InstantField(_("expires at"), null=True)
    unique_key = models.CharField(_("unique key"), max_length=200, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    unique_ready_only = models.BooleanField(null=True)
    """Whether others with the key are kept away only while this one waits for the first time; never False."""
    limit_key = models.CharField(max_length=100, null=True)  # noqa: DJ001 -- NULL is "unlimited"; reserved
    result = PlainJSONField(_("result"), null=True)
    progress_done = models.FloatField(_("done"), null=True)
    progress_total = models.FloatField(_("of"), null=True)
    progress_message = models.TextField(_("message"), null=True)  # noqa: DJ001 -- NULL is "nothing told yet"
    progress_at = InstantField(_("told at"), null=True)

    if TYPE_CHECKING:
        objects: ClassVar[JobQuerySet]  # without a plugin no type checker sees what a manager has of its queryset
    else:
        objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = [
            ("retry_job", _("Can retry finished jobs")),
            ("cancel_job", _("Can cancel jobs")),
            ("run_job", _("Can run waiting jobs now")),
        ]
        indexes = [
            # Each lane, one queue at one priority, is an exact range of it; the literal state keeps
            # finished jobs out, and jobs with a limit are not seen by plain claims at all.
            models.Index(
                models.F("queue_name"),
                models.F("priority").desc(),
                models.F("run_after"),
                models.F("id"),
                name="pgqueue_job_ready",
                condition=Q(state="ready", limit_key__isnull=True),
            ),
            # Only jobs that expire are in it.
            models.Index(
                "expires_at", name="pgqueue_job_expiring", condition=Q(state="ready", expires_at__isnull=False)
            ),
            models.Index("state", "finished_at", name="pgqueue_job_finished", condition=Q(finished_at__isnull=False)),
            models.Index("task_name", "finished_at", name="pgqueue_job_task", condition=Q(finished_at__isnull=False)),
        ]
        constraints = [
            # What a job of that key would have to wait for; only jobs with a key are in it.
            models.UniqueConstraint(
                fields=["task_name", "unique_key"],
                name="pgqueue_job_unique",
                condition=Q(unique_key__isnull=False)
                & (Q(state="ready") | Q(state="running", unique_ready_only__isnull=True)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_finished_at",
                condition=Q(state__in=sorted(FINISHED), finished_at__isnull=False)
                | (~Q(state__in=sorted(FINISHED)) & Q(finished_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_run_after",
                condition=Q(run_after__gte=RUN_AFTER_FIRST, run_after__lt=RUN_AFTER_LAST),
            ),
            # What statements on many rows rely on: one row that breaks it could stop all the others.
            models.CheckConstraint(name="pgqueue_job_state", condition=Q(state__in=[state.value for state in State])),
            models.CheckConstraint(
                name="pgqueue_job_counters", condition=Q(attempt__gte=0, crashes__gte=0, max_attempts__gte=1)
            ),
            models.CheckConstraint(name="pgqueue_job_unique_ready_only", condition=Q(unique_ready_only=True)),
            models.CheckConstraint(
                name="pgqueue_job_instants",
                condition=are_instants("enqueued_at", "finished_at", "unknown_since", "expires_at"),
            ),
        ]

    is_duplicate = False
    """Whether `enqueue()` has added none, for this one has its unique key already."""

    enqueued_on: str | None = None
    """The alias that `enqueue()` wrote this job to; None if this instance comes from a query."""

    def __str__(self) -> str:
        return f"{self.task_name} #{self.pk}"

    @property
    def progress(self) -> Progress | None:
        """What the running attempt, or the last one, has told, as of the last refresh; None if nothing."""
        if self.progress_done is None:
            return None
        return Progress(self.progress_done, self.progress_total, self.progress_message or "", self.progress_at)

    def wait(self, timeout: Duration) -> Any:
        """Wait until this job is over, refresh it, and return its result; see `waiting.wait`."""
        from django_pgqueue.waiting import wait  # which reads models

        return wait(self, timeout)

    async def await_result(self, timeout: Duration) -> Any:
        """Do the same from asynchronous code; see `waiting.await_result`."""
        from django_pgqueue.waiting import await_result  # as above

        return await await_result(self, timeout)

    def retry(self, *, using: str | None = None) -> bool:
        """Make this finished job ready again, now, with all its attempts; say whether it changed.

        Returns False if the job's state or `finished_at` is not what this instance has: somebody else has retried the
        job since it was read, or it had not finished then. Call `refresh_from_db()` first to act on the present state.

        One statement in whatever transaction is open on the connection. Where another session holds the row locked it
        waits, up to `lifecycle.LOCK_WAIT_SECONDS`, and raises `JobLocked` after that. Refreshes nothing.

        Args:
            using: Alias of the database. By default the one that `enqueue()` wrote to, or that the routers name for
                writes (`db_for_write`).
        """
        from django_pgqueue.lifecycle import retry  # lifecycle stands above models

        return self._act(retry, Seen(self.state, self.finished_at), using, makes_due=True)

    def cancel(self, *, using: str | None = None) -> bool:
        """Cancel this job, or ask it to stop if it is running; say whether anything changed.

        A job that was read as waiting is also cancelled if it runs by now. One that was read as finished is left
        alone, even if somebody else has retried it since. For `using` and locked rows, see `retry()`.
        """
        from django_pgqueue.lifecycle import cancel  # as above

        return self._act(cancel, Seen(self.state, self.finished_at) if self.state in FINISHED else None, using)

    def run_now(self, *, using: str | None = None) -> bool:
        """Make this ready job due at once; say whether it changed.

        Returns False if the job's state or `run_after` is not what this instance has: it has run since, or somebody
        else has changed it. For `using` and locked rows, see `retry()`.
        """
        from django_pgqueue.lifecycle import run_now  # as above

        return self._act(run_now, Seen(self.state, run_after=self.run_after), using, makes_due=True)

    def _act(self, act: Act, seen: Seen | None, using: str | None, *, makes_due: bool = False) -> bool:
        if self.pk is None:
            raise ValueError("A job that was never enqueued cannot be changed: call enqueue() on its task.")
        connection = connections[using or self.write_alias]
        compared = None if seen is None or self._state.adding else {self.pk: seen}
        names = {self.pk: self.task_name}
        return bool(operator.act_on(connection, act, names, compared, alone=True, makes_due=makes_due))

    @property
    def write_alias(self) -> str:
        """The alias of the database that acts on this job write to."""
        return self.enqueued_on or router.db_for_write(type(self), instance=self)


class DeadJob(Job):
    """A dead letter: the same rows, for a list of their own in the admin."""

    class Meta:
        proxy = True
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ()
