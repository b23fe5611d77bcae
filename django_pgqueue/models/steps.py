"""The Django models of durable steps and of events, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, UNCHECKED, InstantField, IsJson, PlainJSONField, are_instants, aware
from django_pgqueue.declared.steps import MAX_KEY_LENGTH, MAX_NAME_LENGTH
from django_pgqueue.states import StepKind, StepState

from .encoded_field import CodecJSONField
from .jobs import Job


class JobStep(models.Model):
    """A durable step of a job: a function that has returned, a sleep, or a wait for an event.

    It has its own table, so that jobs without steps cost nothing more.
    """

    Kind = StepKind
    State = StepState

    pk = models.CompositePrimaryKey("job_id", "name")
    job = models.ForeignKey(Job, verbose_name=_("job"), on_delete=models.CASCADE, related_name="steps", **UNCHECKED)
    name = models.CharField(_("name"), max_length=MAX_NAME_LENGTH, db_collation="C")
    position = models.FloatField(_("position"))
    """The order of the steps. A step that the code has gained between two stored ones gets a position between them."""
    kind = models.CharField(_("kind"), max_length=12, choices=[(k.value, k.value) for k in StepKind])
    attempt = models.SmallIntegerField(_("attempt"))
    """The attempt that wrote the row last."""
    tries = models.IntegerField(_("tries"), db_default=1)
    result = CodecJSONField(_("result"), null=True)
    """The value that the function returned, or the payload of the event."""
    error = models.TextField(_("error"), db_default="")
    """The error of the last try, if the step is to be retried."""
    started_at = InstantField(_("started at"))
    finished_at = InstantField(_("finished at"), null=True)
    wake_at = InstantField(_("wakes at"), null=True)
    """When a sleep ends, a wait for an event times out, or a failed function is tried again."""
    event_name = models.CharField(_("event"), max_length=MAX_NAME_LENGTH, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    event_key = models.CharField(_("key"), max_length=MAX_KEY_LENGTH, null=True, db_collation="C")  # noqa: DJ001 -- NULL is "none"
    event_id = models.BigIntegerField(_("received event"), null=True)
    compensation = PlainJSONField(_("compensation"), null=True)
    """The columns of the job that undoes the step, without its arguments.

    It is NULL if the step has no compensation, if that job was added, or if the job of the step has succeeded.
    """
    compensation_arguments = CodecJSONField(_("arguments of the compensation"), null=True)
    compensation_id = models.BigIntegerField(_("compensated by"), null=True)
    """Id of the job that undoes the step, if it was added."""

    class Meta:
        db_table = "pgqueue_step"
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        default_permissions = ()
        indexes = [
            # Contains only waits that have not ended. Finds those for one event, and the pages of the sweep.
            models.Index(
                fields=["event_name", "event_key", "job"],
                name="pgqueue_step_waiting",
                condition=Q(event_name__isnull=False, finished_at__isnull=True),
            ),
            # Contains only sleeps and steps that are tried again, by their ends. Metrics count those in the future.
            models.Index(
                fields=["wake_at"],
                name="pgqueue_step_wakes",
                condition=Q(event_name__isnull=True, finished_at__isnull=True),
            ),
            # Finds the jobs that have received an event. Metrics count the events that none has.
            models.Index(fields=["event_id"], name="pgqueue_step_event", condition=Q(event_id__isnull=False)),
            # Contains the steps whose compensation was added. Finds out whether a dead job is such a compensation.
            models.Index(
                fields=["compensation_id"], name="pgqueue_step_undone", condition=Q(compensation_id__isnull=False)
            ),
            # Contains the steps that the sweep for compensations looks at, and that keep their jobs from being removed.
            models.Index(fields=["job"], name="pgqueue_step_compensation", condition=Q(compensation__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=are_instants("started_at", "finished_at", "wake_at"), name="pgqueue_step_instants"
            ),
            models.CheckConstraint(condition=Q(IsJson("compensation", "object")), name="pgqueue_step_calls"),
        ]

    def __str__(self) -> str:
        return f"step {self.name!r} of job #{self.job_id}"

    @property
    def state(self) -> StepState:
        """The state of the step. Whether a sleep is over is decided by the clock of this machine."""
        if self.finished_at is not None:
            timed_out = self.kind == StepKind.EVENT and self.event_id is None
            return StepState.TIMED_OUT if timed_out else StepState.FINISHED
        if self.kind == StepKind.SLEEP:
            over = self.wake_at is not None and self.wake_at <= aware(timezone.now())
            return StepState.FINISHED if over else StepState.SLEEPING
        return StepState.WAITING if self.kind == StepKind.EVENT else StepState.RETRYING


class SentEvent(models.Model):
    """An event that an application has sent with `send_event()`. Several jobs can receive the same event."""

    name = models.CharField(_("name"), max_length=MAX_NAME_LENGTH, db_collation="C")
    key = models.CharField(_("key"), max_length=MAX_KEY_LENGTH, db_collation="C")
    payload = CodecJSONField(_("payload"), null=True)
    sent_at = InstantField(_("sent at"), db_default=Now())

    class Meta:
        db_table = "pgqueue_event"
        verbose_name = _("event")
        verbose_name_plural = _("events")
        default_permissions = ()
        indexes = [models.Index(fields=["name", "key", "id"], name="pgqueue_event_key")]
        constraints = [
            models.CheckConstraint(condition=are_instants("sent_at"), name="pgqueue_event_instants"),
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_event_numbers"),
        ]

    def __str__(self) -> str:
        return f"event {self.name!r} #{self.pk}"
