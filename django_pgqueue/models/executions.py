"""The Django model of executions, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, UNCHECKED, InstantField, OneOf, are_instants
from django_pgqueue.ground.job_log import LogLine
from django_pgqueue.states import Outcome

from .jobs import Job


class Execution(models.Model):
    """One attempt at a job, and after it the record of the attempt.

    The fence: a worker can complete only its own execution, identified by id and claim time, only while `outcome` is
    NULL, and only if the job's row names it in `execution_id`. So a job has at most one execution that counts.
    """

    Outcome = Outcome

    job = models.ForeignKey(
        Job, verbose_name=_("job"), on_delete=models.CASCADE, related_name="executions", **UNCHECKED
    )
    attempt = models.SmallIntegerField(_("attempt"))
    worker = models.ForeignKey(
        "Worker", verbose_name=_("worker"), on_delete=models.DO_NOTHING, related_name="executions", **UNCHECKED
    )
    outcome = models.CharField(  # noqa: DJ001 -- NULL is "open", the fence itself
        _("outcome"), max_length=12, null=True, choices=[(o.value, o.value) for o in Outcome]
    )
    claimed_at = InstantField(_("claimed at"), db_default=Now())
    started_at = InstantField(_("started at"), null=True)
    finished_at = InstantField(_("finished at"), null=True)
    lease_expires_at = InstantField(_("lease expires at"))
    """Until when the execution belongs to its worker, if the worker's own lease ends earlier. A claim writes it, and
    remote workers extend it."""
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
            # Finds the latest attempt of a job: 1.6 ms instead of 570 ms for 100 jobs with 10,000 attempts.
            # No index has a column that a completion changes. So its update is HOT, and writes no index entry. The
            # indexes of running jobs find the open executions.
            models.Index("job", "id", name="pgqueue_execution_job"),
        ]
        constraints = [
            models.CheckConstraint(
                name="pgqueue_execution_outcome",
                # With NULL in `outcome`, the second condition is NULL too, which a check accepts.
                condition=Q(
                    Exact(IsNull(models.F("finished_at"), rhs=True), IsNull(models.F("outcome"), rhs=True)),
                    OneOf("outcome", *(outcome.value for outcome in Outcome)),
                    id__lt=MOST_ID,
                ),
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
