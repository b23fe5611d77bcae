"""The table that the ORM form of a job reads and writes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Visit(models.Model):
    """A row that a job has written."""

    number = models.IntegerField()
    objects: ClassVar[models.Manager[Visit]] = models.Manager()

    def __str__(self) -> str:
        return str(self.number)
