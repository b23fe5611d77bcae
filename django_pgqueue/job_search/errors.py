"""Conditions on the exception class of a job's latest attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from django.db import connections
from django.db.models import OuterRef, Q, QuerySet, Subquery

from django_pgqueue import stats
from django_pgqueue.models import Execution, Job
from django_pgqueue.models.operations import BATCH_SIZE

from .filters import Filters

NO_CLASS: Final = "-"
"""The filter by exception class that finds jobs whose latest attempt was lost with its process or worker."""


def matching(filters: Filters, condition: Q, ids: Sequence[int]) -> list[int]:
    """Return those of some jobs that meet a condition and the filter by exception class, in the given order."""
    found = set(ids)
    if condition:
        parts = (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))
        jobs = Job.objects.using(filters.alias).filter(condition)
        found = {job_id for part in parts for job_id in jobs.filter(pk__in=part).values_list("pk", flat=True)}
    if filters.error:
        pattern = error_pattern(filters.error)
        found &= stats.jobs_with_exception(connections[filters.alias], sorted(found), pattern)
    return [job_id for job_id in ids if job_id in found]


def error_pattern(error: str) -> str:
    """Return a regular expression for an exception class: the whole path, or its last part if that was given."""
    if error == NO_CLASS:
        return "^$"
    return rf"^{re.escape(error)}$" if "." in error else rf"(^|\.){re.escape(error)}$"


def latest(column: str) -> QuerySet[Any]:
    """Return a query for a column of a job's latest execution. Both columns of the order use one index."""
    executions: QuerySet[Any] = Execution.objects.filter(job_id=OuterRef("pk")).order_by("-job_id", "-id")
    return executions.values(column)[:1]


LATEST_ERROR: Final = {"latest_error": Subquery(latest("exception_class"))}
"""The exception class of a job's latest attempt. PostgreSQL reads it only for a query that uses it."""
