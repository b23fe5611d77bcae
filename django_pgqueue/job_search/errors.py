"""Conditions on the exception class of a job's latest attempt."""

from __future__ import annotations

import re
from typing import Any, Final

from django.db.models import OuterRef, Q, QuerySet, Subquery

from django_pgqueue.models import Execution

from .filters import Filters

NO_CLASS: Final = "-"
"""The filter by exception class that finds jobs whose latest attempt was lost with its process or worker."""


def condition_on_error(filters: Filters) -> Q:
    """Return the condition on the exception class of the latest attempt."""
    return Q(latest_error__regex=error_pattern(filters.error)) if filters.error else Q()


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
