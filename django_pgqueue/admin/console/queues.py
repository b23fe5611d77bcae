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
from django_pgqueue.admin.charts import rate_text, seconds_text
from django_pgqueue.admin.formatting import LABELS, breakable, count_note, pause_text, shortened
from django_pgqueue.admin.navigation import allowed_url, jobs_url
from django_pgqueue.display import number
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import State, TransitionName
from django_pgqueue.stats import Count, Depth, LaneStats, Overview, QueueStats, WorkerStats
from django_pgqueue.stats.answers import NONE
from django_pgqueue.stats.overall import STATES_OF_LANES
from django_pgqueue.stats.unread import read_each

from . import activity
from .held_jobs import ANCHOR, held_context, tasks_context
from .page import ConsolePage, unread_banners

STATES: Final = ("due", "held", "scheduled", "retrying", "unknown", "paused", "running", "lost", "dead")
"""The states of the columns."""
ALWAYS: Final = frozenset({"due", "running"})
"""The states that have a column also if no queue of the table has such jobs."""
WAITING: Final = frozenset({"due", "held", "scheduled", "retrying", "unknown", "paused"})
LABELS_OF_STATES: Final = {**LABELS, "held": gettext_lazy("held")}
LONG: Final = timedelta(days=365)


def _read(alias: str) -> stats.QueueFigures:
    return read_each(connections[alias], lambda figures: stats.queue_figures(alias, figures))


def _document(request: HttpRequest, alias: str) -> dict[str, Any]:
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
    return {
        **_common(request, figures),
        "title": _("Queue %(name)s") % {"name": shortened(name)},
        "name": breakable(shortened(name)),
        "rows": queue_rows(request, [queue], figures.workers),
        **_lanes(lanes),
        **held_context(request, figures, name),
        **tasks_context(request, alias, figures, name),
        "has_lanes": "ready" not in figures.unread,
        "has_paused": bool(queue.paused.value),
        "queues_url": allowed_url(request, "queues"),
        **(activity.activity_context(request, alias, queue=name) if get_settings().STATS else {}),
    }


def _lanes(lanes: Sequence[LaneStats]) -> dict[str, Any]:
    """Return the table of the lanes: its headings, and for each lane its priority and its figures."""
    states = shown_states(lanes, STATES_OF_LANES)
    return {
        "headings": [LABELS_OF_STATES[state] for state in states],
        "lanes": [
            {
                "priority": lane.priority,
                "oldest": "" if lane.oldest_due_seconds is None else seconds_text(lane.oldest_due_seconds),
                "counts": [(count, count_note(count)) for count in (getattr(lane, state) for state in states)],
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
    states = shown_states(found, STATES)
    return [_row(request, queue, states, [worker for worker in live if worker.serves(queue.name)]) for queue in found]


def shown_states(depths: Sequence[Depth | LaneStats], states: Iterable[str]) -> list[str]:
    """Return which of some states have a column in a table of these queues or lanes."""
    return [state for state in states if state in ALWAYS or any(getattr(each, state) != NONE for each in depths)]


def _row(
    request: HttpRequest, queue: QueueStats, states: Iterable[str], workers: Sequence[WorkerStats]
) -> dict[str, Any]:
    oldest = queue.oldest_due_seconds
    return {
        "queue": queue,
        "name": breakable(shortened(queue.name)),
        "url": allowed_url(request, "queue", queue=queue.name),
        "cells": [_cell(request, queue, state) for state in states],
        "oldest": "" if oldest is None else seconds_text(oldest),
        "enqueued": rate_text(queue.enqueued_per_minute, is_estimate=queue.enqueued_is_estimate),
        "finished": rate_text(queue.finished_per_minute),
        "empties_in": _empties_in(queue),
        "slots": slots_text(queue),
        "workers": [_slots_of(worker, busy_is_known=queue.slots_busy is not None) for worker in workers],
        "has_workers": queue.workers != 0,
        "is_unserved": queue.is_unserved or (queue.workers == 0 and bool(queue.paused.value)),
        "still_running": queue.running + queue.prefetched + queue.lost,  # of a paused queue: at 0 it is drained
        "list_url": jobs_url(request, "paused", queue=queue.name) if queue.pause and queue.paused.value else "",
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
    note = NOTES[state](queue) if state in NOTES else ""
    url = _cell_url(request, queue, state) if jobs.value or note else ""
    label, title = LABELS_OF_STATES[state], count_note(jobs)
    return {"state": state, "label": label, "jobs": jobs, "url": url, "note": note, "title": title}


def _cell_url(request: HttpRequest, queue: QueueStats, state: str) -> str:
    """Return the URL of the jobs in one state. Held jobs have that of the limits that hold them."""
    if state == "held":
        url = allowed_url(request, "queue", queue=queue.name)
        return f"{url}#{ANCHOR}" if url else ""
    return jobs_url(request, state, queue=queue.name)


def prefetched_note(depth: Depth) -> str:
    """Return a text with the number of jobs that wait in a worker for a free slot; "" if no job does."""
    return _("%(count)s claimed, waiting for a slot") % {"count": depth.prefetched} if depth.prefetched.value else ""


def held_note(depth: Depth) -> str:
    """Return a text with the number of due jobs that are held, which the list of due jobs has too; "" if none is."""
    return _("%(count)s held, in the same list") % {"count": depth.held} if depth.held.value else ""


NOTES: Final = {"due": held_note, "running": prefetched_note}
"""Functions of states that return what the list of the jobs has and their number does not count."""


def _clear_url(request: HttpRequest, queue: QueueStats) -> str:
    """Return the preview of a bulk act that cancels the waiting jobs; "" if none waits, or the user may not cancel."""
    is_waiting = any(getattr(queue, state).value for state in WAITING)
    if not (is_waiting and bulk_acts.is_allowed(request, TransitionName.CANCEL)):
        return ""
    act = {"action": TransitionName.CANCEL, "state": State.READY, "queue": queue.name}
    return allowed_url(request, "bulk_preview", **act)


def figure_text(value: int | None) -> str:
    """Return a number, or a dash if it is not known."""
    return "–" if value is None else number(value)


def slots_text(figures: QueueStats | Overview) -> str:
    """Return how many slots are busy, and how many there are."""
    return f"{figure_text(figures.slots_busy)} / {figure_text(figures.slots_total)}"


def _slots_of(worker: WorkerStats, *, busy_is_known: bool) -> dict[str, str]:
    busy = f"{figure_text(worker.slots_busy if busy_is_known else None)} / {number(worker.slots_total)}"
    return {"worker": f"{shortened(worker.host)}:{worker.pid}", "busy": busy, "version": shortened(worker.version)}


def _empties_in(queue: QueueStats) -> str:
    """Return in what time no job is due, or "" if no job is due. A count that is cut gives a lower bound."""
    if not queue.due.value or queue.finished_per_minute is None or queue.enqueued_per_minute is None:
        return ""
    seconds = queue.empties_in_seconds
    if seconds is None or seconds > LONG.total_seconds():
        return str(_("never at this rate"))
    sign = ("" if queue.due.is_exact else "> ") + ("≈ " if queue.enqueued_is_estimate else "")
    return f"{sign}{seconds_text(seconds)}"


QUEUES: Final = ConsolePage("queues", gettext_lazy("Queues"), _queues_context, document=_document)
QUEUE: Final = ConsolePage("queue", gettext_lazy("Queue"), _queue_context, place="queues")
