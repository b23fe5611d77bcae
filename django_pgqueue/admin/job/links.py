"""Links from the page of a job to what it belongs to: its task, its queue, its worker, and jobs that died like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import Count, Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from django_pgqueue.admin.formatting import breakable, visible
from django_pgqueue.admin.navigation import allowed_url
from django_pgqueue.display import number
from django_pgqueue.job_search import NO_CLASS
from django_pgqueue.job_search.filters import LATEST_ERROR
from django_pgqueue.models import Job
from django_pgqueue.states import State
from django_pgqueue.tasks import registry

ALIKE_SEARCHED: Final = 10_000
"""Dead jobs that are read at most."""


def task_link(request: HttpRequest, task_name: str) -> SafeString:
    """Return the name of a task as a link to its row on the page of tasks."""
    task, label = registry.get(task_name), breakable(task_name)
    url = allowed_url(request, "tasks")
    name = task_name if task is None else task.name
    return format_html('<a href="{}#task-{}">{}</a>', url, name, label) if url else label


def queue_link(request: HttpRequest, queue_name: str) -> SafeString | str:
    """Return the name of a queue as a link to its page."""
    url, label = allowed_url(request, "queue", queue=queue_name), visible(queue_name)
    return format_html('<a href="{}">{}</a>', url, label) if url else label


def worker_link(job: Job, attempts: Sequence[dict[str, Any]]) -> Any:
    """Return the worker that runs a job, as a link to its page; None if none does."""
    return (attempts[0]["worker_link"] or attempts[0]["worker"]) if attempts and job.state == State.RUNNING else None


def alike(request: HttpRequest, job: Job, failure: dict[str, Any] | None) -> dict[str, str] | None:
    """Return how many other jobs of the task died of the same class of exception, with a link; None without any.

    One statement reads the newest dead jobs that nobody has acknowledged, `ALIKE_SEARCHED` at most. If there are more,
    the number has a plus sign.
    """
    if job.state != State.DEAD or failure is None:
        return None
    error = failure["execution"].exception_class
    dead = Job.objects.using(job._state.db).dead()
    newest = dead.order_by("-finished_at", "-pk").annotate(**LATEST_ERROR)[:ALIKE_SEARCHED]
    is_alike = Q(task_name=job.task_name, latest_error=error) & ~Q(pk=job.pk)
    found = newest.aggregate(searched=Count("pk"), others=Count("pk", filter=is_alike))
    if not found["others"]:
        return None
    sign = "+" if found["searched"] == ALIKE_SEARCHED else ""
    text = ngettext(
        "%(count)s other of this task died of the same class of error",
        "%(count)s others of this task died of the same class of error",
        found["others"],
    )
    url = allowed_url(request, "incidents", task=job.task_name, error=error or NO_CLASS, since="all")
    return {"text": text % {"count": f"{number(found['others'])}{sign}"}, "url": url}
