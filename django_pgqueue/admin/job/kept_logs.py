"""Read and format the log lines of a job's executions for the page of the job.

The page calls it. SQL cuts long values, as it does for the rest of the page. JSON that was cut shows no lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from django.db.models import Exists, OuterRef, TextField
from django.db.models.functions import Cast, Left
from django.utils.translation import gettext as _

from django_pgqueue.admin.formatting import full_date, visible
from django_pgqueue.ground.job_log import HALF_CHARACTERS, LogLine, as_lines
from django_pgqueue.models import ExecutionLog, Job

LOGS_SHOWN: Final = 5
"""How many executions show their lines, the latest first. Each can have 64 Ki characters."""
TEXT_LIMIT: Final = 16 * HALF_CHARACTERS
"""Characters of each column that are read. JSON escapes can make a text six times longer."""
LOUD: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})


class ShownLine(NamedTuple):
    """A line as the page shows it, and whether it needs attention."""

    text: str
    is_loud: bool = False


HAS_LOG: Final = Exists(ExecutionLog.objects.filter(pk=OuterRef("pk")))
"""Annotates executions with whether they have lines, so that a page without lines needs no further query."""


def read_logs(job: Job, execution_ids: Iterable[int]) -> dict[int, list[ShownLine]]:
    """Return the lines of the latest of these executions, which all have some, by the id of the execution."""
    latest = sorted(execution_ids, reverse=True)[:LOGS_SHOWN]
    if not latest:
        return {}
    first, last = (Left(Cast(name, TextField()), TEXT_LIMIT) for name in ("first_lines", "last_lines"))
    rows = ExecutionLog.objects.using(job._state.db).filter(pk__in=latest)
    return {pk: _shown(*columns) for pk, *columns in rows.values_list("pk", first, last, "cut_lines")}


def _shown(first: str, last: str, cut_lines: int) -> list[ShownLine]:
    note = [ShownLine(_("[… %(count)d lines were not kept …]") % {"count": cut_lines})] if cut_lines else []
    return [*map(_shown_line, _lines(first)), *note, *map(_shown_line, _lines(last))]


def _lines(text: str) -> list[LogLine]:
    with suppress(ValueError, RecursionError):  # the text was cut, or the row was written by hand
        return as_lines(json.loads(text))
    return []


def _shown_line(line: LogLine) -> ShownLine:
    at = f"{full_date(line.at)}.{line.at.microsecond // 1000:03}"
    text = f"{at} {line.level} {line.logger}: {line.message}"
    return ShownLine(visible(text), line.level in LOUD)
