"""Show what fills a queue: the limits that hold its due jobs, and the tasks of these jobs.

The page of the queue calls it. The figures are those that its other tables need, but for the tasks of jobs without a
limit. The values of limit keys are shown only to users who may see arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.admin import private
from django_pgqueue.admin.charts import seconds_text
from django_pgqueue.admin.formatting import breakable, full_date, shortened
from django_pgqueue.admin.limits.words import WAITS
from django_pgqueue.admin.navigation import jobs_url, limit_url
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.display import number
from django_pgqueue.stats import Count, LimitWaitReason
from django_pgqueue.stats.overall import FIRST_OF_LANE

LISTED: Final = 10
"""Limits, limit keys and tasks that each table lists at most."""
ANCHOR: Final = "pgqueue-held"
"""The id of the table of limits. The number of held jobs links it."""


def held_context(request: HttpRequest, figures: stats.QueueFigures, queue_name: str) -> dict[str, Any]:
    """Return the limits that hold most jobs of a queue, and since when the oldest of all such jobs is due."""
    sums: defaultdict[str, list[tuple[Count, float, LimitWaitReason | None]]] = defaultdict(list)
    for key in figures.waiting_keys:
        for jobs in (each for each in key.of_queues if each.queue_name == queue_name):
            held = Count(jobs.held, key.is_exact)
            sums[private.shown_key(request, key.limit_key)].append((held, jobs.oldest_due_seconds, key.wait.reason))
    rows = [_row(request, shown, found) for shown, found in sums.items()]
    rows.sort(key=lambda row: -row["held"].value)
    oldest = max((row["seconds"] for row in rows), default=None)
    return {
        "held_id": ANCHOR,
        "held": rows[:LISTED],
        "held_since": "" if oldest is None else full_date(timezone.now() - timedelta(seconds=oldest)),
        "held_oldest": "" if oldest is None else seconds_text(oldest),
        "more_held": len(rows) > LISTED or not figures.has_all_keys,
    }


def _row(
    request: HttpRequest, shown: str, found: Iterable[tuple[Count, float, LimitWaitReason | None]]
) -> dict[str, Any]:
    held, seconds, reasons = zip(*found, strict=True)
    return {
        "label": breakable(shortened(shown)),
        "url": "" if is_chunk_key(shown) else limit_url(request, shown),
        "held": sum(held, start=Count()),
        "seconds": max(seconds),
        "oldest": seconds_text(max(seconds)),
        "waits": [WAITS[reason] for reason in dict.fromkeys(reasons) if reason is not None],
    }


def tasks_context(request: HttpRequest, alias: str, figures: stats.QueueFigures, queue_name: str) -> dict[str, Any]:
    """Return the tasks that have most of the due jobs of a queue. Runs at most one statement."""
    found = stats.due_tasks(figures, queue_name, alias).most_common()
    rows = [
        {
            "label": breakable(shortened(name)),
            "jobs": number(count),
            "url": jobs_url(request, "due", queue=queue_name, task=name),
        }
        for name, count in found[:LISTED]
    ]
    return {"due_tasks": rows, "more_tasks": len(found) > LISTED, "first_jobs": number(FIRST_OF_LANE)}
