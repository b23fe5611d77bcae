"""The Django model of jobs, for reading.

Only `lifecycle` writes the state of a job: `Job.retry()`, `Job.acknowledge()`, `Job.cancel()`, `Job.run_now()`,
`Job.set_max_attempts()`, `Job.delete()` and the same methods of querysets call it through `job_operations`. A stored
job refuses `save()`. `update()` and `bulk_create()` of a queryset bypass the state machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import connections, models, router
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, PlainJSONField
from django_pgqueue.ground.progress import Progress
from django_pgqueue.ground.task_results import OF_ERRORS, STATUS, AttemptError, argument_part, errors_of
from django_pgqueue.ground.visible_text import in_line
from django_pgqueue.states import FINISHED, Seen, State

from .change_results import ActOnJob, ChangeResult, changed, unchanged
from .encoded_field import CodecJSONField
from .job_indexes import CONSTRAINTS, INDEXES
from .job_mistakes import explained, missing_attribute, refused_save
from .job_querysets import JobChanges
from .operations_link import JobsToChange, check_attempts_left, check_max_attempts, operations

if TYPE_CHECKING:
    from django_pgqueue.durations import Duration

    from .operations_link import JobChange


class JobQuerySet(JobChanges["Job"]):
    """A queryset of jobs, with filters that stay fast, and with the methods of an operator for many jobs.

    Example:
        >>> Job.objects.due().filter(queue_name="mail").count()
        >>> Job.objects.dead().filter(task_name=send_receipt.name).retry()
    """


class Job(models.Model):
    """One call of a task.

    It has the attributes and methods of the `TaskResult` of Django's tasks framework. A task can then move from
    Django's decorator to this package's by changing its import: the code that reads its results stays as it is. They
    read the row as last loaded.
    """

    State = State

    task_name = models.CharField(_("task"), max_length=100, db_collation="C")
    queue_name = models.CharField(_("queue"), max_length=100, db_default="default", db_collation="C")
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    arguments = CodecJSONField(_("arguments"))
    headers = PlainJSONField(_("headers"), null=True)
    state = models.CharField(_("state"), max_length=12, choices=[(s.value, s.value) for s in State], db_default="ready")
    run_after = InstantField(_("run after"), db_default=Now())
    attempt = models.SmallIntegerField(_("attempt"), db_default=0)
    max_attempts = models.SmallIntegerField(_("attempts at most"), db_default=10)
    crashes = models.SmallIntegerField(_("crashes"), db_default=0)
    isolated = models.BooleanField(_("isolated"), db_default=False)
    enqueued_at = InstantField(_("enqueued at"), db_default=Now())
    finished_at = InstantField(_("finished at"), null=True)
    acknowledged_at = InstantField(_("acknowledged at"), null=True)
    """When an operator said that nobody has to deal with the dead job any more. NULL: nobody has."""
    cancel_requested_at = InstantField(_("cancel requested at"), null=True)
    unknown_since = InstantField(_("unknown since"), null=True)
    expires_at = InstantField(_("expires at"), null=True)
    unique_key = models.CharField(_("unique key"), max_length=200, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    unique_ready_only = models.BooleanField(null=True)
    """True: the job has its key only until it is claimed for the first time. NULL: until it has ended. Never False."""
    limit_key = models.CharField(_("limit key"), max_length=200, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    """Name of the limit, and the key in it: `stripe`, or `import:4711`. No more jobs with one key run at a time, or
    start in a period, than the limit allows. NULL: the job has no limit."""
    limit_weight = models.IntegerField(_("weight"), null=True)
    """How many slots or tokens of the limit the job takes. NULL: 1."""
    limit_order = models.SmallIntegerField(_("order"), null=True)
    """NULL: jobs with the key run in any order. 1: in the order of their ids. 2: so too, and a dead job blocks them.
    3: so too, and the dead job blocks them no longer, because it was acknowledged. A retry makes it 2 again."""
    batch_id = models.BigIntegerField(_("batch"), null=True)
    """Id of its `JobBatch`. NULL: the job belongs to no batch."""
    in_graph = models.BooleanField(null=True)
    """True: the job is a node of a workflow. NULL: it is not. Never False."""
    execution_id = models.BigIntegerField(_("execution"), null=True)
    """The execution that is open, or the last one. NULL: no worker has claimed the job yet."""
    worker_id = models.BigIntegerField(_("worker"), null=True)
    """The worker of this execution."""
    result = CodecJSONField(_("result"), null=True)
    progress_done = models.FloatField(_("done"), null=True)
    progress_total = models.FloatField(_("of"), null=True)
    progress_message = models.TextField(_("message"), null=True)  # noqa: DJ001 -- NULL is "none reported yet"
    progress_at = InstantField(_("progress reported at"), null=True)

    if TYPE_CHECKING:
        objects: ClassVar[JobQuerySet]  # without a plugin, type checkers do not see a manager's queryset methods
        id: int
        executions: Any
    else:
        objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        base_manager_name = "objects"  # so that no manager of Django's deletes jobs past `lifecycle`
        default_permissions = ("view",)
        permissions = [
            ("retry_job", _("Can retry finished jobs")),
            ("acknowledge_job", _("Can acknowledge dead jobs")),
            ("cancel_job", _("Can cancel jobs")),
            ("run_job", _("Can run waiting jobs now")),
            ("view_arguments", _("Can view arguments and results of jobs")),
            ("move_job", _("Can move waiting jobs to another queue or priority")),
            ("set_max_attempts_job", _("Can change how many attempts of unfinished jobs may count")),
            ("erase_job", _("Can erase values of finished jobs")),
            ("delete_job", _("Can delete finished jobs")),
            ("edit_and_retry_job", _("Can retry finished jobs with other arguments")),
            ("enqueue_job", _("Can enqueue jobs of any task")),
        ]
        indexes = INDEXES
        constraints = CONSTRAINTS

    is_duplicate = False
    """Whether `enqueue()` returned this existing job instead of adding one, because it has the same unique key."""

    _is_partial = False

    enqueued_on: str | None = None
    """Alias of the database that `enqueue()` wrote this job to; None if this instance comes from a query."""

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name):
            """Say what to use instead of an attribute of another queue's result."""
            raise missing_attribute(self, name)

    def __str__(self) -> str:
        return f"{in_line(self.task_name)} #{self.pk}"

    def save_base(self, *args: Any, **options: Any) -> None:
        """Do what `save()` does. Raise `TypeError` for a stored job: its methods change it, such as `cancel()`."""
        if not self._state.adding:
            raise refused_save(self)
        with explained():
            super().save_base(*args, **options)

    @property
    def progress(self) -> Progress | None:
        """The progress reported by the current or last attempt, as of the last refresh; None before any report."""
        if self.progress_done is None:
            return None
        return Progress(self.progress_done, self.progress_total, self.progress_message or "", self.progress_at)

    def wait(self, timeout: Duration) -> Any:
        """Wait until this job is finished, refresh it, and return its `return_value`.

        Retries, releases and rescues do not end the wait. `waiting.wait` describes how it polls.

        Args:
            timeout: How long to wait at most, in seconds or as a timedelta.

        Raises:
            JobFailed: The job is dead.
            JobCancelled: The job was cancelled.
            JobGone: The job's row no longer exists.
            TimeoutError: The job was not finished when `timeout` passed.
            CannotWait: The job cannot finish while this code waits, for example in the transaction that enqueued it.
            CannotDecode: This process lacks the codec or the key that the result needs.
        """
        return operations().wait(self, timeout)

    async def await_result(self, timeout: Duration) -> Any:
        """Do as `wait()` from asynchronous code."""
        return await operations().await_result(self, timeout)

    def retry(self, *, using: str | None = None) -> ChangeResult:
        """Make this finished job ready again, due now, with all its attempts.

        The change is part of the transaction that is open on the connection, if any. This instance is not refreshed.

        Args:
            using: Alias of the database. By default the one that `enqueue()` wrote to, or that the routers name for
                writes (`db_for_write`).

        Returns:
            A result that is true if the job changed. Otherwise its `reason` says why not: the state or `finished_at`
            differs from this instance (the job was retried since, or had not finished; `refresh_from_db()` reads the
            current state), another job has its key, or it would wait in a workflow and a job that it depends on has
            failed.

        Raises:
            JobLocked: Another session kept the row locked for 5 s (`lifecycle.operator.LOCK_WAIT_SECONDS`).
        """
        return self._run("retry", Seen(self.state, self.finished_at), using)

    def acknowledge(self, *, using: str | None = None) -> ChangeResult:
        """Acknowledge this dead job: nobody has to deal with it any more. Return whether it changed.

        The job stays dead, and `retry()` stays possible. It leaves `Job.objects.dead()`, the list of dead letters, the
        incidents and the counts of dead jobs. If it blocks its limit key (`on_dead="block"`), the later jobs of the key
        may start. Its batch still counts it as failed, and jobs that depend on it stay as they are.

        The result is false if its state or `finished_at` differs from this instance, or if it is acknowledged already.
        This method writes no audit. For the result, `using`, transactions and locked rows, see `retry()`.
        """
        return self._run("acknowledge", Seen(self.state, self.finished_at), using)

    def cancel(self, *, using: str | None = None) -> ChangeResult:
        """Cancel this job, or ask it to stop if it is running; return whether it changed.

        A job that was read as ready is asked to stop if it is running by now: the result is true, and its `reason` says
        so. A job that was read as finished is left alone, even if it was retried since. For the result, `using`,
        transactions and locked rows, see `retry()`.
        """
        seen = Seen(self.state, self.finished_at) if self.state in FINISHED else None
        return self._run("cancel", seen, using)

    def run_now(self, *, using: str | None = None) -> ChangeResult:
        """Make this ready job due at once; return whether it changed.

        A job that waits for others is due at once when these have ended. The result is false if the job's state or
        `run_after` differs from this instance: it has run or was changed since. For the result, `using`, transactions
        and locked rows, see `retry()`.
        """
        return self._run("run_now", Seen(self.state, run_after=self.run_after), using)

    def set_max_attempts(self, max_attempts: int, *, using: str | None = None) -> ChangeResult:
        """Change how many attempts of this unfinished job may count; return whether it changed.

        For a running job, the number counts when its attempt ends. The attempt itself still sees the old one.

        The result is false if the job has this number already, has ended, or if its state or `run_after` differs from
        this instance. This method writes no audit. For the result, `using`, transactions and locked rows, see
        `retry()`.

        Args:
            max_attempts: From 1 to 1000.
            using: Alias of the database.

        Raises:
            ValueError: The job has made so many attempts that none would be left, or the number is invalid. Nothing was
                changed.
            JobLocked: Another session kept the row locked for 5 s.
        """
        check_max_attempts(max_attempts)
        seen = Seen(self.state, run_after=self.run_after)
        result = self._run("set_max_attempts", seen, using, max_attempts=max_attempts)
        if not result:
            check_attempts_left(type(self).objects.using(using or self.write_alias).filter(pk=self.pk), max_attempts)
        return result

    def delete(
        self,
        using: str | None = None,
        keep_parents: bool = False,  # noqa: FBT001, FBT002 -- Django's signature
    ) -> tuple[int, dict[str, int]]:
        """Delete this job with its executions, if it has ended and unfinished work does not need it.

        For the result and the job that is left, see `JobQuerySet.delete()`: `(0, {})` says that it was left.

        Raises:
            CannotDelete: The job has not ended: call `cancel()` first.
            JobLocked: Another session kept the row locked for 5 s.
        """
        return operations().delete_job(self, using)

    delete.alters_data = True  # type: ignore[attr-defined]  # Django: templates must not call it

    def _run(self, act: ActOnJob, seen: Seen | None, using: str | None, **options: Any) -> ChangeResult:
        if self.pk is None:
            raise ValueError("A job that was never enqueued cannot be changed: call enqueue() on its task.")
        connection = connections[using or self.write_alias]
        compared = None if seen is None or self._state.adding else {self.pk: seen}
        change: JobChange = partial(getattr(operations(), act), **options)
        states = change(JobsToChange(connection, {self.pk: self.task_name}, compared, alone=True))
        if self.pk in states:
            return changed(act, states[self.pk])
        return unchanged(act, type(self).objects.using(connection.alias), self.pk, seen if compared else None)

    @property
    def write_alias(self) -> str:
        """Alias of the database that this job's methods write to."""
        return self.enqueued_on or router.db_for_write(type(self), instance=self)

    # ---------------------------------------------------------------- what the framework's `TaskResult` has too

    @classmethod
    def partial(cls, database: str, **known: Any) -> Self:
        """Return the job with these columns, without a query. The first use of another one loads all of them."""
        names = [field.attname for field in cls._meta.concrete_fields if field.attname in known]
        job = cls.from_db(database, names, [known[name] for name in names])
        job._is_partial = True
        return job

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Self] | None = None,
    ) -> None:
        """Reload the job's columns. Django calls this for a column that is not loaded yet."""
        if self._is_partial:
            names = {field.attname for field in self._meta.concrete_fields}
            fields = names if fields is None else {*fields, *self.get_deferred_fields()}
        super().refresh_from_db(using=using, fields=fields, from_queryset=from_queryset)
        self._is_partial = False

    @property
    def status(self) -> str:
        """`"READY"`, `"RUNNING"`, `"SUCCESSFUL"` or `"FAILED"`: equal to the member of `TaskResultStatus`."""
        return STATUS.get(self.state, "FAILED")

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended: its status is SUCCESSFUL or FAILED."""
        return self.state in FINISHED

    @property
    def return_value(self) -> Any:
        """The result as the return annotation of the task reads it; `result` has it as plain JSON.

        If this process does not know the task, or the result does not fit the annotation, this is `result` unchanged.
        Raises `ValueError` if the job has failed or is not finished, and `CannotDecode` if this process lacks the codec
        or the key that the result needs.
        """
        if self.state == State.SUCCEEDED:
            return operations().return_value(self)
        raise ValueError("Task failed" if self.status == "FAILED" else "Task has not finished yet")

    @property
    def attempts(self) -> int:
        """Number of attempts so far. Attempts that were released or snoozed do not count."""
        return self.attempt

    @property
    def args(self) -> list[Any]:
        """Positional arguments of the call. Raise `CannotDecode` if this process cannot decode them."""
        args: list[Any] = argument_part(self.arguments, "args", [])
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the call. Raise `CannotDecode` if this process cannot decode them."""
        kwargs: dict[str, Any] = argument_part(self.arguments, "kwargs", {})
        return kwargs

    @property
    def errors(self) -> list[AttemptError]:
        """The errors of the failed attempts, the oldest first. Each use runs one query."""
        return errors_of(self.state, self.executions.using(self._state.db).order_by("id").values(*OF_ERRORS))

    def refresh(self) -> None:
        """Reload the job, with one query on the database that it was read from or written to."""
        self.refresh_from_db(using=self._state.db)

    async def arefresh(self) -> None:
        """Reload the job from asynchronous code."""
        await self.arefresh_from_db(using=self._state.db)


class DeadJob(Job):
    """A proxy of `Job` for the list of dead letters in the admin."""

    class Meta:
        proxy = True
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ()
