"""The dead job that blocks an ordered limit key, and the operations that unblock the key: retry, acknowledge, delete.

The page of a job and the pages of limits show it. All queries read the index of ordered jobs, in the order in which the
jobs of a key run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db.models import Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.http import HttpRequest

from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import moment_ago, shortened
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.db.fields import statement_time
from django_pgqueue.declared.limits import name_of
from django_pgqueue.models import Job
from django_pgqueue.models.job_indexes import IN_ORDER
from django_pgqueue.states import State
from django_pgqueue.stats import Count

from .actions import ACKNOWLEDGE, DELETE, RETRY, offered

BLOCKS: Final = 2
"""The value of `limit_order` of a job that blocks its key when it is dead, until it is acknowledged."""
UNBLOCKED: Final = 3
"""Its value when the job has blocked its key and was acknowledged."""
COUNTED: Final = 1_000
"""Jobs behind a dead one that are counted."""
DEAD_SEARCHED: Final = 10_000
"""Latest dead jobs that are searched for those that block a key. It takes about 10 ms."""


def blocker_of(request: HttpRequest, job: Job) -> dict[str, Any] | None:
    """Return the dead job that keeps a ready job of an ordered key from starting; None if there is none."""
    if job.state != State.READY or job.limit_order is None:
        return None
    first = _in_order(job._state.db, job.limit_key).first()
    return _blocker(request, first) if first is not None and first.state == State.DEAD else None


def blockers(request: HttpRequest, alias: str, job_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return those of some jobs that are dead and block their key, by id."""
    jobs = _readable(alias).filter(pk__in=list(job_ids), state=State.DEAD, limit_order=BLOCKS)
    return {job.pk: _blocker(request, job) for job in jobs}


def blocked_by(job: Job) -> Count | None:
    """Return how many jobs of its key a dead job blocks; None if it blocks none."""
    if job.state != State.DEAD or job.limit_order != BLOCKS:
        return None
    count = _in_order(job._state.db, job.limit_key).filter(pk__gt=job.pk).order_by()[: COUNTED + 1].count()
    return Count(min(count, COUNTED), count <= COUNTED) if count else None


def blocked_keys(alias: str, name: str | None = None) -> tuple[list[str], bool]:
    """Return the keys that the latest dead jobs block, in their order, and whether all dead jobs were searched.

    Args:
        alias: The database.
        name: The name of a limit. By default the keys of all limits are returned.
    """
    dead = Job.objects.using(alias).dead()
    latest = dead.annotate(place=Window(RowNumber(), order_by=["-finished_at"])).filter(place__lte=DEAD_SEARCHED + 1)
    kept = latest.filter(Q(limit_order=BLOCKS, limit_key__isnull=False) | Q(place=DEAD_SEARCHED + 1))
    found = list(kept.values_list("limit_key", "place"))
    keys = {key for key, place in found if place <= DEAD_SEARCHED}
    is_complete = all(place <= DEAD_SEARCHED for _, place in found)
    return sorted(key for key in keys if key and name in (None, name_of(key))), is_complete


def _in_order(alias: str | None, limit_key: str | None) -> QuerySet[Job]:
    """Return the jobs of an ordered key that have not ended or block it, in the order in which they run."""
    return _readable(alias).filter(IN_ORDER, limit_key=limit_key).order_by("pk")


def _readable(alias: str | None) -> QuerySet[Job]:
    """Return jobs without the columns that Python may be unable to decode."""
    return Job.objects.using(alias).defer("arguments", "headers", "result").annotate(seen_at=statement_time())


def _blocker(request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return a job that blocks its key as a page shows it, with the operations that end the block and are allowed."""
    url = page_url(request, "job_change", job.pk)
    return {
        "job": job,
        "label": shortened(str(job)),
        "url": url,
        "died": moment_ago(job.finished_at, job),
        "operations": offered(request, job, (RETRY, ACKNOWLEDGE, DELETE)) if url else [],
        "shown": shown.fields(job),
    }
