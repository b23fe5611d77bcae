"""Filters of the admin's lists. Each one uses an index or, where none exists, searches only the newest jobs.

Used by `jobs`. Django's own filters are too slow for this table: on a million rows, the choices of a column filter
come from `SELECT DISTINCT` over the whole table (60 ms), and `date_hierarchy` counts days (227 ms).
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
from django_pgqueue.db.statements import clock
from django_pgqueue.models import DeadJob, Execution, Job
from django_pgqueue.states import FINISHED, State

from .formatting import breakable, shortened

NEWEST: Final = 100_000
"""Newest jobs, by id, that are searched first for a name without an index (unfinished jobs have none by name)."""

WINDOWS: Final = (NEWEST, 2_000_000)
"""How many ids back to search for a name. The second window is searched only if the first one has no match.

A million rows take about 0.2 s.
"""

IN_LINE: Final = 1_000
"""Due or scheduled jobs listed at most, over all lanes."""

SECONDS: Final = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}

_names: WeakKeyDictionary[HttpRequest, stats.Names] = WeakKeyDictionary()


class Window(NamedTuple):
    """The matching jobs, and the part of the table that was searched for them."""

    queryset: QuerySet[Any]
    scope: str
    """Shown in the filter's title; "" if all jobs were searched."""


def among_newest(queryset: QuerySet[Any], **condition: str) -> Window:
    """Return the jobs that meet a condition that has no index, from the newest window that has such a job.

    If the newest jobs have no match, older jobs are searched. The answer is therefore "0 jobs" for an existing name
    only if all its jobs are older than the last window. In that case `scope` says how many jobs were searched.
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
    """Return the names to choose from. They are read once per request, for both name filters."""
    if request not in _names:
        _names[request] = stats.names(connections[queryset.db])
    return _names[request]


DUE: Final = "due"
SCHEDULED: Final = "scheduled"


def in_line(queryset: QuerySet[Any], *, is_due: bool, queue_name: str | None) -> QuerySet[Any]:
    """Return the first `IN_LINE` ready jobs that are due now, or the first that are due later, lane by lane.

    A lane is one queue at one priority, and one range of the index. Each lane has a query of its own, because one
    condition over all lanes would read every scheduled job to find the due ones.
    """
    ids: list[int] = []
    now = Now() + Value(timedelta(seconds=clock.shift_seconds), DurationField())
    waiting = Job.objects.using(queryset.db).filter(state="ready", limit_key__isnull=True)
    for lane in lifecycle.scan_lanes(connections[queryset.db]).due_in:
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
        """Return the states to choose from. `waiting` is left out because no transition leads to it."""
        states = [(state.value, state.value) for state in State if state is not State.WAITING]
        return [states[0], (DUE, _("ready: due")), (SCHEDULED, _("ready: scheduled")), *states[1:]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the state, with the condition of that state's partial index, so that PostgreSQL can use it."""
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
    """Jobs with one name in one column. Base class of the filters by queue and by task."""

    column: str
    indexed_states: frozenset[str]
    """Values of the state filter for which an index finds all jobs. For others, only the newest jobs are searched."""

    def names(self, request: HttpRequest, queryset: QuerySet[Any]) -> set[str]:
        """Return the names to choose from."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """Return the names to choose from. The chosen name is among them even if no job has it any more."""
        names = self.names(request, model_admin.get_queryset(request))
        chosen = self.used_parameters.get(self.parameter_name or "")
        return [(name, breakable(shortened(name))) for name in sorted(names | ({str(chosen)} if chosen else set()))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the name. If only the newest jobs were searched, the filter's title says so."""
        name = self.value()
        if name is None:
            return queryset
        if "\0" in name:
            return queryset.none()  # PostgreSQL text cannot contain NUL, and psycopg raises an error for it
        if self._is_indexed(request, queryset):
            return queryset.filter(**{self.column: name})
        found, scope = among_newest(queryset, **{self.column: name})
        if scope:
            self.title = f"{self.title}, {scope}"
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
        return {*_names_of(request, queryset).queues, *(task.queue_name for task in registry.all_tasks())}


class TaskFilter(NameFilter):
    """Jobs of one task."""

    title = _("task")
    parameter_name = "task"
    column = "task_name"
    indexed_states = frozenset({*FINISHED, DUE, SCHEDULED})

    def names(self, request: HttpRequest, queryset: QuerySet[Any]) -> set[str]:
        return {*_names_of(request, queryset).tasks, *(task.name for task in registry.all_tasks())}


class _Past(admin.SimpleListFilter):
    """Base class of the filters by time: the past hour, day or week."""

    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, Any]]:
        return [("hour", _("Past hour")), ("day", _("Past 24 hours")), ("week", _("Past 7 days"))]

    def seconds(self) -> float | None:
        """Return the chosen time span in seconds; None if none is chosen."""
        return SECONDS.get(self.value() or "")


class EnqueuedFilter(_Past):
    """Jobs enqueued recently. Ids increase with time, so the filter is a range of ids."""

    title = _("time of enqueuing")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        seconds = self.seconds()
        if seconds is None:
            return queryset
        first_id = stats.first_id_since(connections[queryset.db], seconds)
        return queryset.none() if first_id is None else queryset.filter(pk__gte=first_id)


class DiedFilter(_Past):
    """Dead letters by their time of death."""

    title = _("time of death")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        seconds = self.seconds()
        return queryset if seconds is None else queryset.filter(finished_at__gte=Now() - timedelta(seconds=seconds))
