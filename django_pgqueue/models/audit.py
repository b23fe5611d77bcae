"""The Django models of the audit: what operators and programs did to jobs, and to which jobs.

An entry is also the record of a bulk act that workers execute (see `lifecycle.bulk_acts`): the filter, the rate, the
progress, and where the next batch begins. Only `lifecycle.audit` and `lifecycle.bulk_acts` write these tables.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import (
    MOST_COUNT,
    MOST_ID,
    UNCHECKED,
    InstantField,
    IsJson,
    PlainJSONField,
    are_instants,
    are_numbers,
)
from django_pgqueue.states import ActOutcome


class AuditEntry(models.Model):
    """An act on jobs, or a request to a worker: who, when, why, which jobs, how many, and how it ended."""

    Outcome = ActOutcome

    action = models.CharField(_("action"), max_length=50)
    done_by = models.CharField(_("by"), max_length=150, db_default="", blank=True)
    reason = models.TextField(_("reason"), db_default="", blank=True)
    began_at = InstantField(_("began at"), db_default=Now())
    ended_at = InstantField(_("ended at"), null=True)
    """None: it is under way, or was interrupted."""
    filter = PlainJSONField(_("filter"))
    """Which jobs were chosen, and what was done to them; or the worker. It never contains arguments or results."""
    job_count = models.BigIntegerField(_("jobs"), db_default=0)
    """Number of jobs changed so far. Each batch adds its jobs in its own transaction."""
    left_count = models.BigIntegerField(_("jobs left"), db_default=0)
    """Number of chosen jobs left unchanged so far: they had changed since they were chosen, or were locked."""
    total = models.BigIntegerField(_("jobs chosen"), null=True)
    """Number of jobs that the preview counted. None: nobody counted them."""
    rate = models.FloatField(_("jobs per second"), null=True)
    """None: no limit."""
    stops_on_repeat = models.BooleanField(_("stops at the first repeat"), db_default=False)
    """Whether the act ends as soon as a retried job fails again with the error that it had died of."""
    previewed_at = InstantField(_("previewed at"), null=True)
    """The act leaves out jobs that have changed since. None: it was not previewed."""
    next_batch_at = InstantField(_("next batch at"), null=True)
    """When workers execute the next batch. None: the act has ended, or another program executes it."""
    cursor = PlainJSONField(_("cursor"), null=True)
    """Where the next batch begins. None: at the first job."""
    stop_asked_at = InstantField(_("stop asked at"), null=True)
    stop_asked_by = models.CharField(_("stop asked by"), max_length=150, db_default="", blank=True)
    outcome = models.CharField(  # noqa: DJ001 -- NULL is "not ended"
        _("outcome"), max_length=12, null=True, choices=[(each.value, each.value) for each in ActOutcome]
    )
    failed_job_id = models.BigIntegerField(_("job that failed again"), null=True)
    error = models.TextField(_("error"), db_default="", blank=True)
    """Why the act failed, or the error of the job that failed again."""
    form_token = models.UUIDField(_("form"), null=True)
    """Identifies the form that the act was sent with, so that a second click on its button does nothing."""

    class Meta:
        db_table = "pgqueue_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ()
        indexes = [
            # Contains only the acts that workers execute, so that an idle worker looks into an empty index.
            models.Index("next_batch_at", name="pgqueue_audit_next", condition=Q(next_batch_at__isnull=False)),
            models.Index("action", "began_at", name="pgqueue_audit_action"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=are_instants("began_at", "ended_at", "previewed_at", "next_batch_at", "stop_asked_at"),
                name="pgqueue_audit_instants",
            ),
            models.CheckConstraint(
                condition=are_numbers("id", "job_count", "left_count", "total", "failed_job_id")
                & are_numbers("rate", most=MOST_COUNT),
                name="pgqueue_audit_numbers",
            ),
            models.CheckConstraint(condition=Q(IsJson("filter", "object")), name="pgqueue_audit_filter"),
            models.UniqueConstraint(
                fields=["form_token"], name="pgqueue_audit_form", condition=Q(form_token__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} #{self.pk}"


class AuditedJob(models.Model):
    """A job that an act has changed. The row is written in the same transaction as the change."""

    entry = models.ForeignKey(
        AuditEntry,
        db_column="audit_id",
        on_delete=models.CASCADE,
        related_name="jobs",
        verbose_name=_("audit entry"),
        **UNCHECKED,
    )
    job_id = models.BigIntegerField(_("job"))
    """Not a foreign key, because the rows of an act that deletes jobs outlive the jobs."""
    detail = PlainJSONField(_("detail"), null=True)
    """A change that the act made to this job alone. `erase()` removes it together with arguments."""

    class Meta:
        db_table = "pgqueue_audit_job"
        verbose_name = _("audited job")
        verbose_name_plural = _("audited jobs")
        default_permissions = ()
        indexes = [models.Index("entry", "id", name="pgqueue_audit_job_entry")]
        constraints = [
            models.UniqueConstraint(fields=["job_id", "entry"], name="pgqueue_audit_job_once"),
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_audit_job_numbers"),
        ]

    def __str__(self) -> str:
        return f"#{self.job_id} in act {self.entry_id}"
