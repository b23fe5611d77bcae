"""The Django model of executions, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, are_instants
from django_pgqueue.job_log import LogLine
from django_pgqueue.states import Outcome

from .jobs import Job


class Execution(models.Model):
    """One attempt at a job. While the job runs, the row is its lease; afterwards it is the record of the attempt.

    The fence: a worker can complete only its own execution, identified by id and claim time, and only while `outcome`
    is NULL.
    """

    Outcome = Outcome

    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.CASCADE,
        related_name="executions",
        db_constraint=False,
        db_index=False,
    )
    attempt = models.SmallIntegerField(_("attempt"))
    worker = models.ForeignKey(
        "Worker",
        verbose_name=_("worker"),
        on_delete=models.DO_NOTHING,
        related_name="executions",
        db_constraint=False,
        db_index=False,
    )
    outcome = models.CharField(  # noqa: DJ001 -- NULL is "open", the fence itself
        _("outcome"), max_length=12, null=True, choices=[(o.value, o.value) for o in Outcome]
    )
    claimed_at = InstantField(_("claimed at"), db_default=Now())
    started_at = InstantField(_("started at"), null=True)
    finished_at = InstantField(_("finished at"), null=True)
    lease_expires_at = InstantField(_("lease expires at"))
    exception_class = models.CharField(_("exception"), max_length=200, db_default="")
    error = models.TextField(_("error"), db_default="")
    traceback = models.TextField(_("traceback"), db_default="")
    limit_key = models.CharField(_("limit key"), max_length=200, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    limit_weight = models.IntegerField(_("weight"), null=True)
    """The limit key and the weight of the job at the claim. Claims count open executions by them."""

    class Meta:
        verbose_name = _("execution")
        verbose_name_plural = _("executions")
        default_permissions = ("view",)
        indexes = [
            # The lease is not a column of this index, because every heartbeat writes it: with it, extending 2,000
            # leases took 13.1 ms instead of 2.2. The predicate is not on `outcome`: with that, the planner chose a
            # bitmap scan over 30,000 dead entries.
            models.Index("worker", "id", name="pgqueue_execution_open", condition=Q(finished_at__isnull=True)),
            # Contains only open executions of jobs with a limit: a claim counts those of a key. The ids of a key's
            # executions grow in the order of their claims, so a claim can skip entries that it knows to be dead.
            # The predicate is on `outcome`, so no statement can be answered by both this index and the one above. When
            # the planner believed that no execution is open, it counted the slots of a key in the one above.
            models.Index(
                "limit_key",
                "id",
                name="pgqueue_execution_limited",
                condition=Q(outcome__isnull=True, limit_key__isnull=False),
            ),
            # Finds the latest attempt of a job: 1.6 ms instead of 570 ms for 100 jobs with 10,000 attempts.
            models.Index("job", "id", name="pgqueue_execution_job"),
        ]
        constraints = [
            # Limits a job to one open execution in every case, without measurable cost (24,041 jobs/s without it,
            # 23,870 with it). `attempt >= 0` is always true. Only the statements in `sql.requeues` repeat it, so
            # the planner uses this index for no other statement. With a predicate on `outcome` alone, the planner used
            # it for the fence, and throughput fell to 9,400 jobs/s.
            models.UniqueConstraint(
                fields=["job"], name="pgqueue_execution_one_open", condition=Q(finished_at__isnull=True, attempt__gte=0)
            ),
            models.CheckConstraint(
                name="pgqueue_execution_closed",
                condition=Q(outcome__isnull=True, finished_at__isnull=True)
                | Q(outcome__isnull=False, finished_at__isnull=False),
            ),
            # Without it, an execution with a negative attempt would not be in the unique index above.
            models.CheckConstraint(name="pgqueue_execution_attempt", condition=Q(attempt__gte=0)),
            models.CheckConstraint(
                name="pgqueue_execution_outcome", condition=Q(outcome__in=[outcome.value for outcome in Outcome])
            ),
            models.CheckConstraint(
                name="pgqueue_execution_instants",
                condition=are_instants("claimed_at", "started_at", "finished_at", "lease_expires_at"),
            ),
        ]

    def __str__(self) -> str:
        return f"execution #{self.pk} of job #{self.job_id}"

    @property
    def log_lines(self) -> list[LogLine]:
        """The lines that the task logged, if it has `keep_logs`, oldest first. Runs a query on the first access.

        `execution.log` is the row, with the number of lines that were not kept. It does not exist without lines.
        """
        return self.log.lines if hasattr(self, "log") else []
