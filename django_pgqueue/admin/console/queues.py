"""The pages *Queues* and *Queue*: each queue with its jobs, rates, workers and pause, and what to do with it.

The overview shows the same rows of queues. The buttons post to `buttons`. `queues.json` is the same document as
that of `manage.py pgqueue queues --json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import connections
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin import bulk_acts, shown
from django_pgqueue.admin.buttons import button_context
from django_pgqueue.admin.charts import number_text, seconds_text
from django_pgqueue.admin.formatting import LABELS, breakable, pause_text, shortened
from django_pgqueue.admin.navigation import allowed_url, jobs_url
from django_pgqueue.states import State, TransitionName
from django_pgqueue.stats import Count, Depth, LaneStats, QueueStats, WorkerStats
from django_pgqueue.stats.overall import STATES_OF_LANES
from django_pgqueue.stats.unread import read_each

from . import activity
from .page import ConsolePage, unread_banners

STATES: Final = ("due", "held", "scheduled", "retrying", "unknown", "paused", "running", "lost", "dead")
"""The states of the columns."""
RARE: Final = frozenset({"held", "unknown"})
"""The states that have no column if no queue of the table has such jobs."""
WAITING: Final = frozenset({"due", "held", "scheduled", "retrying", "unknown", "paused"})
LABELS_OF_STATES: Final = {**LABELS, "held": gettext_lazy("held"), "unknown": gettext_lazy("unknown")}
LONG: Final = timedelta(days=365)


def _read(alias: str) -> stats.QueueFigures:
    return read_each(connections[alias], lambda figures: stats.queue_figures(alias, figures))


def _document(alias: str) -> dict[str, Any]:
    figures = _read(alias)
    return {"queues": figures.queues, **({"unread": figures.unread} if figures.unread else {})}


def _queues_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    figures = _read(alias)
    return {**_common(request, figures), "rows": queue_rows(request, figures.queues, figures.workers)}


def _common(request: HttpRequest, figures: stats.QueueFigures) -> dict[str, Any]:
    return {"banners": unread_banners(figures.unread), **button_context(request)}


def _queue_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    name = request.GET.get("queue", "")
    figures = _read(alias)
    queue = next((queue for queue in figures.queues if queue.name == name), None)
    if queue is None:
        raise Http404(_("No job, worker, pause or task uses the queue “%(name)s”.") % {"name": shortened(name)})
    lanes = [lane for lane in figures.lanes if lane.queue_name == name]
    has_figures = queue.finished_per_minute is not None
    return {
        **_common(request, figures),
        "title": _("Queue %(name)s") % {"name": shortened(name)},
        "name": breakable(shortened(name)),
        "rows": queue_rows(request, [queue], figures.workers),
        **_lanes(lanes),
        "queues_url": allowed_url(request, "queues"),
        **(activity.activity_context(request, alias, queue=name) if has_figures else {}),
    }


def _lanes(lanes: Sequence[LaneStats]) -> dict[str, Any]:
    """Return the table of the lanes: its headings, and for each lane its priority and its figures."""
    states = [state for state in shown_states(lanes) if state in STATES_OF_LANES]
    return {
        "headings": [LABELS_OF_STATES[state] for state in states],
        "lanes": [
            {
                "priority": lane.priority,
                "oldest": "" if lane.oldest_due_seconds is None else seconds_text(lane.oldest_due_seconds),
                "counts": [getattr(lane, state) for state in states],
            }
            for lane in lanes
        ],
    }


# ---------------------------------------------------------------------------- rows


def queue_rows(
    request: HttpRequest, queues: Iterable[QueueStats], workers: Iterable[WorkerStats] = ()
) -> list[dict[str, Any]]:
    """Return the rows of queues. With workers, each row lists the live ones that serve it."""
    live, found = [worker for worker in workers if worker.is_live], list(queues)
    states = shown_states(found)
    return [_row(request, queue, states, [worker for worker in live if worker.serves(queue.name)]) for queue in found]


def shown_states(depths: Sequence[Depth | LaneStats]) -> list[str]:
    """Return the states that have a column in a table of these queues or lanes."""
    return [state for state in STATES if state not in RARE or any(getattr(each, state).value for each in depths)]


def _row(
    request: HttpRequest, queue: QueueStats, states: Iterable[str], workers: Sequence[WorkerStats]
) -> dict[str, Any]:
    oldest, finished = queue.oldest_due_seconds, queue.finished_per_minute
    return {
        "queue": queue,
        "name": breakable(shortened(queue.name)),
        "url": allowed_url(request, "queue", queue=queue.name),
        "cells": [_cell(request, queue, state) for state in states],
        "oldest": "" if oldest is None else seconds_text(oldest),
        "enqueued": number_text(queue.enqueued_per_minute),
        "finished": "" if finished is None else number_text(finished),
        "empties_in": _empties_in(queue),
        "slots": f"{queue.slots_busy:,} / {queue.slots_total:,}",
        "workers": [_slots_of(worker) for worker in workers],
        "is_unserved": queue.is_unserved,
        "still_running": queue.running + queue.prefetched + queue.lost,  # of a paused queue: at 0 it is drained
        "clear_url": _clear_url(request, queue),
        **_pause_of(request, queue),
    }


def _pause_of(request: HttpRequest, queue: QueueStats) -> dict[str, str]:
    """Return a sentence about the pause of a queue, its URL, and its start as the forms send it; "" if there is none.

    An act on another pause than that of the form is refused.
    """
    pause = queue.pause
    if pause is None:
        return {"pause": "", "pause_url": "", "shown": ""}
    return {
        "pause": pause_text(pause.paused_at, pause.by, pause.until, pause.reason),
        "pause_url": allowed_url(request, "pause_changelist", kind="queue", name=queue.name),
        "shown": str(shown.number(pause.paused_at)),
    }


def _cell(request: HttpRequest, queue: QueueStats, state: str) -> dict[str, Any]:
    """Return the number of jobs in one state, with a link to them unless it is 0."""
    jobs: Count = getattr(queue, state)
    note = prefetched_note(queue) if state == "running" else ""
    url = _cell_url(request, queue, state) if jobs.value or note else ""
    return {"state": state, "label": LABELS_OF_STATES[state], "jobs": jobs, "url": url, "note": note}


def _cell_url(request: HttpRequest, queue: QueueStats, state: str) -> str:
    """Return the URL of the jobs in one state. Held jobs have that of the limits, which say what holds them."""
    if state == "held":
        return allowed_url(request, "limits")
    return jobs_url(request, "ready" if state == "unknown" else state, queue=queue.name)


def prefetched_note(depth: Depth) -> str:
    """Return how many jobs are claimed and do not run yet; "" if there are none."""
    return _("%(count)s claimed, waiting for a slot") % {"count": depth.prefetched} if depth.prefetched.value else ""


def _clear_url(request: HttpRequest, queue: QueueStats) -> str:
    """Return the preview of a bulk act that cancels the waiting jobs; "" if none waits, or the user may not cancel."""
    is_waiting = any(getattr(queue, state).value for state in WAITING)
    if not (is_waiting and bulk_acts.is_allowed(request, TransitionName.CANCEL)):
        return ""
    act = {"action": TransitionName.CANCEL, "state": State.READY, "queue": queue.name}
    return allowed_url(request, "bulk_preview", **act)


def _slots_of(worker: WorkerStats) -> dict[str, str]:
    busy = f"{worker.slots_busy:,} / {worker.slots_total:,}"
    return {"worker": f"{shortened(worker.host)}:{worker.pid}", "busy": busy, "version": shortened(worker.version)}


def _empties_in(queue: QueueStats) -> str:
    """Return in what time no job is due, "grows", or "" if no job is due. A count that is cut gives a lower bound."""
    if not queue.due.value or queue.finished_per_minute is None:
        return ""
    seconds = queue.empties_in_seconds
    if seconds is None or seconds > LONG.total_seconds():
        return str(_("never at this rate"))
    return seconds_text(seconds) if queue.due.is_exact else f"> {seconds_text(seconds)}"


QUEUES: Final = ConsolePage("queues", gettext_lazy("Queues"), _queues_context, document=_document)
QUEUE: Final = ConsolePage("queue", gettext_lazy("Queue"), _queue_context, place="queues")
