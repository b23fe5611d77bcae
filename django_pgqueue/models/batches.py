"""The Django models of batches, for reading. Only `lifecycle` writes them. Applications use `django_pgqueue.Batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models, router
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import (
    MOST_COUNT,
    MOST_ID,
    UNCHECKED,
    InstantField,
    IsJson,
    OneOf,
    PlainJSONField,
    are_instants,
    are_numbers,
)
from django_pgqueue.ground.visible_text import in_line

from .operations_link import check_deletable, operations


class JobBatchQuerySet(models.QuerySet["JobBatch"]):
    """A queryset of batches. `delete()` leaves those that have jobs or nested batches."""

    _db: str | None

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the complete batches of this queryset whose jobs and nested batches are gone. Return Django's counts.

        Raises:
            CannotDelete: A batch is not complete. Nothing was deleted.
        """
        check_deletable(self)
        self._result_cache = None
        return operations().delete_batches(self, self._db or router.db_for_write(JobBatch), self)

    delete.alters_data = True  # type: ignore[attr-defined]  # Django: templates must not call it
    delete.queryset_only = True  # type: ignore[attr-defined]  # not available as JobBatch.objects.delete()


class JobBatch(models.Model):
    """A group of jobs with callbacks: jobs that are added when the batch fails, completes or succeeds."""

    description = models.TextField(_("description"), db_default="")
    parent = models.ForeignKey(
        "self", verbose_name=_("part of"), null=True, on_delete=models.DO_NOTHING, related_name="nested", **UNCHECKED
    )
    created_at = InstantField(_("created at"), db_default=Now())
    closed_at = InstantField(_("closed at"), null=True)
    """NULL: the batch is open, so it does not complete even if it has no unfinished job."""
    failed_at = InstantField(_("failed at"), null=True)
    """When its first job was found dead or cancelled."""
    completed_at = InstantField(_("completed at"), null=True)
    """When it was closed and had no unfinished job. Later additions are refused."""
    succeeded_at = InstantField(_("succeeded at"), null=True)
    """When it was complete, and none of its jobs was dead or cancelled."""
    on_success = PlainJSONField(_("on success"), null=True)
    on_complete = PlainJSONField(_("on complete"), null=True)
    on_failure = PlainJSONField(_("on failure"), null=True)
    """The columns of the job to add, or NULL. The arguments are encoded as in the row of a job."""

    if TYPE_CHECKING:
        objects: ClassVar[JobBatchQuerySet]  # as for jobs
    else:
        objects = JobBatchQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_batch"
        base_manager_name = "objects"
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        default_permissions = ("view",)
        permissions = [("close_batch", _("Can close batches"))]
        indexes = [
            models.Index(fields=["parent"], name="pgqueue_batch_parent", condition=Q(parent__isnull=False)),
            # Contains the batches that the sweep looks at every 10 s.
            models.Index(fields=["id"], name="pgqueue_batch_incomplete", condition=Q(completed_at__isnull=True)),
            # Contains those that it looks at once an hour as well: complete ones that have not succeeded.
            models.Index(fields=["id"], name="pgqueue_batch_unsettled", condition=Q(succeeded_at__isnull=True)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=are_instants("created_at", "closed_at", "failed_at", "completed_at", "succeeded_at"),
                name="pgqueue_batch_instants",
            ),
            # A batch is created after the one that it is nested in. Otherwise batches could form a circle, which no
            # statement that walks through them would leave.
            models.CheckConstraint(
                condition=Q(parent__lt=models.F("id"), id__lt=MOST_ID), name="pgqueue_batch_numbers"
            ),
            models.CheckConstraint(
                condition=Q(IsJson("on_success", "object"))
                & Q(IsJson("on_complete", "object"))
                & Q(IsJson("on_failure", "object")),
                name="pgqueue_batch_calls",
            ),
        ]

    def __str__(self) -> str:
        return in_line(self.description) or f"batch #{self.pk}"

    def delete(
        self,
        using: str | None = None,
        keep_parents: bool = False,  # noqa: FBT001, FBT002 -- Django's signature
    ) -> tuple[int, dict[str, int]]:
        """Delete this batch, if it is complete, and has no jobs and no nested batches any more: see the queryset's."""
        alias = using or router.db_for_write(JobBatch, instance=self)
        return operations().delete_batches(JobBatch.objects.filter(pk=self.pk), alias, self)

    delete.alters_data = True  # type: ignore[attr-defined]  # Django: templates must not call it

    @classmethod
    def ids_with_nested(cls, batch_id: int, database: str) -> list[int]:
        """Return the id of a batch and those of all batches nested in it, with one query for each level."""
        found, level = [batch_id], [batch_id]
        while level:
            nested = cls._default_manager.using(database).filter(parent_id__in=level)
            level = list(nested.values_list("pk", flat=True))
            found += level
        return found


class BatchRemoval(models.Model):
    """Jobs of a batch that were removed: discarded, pruned, archived or deleted. The progress still counts them.

    The statement that removes jobs appends a row, so that no two statements wait for one another.
    """

    batch_id = models.BigIntegerField(_("batch"))
    state = models.CharField(_("state"), max_length=12)
    count = models.BigIntegerField(_("jobs"))

    class Meta:
        db_table = "pgqueue_batch_removal"
        verbose_name = _("removed jobs of a batch")
        verbose_name_plural = _("removed jobs of batches")
        default_permissions = ()
        indexes = [models.Index(fields=["batch_id"], name="pgqueue_batch_removal_batch")]
        constraints = [
            models.CheckConstraint(
                condition=Q(OneOf("state", "succeeded", "dead", "cancelled")), name="pgqueue_batch_removal_state"
            ),
            models.CheckConstraint(
                condition=Q(id__lt=MOST_ID) & are_numbers("count", most=MOST_COUNT),
                name="pgqueue_batch_removal_numbers",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.count} {self.state} of batch #{self.batch_id}"
