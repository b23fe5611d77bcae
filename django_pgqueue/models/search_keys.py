"""The Django model of search keys, for reading. Only `lifecycle` writes them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import UNCHECKED
from django_pgqueue.ground.search_text import MAX_LENGTH, MAX_NAME_LENGTH

from .jobs import Job


class SearchKey(models.Model):
    """An argument of a job by which operators find the job: an argument that the task's option `search` names.

    It has its own table, so that jobs of tasks without that option cost nothing more.
    """

    pk = models.CompositePrimaryKey("job_id", "name")
    job = models.ForeignKey(
        Job, verbose_name=_("job"), on_delete=models.CASCADE, related_name="search_keys", **UNCHECKED
    )
    name = models.CharField(_("name"), max_length=MAX_NAME_LENGTH, db_collation="C")
    value = models.CharField(_("value"), max_length=MAX_LENGTH, db_collation="C")

    class Meta:
        db_table = "pgqueue_search_key"
        verbose_name = _("search key")
        verbose_name_plural = _("search keys")
        default_permissions = ()
        indexes = [models.Index(fields=["name", "value", "-job"], name="pgqueue_search_key_value")]

    def __str__(self) -> str:
        return f"{self.name} of job #{self.job_id}"
