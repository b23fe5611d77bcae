"""The pages *Queues* and *Queue*: each queue with its jobs, rates, workers and pause, and what to do with it.

The buttons post to `control_acts`. `queues.json` is the same document as that of `manage.py pgqueue queues --json`.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connections
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin.charts.axes import seconds_text
from django_pgqueue.admin.control_acts import button_context
from django_pgqueue.admin.formatting import breakable, shortened
from django_pgqueue.admin.links import allowed_url
from django_pgqueue.stats.unread import read_each

from . import activity
from .overview import unread_banners
from .page import ConsolePage
from .queue_rows import queue_rows


def _read(alias: str) -> stats.QueueFigures:
    return read_each(connections[alias], lambda figures: stats.queue_figures(alias, figures))


def _document(alias: str) -> dict[str, Any]:
    figures = _read(alias)
    return {"queues": figures.queues, **({"unread": figures.unread} if figures.unread else {})}


def _queues_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    figures = _read(alias)
    live = [worker for worker in figures.workers if worker.is_live]
    return {
        "rows": queue_rows(request, figures.queues, live),
        "banners": unread_banners(figures.unread),
        **button_context(request),
    }


def _queue_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    name = request.GET.get("queue", "")
    figures = _read(alias)
    queue = next((queue for queue in figures.queues if queue.name == name), None)
    if queue is None:
        raise Http404(_("No job, worker, pause or task uses the queue “%(name)s”.") % {"name": shortened(name)})
    live = [worker for worker in figures.workers if worker.is_live]
    lanes = [lane for lane in figures.lanes if lane.queue_name == name]
    past = activity.read_activity(request, alias, queue=name) if queue.finished_per_minute is not None else None
    return {
        "title": _("Queue %(name)s") % {"name": shortened(name)},
        "name": breakable(shortened(name)),
        "rows": queue_rows(request, [queue], live),
        "lanes": [(lane, seconds_text(lane.oldest_due_seconds or 0.0)) for lane in lanes],
        "queues_url": allowed_url(request, "queues"),
        "banners": unread_banners(figures.unread),
        **button_context(request),
        **(activity.context(request, past) if past else {}),
    }


QUEUES: Final = ConsolePage("queues", gettext_lazy("Queues"), _queues_context, document=_document)
QUEUE: Final = ConsolePage("queue", gettext_lazy("Queue"), _queue_context, place="queues")
