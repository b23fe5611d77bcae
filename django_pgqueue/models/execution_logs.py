"""The Django model of the log lines that executions keep, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.db.fields import PlainJSONField, are_numbers
from django_pgqueue.ground.job_log import LogLine, as_lines

from .executions import Execution


class ExecutionLog(models.Model):
    """The lines that a task with `keep_logs` logged in one execution: the first ones and the last ones.

    It has its own table, so that executions without lines cost nothing more.
    """

    execution = models.OneToOneField(
        Execution,
        verbose_name=gettext_lazy("execution"),
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="log",
        db_constraint=False,
    )
    first_lines = PlainJSONField(gettext_lazy("first lines"))
    last_lines = PlainJSONField(gettext_lazy("last lines"))
    cut_lines = models.BigIntegerField(gettext_lazy("lines cut"))

    class Meta:
        db_table = "pgqueue_execution_log"
        verbose_name = gettext_lazy("execution log")
        verbose_name_plural = gettext_lazy("execution logs")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=are_numbers("cut_lines"), name="pgqueue_execution_log_numbers"),
        ]

    def __str__(self) -> str:
        return f"log of execution #{self.pk}"

    @classmethod
    def latest_of(cls, alias: str, job_id: int) -> ExecutionLog | None:
        """Return the log of the latest execution of a job that has one, with its execution, or None."""
        found = cls.objects.using(alias).filter(execution__job_id=job_id).select_related("execution")
        return found.defer("execution__error", "execution__traceback").order_by("-execution_id").first()

    @property
    def lines(self) -> list[LogLine]:
        """The lines, oldest first. `cut_lines` lines between the first and the last ones were not kept."""
        return as_lines(self.first_lines) + as_lines(self.last_lines)

    @property
    def text(self) -> str:
        """The lines as text, with a note in the place of the lines that were not kept. Times are in UTC."""
        note = [_("[… %(count)d lines were not kept …]") % {"count": self.cut_lines}] if self.cut_lines else []
        first, last = as_lines(self.first_lines), as_lines(self.last_lines)
        return "\n".join([*map(str, first), *note, *map(str, last)])
