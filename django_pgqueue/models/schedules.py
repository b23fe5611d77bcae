"""The Django models of schedules and their ticks, for reading and for the admin. Only `lifecycle` writes them.

The row has all that a tick needs, so any worker can fire it, whichever version of the code it runs. Only schedules of
tasks with a unique key or a limit need a worker that knows the task.
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
    PlainJSONField,
    are_instants,
    are_numbers,
)
from django_pgqueue.ground.visible_text import in_line


class Origin(models.TextChoices):
    """Where a schedule is defined."""

    CODE = "code", _("code")
    ADMIN = "admin", _("admin")


class Missed(models.TextChoices):
    """The rule for ticks that passed while no worker was running."""

    SKIP = "skip", _("skip them")
    LATEST = "latest", _("run once for all of them")
    ALL = "all", _("run each, the last 100 at most")


class IfRunning(models.TextChoices):
    """The rule for a tick that comes while an earlier job of the schedule is not finished."""

    OVERLAP = "overlap", _("run beside it")
    SKIP = "skip", _("skip this tick")
    QUEUE = "queue", _("run after it")


class Schedule(models.Model):
    """A schedule: a task, its arguments, and the times at which it is enqueued."""

    name = models.CharField(_("name"), max_length=200, db_collation="C")
    origin = models.CharField(_("defined in"), max_length=5, choices=Origin, db_default=Origin.ADMIN)
    task_name = models.CharField(_("task"), max_length=100)
    arguments = PlainJSONField(_("arguments"))
    expression = models.CharField(_("when"), max_length=200)
    time_zone = models.CharField(_("time zone"), max_length=64, db_default="UTC")
    missed = models.CharField(_("missed runs"), max_length=6, choices=Missed, db_default=Missed.LATEST)
    if_running = models.CharField(_("if one still runs"), max_length=7, choices=IfRunning, db_default=IfRunning.OVERLAP)
    jitter_seconds = models.FloatField(_("jitter"), db_default=0)
    queue_name = models.CharField(_("queue"), max_length=100, db_default="default")
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    max_attempts = models.SmallIntegerField(_("attempts at most"), db_default=10)
    expires_seconds = models.FloatField(null=True)
    """Seconds after the enqueue by which a job has to start. None: no limit."""
    is_unique = models.BooleanField(db_default=False)
    """Whether the task has a unique key. A worker whose code has no key for the task leaves the ticks to others."""
    is_limited = models.BooleanField(db_default=False)
    """Whether the task has a limit. A worker whose code has no limit for the task leaves the ticks to others."""
    has_own_queue = models.BooleanField(db_default=False)
    """Whether a schedule of the admin sets its jobs' queue. If not, they get the current queue of the task."""
    has_own_priority = models.BooleanField(db_default=False)
    """Whether the schedule sets the priority of its jobs, as above."""
    enabled = models.BooleanField(_("enabled"), db_default=True)
    paused_until = InstantField(_("paused until"), null=True)
    """The end of a pause with an end. The schedule stays enabled, and no tick fires before this time."""
    next_run_at = InstantField(_("next run"))
    last_run_at = InstantField(_("last run"), null=True)
    last_job_id = models.BigIntegerField(_("last job"), null=True)
    revision = models.BigIntegerField(db_default=0)
    """Incremented by every change. Nothing that was computed from an earlier revision is written."""
    digest = models.CharField(max_length=32, db_default="")
    """Hash of the definition in code; empty for schedules of the admin."""
    former_digests = models.TextField(db_default="")
    """Hashes of earlier definitions, the latest last. A worker whose definition is here runs older code."""
    confirmed_at = InstantField(null=True)
    """When a worker whose code has this definition last confirmed it; NULL for schedules of the admin."""
    problem = models.TextField(_("problem"), db_default="")
    """Why the due tick could not be fired, as the worker that tried last reported it."""

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("run_schedule", _("Can run schedules now")),
            ("pause_schedule", _("Can pause and resume schedules, and skip their runs")),
        ]
        constraints = [
            models.CheckConstraint(
                condition=are_numbers("id", "last_job_id", "revision")
                & are_numbers("jitter_seconds", "expires_seconds", most=MOST_COUNT)
                & Q(max_attempts__gte=1),
                name="pgqueue_schedule_numbers",
            ),
            models.UniqueConstraint(fields=["origin", "name"], name="pgqueue_schedule_name"),
            models.CheckConstraint(
                name="pgqueue_schedule_choices",
                condition=Q(origin__in=Origin.values, missed__in=Missed.values, if_running__in=IfRunning.values),
            ),
            models.CheckConstraint(
                name="pgqueue_schedule_instants",
                condition=are_instants("next_run_at", "last_run_at", "confirmed_at", "paused_until"),
            ),
        ]

    def __str__(self) -> str:
        return in_line(self.name)


class ScheduleRun(models.Model):
    """A tick of a schedule that was fired or skipped, and its job. The row keeps the tick from being fired again."""

    schedule = models.ForeignKey(
        Schedule, verbose_name=_("schedule"), on_delete=models.DO_NOTHING, related_name="runs", **UNCHECKED
    )
    tick_at = InstantField(_("tick"))
    fired_at = InstantField(_("fired at"), db_default=Now())
    job_id = models.BigIntegerField(_("job"), null=True)
    """None if the tick was skipped: an earlier job was not finished, or another job had the unique key."""
    skipped_by = models.CharField(_("skipped by"), max_length=150, null=True)  # noqa: DJ001 -- "" is an unknown name
    """The operator who skipped the tick before it came. None: no operator did."""

    class Meta:
        verbose_name = _("run of a schedule")
        verbose_name_plural = _("runs of schedules")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["schedule", "tick_at"], name="pgqueue_schedulerun_tick"),
            models.CheckConstraint(condition=are_instants("tick_at", "fired_at"), name="pgqueue_schedulerun_instants"),
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_schedulerun_numbers"),
        ]
        indexes = [models.Index("job_id", name="pgqueue_schedulerun_job")]

    def __str__(self) -> str:
        return f"tick {self.tick_at} of schedule #{self.schedule_id}"
