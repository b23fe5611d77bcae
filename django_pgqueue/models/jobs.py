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

from django_pgqueue import signals
from django_pgqueue.db import CANCEL_ASKED, wake_workers_after_commit
from django_pgqueue.fields import InstantField, PlainJSONField, are_instants
from django_pgqueue.progress import Progress
from django_pgqueue.states import FINISHED, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.exceptions import Duration

    class Act(Protocol):
        """An operator's act of `lifecycle`."""

        def __call__(
            self, connection: BaseDatabaseWrapper, job_ids: Sequence[int], *, alone: bool = False
        ) -> dict[int, State]: ...


BATCH_SIZE = 1000
"""Jobs that one statement of a queryset's `retry()` or `cancel()` takes."""

RUN_AFTER_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
RUN_AFTER_LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""No driver can read a timestamp after the year 9999, and one such row would stop its whole claim."""


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs, with the acts an operator has on many at once."""

    def retry(self) -> int:
        """Make the finished jobs of this queryset ready again, now, with all their attempts; say how many.

        In batches, each a transaction of its own unless the caller has one open. Jobs that are not
        finished, or that another session holds locked, are left alone and not counted.
        """
        from django_pgqueue.lifecycle import retry  # lifecycle stands above models

        return self._in_batches(retry, makes_due=True)

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

    def _in_batches(self, act: Act, *, makes_due: bool = False) -> int:
        connection = connections[self._db or router.db_for_write(Job)]
        names = self.using(connection.alias).order_by("pk").values_list("pk", "task_name")
        changed, last_id = 0, 0
        while batch := dict(names.filter(pk__gt=last_id)[:BATCH_SIZE]):
            changes = act(connection, list(batch))
            _tell_cancelled(changes, batch, connection)
            changed += len(changes)
            last_id = max(batch)
        if changed and makes_due:
            wake_workers_after_commit(connection)
        return changed


class Job(models.Model):
    """One call of a task."""

    State = State

    task_name = models.CharField(_("task"), max_length=100)
    queue_name = models.CharField(_("queue"), max_length=100, db_default="default")
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
    unique_key = models.CharField(_("unique key"), max_length=200, null=True)  # noqa: DJ001 -- NULL is "none"
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

    def retry(self) -> bool:
        """Make this finished job ready again, now, with all its attempts; say whether it changed.

        One statement on the connection this job came from, in whatever transaction is open there. Where another session
        holds the row locked it waits, up to `lifecycle.LOCK_WAIT_SECONDS`, and raises `JobLocked` after that. Refreshes
        nothing: see `refresh_from_db()`.
        """
        from django_pgqueue.lifecycle import retry  # lifecycle stands above models

        return self._act(retry, makes_due=True)

    def cancel(self) -> bool:
        """Cancel this job, or ask it to stop if it is running; say whether anything changed. See `retry()`."""
        from django_pgqueue.lifecycle import cancel  # as above

        return self._act(cancel)

    def run_now(self) -> bool:
        """Make this ready job due at once; say whether it changed. See `retry()`."""
        from django_pgqueue.lifecycle import run_now  # as above

        return self._act(run_now, makes_due=True)

    def _act(self, act: Act, *, makes_due: bool = False) -> bool:
        if self.pk is None:
            raise ValueError("A job that was never enqueued cannot be changed: call enqueue() on its task.")
        connection = connections[self._state.db or router.db_for_write(Job)]
        changes = act(connection, [self.pk], alone=True)
        changed = bool(changes)
        _tell_cancelled(changes, {self.pk: self.task_name}, connection)
        if changed and makes_due:
            wake_workers_after_commit(connection)
        return changed


def _tell_cancelled(
    changes: Mapping[int, State], task_names: Mapping[int, str], connection: BaseDatabaseWrapper
) -> None:
    """Send the signal for jobs that an act has ended cancelled, and word to the workers of those that it has asked."""
    if State.RUNNING in changes.values():
        wake_workers_after_commit(connection, CANCEL_ASKED)
    if signals.job_cancelled.receivers:
        for job_id, state in changes.items():
            if state is State.CANCELLED:
                signals.job_cancelled.send_robust(
                    sender=task_names[job_id], job_id=job_id, database=connection.alias, error=""
                )


class DeadJob(Job):
    """A dead letter: the same rows, for a list of their own in the admin."""

    class Meta:
        proxy = True
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ()
