"""Filters of the lists, each over an index, or over the newest jobs where there is none.

Django's own filters on a column run `SELECT DISTINCT` over the whole table for their choices (60 ms on a million
rows), and `date_hierarchy` counts days (227 ms).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.db import connections
from django.db.models import DurationField, QuerySet, Value
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext as _text
from django.utils.translation import gettext_lazy as _

from django_pgqueue import lifecycle, registry, stats
from django_pgqueue.db import clock
from django_pgqueue.models import DeadJob, Execution, Job
from django_pgqueue.states import FINISHED, State

from .words import breakable, shortened

NEWEST: Final = 100_000
"""Jobs, by id, that are looked at first where no index leads to a name: the columns of unfinished jobs have none."""

WINDOWS: Final = (NEWEST, 2_000_000)
"""How far back a name is looked for: the second only if the first has none. A million rows take about 0.2 s."""

IN_LINE: Final = 1_000
"""Due or scheduled jobs that are listed, of all lanes."""

SECONDS: Final = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}

_names: WeakKeyDictionary[HttpRequest, stats.Names] = WeakKeyDictionary()


class Window(NamedTuple):
    """The jobs among which a name was looked for, and what a title says of them; "" if that is all jobs."""

    queryset: QuerySet[Any]
    words: Any


def among_newest(queryset: QuerySet[Any], **condition: str) -> Window:
    """Return the jobs that meet a condition without an index, from as far back as it takes to find one.

    Where the newest jobs have none, older ones are looked at. So a name that some jobs have is not answered by
    "0 jobs", unless all of them are older than the last window; then the words say what was not looked at.
    """
    last_id = stats.last_id(connections[queryset.db])
    first_id = stats.first_id(connections[queryset.db])
    high = last_id
    for size in WINDOWS:
        low = last_id - size
        found = queryset.filter(pk__gt=low, pk__lte=high, **condition)
        if size == WINDOWS[-1] or low < first_id or found.order_by("-pk").values_list("pk", flat=True)[:1]:
            break
        high = low
    if low < first_id:
        return Window(found, "")
    return Window(found, _text("among the newest %(count)s jobs") % {"count": f"{size:,}"})


def _names_of(request: HttpRequest, queryset: QuerySet[Any]) -> stats.Names:
    """Return the names to choose from, read once a request for both filters."""
    if request not in _names:
        _names[request] = stats.names(connections[queryset.db])
    return _names[request]


DUE: Final = "due"
SCHEDULED: Final = "scheduled"


def in_line(queryset: QuerySet[Any], *, is_due: bool, queue_name: str | None) -> QuerySet[Any]:
    """Return the ready jobs that are due, or those that are due later: the first `IN_LINE`, lane by lane.

    A lane is one queue at one priority, and a range of the index. All lanes in one condition would read every scheduled
    job on the way to those that are due.
    """
    ids: list[int] = []
    now = Now() + Value(timedelta(seconds=clock.shift_seconds), DurationField())
    waiting = Job.objects.using(queryset.db).filter(state="ready", limit_key__isnull=True)
    for lane in lifecycle.look(connections[queryset.db]).due_in:
        if queue_name is None or lane.queue_name == queue_name:
            jobs = waiting.filter(queue_name=lane.queue_name, priority=lane.priority)
            jobs = jobs.filter(run_after__lte=now) if is_due else jobs.filter(run_after__gt=now)
            ids += jobs.order_by("run_after", "pk").values_list("pk", flat=True)[: IN_LINE - len(ids)]
        if len(ids) >= IN_LINE:
            break
    return queryset.filter(pk__in=ids, state="ready")


class StateFilter(admin.SimpleListFilter):
    """Jobs in one state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, Any]]:
        """Return the states that an act leads to."""
        states = [(state.value, state.value) for state in State if state is not State.WAITING]
        return [states[0], (DUE, _("ready: due")), (SCHEDULED, _("ready: scheduled")), *states[1:]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Add the condition, with what the partial index of that state asks for."""
        state = self.value()
        if state is None:
            return queryset
        if state in FINISHED:
            return queryset.filter(state=state, finished_at__isnull=False)
        if state in (DUE, SCHEDULED):
            return in_line(queryset, is_due=state == DUE, queue_name=request.GET.get("queue"))
        if state == State.READY:
            return queryset.filter(state="ready", limit_key__isnull=True)
        if state == State.RUNNING:
            running = Execution.objects.using(queryset.db).filter(finished_at__isnull=True)
            return queryset.filter(state="running", pk__in=running.values("job_id"))
        return queryset.none()


class NameFilter(admin.SimpleListFilter):
    """Jobs with one name in one column; base of the filters by queue and by task."""

    column: str
    indexed_states: frozenset[str]
    """States whose jobs are found without looking at all of them: for these it is exact, for others over the newest."""

    def names(self, request: HttpRequest, queryset: QuerySet[Any]) -> set[str]:
        """Return the names to choose from."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """Return the names to choose from, and the one chosen, also if no job has it any more."""
        names = self.names(request, model_admin.get_queryset(request))
        chosen = self.used_parameters.get(self.parameter_name or "")
        return [(name, breakable(shortened(name))) for name in sorted(names | ({str(chosen)} if chosen else set()))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Add the condition; the title says so where it is over the newest jobs only."""
        name = self.value()
        if name is None:
            return queryset
        if "\0" in name:
            return queryset.none()  # PostgreSQL has no such text, and psycopg refuses to ask
        if self._is_indexed(request, queryset):
            return queryset.filter(**{self.column: name})
        found, words = among_newest(queryset, **{self.column: name})
        if words:
            self.title = f"{self.title}, {words}"
        return found

    def _is_indexed(self, request: HttpRequest, queryset: QuerySet[Any]) -> bool:
        return issubclass(queryset.model, DeadJob) or request.GET.get("state") in self.indexed_states


class QueueFilter(NameFilter):
    """Jobs in one queue."""

    title = _("queue")
    parameter_name = "queue"
    column = "queue_name"
    indexed_states = frozenset({State.READY, DUE, SCHEDULED, State.RUNNING, State.DEAD})

    def names(self, request: HttpRequest, queryset: QuerySet[Any]) -> set[str]:
        """Return the queues of jobs and of registered tasks."""
        return {*_names_of(request, queryset).queues, *(task.queue_name for task in registry.all_tasks())}


class TaskFilter(NameFilter):
    """Jobs of one task."""

    title = _("task")
    parameter_name = "task"
    column = "task_name"
    indexed_states = frozenset({*FINISHED, DUE, SCHEDULED})

    def names(self, request: HttpRequest, queryset: QuerySet[Any]) -> set[str]:
        """Return the tasks of jobs and the registered ones."""
        return {*_names_of(request, queryset).tasks, *(task.name for task in registry.all_tasks())}


class _Past(admin.SimpleListFilter):
    """The past hour, day or week."""

    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, Any]]:
        """Return the three spans."""
        return [("hour", _("Past hour")), ("day", _("Past 24 hours")), ("week", _("Past 7 days"))]

    def seconds(self) -> float | None:
        """Return the chosen span."""
        return SECONDS.get(self.value() or "")


class EnqueuedFilter(_Past):
    """Jobs enqueued lately: an interval of ids, as these rise with the time."""

    title = _("time of enqueuing")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Add the condition."""
        seconds = self.seconds()
        if seconds is None:
            return queryset
        first_id = stats.first_id_since(connections[queryset.db], seconds)
        return queryset.none() if first_id is None else queryset.filter(pk__gte=first_id)


class DiedFilter(_Past):
    """Dead letters by when they died."""

    title = _("time of death")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Add the condition."""
        seconds = self.seconds()
        return queryset if seconds is None else queryset.filter(finished_at__gte=Now() - timedelta(seconds=seconds))
