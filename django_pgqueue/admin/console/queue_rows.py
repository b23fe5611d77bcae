"""The rows of the tables of queues, on the overview and on the page *Queues*: figures as text, with their links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import bulk_acts, shown
from django_pgqueue.admin.charts.axes import number_text, seconds_text
from django_pgqueue.admin.formatting import breakable, pause_text, shortened
from django_pgqueue.admin.links import allowed_url, jobs_url
from django_pgqueue.states import State, TransitionName
from django_pgqueue.stats import Count, QueueStats, WorkerStats

STATES: Final = {
    "due": gettext_lazy("due"),
    "scheduled": gettext_lazy("scheduled"),
    "retrying": gettext_lazy("retrying"),
    "paused": gettext_lazy("paused"),
    "running": gettext_lazy("running"),
    "lost": gettext_lazy("lost"),
    "dead": gettext_lazy("dead"),
}
"""The states of the columns, and their labels."""
WAITING: Final = frozenset({"due", "scheduled", "retrying", "paused"})
LONG: Final = timedelta(days=365)


class StateCell(NamedTuple):
    """The number of jobs in one state, with a link to them unless it is 0."""

    state: str
    label: Promise | str
    jobs: Count
    url: str


class SlotsOf(NamedTuple):
    """The slots of one worker process."""

    worker: str
    busy: str
    version: str


class QueueRow(NamedTuple):
    """A queue as a table shows it."""

    queue: QueueStats
    name: str | SafeString
    url: str
    cells: Sequence[StateCell]
    oldest: str
    enqueued: str
    finished: str
    empties_in: str
    slots: str
    workers: Sequence[SlotsOf]
    pause: str
    """A sentence about its pause: the person, the end and the reason; "" if it is not paused."""
    pause_url: str
    """Its pause in the list of pauses; "" if the user may not see the list, or if the queue is not paused."""
    clear_url: str
    """The preview of a bulk act that cancels its waiting jobs; "" if none waits, or the user may not cancel jobs."""
    shown: str
    """The start of its pause as the forms send it, so that an act on another pause is refused."""

    @property
    def is_unserved(self) -> bool:
        """Whether jobs are due and no live worker serves the queue."""
        return bool(self.queue.due.value) and not self.queue.workers

    @property
    def still_running(self) -> Count:
        """The jobs that a paused queue still runs: at 0 it is drained."""
        return self.queue.running + self.queue.lost


def queue_rows(
    request: HttpRequest, queues: Iterable[QueueStats], workers: Sequence[WorkerStats] = ()
) -> list[QueueRow]:
    """Return the rows of queues. With the live workers, each row lists those that serve it."""
    return [_row(request, queue, [worker for worker in workers if worker.serves(queue.name)]) for queue in queues]


def _row(request: HttpRequest, queue: QueueStats, workers: Sequence[WorkerStats]) -> QueueRow:
    oldest, finished, pause = queue.oldest_due_seconds, queue.finished_per_minute, queue.pause
    return QueueRow(
        queue=queue,
        name=breakable(shortened(queue.name)),
        url=allowed_url(request, "queue", queue=queue.name),
        cells=[_cell(request, queue, state) for state in STATES],
        oldest="" if oldest is None else seconds_text(oldest),
        enqueued=number_text(queue.enqueued_per_minute),
        finished="" if finished is None else number_text(finished),
        empties_in=_empties_in(queue),
        slots=f"{queue.slots_busy:,} / {queue.slots_total:,}",
        workers=[_slots_of(worker) for worker in workers],
        pause=""
        if (pause := queue.pause) is None
        else pause_text(pause.paused_at, pause.by, pause.until, pause.reason),
        pause_url=allowed_url(request, "pause_changelist", kind="queue", name=queue.name) if queue.pause else "",
        clear_url=_clear_url(request, queue),
        shown="" if queue.pause is None else str(shown.number(queue.pause.paused_at)),
    )


def _cell(request: HttpRequest, queue: QueueStats, state: str) -> StateCell:
    count: Count = getattr(queue, state)
    return StateCell(state, STATES[state], count, jobs_url(request, state, queue=queue.name) if count.value else "")


def _clear_url(request: HttpRequest, queue: QueueStats) -> str:
    is_waiting = any(getattr(queue, state).value for state in WAITING)
    if not (is_waiting and bulk_acts.is_allowed(request, TransitionName.CANCEL)):
        return ""
    act = {"action": TransitionName.CANCEL, "state": State.READY, "queue": queue.name}
    return allowed_url(request, "bulk_preview", **act)


def _slots_of(worker: WorkerStats) -> SlotsOf:
    busy = f"{worker.slots_busy:,} / {worker.slots_total:,}"
    return SlotsOf(f"{shortened(worker.host)}:{worker.pid}", busy, shortened(worker.version))


def _empties_in(queue: QueueStats) -> str:
    """Return in what time no job is due, "grows", or "" if no job is due. A count that is cut gives a lower bound."""
    if not queue.due.value or queue.finished_per_minute is None:
        return ""
    seconds = queue.empties_in_seconds
    if seconds is None or seconds > LONG.total_seconds():
        return str(_("never at this rate"))
    return seconds_text(seconds) if queue.due.is_exact else f"> {seconds_text(seconds)}"
