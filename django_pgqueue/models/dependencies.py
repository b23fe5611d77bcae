"""The Django model of the edges of workflows, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import UNCHECKED
from django_pgqueue.states import FailurePolicy

from .jobs import Job

POLICIES = [policy.value for policy in FailurePolicy]


class JobDependency(models.Model):
    """An edge of a workflow: `job` is the dependent, which waits for the end of its dependency `needs`.

    It has its own table, so that jobs outside of workflows cost nothing more.
    """

    Policy = FailurePolicy

    pk = models.CompositePrimaryKey("job_id", "needs_id")
    job = models.ForeignKey(
        Job, verbose_name=_("job"), on_delete=models.CASCADE, related_name="dependencies", **UNCHECKED
    )
    needs = models.ForeignKey(
        Job, verbose_name=_("needs"), on_delete=models.DO_NOTHING, related_name="dependents", **UNCHECKED
    )
    policy = models.CharField(
        _("if the dependency fails"), max_length=12, choices=[(policy, policy) for policy in POLICIES]
    )
    has_cancelled = models.BooleanField(_("has cancelled"), null=True)
    """True: the end of `needs` has cancelled `job`, and a retry of `needs` restores it. Otherwise NULL."""

    class Meta:
        db_table = "pgqueue_dependency"
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        default_permissions = ()
        # Finds the dependents of a job that has ended. The primary key finds the dependencies of a dependent.
        indexes = [models.Index(fields=["needs", "job"], name="pgqueue_dependency_needs")]
        constraints = [models.CheckConstraint(name="pgqueue_dependency_policy", condition=Q(policy__in=POLICIES))]

    def __str__(self) -> str:
        return f"job #{self.job_id} needs #{self.needs_id}"
